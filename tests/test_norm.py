"""Batch norm with hand-written derivatives: against PyTorch's own, and the kernels against it."""

import os

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mlnt.meta import norm
from mlnt.meta.norm import normalise

# Triton runs its kernels as NumPy on a CPU when asked to: TRITON_INTERPRET=1 make test
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1" and norm.kernels is not None
DEVICE = "cuda" if torch.cuda.is_available() and norm.kernels is not None else "cpu"
needs_kernels = pytest.mark.skipif(
    not INTERPRETED and DEVICE == "cpu", reason="needs a CUDA device, or Triton's interpreter"
)
SHAPES = [(6, 5, 4, 3), (9, 7), (64, 33, 5, 5), (3, 70, 2, 2)]


def case(shape: tuple[int, ...], sets: int, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)

    def draw(*size: int) -> Tensor:
        value = torch.randn(*size, generator=generator, dtype=torch.float64).to(DEVICE, dtype)
        return value.contiguous(memory_format=torch.channels_last) if value.ndim == 4 else value

    batch, channels, *spatial = shape
    return {
        # Far from zero, where E[x²] − E[x]² loses digits; bfloat16 has none to lose.
        "x": draw(*shape) * 2 + (1 if dtype == torch.bfloat16 else 30),
        "other": draw(*shape),
        "weight": draw(channels) + 0.5,
        "bias": draw(channels) * 0.3,
        "dy": draw(batch, sets * channels, *spatial),
        "plus": draw(batch, sets * channels, *spatial),
        "u": draw(batch, sets * channels, *spatial),
        "a": draw(sets * channels),
        "b": draw(sets * channels),
    }


def by_autograd(values: dict[str, Tensor], sets: int, relu: bool) -> tuple[list, list]:
    """First and second derivatives, set by set, from PyTorch's own batch norm."""
    leaves = {name: values[name].clone().requires_grad_() for name in ("x", "weight", "bias")}
    dy = values["dy"].clone().requires_grad_()
    first: list[list[Tensor]] = [[], [], []]
    for part in dy.chunk(sets, dim=1):
        y = F.batch_norm(leaves["x"], None, None, leaves["weight"], leaves["bias"], True, 0, 1e-5)
        y = y.relu() if relu else y
        found = torch.autograd.grad(y, list(leaves.values()), part, create_graph=True)
        for store, value in zip(first, found, strict=True):
            store.append(value)
    dx, dweight, dbias = (torch.cat(parts, dim=1 if parts[0].ndim > 1 else 0) for parts in first)
    scalar = (dx * values["u"]).sum() + (dweight * values["a"]).sum() + (dbias * values["b"]).sum()
    second = torch.autograd.grad(scalar, [dy, leaves["x"], leaves["weight"]])
    return [dx, dweight, dbias], list(second)


@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_derivatives_are_those_of_autograd(shape: tuple[int, ...], sets: int, relu: bool) -> None:
    values = case(shape, sets, torch.float64)
    first, second = by_autograd(values, sets, relu)
    x, weight, bias, dy = (
        values[name].clone().requires_grad_() for name in ("x", "weight", "bias", "dy")
    )
    result = normalise(x, weight, bias, 1e-5, relu)
    dx, dweight, dbias = result.pull_back(dy, values["plus"])
    expected = [first[0] + values["plus"], *first[1:]]
    for got, want in zip((dx, dweight, dbias), expected, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9)
    scalar = (dx * values["u"]).sum() + (dweight * values["a"]).sum() + (dbias * values["b"]).sum()
    for got, want in zip(torch.autograd.grad(scalar, [dy, x, weight]), second, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-8, atol=1e-8)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("relu", [False, True])
@pytest.mark.parametrize("sets", [1, 3])
@pytest.mark.parametrize("shape", SHAPES)
def test_kernels_do_what_plain_torch_does(
    shape: tuple[int, ...], sets: int, relu: bool, dtype: torch.dtype,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if dtype == torch.bfloat16 and DEVICE == "cpu":
        pytest.skip("Triton's interpreter cuts where a GPU rounds")
    values = case(shape, sets, dtype)
    values["weight"], values["bias"] = values["weight"].float(), values["bias"].float()
    values["a"], values["b"] = values["a"].float(), values["b"].float()
    results = []
    for kernels in (False, True):
        monkeypatch.setattr(norm, "_use_kernels", lambda x, kernels=kernels: kernels)
        channels = shape[1]
        running = (
            torch.zeros(channels, device=DEVICE),
            torch.ones(channels, device=DEVICE),
            torch.zeros((), dtype=torch.long, device=DEVICE),
            0.1,
        )
        leaves = [values[name].clone().requires_grad_() for name in ("x", "weight", "bias", "dy")]
        x, weight, bias, dy = leaves
        result = normalise(x, weight, bias, 1e-5, relu, other=values["other"], running=running)
        first = result.pull_back(dy, values["plus"])
        second = torch.autograd.grad(
            first, [dy, x, weight], [values["u"], values["a"], values["b"]]
        )
        results.append([result.x, result.y, *running[:3], *first, *second])
    tolerance = 1e-4 if dtype == torch.float32 else 2e-2
    for number, (plain, fast) in enumerate(zip(*results, strict=True)):
        error = (plain.double() - fast.double()).norm()
        assert error <= tolerance * plain.double().norm() + 1e-6, number


@needs_kernels
def test_kernels_give_the_same_bits_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(norm, "_use_kernels", lambda x: True)
    values = case((64, 33, 5, 5), 3, torch.float32)

    def once() -> tuple[Tensor, ...]:
        result = normalise(values["x"], values["weight"], values["bias"], 1e-5, True)
        return (result.y, *result.pull_back(values["dy"]))

    for first, second in zip(once(), once(), strict=True):
        assert torch.equal(first, second)
