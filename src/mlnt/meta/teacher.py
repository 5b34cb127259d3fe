"""The teacher: a moving average of the student, and the target it gives.

Axes: B batch, C classes.
"""

import logging
import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.utils.parametrizations import _SpectralNorm
from torch.nn.utils.spectral_norm import SpectralNorm

from mlnt.distributed import WHOLE, Rows
from mlnt.errors import InputError
from mlnt.meta.features import evaluating, forward
from mlnt.meta.passes import logits_of
from mlnt.models import copy_model

ROUNDING = 0.02  # of a sum of probabilities, in bfloat16
log = logging.getLogger("mlnt")
_looked_at: "weakref.WeakSet[nn.Module]" = weakref.WeakSet()


def make_teacher(student: nn.Module) -> nn.Module:
    """A copy of the student that no gradient reaches."""
    if any(isinstance(module, torch.jit.ScriptModule) for module in student.modules()):
        raise InputError(
            "the model is TorchScript, of which no teacher can be made; give the nn.Module that "
            "was scripted or traced"
        )
    return copy_model(student).requires_grad_(False)


@torch.no_grad()
def ema_(
    teacher: nn.Module,
    student: nn.Module,
    gamma: float | Tensor,
    wide: dict[str, Tensor] | None = None,
) -> None:
    """θ̃ ← γ θ̃ + (1 − γ) θ, in place.

    Parameters, not buffers: see `copy_buffers_`. `wide` keeps, from update to update and by name,
    the float32 means of what the teacher has in fewer bits: by those of bfloat16, an update of
    γ = 0.999 would be rounded away, and the teacher stand still.
    """
    means: list[Tensor] = []
    currents: list[Tensor] = []
    narrow: list[tuple[Tensor, Tensor]] = []
    for (name, own), weight in zip(teacher.named_parameters(), student.parameters(), strict=True):
        mean: Tensor = own
        current: Tensor = weight
        if wide is not None and _is_narrow(own):
            mean = wide[name] = _widened(own, wide.get(name))
            current = weight.float()
            narrow.append((own, mean))
        if weight.requires_grad:
            means.append(mean)
            currents.append(current)
        elif weight.is_floating_point():
            # Frozen, maybe only now: it goes on to the student's, and stays once it is there, where
            # two products and a sum would add rounding.
            # Infinite ones, as of a mask, have no way between: they are the student's at once.
            nearer = mean + (1 - gamma) * (current - mean)
            mean.copy_(torch.where((mean == current) | ~nearer.isfinite(), current, nearer))
        else:
            mean.copy_(current)
    # Two products and a sum, each rounded, so that the result is the formula's to the last bit;
    # add_(..., alpha=) may fuse them. All parameters at once: a hundred launches are slow.
    if means:
        torch._foreach_mul_(means, gamma)
        share = torch._foreach_mul(currents, 1 - gamma)
        torch._foreach_add_(means, share)
    for parameter, mean in narrow:
        parameter.copy_(mean)


