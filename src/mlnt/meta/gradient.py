"""`meta_gradient`: one signature, several engines with the same result."""

from typing import Any

import torch
from torch import Tensor, nn

from mlnt.distributed import WHOLE, Rows
from mlnt.errors import InputError, did_you_mean
from mlnt.meta.choice import ENGINES, choose_engine
from mlnt.meta.folded import Target
from mlnt.meta.plain import CONSISTENCIES, Gradients
from mlnt.meta.wrapped import as_written, unwrapped


@as_written()
def meta_gradient(
    model: nn.Module,
    inputs: Any,
    synthetic: Tensor,
    target: Target,
    alpha: float | Tensor,
    order: int = 1,
    engine: str = "auto",
    consistency: str = "kl",
    rows: Rows = WHOLE,
) -> tuple[Tensor, Gradients]:
    """(L_meta, {parameter name: ∂L_meta/∂θ}) for the model's trainable parameters θ.

    model        any nn.Module that maps inputs to logits [B, C]; used in the mode it is in;
                 of one that torch.compile or DistributedDataParallel wraps, the network in it
    inputs       what the model takes: a tensor, or a tuple of arguments
    synthetic    LongTensor [M, B], the synthetic labels
    target       [B, C], probabilities the updated models should agree with, or a function that
                 gives them when they are needed
    alpha        step size of the inner step
    order        1: first-order approximation, 2: through the inner step
    engine       plain | folded | auto: plain on a CPU, on a GPU the faster (measured once)
    consistency  kl | mse
    rows         which rows of a batch these are that several processes divide; all, by default
    """
    model = unwrapped(model)
    if isinstance(target, Tensor):
        _check_shapes(synthetic, target)
    if order not in (1, 2):
        raise InputError(f"order must be 1 or 2, got {order}")
    if consistency not in CONSISTENCIES:
        raise InputError(
            f"consistency must be one of {', '.join(CONSISTENCIES)}, got {consistency!r}"
            f"{did_you_mean(consistency, CONSISTENCIES)}"
        )
    if engine != "auto" and engine not in ENGINES:
        raise InputError(f"engine must be one of auto, {', '.join(ENGINES)}, got {engine!r}")
    if engine == "auto":
        engine = choose_engine(model, inputs, synthetic, target, alpha, order, consistency, rows)
    if engine == "plain" and not isinstance(target, Tensor):
        target = target()
    return ENGINES[engine](model, inputs, synthetic, target, alpha, order, consistency, rows)


def _check_shapes(synthetic: Tensor, target: Tensor) -> None:
    if synthetic.ndim != 2 or target.ndim != 2 or synthetic.shape[1] != len(target):
        raise InputError(
            f"synthetic must be [M, B] and target [B, C] for the same batch, got "
            f"{tuple(synthetic.shape)} and {tuple(target.shape)}"
        )
    if synthetic.dtype != torch.long:
        raise InputError(f"synthetic must hold class numbers (torch.long), got {synthetic.dtype}")
    classes = target.shape[1]
    # Only where looking costs no wait for a GPU.
    if synthetic.device.type == "cpu" and synthetic.numel():
        low, high = int(synthetic.min()), int(synthetic.max())
        if low < 0 or high >= classes:
            raise InputError(f"labels must lie in [0, {classes - 1}], got {low} to {high}")
