"""On a CUDA device, with networks this project did not write. Skipped where there is none."""

import importlib
import subprocess
import sys

import numpy as np
import pytest
import torch

import mlnt
import mlnt.models
from mlnt.bench.rows import Case, time_case
from mlnt.device import is_shared
from mlnt.meta.folded import folded_meta_gradient
from mlnt.meta.plain import plain_meta_gradient
from mlnt.meta.tolerance import zero_unless_finite
from waiting import no_waiting

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def library(name: str) -> object:
    try:
        return importlib.import_module(name)
    except Exception as error:  # built for another torch: RuntimeError
        pytest.skip(f"{name} cannot be imported: {error}")


def images(count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes told apart by their colour."""
    generator = np.random.default_rng(0)
    labels = np.arange(count) % 3
    pixels = generator.normal(size=(count, 3, size, size)).astype(np.float32)
    pixels[np.arange(count), labels] += 1.5
    return pixels, labels


def test_gradient_on_the_gpu_is_that_on_the_cpu() -> None:
    torch.manual_seed(0)
    model = mlnt.models.SmallConv(3, 3).double()
    pixels = torch.from_numpy(images(24, 8)[0]).double()
    synthetic_MB = torch.randint(3, (4, 24))
    target_BC = torch.randn(24, 3, dtype=torch.float64).softmax(dim=1)
    for order in (1, 2):
        cpu = plain_meta_gradient(model, pixels, synthetic_MB, target_BC, 0.2, order)
        arguments = (model.cuda(), pixels.cuda(), synthetic_MB.cuda(), target_BC.cuda(), 0.2, order)
        for gpu in (plain_meta_gradient(*arguments), folded_meta_gradient(*arguments)):
            for name, expected in cpu[1].items():
                torch.testing.assert_close(gpu[1][name].cpu(), expected, rtol=1e-8, atol=1e-12)
        model.cpu()


def test_a_batch_with_a_nan_in_it_moves_nothing_and_waits_for_nothing() -> None:
    torch.manual_seed(0)
    model = mlnt.models.SmallConv(3, 3).cuda()
    tolerance = mlnt.NoiseTolerance(model, sets=2)
    pixels, labels = (torch.from_numpy(part).cuda() for part in images(24, 8))
    tolerance.meta_update(pixels, labels)
    before = [p.clone() for p in model.parameters()]
    pixels[3, 1, 2, 2] = float("nan")
    gradients = tolerance.meta_gradient(pixels, labels)[1]
    with no_waiting():
        zeros = zero_unless_finite(gradients)
    assert not any(gradient.any() for gradient in zeros.values())
    assert tolerance.meta_update(pixels, labels).isnan()
    assert all(torch.equal(p, was) for p, was in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("order", [1, 2])
def test_second_order_through_recurrent_and_attention_layers(order: int) -> None:
    from networks import CASES

    for name in ("gru", "attention"):
        torch.manual_seed(0)
        case = CASES[name]()
        model, inputs = case.module.cuda(), case.inputs.cuda()
        loss, gradients = mlnt.meta_gradient(
            model,
            inputs,
            torch.randint(4, (2, 7), device="cuda"),
            torch.full((7, 4), 0.25, device="cuda"),
            0.1,
            order=order,
        )
        assert torch.isfinite(loss)
        assert all(torch.isfinite(g).all() for g in gradients.values())


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["preact_resnet32", "bottlenecks", "vgg", "mlp", "small_conv"])
def test_kernels_in_float32(name: str, order: int, caplog: pytest.LogCaptureFixture) -> None:
    """In float32, where the kernels are used, against the plain loops in float64."""
    from test_folded import case

    model, *tensors, alpha = case(name)
    tensors = [t.cuda() for t in tensors]
    exact = plain_meta_gradient(model.cuda(), *tensors, alpha, order=order)[1]
    low = [t.float() if t.is_floating_point() else t for t in tensors]
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        fast = folded_meta_gradient(model.float(), *low, alpha, order=order)[1]
    assert not caplog.records
    one, other = (torch.cat([g.flatten().double() for g in f.values()]) for f in (exact, fast))
    # A unit at the edge of its ReLU may fall on the other side.
    assert (one - other).norm() <= 0.03 * one.norm()


@pytest.mark.parametrize(
    "name", ["resnet18", "resnet50", "vgg11_bn", "mobilenet_v2", "densenet121"]
)
def test_torchvision_networks_fold(name: str, caplog: pytest.LogCaptureFixture) -> None:
    models = library("torchvision.models")
    torch.manual_seed(0)
    # Dropout draws other random numbers in the two engines; without it they must agree.
    options = {"dropout": 0.0} if name in ("vgg11_bn", "mobilenet_v2") else {}
    model = models.get_model(name, num_classes=3, **options).double().cuda()
    pixels = torch.from_numpy(images(6, 64)[0]).double().cuda()
    synthetic_MB = torch.randint(3, (2, 6), device="cuda")
    target_BC = torch.randn(6, 3, dtype=torch.float64, device="cuda").softmax(dim=1)
    arguments = (model, pixels, synthetic_MB, target_BC, 0.01)
    folded, plain = folded_meta_gradient(*arguments), plain_meta_gradient(*arguments)
    assert not caplog.records, "these networks must really be folded"
    for key, expected in plain[1].items():
        # Relative to the layer's gradient: these networks amplify rounding layer by layer.
        assert (folded[1][key] - expected).norm() <= 1e-6 * expected.norm() + 1e-10, key


@pytest.mark.parametrize(
    "name", ["torchvision:resnet18", "timm:resnet10t", "timm:vit_tiny_patch16_224"]
)
def test_library_networks_train(name: str) -> None:
    library("timm" if name.startswith("timm") else "torchvision")
    size = 224 if "vit" in name else 64
    pixels, truth = images(96, size)
    noisy = mlnt.symmetric_noise(truth, 0.3, 3, torch.Generator().manual_seed(0))
    training = mlnt.train(
        (pixels, noisy),
        true_labels=truth,
        test_data=images(90, size),
        model=name,
        epochs=8,
        sets=2,
        iterations=2,
        batch_size=16,
        lr=0.01,
        eta=0.01,
        alpha=0.01,
        device="cuda",
    )
    print(name, training.summary["chosen"])
    assert training.summary["chosen"]["best"] > 50  # a third is chance: 3.4 standard errors


def test_digits_train_on_the_gpu() -> None:
    training = mlnt.train("digits", noise="symmetric:0.4", epochs=6, device="cuda")
    assert training.summary["chosen"]["best"] > 85
    assert next(training.model.parameters()).is_cuda
    probabilities = training.predict_probabilities(np.zeros((2, 8, 8), np.float32))
    assert probabilities.device.type == "cpu"


def test_a_table_trains_on_the_gpu() -> None:
    """Its network is chosen on the CPU, its filter proved on the GPU, where steps drop units."""
    generator = np.random.default_rng(0)
    rows = generator.uniform(-1, 1, size=(900, 3))
    truth = (rows[:, 0] * 5).astype(int) % 2
    noisy = np.where(generator.random(900) < 0.2, 1 - truth, truth)
    training = mlnt.train((rows, noisy), true_labels=truth, epochs=20, sets=2, device="cuda")
    assert training.settings.model.startswith("bins")
    assert all("proof" in report for report in training.summary["filters"])
    right = training.predict_probabilities(rows).argmax(dim=1).numpy() == truth
    assert right.mean() > 0.85  # by chance half


def test_peak_memory_of_the_bench_is_that_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    def compare(*ignored: object) -> None:
        torch.empty(2 * 2**30, dtype=torch.uint8, device="cuda")

    monkeypatch.setattr("mlnt.meta.folding.check_agrees", compare)
    case = Case("cross entropy", "cross_entropy", "preact_resnet32", 128)
    row = time_case(case, 5, torch.device("cuda"))
    assert row.error is None
    # 0.39 in benchmarks/h200.json, where all steps counted.
    assert 0.2 < row.peak_gib < 1


def test_other_processes_on_the_gpu_are_seen() -> None:
    """That one alone sees nobody is tested with made-up numbers: others may be on this one."""
    device = torch.device("cuda")
    hold = "import torch; x = torch.zeros(3 * 2**28, device='cuda'); print('held'); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", hold], **pipes) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        assert is_shared(device)
        other.communicate("\n", timeout=60)
