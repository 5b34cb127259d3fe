"""Whether a traced network computes what the network itself does.

What a trace may miss is many things, so the two are run beside each other, once.
"""

import gc
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from mlnt.distributed import Rows
from mlnt.errors import first_line
from mlnt.meta.features import forward
from mlnt.meta.plain import gradient
from mlnt.meta.synchronised import synchronised
from mlnt.meta.tape import CannotFold, Run, Weights
from mlnt.meta.tracing import left_as_it_was
from mlnt.meta.value_rules import DROPOUTS

# How far logits and gradients may be from those of the network itself, relative to their norms: in
# float64, and in other types, where rounding alone may come to much in a deep network.
NEAR, GROSSLY_NEAR = 1e-6, 0.3
# Samples that the two are compared by: in float64 all would take several times the room of a step.
COMPARED = 8

ByRules = Callable[[Weights, Any], Run]  # of one model, with these weights and inputs
Pairs = list[tuple[Tensor, Tensor]]


def check_agrees(model: nn.Module, by_rules: ByRules, inputs: Any, rows: Rows) -> None:
    """Raise CannotFold unless the network itself has the same logits and gradients."""
    pairs, limit = _pairs(model, by_rules, inputs, rows)
    for found, expected in pairs:
        squares = [x.double().square().sum() for x in (found - expected, expected)]
        # Processes that divide a batch must all come to the same conclusion.
        error, norm = rows.group.sum(torch.stack(squares)).sqrt().tolist()
        if math.isfinite(norm) and not error <= limit * norm:
            raise CannotFold(f"{type(model).__name__} computes something else than its trace")


def _pairs(model: nn.Module, by_rules: ByRules, inputs: Any, rows: Rows) -> tuple[Pairs, float]:
    """What to compare, and how near it must be."""
    few = _first(inputs, COMPARED) if rows.is_whole else inputs
    own = next(model.parameters()).dtype
    # First not in what autocast or TensorFloat-32 leave of a number: a deep network makes of
    # their rounding gradients that have little in common. But it may name types itself, or the
    # size of its batch; and there may be no room.
    reason = ""
    for some, dtype, limit in (
        (few, torch.float64, NEAR),
        (few, own, GROSSLY_NEAR),
        (inputs, own, GROSSLY_NEAR),
    ):
        try:
            return _both(model, by_rules, some, rows, dtype), limit
        except Exception as error:
            reason = first_line(error)
        gc.collect()  # a tape that was broken off holds itself, and what it keeps
    raise CannotFold(f"{type(model).__name__} cannot be compared with its trace: {reason}")


def _both(
    model: nn.Module, by_rules: ByRules, inputs: Any, rows: Rows, dtype: torch.dtype
) -> Pairs:
    """(folded, by autograd) of the logits and of all gradients, each one vector.

    Near these weights and inputs: there nothing is zero, which would hide what comes before
    it, and no two things are equal, of which rounding would choose one. All weights are free.
    """
    device = next(model.parameters()).device
    devices = [device] if device.type == "cuda" else []
    named = dict(model.named_parameters())
    weights, inputs = {name: _near(p, dtype) for name, p in named.items()}, _near(inputs, dtype)
    leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
    free = {id(p): leaves[name] for name, p in named.items()}
    with left_as_it_was(model), torch.autocast(device.type, enabled=False), _Undropped():
        _replace_(model, "_buffers", lambda buffer: _in_type(buffer.clone(), dtype))
        with torch.random.fork_rng(devices):
            run = by_rules(weights, inputs)
            found = run.pull_back(_drawn(run.logits))
        _replace_(model, "_parameters", lambda p: free[id(p)])
        with torch.random.fork_rng(devices), torch.no_grad(), synchronised(rows):
            forward(model, inputs)  # what it keeps of a first pass may change the second
        with torch.random.fork_rng(devices), torch.enable_grad(), synchronised(rows):
            logits = forward(model, inputs)
            expected = gradient((logits * _drawn(logits)).sum(), leaves)
    gradients = [(found.get(name, torch.zeros_like(g)), g) for name, g in expected.items()]
    vectors = [torch.cat([g.flatten() for g in side]) for side in zip(*gradients, strict=True)]
    return [(run.logits, logits.detach()), (vectors[0], vectors[1])]


class _Undropped(TorchFunctionMode):
    """Dropout does nothing: which values it drops depends on how they lie in memory."""

    def __torch_function__(
        self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0] if function in DROPOUTS.values() else function(*args, **(kwargs or {}))


def _replace_(model: nn.Module, kind: str, change: Callable[[Tensor], Tensor]) -> None:
    """All its `_parameters` or `_buffers`."""
    for module in model.modules():
        tensors = getattr(module, kind)
        for name in tensors:
            tensors[name] = None if tensors[name] is None else change(tensors[name])


def _in_type(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _first(inputs: Any, count: int) -> Any:
    """So many samples of a tensor, or of a tuple of arguments of those that have as many as the
    first."""
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    batch = len(parts[0]) if isinstance(parts[0], Tensor) and parts[0].ndim else 0
    some = tuple(
        part[:count] if isinstance(part, Tensor) and part.ndim and len(part) == batch else part
        for part in parts
    )
    return some if isinstance(inputs, tuple) else some[0]


def _near(value: Any, dtype: torch.dtype) -> Any:
    """The same but for a hundredth of noise; of a tuple, each."""
    if isinstance(value, tuple):
        return tuple(_near(part, dtype) for part in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    x = value.detach().to(dtype)
    return x + 0.01 * _drawn(x)


def _drawn(like: Tensor) -> Tensor:
    """Normally distributed, always the same."""
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)
