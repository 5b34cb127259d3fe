"""A network run on this process's rows of a batch as if it were run on all of them.

Batch norm takes its moments over the rows of all processes; dropout draws its mask for all rows,
so that all generators go on alike, and takes that of its own.
"""

import contextlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mlnt.distributed import Rows
from mlnt.meta.norm import normalise


@contextlib.contextmanager
def synchronised(rows: Rows) -> Iterator[None]:
    """Within, any network computes its rows' part of the whole batch; gradients are parts too."""
    if rows.is_whole:
        yield
        return
    with _AsOneBatch(rows):
        yield


class _AsOneBatch(TorchFunctionMode):
    def __init__(self, rows: Rows) -> None:
        super().__init__()
        self.rows = rows

    def __torch_function__(
        self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        own = _OWN.get(function)
        if own is None:
            return function(*args, **(kwargs or {}))
        given = _SIGNATURES[function].bind(*args, **(kwargs or {}))
        given.apply_defaults()
        if not given.arguments["training"]:
            return function(*args, **(kwargs or {}))
        return own(self.rows, **given.arguments)


def _batch_norm(
    rows: Rows,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    momentum: float,
    eps: float,
    **others: Any,
) -> Tensor:
    running = None
    if running_mean is not None and running_var is not None:
        seen = torch.zeros_like(running_mean)  # batches are counted by the layer itself
        running = (running_mean, running_var, seen, momentum)
    return normalise(input, weight, bias, eps, running=running, rows=rows).y


def _dropout(rows: Rows, input: Tensor, p: float, **others: Any) -> Tensor:
    with torch.no_grad():
        scale = _own_rows(rows, input, lambda like: F.dropout(like, p, training=True))
    return input * scale


def _own_rows(rows: Rows, x: Tensor, draw: Callable[[Tensor], Tensor]) -> Tensor:
    """What is drawn for x; x may have several rows of each sample, sample by sample."""
    own = rows.own.stop - rows.own.start
    if len(x) % own:
        return draw(torch.ones_like(x))
    each = len(x) // own
    ones = torch.ones((each * rows.total, *x.shape[1:]), dtype=x.dtype, device=x.device)
    return draw(ones)[each * rows.own.start : each * rows.own.stop]


_OWN: dict[Callable, Callable] = {F.batch_norm: _batch_norm, F.dropout: _dropout}
_SIGNATURES = {function: inspect.signature(function) for function in _OWN}
