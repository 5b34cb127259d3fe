"""`meta_gradient`: one signature, several engines with the same result."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mlnt.arguments import as_tensor, in_one_line
from mlnt.config import convert, fields_by_name
from mlnt.distributed import WHOLE, Rows
from mlnt.errors import InputError, did_you_mean, first_line
from mlnt.meta.choice import ENGINES, choose_engine
from mlnt.meta.features import as_arguments
from mlnt.meta.folded import Target
from mlnt.meta.labels import LEAVE_OUT
from mlnt.meta.plain import CONSISTENCIES, Gradients, check_classes, no_second_derivative
from mlnt.meta.wrapped import as_written, unwrapped
from mlnt.values import check_setting

SUM_TOLERANCE, ROUNDING = 0.02, 1e-6  # of probabilities: in half precision, of differences
IGNORED = 255  # as a label, in some data sets, of what has none
NO_SECOND_DERIVATIVE = ("derivative for", "double backward")  # how PyTorch says so


@as_written()
def meta_gradient(
    model: nn.Module,
    inputs: Any,
    synthetic: Tensor | np.ndarray,
    target: Target | np.ndarray,
    alpha: float | Tensor,
    order: int = 1,
    engine: str = "auto",
    consistency: str = "kl",
) -> tuple[Tensor, Gradients]:
    """(L_meta, {parameter name: ∂L_meta/∂θ}) for the model's trainable parameters θ.

    model        any nn.Module that maps inputs to logits [B, C]; used in the mode it is in;
                 of one that torch.compile or DistributedDataParallel wraps, the network in it
    inputs       what the model takes: a tensor, or a tuple or list of its arguments
    synthetic    LongTensor [M, B], the synthetic labels
    target       [B, C], probabilities the updated models should agree with, or a function that
                 gives them when they are needed
    alpha        step size of the inner step
    order        1: first-order approximation, 2: through the inner step
    engine       plain | folded | auto: plain on a CPU, on a GPU the faster (measured once)
    consistency  kl | mse
    """
    check_network(model, "model")
    model, inputs = unwrapped(model), as_arguments(inputs)
    check_trainable(model)
    alpha = checked("alpha", alpha)
    device = next(model.parameters()).device
    synthetic_MB = as_tensor(synthetic, "synthetic", "class numbers [M, B]").to(device)
    if not callable(target):
        target = as_tensor(target, "target", "probabilities [B, C]").to(device)
        _check_probabilities(target)
        target = target.clamp(min=0)
    return gradient_by_engine(
        model, inputs, synthetic_MB, target, alpha, order, engine, consistency
    )


def gradient_by_engine(
    model: nn.Module,
    inputs: Any,
    synthetic: Tensor,
    target: Target,
    alpha: float | Tensor,
    order: int,
    engine: str,
    consistency: str,
    rows: Rows = WHOLE,
) -> tuple[Tensor, Gradients]:
    """`meta_gradient` of a network as it is: in a training, numbers are not looked at."""
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
    with _second_derivatives(order):
        if engine == "auto":
            engine = choose_engine(
                model, inputs, synthetic, target, alpha, order, consistency, rows
            )
        if engine == "plain" and not isinstance(target, Tensor):
            target = target()
        return ENGINES[engine](model, inputs, synthetic, target, alpha, order, consistency, rows)


def checked(name: str, value: Any) -> Any:
    """The value as the type of this setting, if it lies where that may; a tensor as it is, for
    looking could wait for a GPU."""
    if isinstance(value, Tensor):
        return value
    value = convert(name, value)
    check_setting(fields_by_name()[name], value)
    return value


def check_network(model: Any, name: str) -> None:
    """Raise InputError unless it is a module that has its weights."""
    if not isinstance(model, nn.Module):
        raise InputError(f"the {name} must be an nn.Module, got {in_one_line(model)}")
    if any(nn.parameter.is_lazy(tensor) for tensor in (*model.parameters(), *model.buffers())):
        raise InputError(
            f"the {name} has lazy layers, which have no weights yet; run it on some inputs before"
        )


def check_trainable(model: nn.Module) -> None:
    """Raise InputError unless there can be gradients, of some parameters at least."""
    if torch.is_inference_mode_enabled():
        raise InputError(
            "the meta-gradient cannot be computed in torch.inference_mode; leave it first"
        )
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise InputError("the model has nothing to learn: all its parameters are frozen")


@contextlib.contextmanager
def _second_derivatives(order: int) -> Iterator[None]:
    """Says what is missing where a layer has none."""
    try:
        yield
    except RuntimeError as error:
        if order == 1 or not any(words in str(error) for words in NO_SECOND_DERIVATIVE):
            raise
        raise no_second_derivative(first_line(error)) from None


def _check_shapes(synthetic: Tensor, target: Tensor) -> None:
    if synthetic.ndim != 2 or target.ndim != 2 or synthetic.shape[1] != len(target):
        raise InputError(
            f"synthetic must be [M, B] and target [B, C] for the same batch, got "
            f"{tuple(synthetic.shape)} and {tuple(target.shape)}"
        )
    if len(synthetic) == 0:
        raise InputError("synthetic must hold 1 or more sets of labels, got none")
    if synthetic.dtype != torch.long:
        raise InputError(f"synthetic must hold class numbers (torch.long), got {synthetic.dtype}")
    classes = target.shape[1]
    check_classes(classes)
    # Only where looking costs no wait for a GPU.
    if synthetic.device.type == "cpu" and synthetic.numel():
        low, high = int(synthetic.min()), int(synthetic.max())
        if low < 0 or high >= classes:
            hint = f"; {LEAVE_OUT}" if low < 0 or high == IGNORED else ""
            raise InputError(f"labels must lie in [0, {classes - 1}], got {low} to {high}{hint}")


def _check_probabilities(target_BC: Tensor) -> None:
    if not target_BC.is_floating_point():
        raise InputError(
            f"target must hold probabilities, got {target_BC.dtype}; .float() makes one-hot ones"
        )
    if target_BC.device.type != "cpu" or target_BC.ndim != 2:
        return  # looking would wait for a GPU; `_check_shapes` tells of the shape
    off_B = (target_BC.double().sum(dim=1) - 1).abs()
    if not ((target_BC >= -ROUNDING).all() and (off_B <= SUM_TOLERANCE).all()):
        raise InputError(
            "each row of target must hold probabilities, none negative or NaN, that sum to 1; "
            "logits become such by .softmax(dim=1)"
        )
