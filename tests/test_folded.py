"""The folded engine computes what the plain loops compute."""

import copy
import gc
import logging
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import mlnt
from mlnt.meta.folded import Parameters, folded_meta_gradient, folded_network
from mlnt.meta.plain import plain_meta_gradient
from mlnt.meta.tape import Options
from mlnt.networks import MLP, PooledConv, PreActResNet32, SmallConv
from networks import CASES

CLASSES = 5


class Bottleneck(nn.Module):
    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(inputs, width, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv = nn.Conv2d(width, width, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.expand = nn.Conv2d(width, 2 * width, 1, bias=False)
        self.norm3 = nn.BatchNorm2d(2 * width)
        self.project = nn.Sequential(
            nn.Conv2d(inputs, 2 * width, 1, stride=stride, bias=False), nn.BatchNorm2d(2 * width)
        )

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.norm1(self.reduce(x)))
        y = torch.relu(self.norm2(self.conv(y)))
        y = self.norm3(self.expand(y))
        y += self.project(x)
        return F.relu(y)


class Concatenating(nn.Module):
    """Two branches joined, a residual sum, and a view by the batch size."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 4, 3, padding=1)
        self.right = nn.Conv2d(3, 2, 1)
        self.norm = nn.GroupNorm(2, 6)
        self.mix = nn.Conv2d(6, 6, 3, padding=1, groups=3)
        self.pad = nn.ReflectionPad2d(1)
        self.head = nn.Linear(6 * 5 * 5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cat([self.left(x), F.gelu(self.right(x))], dim=1)
        y = y + 0.5 * self.mix(self.norm(y)).tanh()
        y = F.avg_pool2d(self.pad(y), 2)
        return self.head(y.view(y.size(0), -1))


def separable() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.Conv2d(4, 4, 3, padding=1, groups=4),
        nn.Conv2d(4, 8, 1),
        nn.BatchNorm2d(8),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def vgg(dropout: float) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Dropout2d(dropout),
        nn.Conv2d(4, 6, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 16, 10),
        nn.ReLU(),
        nn.Dropout(dropout),
        nn.Linear(10, CLASSES),
    )


IMAGES = (6, 3, 8, 8)
NETWORKS = {
    "preact_resnet32": (lambda: PreActResNet32(3, CLASSES), IMAGES),
    "bottlenecks": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3, padding=1, bias=False),
            Bottleneck(4, 3, 2),
            Bottleneck(6, 4, 1),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8, CLASSES),
        ),
        IMAGES,
    ),
    "vgg": (lambda: vgg(0.0), IMAGES),
    "separable": (separable, IMAGES),
    "concatenating": (Concatenating, IMAGES),
    "mlp": (lambda: MLP(7, CLASSES, 9, dropped=0), (6, 7)),
    "small_conv": (lambda: SmallConv(3, CLASSES, 4), IMAGES),
    "pooled_conv": (lambda: PooledConv(3, CLASSES, 4), IMAGES),
}


def case(name: str, sets: int = 3) -> tuple[nn.Module, Tensor, Tensor, Tensor, float]:
    torch.manual_seed(1)
    build, shape = NETWORKS[name]
    model = build().double()
    inputs = torch.randn(*shape, dtype=torch.float64)
    synthetic_MB = torch.randint(CLASSES, (sets, shape[0]))
    target_BC = torch.randn(shape[0], CLASSES, dtype=torch.float64).softmax(dim=1)
    return model, inputs, synthetic_MB, target_BC, 0.05


def assert_agree(folded: tuple, plain: tuple) -> None:
    torch.testing.assert_close(folded[0], plain[0], rtol=1e-9, atol=1e-11)
    assert folded[1].keys() == plain[1].keys()
    for name, expected in plain[1].items():
        error = (folded[1][name] - expected).norm()
        assert error <= 1e-9 * expected.norm() + 1e-11, name


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", NETWORKS)
def test_agrees_with_plain(name: str, order: int, caplog: pytest.LogCaptureFixture) -> None:
    arguments = case(name)
    folded = folded_meta_gradient(*arguments, order=order)
    assert not caplog.records, "this network must really be folded"
    assert_agree(folded, plain_meta_gradient(*arguments, order=order))


@pytest.mark.parametrize("mode", ["eval", "frozen", "mse", "tied"])
def test_agrees_with_plain_in_other_states(mode: str, caplog: pytest.LogCaptureFixture) -> None:
    model, *others = case("small_conv")
    options = {}
    if mode == "eval":
        model(others[0])
        model.eval()
    elif mode == "frozen":
        model[0].requires_grad_(False)
        model[4].bias.requires_grad_(False)
    elif mode == "mse":
        options["consistency"] = "mse"
    else:
        model[4].weight = model[1].weight
    folded = folded_meta_gradient(model, *others, **options)
    assert not caplog.records
    assert_agree(folded, plain_meta_gradient(model, *others, **options))


@given(
    batch=st.integers(2, 7),
    sets=st.integers(1, 5),
    channels=st.integers(1, 4),
    width=st.integers(1, 5),
    size=st.integers(3, 7),
    kernel=st.integers(1, 3),
    stride=st.integers(1, 2),
    padding=st.integers(0, 2),
    seed=st.integers(0, 1000),
)
@example(
    batch=2, sets=2, channels=1, width=1, size=3, kernel=2, stride=2, padding=0, seed=5
)  # one output channel: the copies must not share memory
@settings(max_examples=25, deadline=None)
def test_agrees_for_any_shape(
    batch: int, sets: int, channels: int, width: int, size: int,
    kernel: int, stride: int, padding: int, seed: int,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, padding),
        nn.BatchNorm2d(width),
        nn.Tanh(),
        nn.Conv2d(width, 2 * width, kernel, 1, 1, groups=width),
        nn.Flatten(),
        nn.LazyLinear(3),
    ).double()
    inputs = torch.randn(batch, channels, size, size, dtype=torch.float64)
    model(inputs)
    synthetic_MB = torch.randint(3, (sets, batch))
    target_BC = torch.randn(batch, 3, dtype=torch.float64).softmax(dim=1)
    arguments = (model, inputs, synthetic_MB, target_BC, 0.1)
    assert_agree(folded_meta_gradient(*arguments), plain_meta_gradient(*arguments))


def test_buffers_are_untouched() -> None:
    model, *others = case("bottlenecks")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded_meta_gradient(model, *others, order=2)
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert all(p.grad is None for p in model.parameters())


def test_dropout_masks_are_shared_in_the_inner_step_and_separate_after_it() -> None:
    """Same labels in all sets: with one shared mask all θ′ are equal, so a second set changes
    the loss only through the masks of the consistency step."""
    _, inputs, _, target_BC, alpha = case("vgg")
    torch.manual_seed(0)
    model = vgg(0.5).double()
    labels_MB = torch.zeros(400, len(inputs), dtype=torch.long)
    folded = folded_meta_gradient(model, inputs, labels_MB, target_BC, alpha)
    losses = [
        plain_meta_gradient(model, inputs, labels_MB[:20], target_BC, alpha)[0] for _ in range(20)
    ]
    spread = torch.stack(losses).std()
    assert (folded[0] - torch.stack(losses).mean()).abs() < 4 * spread


@pytest.mark.parametrize("name", ["gru", "bag", "attention"])
def test_what_cannot_be_folded_is_named_and_looped(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    network = CASES[name]()
    batch = len(network.inputs)
    synthetic_MB = torch.randint(4, (2, batch))
    target_BC = torch.full((batch, 4), 0.25)
    arguments = (network.module, network.inputs, synthetic_MB, target_BC, 0.1)
    with caplog.at_level(logging.WARNING, logger="mlnt"):
        folded = mlnt.meta_gradient(*arguments, engine="folded")
        mlnt.meta_gradient(*arguments, engine="folded")
    assert len(caplog.records) == 1, "said once, not at every step"
    assert "the plain loop is used instead" in caplog.text
    plain = mlnt.meta_gradient(*arguments, engine="plain")
    for key, expected in plain[1].items():
        torch.testing.assert_close(folded[1][key], expected)


def test_networks_are_let_go() -> None:
    """The cache of traced networks must not keep them alive."""
    model, *others = case("mlp")
    folded_meta_gradient(model, *others)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


def test_hooks_are_not_skipped(caplog: pytest.LogCaptureFixture) -> None:
    model, *others = case("mlp")
    seen = []
    model.register_forward_hook(lambda *_: seen.append(1))
    folded = folded_meta_gradient(model, *others)
    assert seen
    assert "has hooks" in caplog.text
    assert_agree(folded, plain_meta_gradient(model, *others))


class InPlace(nn.Module):
    """Activations that overwrite what the way back needs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, stride=2, padding="valid")
        self.act = nn.SiLU(inplace=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.conv(x))
        y *= 2
        y = F.leaky_relu(y, 0.1, True)
        return self.head(y.mean((2, 3)))


