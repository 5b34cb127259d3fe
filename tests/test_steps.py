"""Steps on batches drawn on the device: on any device, and recorded as a CUDA graph on a GPU."""

import logging
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from mlnt.config import make_settings
from mlnt.data.batches import Batch
from mlnt.data.dataset import Split
from mlnt.data.image_files import FaultLog, ImageFiles
from mlnt.data.pictures import PathTable, PictureError
from mlnt.methods import MLNT, CrossEntropy, Iterative, MeanTeacher, Rates
from mlnt.networks import MLP, SmallConv
from mlnt.steps import Steps
from waiting import no_waiting

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda", marks=[needs_gpu, pytest.mark.gpu])]
RATES = [Rates(lr=0.05, eta=0.02 * step, gamma=0.9, lam=0.1) for step in range(20)]


class WithDropout(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(SmallConv(1, 6, 4), nn.Dropout(0.3), nn.Linear(6, 3))


def make_steps(method: str = "mlnt", device: str = "cpu", seed: int = 0, **options: Any) -> Steps:
    torch.manual_seed(0)
    settings = make_settings(
        "digits", batch_size=8, sets=2, crop_padding=1, flip=True, precision="float32",
        engine="plain" if device == "cpu" else "folded", **options,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(1)
    train = Split(
        torch.randn(50, 1, 8, 8, generator=draw).to(device),
        torch.randint(3, (50,), generator=draw).to(device),
    )
    features = torch.randn(50, 5, generator=draw).to(device)
    generator = torch.Generator(device).manual_seed(2)
    torch.manual_seed(seed)
    student = WithDropout().to(device)
    kept = torch.arange(0, 50, 2, device=device)  # three batches a pass: it ends within a run
    if method == "mlnt":
        teach = MLNT(student, settings, features, generator=generator)
        return Steps(train, teach, settings, generator, kept)
    return Steps(train, CrossEntropy(student, settings), settings, generator)


def weights(steps: Steps) -> dict[str, Tensor]:
    return {
        f"{name}.{key}": value.clone()
        for name, model in steps.method.models.items()
        for key, value in model.state_dict().items()
    }


@pytest.mark.parametrize("kind", [MLNT, MeanTeacher])
def test_teachers_see_images_without_blanked_squares(kind: Any) -> None:
    settings = make_settings("digits", batch_size=8, sets=2, crop_padding=1, flip=True, cutout=4)
    generator = torch.Generator().manual_seed(2)
    pixels = torch.rand(50, 1, 8, 8, generator=generator) + 1
    train = Split(pixels, torch.arange(50) % 3)
    network = nn.Sequential(nn.BatchNorm2d(1), nn.Flatten(), nn.Linear(64, 3))
    features = [torch.randn(50, 5)] if kind is MLNT else []
    steps = Steps(train, kind(network, settings, *features), settings, generator)
    batches = []
    step = steps.method.step

    def noted(batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        batches.append(batch)
        return step(batch, class_batch, rates)

    steps.method.step = noted  # type: ignore[method-assign]
    steps.run(RATES[:1])
    (batch,) = batches
    blank = (batch.inputs == 0) & (batch.for_teacher != 0)
    assert blank.flatten(1).any(1).all()
    assert torch.equal(batch.inputs, batch.for_teacher.masked_fill(blank, 0))
    student, teacher = (model[0].running_mean for model in steps.method.models.values())
    torch.testing.assert_close(student, 0.1 * batch.inputs.mean().reshape(1))
    torch.testing.assert_close(teacher, 0.1 * batch.for_teacher.mean().reshape(1))


class FrozenNorm(nn.BatchNorm2d):
    def train(self, mode: bool = True) -> "FrozenNorm":
        return super().train(False)


def network_with_norms() -> nn.Sequential:
    return nn.Sequential(nn.BatchNorm2d(1), FrozenNorm(1), nn.Flatten(), nn.Linear(256, 2))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("kind", "cutout"), [(MeanTeacher, 8), (Iterative, 8), (Iterative, 0)])
def test_a_teacher_is_judged_with_statistics_of_what_the_student_learns(
    kind: type[MeanTeacher] | type[Iterative], cutout: int, device: str
) -> None:
    """Of kept images with a blanked square, though it answers whole ones, or none."""
    settings = make_settings("digits", batch_size=8, sets=1, cutout=cutout)
    brightness = torch.tensor([3.0, 1.0]).repeat(40)  # every other one is kept
    train = Split(
        brightness[:, None, None, None].expand(80, 1, 16, 16).contiguous().to(device),
        torch.arange(80, device=device) // 40,
    )
    kept = torch.arange(1, 80, 2, device=device)
    generator = torch.Generator(device).manual_seed(0)
    method = kind(network_with_norms().to(device), settings)
    steps = Steps(train, method, settings, generator, kept)
    for epoch in range(2):  # the second time between recorded steps
        steps.run(RATES[10 * epoch : 10 * epoch + 10])
        steps.renew_teacher()
        norm, frozen = method.teacher[0], method.teacher[1]
        blanked = 1 - float(norm.running_mean)
        print(device, blanked, float(norm.running_var))
        if cutout:
            # A square of 8 pixels is a quarter of an image; less where it sticks out.
            assert 0.12 < blanked < 0.25
        else:
            assert blanked == pytest.approx(0, abs=1e-6)
        # Of zeros and ones, so that the mean tells the variance.
        expected = pytest.approx(blanked * (1 - blanked), rel=1e-2, abs=1e-6)
        assert float(norm.running_var) == expected
        assert norm.momentum == 0.1
        assert (float(frozen.running_mean), float(frozen.running_var)) == (0, 1)


def read_but_multiples_of_3(path: str, size: int, crop: int) -> np.ndarray:
    if int(path.rpartition("/")[2]) % 3 == 0:
        raise PictureError("a multiple of three")
    return np.full((3, crop, crop), 255, np.uint8)


@pytest.mark.parametrize("device", DEVICES)
def test_a_teacher_of_streamed_pictures_too(device: str) -> None:
    """In batches of one size, and what cannot be read is no black picture among them."""
    settings = make_settings("digits", batch_size=8, sets=1, cutout=2)
    paths = PathTable.of("/nowhere", [str(number) for number in range(41)])
    inputs = ImageFiles(
        paths, FaultLog(41), size=4, crop=4, workers=0, read=read_but_multiples_of_3
    ).to(torch.device(device))
    train = Split(inputs, torch.arange(41, device=device) % 2)
    network = nn.Sequential(
        nn.BatchNorm2d(3), nn.Flatten(), nn.BatchNorm1d(48), nn.Linear(48, 2)
    ).to(device)
    method = MeanTeacher(network, settings)
    steps = Steps(train, method, settings, torch.Generator(device).manual_seed(0))
    steps.run(RATES[:5])
    steps.renew_teacher()
    norm = method.teacher[0]
    white = inputs.normalise(torch.full((1, 3, 1, 1), 255, dtype=torch.uint8)).flatten()
    shown = norm.running_mean / white
    print(device, shown.tolist())
    assert norm.num_batches_tracked == 5
    # Squares of four pixels of sixteen, a few of which stick out; a third less if some were black.
    assert ((shown > 0.75) & (shown < 0.88)).all()
    steps.run(RATES[5:10])  # the feeder goes on


def test_without_blanked_squares_a_teacher_stays_as_it_answered() -> None:
    steps = make_steps("mlnt")
    steps.run(RATES[:3])
    before, random_numbers = weights(steps), steps.generator.get_state()
    steps.renew_teacher()
    assert all(torch.equal(value, before[name]) for name, value in weights(steps).items())
    assert torch.equal(steps.generator.get_state(), random_numbers)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("method", ["mlnt", "cross_entropy"])
def test_interrupted_and_resumed_goes_on_alike(method: str, device: str) -> None:
    whole = make_steps(method, device)
    losses = whole.run(RATES)
    first = make_steps(method, device)
    begun = first.run(RATES[:10])
    state = first.state()
    second = make_steps(method, device, seed=9)  # other weights, to be overwritten
    second.load_state(state)
    ended = second.run(RATES[10:])
    for name, expected in losses.items():
        found = torch.cat([begun[name], ended[name]])
        print(name, (found - expected).tolist())
        if device == "cpu":
            assert torch.equal(found, expected), name
        torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-4)
    for name, expected in weights(whole).items():
        torch.testing.assert_close(weights(second)[name], expected, rtol=1e-3, atol=1e-4)


@needs_gpu
@pytest.mark.gpu
@pytest.mark.parametrize("method", ["mlnt", "cross_entropy"])
def test_recorded_steps_are_the_eager_ones(method: str) -> None:
    """The same random numbers, so the same trajectory, up to the order of float32 sums."""
    recorded = make_steps(method, "cuda")
    of_graph = recorded.run(RATES)
    eager = make_steps(method, "cuda", graph=False)  # seeds the generator of dropout again
    of_eager = eager.run(RATES)
    assert recorded.graph is not None
    assert eager.graph is None
    print({name: (of_graph[name] - of_eager[name]).tolist() for name in of_eager})
    for name, expected in of_eager.items():
        torch.testing.assert_close(of_graph[name], expected, rtol=1e-3, atol=1e-4)
    for name, expected in weights(eager).items():
        torch.testing.assert_close(weights(recorded)[name], expected, rtol=1e-3, atol=1e-4)


@needs_gpu
@pytest.mark.gpu
def test_what_cannot_be_recorded_runs_eagerly(caplog: pytest.LogCaptureFixture) -> None:
    class Looks(CrossEntropy):
        def step(self, *arguments: Any) -> dict[str, Tensor]:
            losses = super().step(*arguments)
            assert losses["class_loss"].item() > 0  # waits for the GPU
            return losses

    def make() -> Steps:
        steps = make_steps("cross_entropy", "cuda")
        steps.method = Looks(steps.method.models["student"], steps.settings)
        return steps

    with caplog.at_level(logging.WARNING, logger="mlnt"):
        found = make().run(RATES)
    assert "cannot be recorded" in caplog.text
    expected = make_steps("cross_entropy", "cuda", graph=False).run(RATES)
    torch.testing.assert_close(found["class_loss"], expected["class_loss"], rtol=1e-3, atol=1e-4)


@needs_gpu
@pytest.mark.gpu
def test_no_wait_inside_an_epoch() -> None:
    steps = make_steps("mlnt", "cuda")
    steps.run(RATES)
    steps.run(RATES)
    with no_waiting():
        steps.run(RATES)


@needs_gpu
@pytest.mark.gpu
def test_a_network_without_convolutions_is_recorded() -> None:
    settings = make_settings("table", batch_size=8)
    generator = torch.Generator("cuda").manual_seed(0)
    train = Split(torch.randn(40, 7).cuda(), torch.randint(3, (40,)).cuda())
    for engine in ("folded", "plain"):
        chosen = replace(settings, engine=engine)
        for method in (
            CrossEntropy(MLP(7, 3).cuda(), chosen),
            MLNT(MLP(7, 3).cuda(), chosen, torch.randn(40, 5).cuda(), generator=generator),
        ):
            steps = Steps(train, method, chosen, generator)
            losses = steps.run(RATES)
            assert steps.graph is not None
            assert torch.isfinite(losses["class_loss"]).all()