def _is_narrow(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize < 4


def _widened(own: Tensor, mean: Tensor | None) -> Tensor:
    """The float32 mean, where the teacher still has what came of it; else what it has."""
    if mean is None:
        return own.float()
    mean = mean.to(own.device)
    return torch.where(mean.to(own.dtype) == own, mean, own.float(), out=mean)


@torch.no_grad()
def follow_(teacher: nn.Module, student: nn.Module, wide: dict[str, Tensor]) -> None:
    """Has the teacher where the student is by now, in its types; InputError if it is no copy of it
    any more. Looks at no values, for which a GPU would be waited."""
    owns, currents = dict(teacher.named_parameters()), dict(student.named_parameters())
    modules, of_student = dict(teacher.named_modules()), dict(student.named_modules())
    change = _renamed("parameter", owns, currents) or _renamed("module", modules, of_student)
    if change := change or _reshaped(owns, currents):
        raise InputError(
            f"the model was changed after NoiseTolerance was made: {change}; make a new "
            "NoiseTolerance"
        )
    moved = [name for name, own in owns.items() if not _is_beside(own, currents[name])]
    for name in moved:
        own, current = owns[name], currents[name]
        mean = _widened(own.data, wide.pop(name, None)) if _is_narrow(own) else own.data
        own.data = mean.to(current.device, current.dtype)
        if _is_narrow(own):
            wide[name] = mean.to(current.device, torch.float32)
    for path, module in modules.items():
        for name, buffer in of_student[path]._buffers.items():
            mine = module._buffers.get(name)
            if mine is not None and buffer is not None and not _is_beside(mine, buffer):
                module._buffers[name] = mine.to(buffer.device, buffer.dtype)
        if moved and isinstance(module, nn.RNNBase):
            module.flatten_parameters()  # one block of memory again, as cuDNN wants them


def _renamed(kind: str, were: dict[str, Any], are: dict[str, Any]) -> str:
    """The first name that came or went, in words; empty where all are as they were."""
    if list(were) == list(are):
        return ""
    for names, others, what in ((are, were, "is new"), (were, are, "is gone")):
        for name in names:
            if name not in others:
                return f"{kind} {name!r} {what}"
    return f"its {kind}s are in another order"


def _reshaped(were: dict[str, Any], are: dict[str, Any]) -> str:
    for name, own in were.items():
        if own.shape != are[name].shape:
            return f"parameter {name!r} is {list(are[name].shape)}, was {list(own.shape)}"
    return ""


def _is_beside(own: Tensor, current: Tensor) -> bool:
    """Whether it is of the same type and on the same device."""
    return own.dtype == current.dtype and own.device == current.device


@torch.no_grad()
def copy_buffers_(teacher: nn.Module, student: nn.Module, with_statistics: bool) -> None:
    """The student's buffers as the teacher's: a mask, a temperature.

    Statistics, which come from the teacher's own forward passes or are renewed, only if asked for:
    without, a network that has no other buffers costs no kernel.
    """
    owns: list[Tensor] = []
    currents: list[Tensor] = []
    for module, of_student in zip(teacher.modules(), student.modules(), strict=True):
        if _keeps_statistics(of_student) and not with_statistics:
            continue
        for name, current in of_student._buffers.items():
            own = module._buffers.get(name)
            if own is not None and current is not None and _takes(own, current):
                owns.append(own)
                currents.append(current)
            else:
                module._buffers[name] = None if current is None else current.clone()
    if owns:
        torch._foreach_copy_(owns, currents)


def _takes(own: Tensor, current: Tensor) -> bool:
    """Whether it can be copied in place; not if expanded, which is several values in one place."""
    alike = own.shape == current.shape and own.dtype == current.dtype
    return alike and 0 not in own.stride()


@torch.no_grad()
def teacher_target(
    teacher: nn.Module, student: nn.Module, inputs: Any, rows: Rows = WHOLE
) -> Tensor:
    """f(X, θ̃) [B, C] without dropout and the like, whose randomness would only blur it.

    What keeps statistics (batch norm) is in the mode of the student's: normalises by the batch and
    updates them, or is frozen.
    """
    _answer_like_(teacher, student)
    return probabilities(teacher, inputs, rows)


def _answer_like_(teacher: nn.Module, student: nn.Module) -> None:
    """Only what keeps statistics trains, if the student's does."""
    teacher.eval()
    for module, of_student in zip(teacher.modules(), student.modules(), strict=True):
        if _keeps_statistics(module):
            module.training = of_student.training


def _keeps_statistics(module: nn.Module) -> bool:
    """Whether it owns something that its passes in training mode bring up to date: a norm.

    Not whoever owns a buffer: attention owns its mask, and in training mode would drop out.
    """
    named = (name for name, buffer in module._buffers.items() if buffer is not None)
    return any(name.startswith("running_") for name in named) or _is_spectral_norm(module)


def _is_spectral_norm(module: nn.Module) -> bool:
    """Its singular vectors follow the weights, in training mode; it drops out nothing."""
    hooks = module._forward_pre_hooks.values()  # the older form of it
    return isinstance(module, _SpectralNorm) or any(isinstance(h, SpectralNorm) for h in hooks)


@torch.no_grad()
def renew_statistics(teacher: nn.Module, student: nn.Module, batches: Iterable[Any]) -> None:
    """The teacher's batch-norm statistics: the mean of those of these batches, without dropout.

    Those that are frozen in the student, which is in training mode, stay; and all do if a batch
    fails. (`torch.optim.swa_utils.update_bn` spares neither.)
    """
    _answer_like_(teacher, student)
    norms = [
        module
        for module in teacher.modules()
        if isinstance(module, _BatchNorm) and module.training and module.track_running_stats
    ]
    if not norms:
        return
    momenta = [norm.momentum for norm in norms]
    before = [{key: tensor.clone() for key, tensor in norm.state_dict().items()} for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # all batches count alike
    try:
        for inputs in batches:
            forward(teacher, inputs)
        if not any(norm.num_batches_tracked for norm in norms):
            raise InputError("there are no batches to take statistics from")
    except BaseException:
        for norm, state in zip(norms, before, strict=True):
            norm.load_state_dict(state)
        raise
    finally:
        for norm, momentum in zip(norms, momenta, strict=True):
            norm.momentum = momentum
        teacher.eval()


@torch.no_grad()
def mixed_target(
    teacher: nn.Module,
    student: nn.Module,
    mentor: nn.Module | None,
    inputs: Any,
    lam: float | Tensor,
    rows: Rows = WHOLE,
) -> Tensor:
    """s = λ f(X, θ̃) + (1 − λ) f(X, θ*) [B, C]; the teacher alone where there is no mentor."""
    target_BC = teacher_target(teacher, student, inputs, rows)
    if mentor is None:
        return target_BC
    with evaluating(mentor):
        mentor_BC = probabilities(mentor, inputs, rows)
    if mentor_BC.shape != target_BC.shape:
        classes, others = target_BC.shape[1], mentor_BC.shape[1]
        raise InputError(f"the mentor tells {others} classes apart, the model {classes}")
    return lam * target_BC + (1 - lam) * mentor_BC


def probabilities(model: nn.Module, inputs: Any, rows: Rows = WHOLE) -> Tensor:
    logits_BC = logits_of(model, inputs, rows)
    _warn_of_probabilities(model, logits_BC)
    weight = next(model.parameters(), logits_BC)  # a mentor need not own what it asks
    return logits_BC.to(weight.dtype).softmax(dim=1)


def _warn_of_probabilities(model: nn.Module, logits_BC: Tensor) -> None:
    """Once, on what it says first: later steps wait for no GPU. Taken as logits, probabilities
    make a target that is nearly the same for all classes."""
    recording = logits_BC.is_cuda and torch.cuda.is_current_stream_capturing()
    if model in _looked_at or recording or not len(logits_BC):
        return
    _looked_at.add(model)
    off_B = (logits_BC.float().sum(dim=1) - 1).abs()
    if bool((logits_BC >= 0).all() & (off_B <= ROUNDING).all()):
        log.warning(
            "%s gives probabilities, where logits are expected; leave out the softmax at its end",
            type(model).__name__,
        )