@pytest.mark.parametrize("order", [1, 2])
def test_in_place_activations(order: int, caplog: pytest.LogCaptureFixture) -> None:
    _, *others = case("vgg")
    model = InPlace().double()
    folded = folded_meta_gradient(model, *others, order=order)
    assert not caplog.records
    assert_agree(folded, plain_meta_gradient(model, *others, order=order))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    ("kernel", "stride", "padding"), [(3, 2, 1), (5, 3, 2), (2, 2, 0), (1, 2, 0)]
)
def test_strided_convolutions(kernel: int, stride: int, padding: int, order: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 4, 3, padding="same"),
        nn.Tanh(),
        nn.Conv2d(4, 5, kernel, stride, padding),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(20, CLASSES),
    ).double()
    inputs = torch.randn(6, 3, 9, 11, dtype=torch.float64)
    _, _, *others = case("vgg")
    arguments = (model, inputs, *others)
    assert_agree(
        folded_meta_gradient(*arguments, order=order), plain_meta_gradient(*arguments, order=order)
    )


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", ["bottlenecks", "vgg", "separable", "concatenating", "mlp"])
def test_autocast_decides_the_numbers_computed_with(
    name: str, order: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, inputs, synthetic_MB, target_BC, alpha = case(name)
    arguments = (model.float(), inputs.float(), synthetic_MB, target_BC.float(), alpha)
    exact = plain_meta_gradient(*arguments, order=order)[1]
    with torch.autocast("cpu", torch.bfloat16):
        low = folded_meta_gradient(*arguments, order=order)[1]
    assert not caplog.records
    assert {g.dtype for g in low.values()} == {torch.float32}
    one, other = (torch.cat([g.flatten() for g in found.values()]) for found in (exact, low))
    assert not torch.equal(one, other)
    assert F.cosine_similarity(one, other, dim=0) > 0.95


def test_a_teacher_whose_batch_norms_alone_are_in_training() -> None:
    torch.manual_seed(0)
    model, inputs = SmallConv(1, 4).eval(), torch.randn(6, 1, 8, 8)
    for module in model.modules():
        module.training = isinstance(module, nn.BatchNorm2d)
    twin = copy.deepcopy(model)
    with torch.no_grad():
        expected = twin(inputs)
    network = folded_network(model)
    assert network is not None
    theta = Parameters(dict(model.named_parameters()), 1, torch.float32)
    run = network.run(theta.shared(), theta.prepare(inputs), Options(1, track=True))
    torch.testing.assert_close(run.logits, expected)
    for buffer, other in zip(model.buffers(), twin.buffers(), strict=True):
        torch.testing.assert_close(buffer, other)
