"""Networks that tempt the folded engine to be wrong: it folds them rightly, or says why not."""

import random

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.meta.folded import folded_meta_gradient
from mlnt.meta.plain import plain_meta_gradient
from test_folded import assert_agree

CLASSES = 3


class Net(nn.Module):
    """A convolution, whatever `middle` does with it, and a head."""

    def __init__(self, channels: int = 4) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.unused = nn.Linear(2, 2)
        self.head = nn.Linear(channels, CLASSES)

    def middle(self, y: Tensor) -> Tensor:
        return y

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.middle(self.conv(x)).mean((2, 3)))


class ReadsWhatReluOverwrote(Net):
    def middle(self, y: Tensor) -> Tensor:
        return self.act(y) + y


class DiscardsTheResult(Net):
    def middle(self, y: Tensor) -> Tensor:
        self.act(y)
        return y * 2


class ReadsTheNormAgain(Net):
    def middle(self, y: Tensor) -> Tensor:
        y = self.norm(y)
        z = self.act(y)
        return z * y


class AddsInPlace(Net):
    def middle(self, y: Tensor) -> Tensor:
        z = y
        z += 1
        return z * y


class StochasticDepth(Net):
    def middle(self, y: Tensor) -> Tensor:
        return y + self.norm(y) if random.random() < 0.5 else y


class PadsChannels(Net):
    def __init__(self) -> None:
        super().__init__(8)

    def middle(self, y: Tensor) -> Tensor:
        return F.pad(y, (0, 0, 0, 0, 2, 2))


class MomentumOfNone(Net):
    def middle(self, y: Tensor) -> Tensor:
        self.norm.momentum = None
        return self.norm(y)


class OptionalArgument(Net):
    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:  # type: ignore[override]
        if mask is not None:
            x = x * mask
        return super().forward(x)


class PoolsATable(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            nn.Flatten(), nn.Linear(50, 6), nn.AvgPool1d(3, 1, 1), nn.Linear(6, CLASSES)
        )


def case(model: nn.Module, sets: int = 2) -> tuple:
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(6, 2, 5, 5, generator=generator, dtype=torch.float64)
    synthetic_MB = torch.randint(CLASSES, (sets, 6), generator=generator)
    target_BC = torch.rand(6, CLASSES, generator=generator, dtype=torch.float64).softmax(dim=1)
    return model.double(), inputs, synthetic_MB, target_BC, 0.1


@pytest.mark.parametrize(
    "network",
    [ReadsWhatReluOverwrote, DiscardsTheResult, ReadsTheNormAgain, AddsInPlace, PadsChannels,
     MomentumOfNone, OptionalArgument, PoolsATable],
)  # fmt: skip
@pytest.mark.parametrize("order", [1, 2])
def test_is_given_to_the_plain_loop(
    network: type[nn.Module], order: int, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    arguments = case(network())
    before = {name: value.clone() for name, value in arguments[0].state_dict().items()}
    folded = folded_meta_gradient(*arguments, order=order)
    assert "the plain loop is used instead" in caplog.text
    assert len(caplog.text.strip().splitlines()) == 1
    assert_agree(folded, plain_meta_gradient(*arguments, order=order))
    for name, value in arguments[0].state_dict().items():
        assert torch.equal(value, before[name]), name


def test_randomness_outside_of_layers_is_not_frozen(caplog: pytest.LogCaptureFixture) -> None:
    arguments = case(StochasticDepth())
    losses = {float(folded_meta_gradient(*arguments)[0]) for _ in range(20)}
    assert "draws random numbers" in caplog.text
    assert len(losses) > 2


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize(
    "middle",
    [
        lambda: nn.GroupNorm(2, 4),
        lambda: nn.BatchNorm2d(4, affine=False),
        lambda: nn.BatchNorm2d(4, track_running_stats=False),
    ],
)
def test_norms_of_all_kinds(
    middle: object, sets: int, frozen: bool, order: int, caplog: pytest.LogCaptureFixture
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.BatchNorm2d(2, affine=False),  # straight on the data: its statistics must not move
        nn.Conv2d(2, 4, 3),
        middle(),  # type: ignore[operator]
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(36, CLASSES),
    )
    if frozen:
        model[2].requires_grad_(False)
    arguments = case(model, sets)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    folded = folded_meta_gradient(*arguments, order=order)
    assert not caplog.records
    assert_agree(folded, plain_meta_gradient(*arguments, order=order))
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name


@pytest.mark.parametrize("order", [1, 2])
def test_group_norm_behind_frozen_layers(order: int, caplog: pytest.LogCaptureFixture) -> None:
    """Channels of folded convolutions lie last: PyTorch's own kernel crashes there."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)
    )
    model[0].requires_grad_(False)
    arguments = case(model)
    folded = folded_meta_gradient(*arguments, order=order)
    assert not caplog.records
    assert_agree(folded, plain_meta_gradient(*arguments, order=order))


class ViewsByShape(Net):
    def __init__(self) -> None:
        super().__init__(100)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return self.head(y.view(y.shape[0], -1))


@pytest.mark.parametrize("order", [1, 2])
def test_views_by_shape_and_unused_parameters(order: int, caplog: pytest.LogCaptureFixture) -> None:
    arguments = case(ViewsByShape())
    folded = folded_meta_gradient(*arguments, order=order)
    assert not caplog.records
    assert_agree(folded, plain_meta_gradient(*arguments, order=order))


def test_a_network_that_changes_is_traced_again() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(36, CLASSES)
    )
    arguments = case(model)
    folded_meta_gradient(*arguments)
    model[2] = nn.Tanh()
    assert_agree(folded_meta_gradient(*arguments), plain_meta_gradient(*arguments))
    model[4] = nn.Linear(36, CLASSES).double()
    assert_agree(folded_meta_gradient(*arguments), plain_meta_gradient(*arguments))
    model[1].eval()
    assert_agree(folded_meta_gradient(*arguments), plain_meta_gradient(*arguments))
    seen: list[int] = []
    model.register_forward_hook(lambda *_: seen.append(1))
    folded_meta_gradient(*arguments)
    assert seen
