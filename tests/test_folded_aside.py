"""What a trace does not see: the folded engine notices, and steps aside for the plain loop."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import mlnt
from mlnt.meta import comparison
from mlnt.meta.folded import folded_meta_gradient, folded_network
from mlnt.meta.plain import plain_meta_gradient
from mlnt.networks import PreActResNet32
from test_folded import assert_agree

CLASSES = 3


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(5, 6)
        self.head = nn.Linear(6, CLASSES)

    def features(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.features(x))


class InNoGrad(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.features(x)
        return self.head(y)


class DecoratedWithNoGrad(Net):
    @torch.no_grad()
    def features(self, x: Tensor) -> Tensor:
        return super().features(x)


class DisablesGradients(Net):
    def forward(self, x: Tensor) -> Tensor:
        with torch.set_grad_enabled(False):
            y = self.features(x)
        return self.head(y)


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return -dy


class StraightThrough(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return F.relu(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:  # type: ignore[override]
        return dy


class ReversesGradients(Net):
    def features(self, x: Tensor) -> Tensor:
        return Reversed.apply(self.body(x))


class PassesGradientsThrough(Net):
    def features(self, x: Tensor) -> Tensor:
        return StraightThrough.apply(self.body(x))


class AsksForTheType(Net):
    def features(self, x: Tensor) -> Tensor:
        y = super().features(x)
        return y * 0.99 if isinstance(y, Tensor) else y


class AsksForTheTypeAndCasts(Net):
    """float64 does not get through it: compared in its own type."""

    def features(self, x: Tensor) -> Tensor:
        y = super().features(x.float())
        return y * 0.1 if isinstance(y, Tensor) else y


class HooksOnValues(Net):
    def features(self, x: Tensor) -> Tensor:
        y = super().features(x)
        if isinstance(y, Tensor) and y.requires_grad:
            y.register_hook(lambda dy: 0.5 * dy)
        return y


class CountsItsCalls(Net):
    calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x) / (1 if self.calls < 3 else 2)


class CountsInABuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(x)


class AwaitsItsFirstPass(Net):
    def __init__(self) -> None:
        super().__init__()
        self.first: Tensor | None = None

    def features(self, x: Tensor) -> Tensor:
        y = super().features(x)
        if self.first is None:
            self.first = y
            return y
        return 2 * y


class DepthInABuffer(Net):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("depth", torch.tensor(1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        for _ in range(int(self.depth)):
            y = y.tanh()
        return self.head(y)


def with_own_forward(model: Net) -> None:
    forward = model.body.forward
    model.body.forward = lambda x: 3 * forward(x)  # type: ignore[method-assign]


def with_backward_pre_hook(model: Net) -> None:
    model.head.register_full_backward_pre_hook(lambda _, dy: (0.5 * dy[0],))


def with_parameter_hook(model: Net) -> None:
    model.body.weight.register_hook(torch.zeros_like)


def case(model: nn.Module, dtype: torch.dtype = torch.float64) -> tuple:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(7, 5, generator=generator, dtype=dtype)
    synthetic_MB = torch.randint(CLASSES, (2, 7), generator=generator)
    target_BC = torch.rand(7, CLASSES, generator=generator, dtype=dtype).softmax(dim=1)
    return model.to(dtype), inputs, synthetic_MB, target_BC, 0.3


def compare(arguments: tuple, order: int = 1) -> None:
    twin = copy.deepcopy(arguments[0])  # one that counts its calls must begin alike
    folded = folded_meta_gradient(*arguments, order=order)
    assert_agree(folded, plain_meta_gradient(twin, *arguments[1:], order=order))


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize(
    "network",
    [InNoGrad, DecoratedWithNoGrad, DisablesGradients, ReversesGradients, PassesGradientsThrough,
     AsksForTheType, HooksOnValues, CountsItsCalls, CountsInABuffer, DepthInABuffer,
     AwaitsItsFirstPass],
)  # fmt: skip
def test_steps_aside(network: type[Net], order: int, caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    arguments = case(network())
    state = {name: value.clone() for name, value in arguments[0].state_dict().items()}
    compare(arguments, order)
    assert "the plain loop is used instead" in caplog.text
    folded_meta_gradient(*arguments, order=order)
    assert len(caplog.records) == 1, "said once, not at every step"
    for name, value in arguments[0].state_dict().items():
        assert torch.equal(value, state[name]), name


def test_steps_aside_for_what_casts_values_itself(caplog: pytest.LogCaptureFixture) -> None:
    compare(case(AsksForTheTypeAndCasts(), torch.float32))
    assert "computes something else than its trace" in caplog.text


@pytest.mark.parametrize("change", [with_own_forward, with_backward_pre_hook, with_parameter_hook])
@pytest.mark.parametrize("is_traced", [False, True])
def test_steps_aside_after_a_change(
    change: Callable[[Net], None], is_traced: bool, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    arguments = case(Net())
    if is_traced:
        folded_meta_gradient(*arguments)
    change(arguments[0])
    folded = folded_meta_gradient(*arguments)
    assert_agree(folded, plain_meta_gradient(*arguments))
    assert ("has hooks" in caplog.text) or ("has a forward of its own" in caplog.text)


class HasSettings(Net):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.temperature, self.depth, self.skips = 1.0, 1, False
        self.factors, self.activation = [1.0, 2.0], torch.tanh

    def forward(self, x: Tensor) -> Tensor:
        y = self.features(x)
        for number in range(self.depth):
            z = self.activation(self.middle[number](y))
            y = z + y if self.skips else z
        return self.head(y * self.factors[0]) / self.temperature


def test_settings_that_change_are_followed(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    arguments = case(HasSettings())
    model = arguments[0]
    compare(arguments)
    for name, value in {
        "temperature": 0.25, "depth": 3, "skips": True, "activation": torch.sigmoid
    }.items():  # fmt: skip
        setattr(model, name, value)
        compare(arguments)
    model.factors[0] = 0.5
    compare(arguments)
    assert not caplog.records, "it is folded all the time"


def test_what_the_network_does_not_ask_is_not_proven_again() -> None:
    model = case(HasSettings())[0]
    network = folded_network(model)
    assert network is not None
    for epoch in range(10):
        model.epoch = epoch
        assert folded_network(model) is network


class KeepsActivations(Net):
    def __init__(self) -> None:
        super().__init__()
        self.awaited: Tensor | None = None
        self.kept: list[Tensor] = []
        self.last: dict[str, Tensor] = {}

    def features(self, x: Tensor) -> Tensor:
        self.activation = self.awaited = super().features(x)
        self.kept.append(self.activation)
        self.last["features"] = self.activation
        return self.activation


def test_a_trace_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    arguments = case(KeepsActivations())
    model = arguments[0]
    model(arguments[1])  # what a real pass keeps stays
    kept = model.activation
    folded = folded_meta_gradient(*arguments)
    assert not caplog.records
    assert model.activation is kept
    assert model.last["features"] is kept
    assert len(model.kept) == 1
    assert_agree(folded, plain_meta_gradient(*arguments))


def test_the_comparison_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.5), nn.Linear(6, CLASSES)
    )
    model[1].eval()
    arguments = case(model)
    state = {name: value.clone() for name, value in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    parameters = list(map(id, model.parameters()))
    found = []
    for _ in range(2):  # the first time it is compared
        torch.manual_seed(1)
        found.append((folded_meta_gradient(*arguments), torch.get_rng_state()))
    assert not caplog.records
    assert torch.equal(found[0][1], found[1][1])
    assert_agree(found[0][0], found[1][0])
    assert modes == [module.training for module in model.modules()]
    assert parameters == list(map(id, model.parameters()))
    assert all(p.grad is None for p in model.parameters())
    for name, value in model.state_dict().items():
        assert torch.equal(value, state[name]), name


class OfSevenSamples(Net):
    def features(self, x: Tensor) -> Tensor:
        return super().features(x.view(7, 5))


def test_few_samples_are_compared(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """All of them, in float64, would not fit where a step just does."""
    seen: list[tuple[int, torch.dtype]] = []
    both = comparison._both

    def spied(model: Any, by_rules: Any, inputs: Any, rows: Any, dtype: Any) -> Any:
        seen.append((len(inputs), dtype))
        return both(model, by_rules, inputs, rows, dtype)

    monkeypatch.setattr(comparison, "_both", spied)
    monkeypatch.setattr(comparison, "COMPARED", 3)
    torch.manual_seed(0)
    mlnt.meta_gradient(*case(Net(), torch.float32), engine="folded")
    assert seen == [(3, torch.float64)]
    seen.clear()
    # Which names the size of its batch.
    mlnt.meta_gradient(*case(OfSevenSamples(), torch.float32), engine="folded")
    assert seen == [(3, torch.float64), (3, torch.float32), (7, torch.float32)]
    assert not caplog.records, "both are folded"


def test_of_several_arguments_those_are_cut_that_are_samples() -> None:
    whole = (torch.zeros(7, 2), torch.zeros(7), torch.zeros(5), None)
    few = comparison._first(whole, 3)
    assert [None if part is None else len(part) for part in few] == [3, 3, 5, None]


def test_no_room_to_compare(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def out_of_memory(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(comparison, "_both", out_of_memory)
    compare(case(Net()))
    assert "cannot be compared with its trace: no room; the plain loop is used" in caplog.text


class Pixels(nn.Module):
    """Casts its inputs itself, on which nothing depends."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.conv(x.float() / 255)).mean((2, 3)))


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("name", ["deep", "pixels", "black"])
def test_what_only_rounds_otherwise_is_folded(
    name: str, autocast: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """Deep, of which bfloat16 has other gradients; with types of its own; with nothing but zeros,
    whose batch norms see rounding alone."""
    torch.manual_seed(0)
    model = Pixels() if name == "pixels" else PreActResNet32(3, CLASSES)
    inputs = torch.randint(256, (4, 3, 8, 8), dtype=torch.uint8)
    if name != "pixels":
        inputs = inputs / 255 if name == "deep" else torch.zeros(4, 3, 8, 8)
    synthetic_MB, target_BC = torch.zeros(1, 4, dtype=torch.long), torch.full((4, CLASSES), 1 / 3)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        mlnt.meta_gradient(model, inputs, synthetic_MB, target_BC, 0.1, engine="folded")
    assert not caplog.records
