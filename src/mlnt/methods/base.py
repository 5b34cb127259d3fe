"""What a method is: something that trains its models one step at a time.

Axes: B batch, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.meta.passes import class_gradient


@dataclass(frozen=True)
class Rates:
    """What the schedule says at one step: numbers, or scalars on the device."""

    lr: float | Tensor  # β
    eta: float | Tensor  # η
    gamma: float | Tensor  # γ
    lam: float | Tensor  # λ


class Method:
    """Trains `models` by `optimizer`.

    On a GPU a step is recorded once and played back: what changes from step to step lies in
    tensors that are changed in place, and nothing in a step asks for their values.
    """

    models: dict[str, nn.Module]  # the models worth evaluating, by name
    optimizer: torch.optim.Optimizer

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One training step; returns losses and the like, as tensors still on the device.

        `batch` comes from all training data, `class_batch` from what the mentor kept; without a
        mentor they are the same batch.
        """
        raise NotImplementedError

    def epoch_ends(self, epoch: int) -> None:
        """Called by the host after the steps of each epoch, from 1, and before evaluation."""

    def tensors(self) -> dict[str, Tensor]:
        """What resuming needs beside the weights and the optimizer; loaded in place by `copy_`."""
        return {}


def make_optimizer(
    model: nn.Module, settings: Settings, extras: Sequence[Tensor] = ()
) -> torch.optim.Optimizer:
    """SGD on the model, and on `extras`: what a method trains beside it."""
    trainable = [p for p in model.parameters() if p.requires_grad] + list(extras)
    return torch.optim.SGD(
        trainable,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
        # One kernel for all parameters, and a rate that may be a scalar on the device.
        fused=all(p.is_cuda for p in trainable) or None,
    )


def class_backward_(
    student: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, lr: float | Tensor
) -> dict[str, Tensor]:
    """Set `.grad` to ∇L_c(X, Y, θ) and the rate to β; the step itself is the caller's."""
    loss, logits_BC = target_backward_(student, optimizer, batch.inputs, batch.labels, lr)
    return {"class_loss": loss, "train": percent_right(logits_BC, batch.labels)}


def target_backward_(
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Any,
    target: Tensor,
    lr: float | Tensor,
) -> tuple[Tensor, Tensor]:
    """Set `.grad` to the gradient of −mean Σ_c target_c log f_c(X, θ), the rate to `lr`.

    The target is labels [B] or weights of the classes [B, C], which need not sum to 1. Returns
    the loss and the logits.
    """
    set_rate_(optimizer, lr)
    student.train()
    loss, logits_BC, gradients = class_gradient(student, inputs, target)
    for name, parameter in student.named_parameters():
        parameter.grad = gradients.get(name)
    return loss, logits_BC


def loss_backward_(
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Any,
    loss_of: Callable[[Tensor], tuple[Tensor, dict[str, Tensor]]],
    lr: float | Tensor,
    extras: Sequence[Tensor] = (),
) -> tuple[dict[str, Tensor], Tensor]:
    """Set `.grad` to the gradient of any loss of the logits, the rate to `lr`.

    loss_of(logits [B, C]) gives the loss and its parts by name, computed in the weights' own type
    whatever the network computes in. `extras` are what the loss depends on beside the logits and
    the optimizer trains too. Returns the parts and the logits.
    """
    set_rate_(optimizer, lr)
    student.train()
    parameters = [p for p in student.parameters() if p.requires_grad]
    with torch.enable_grad():
        logits_BC = student(*inputs) if isinstance(inputs, tuple) else student(inputs)
        leaf_BC = logits_BC.detach().to(parameters[0].dtype).requires_grad_()
        with torch.autocast(leaf_BC.device.type, enabled=False):
            loss, parts = loss_of(leaf_BC)
        of_logits_BC, *of_extras = torch.autograd.grad(loss, [leaf_BC, *extras])
    found = torch.autograd.grad(
        logits_BC, parameters, of_logits_BC.to(logits_BC.dtype), allow_unused=True
    )
    for parameter, gradient in zip([*parameters, *extras], [*found, *of_extras], strict=True):
        parameter.grad = _laid_out_as(parameter, gradient)
    return {name: part.detach() for name, part in parts.items()}, leaf_BC.detach()


def set_rate_(optimizer: torch.optim.Optimizer, lr: float | Tensor) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def percent_right(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Percent of the batch predicted as labelled."""
    return 100 * (logits_BC.argmax(dim=1) == labels_B).double().mean()


def _laid_out_as(parameter: Tensor, gradient: Tensor | None) -> Tensor | None:
    """The gradient in its parameter's memory layout, as `backward` would: fused SGD asks for it."""
    if gradient is None or gradient.stride() == parameter.stride():
        return gradient
    return torch.empty_like(parameter).copy_(gradient)
