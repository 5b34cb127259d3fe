"""Which engine computes a network's meta-gradients fastest: measured once where it is not obvious.

On a CPU a choice by the clock would make runs differ in their last digits, so it is always the
plain loops, which are faster there but for networks without convolutions. On a GPU the folded
engine wins by far for small images; for large networks on large images, where one model fills the
GPU alone, it may not.
"""

import gc
import logging
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.device import record
from mlnt.distributed import Rows
from mlnt.meta.folded import Target, folded_meta_gradient, folded_network
from mlnt.meta.plain import plain_meta_gradient

ENGINES: dict[str, Callable[..., Any]] = {
    "plain": plain_meta_gradient,
    "folded": folded_meta_gradient,
}
REPEATS = 3

log = logging.getLogger("mlnt")

_choices: "weakref.WeakKeyDictionary[nn.Module, dict[Any, str]]" = weakref.WeakKeyDictionary()


def choose_engine(
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target: Target,
    alpha: float | Tensor,
    order: int,
    consistency: str,
    rows: Rows,
) -> str:
    if synthetic_MB.device.type != "cuda" or folded_network(model) is None:
        return "plain"
    if torch.are_deterministic_algorithms_enabled():
        return "folded"  # the clock would choose now one, now the other
    if not rows.is_whole:
        return "folded"  # processes that send each other sums must not choose each for itself
    # Not the size of the batch: the last of an epoch may be smaller.
    parts = inputs if isinstance(inputs, tuple) else (inputs,)
    shapes = tuple(tuple(getattr(x, "shape", ()))[1:] for x in parts)
    case = (shapes, len(synthetic_MB), order, consistency, torch.is_autocast_enabled("cuda"))
    known = _choices.setdefault(model, {})
    if case not in known:
        if torch.cuda.is_current_stream_capturing():
            return "folded"  # nothing can be measured in the middle of a recording
        target_BC = target if isinstance(target, Tensor) else target()
        arguments = (model, inputs, synthetic_MB, target_BC, alpha, order, consistency)
        # Dropout must not draw other numbers because something was measured.
        with torch.random.fork_rng(devices=[synthetic_MB.device]):
            times = {name: milliseconds(engine, arguments) for name, engine in ENGINES.items()}
        known[case] = min(times, key=lambda name: times[name])
        figures = ", ".join(f"{name} {ms:.1f} ms" for name, ms in times.items())
        log.info("engine: %s (%s)", known[case], figures)
    return known[case]


def milliseconds(engine: Callable[..., Any], arguments: tuple) -> float:
    """Time on the GPU, as part of a CUDA graph where it can be recorded; infinite if it fails."""
    try:
        for _ in range(2):  # lets the libraries choose their kernels
            engine(*arguments)
        torch.cuda.synchronize()
        try:
            graph = record(lambda: engine(*arguments), arguments[2].device)
            return _time(graph.replay)
        except RuntimeError:
            return _time(lambda: engine(*arguments))
    except torch.OutOfMemoryError:
        return float("inf")
    finally:
        gc.collect()
        torch.cuda.empty_cache()


def _time(step: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    for _ in range(REPEATS):
        step()
    torch.cuda.synchronize()
    return 1000 * (time.perf_counter() - began) / REPEATS
