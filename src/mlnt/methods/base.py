"""What a method is: something that trains its models one step at a time.

Axes: B batch, C classes.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.distributed import ALL_ALONE, World
from mlnt.meta.passes import class_gradient, loss_gradient


@dataclass(frozen=True)
class Rates:
    """What the schedule says at one step: numbers, or scalars on the device."""

    lr: float | Tensor  # β
    eta: float | Tensor  # η
    gamma: float | Tensor  # γ
    lam: float | Tensor  # λ


class Method(ABC):
    """Trains `models` by `optimizer`.

    On a GPU a step is recorded once and played back: what changes from step to step lies in
    tensors that are changed in place, and nothing in a step asks for their values.
    """

    models: dict[str, nn.Module]  # the models worth evaluating, by name
    optimizer: torch.optim.Optimizer
    world: World = ALL_ALONE  # the processes that divide the work
    teacher_answers = True  # in each step, where there is one: its batch norms learn by that
    class_weights: Tensor | None = None  # [C] in the class loss, where a mentor filtered the labels

    def join(self, world: World) -> None:
        """Divide the work with the other processes from now on."""
        self.world = world

    @abstractmethod
    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One training step; returns losses and the like, as tensors still on the device.

        `batch` comes from all training data, `class_batch` from what the mentor kept; without a
        mentor they are the same batch.
        """

    def epoch_ends(self, epoch: int) -> None:  # noqa: B027 (most have nothing to do)
        """Called by the host after the steps of each epoch, from 1, and before evaluation."""

    def tensors(self) -> dict[str, Tensor]:
        """What resuming needs beside the weights and the optimizer; loaded in place by `copy_`."""
        return {} if self.class_weights is None else {"class_weights": self.class_weights}


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
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    lr: float | Tensor,
    world: World = ALL_ALONE,
    class_weights: Tensor | None = None,
) -> dict[str, Tensor]:
    """Set `.grad` to ∇L_c(X, Y, θ) and the rate to β; the step itself is the caller's."""
    loss, logits_BC = target_backward_(
        student, optimizer, batch.inputs, batch.labels, lr, world, class_weights
    )
    return {"class_loss": loss, "train": percent_right(logits_BC, batch.labels)}


def target_backward_(
    student: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: Any,
    target: Tensor,
    lr: float | Tensor,
    world: World = ALL_ALONE,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Set `.grad` to the gradient of −mean Σ_c target_c log f_c(X, θ), the rate to `lr`.

    The target is labels [B] or weights of the classes [B, C], which need not sum to 1. With labels,
    `class_weights` [C] may make the mean a weighted one. Returns the loss and the logits.
    """
    set_rate_(optimizer, lr)
    student.train()
    loss, logits_BC, gradients = class_gradient(student, inputs, target, world, class_weights)
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
    world: World = ALL_ALONE,
) -> tuple[dict[str, Tensor], Tensor]:
    """Set `.grad` to the gradient of any loss of the logits, the rate to `lr`.

    loss_of(logits [B, C]) gives the loss and its parts by name, computed in the weights' own type
    whatever the network computes in. `extras` are what the loss depends on beside the logits and
    the optimizer trains too. Returns the parts and the logits.
    """
    set_rate_(optimizer, lr)
    student.train()
    parts: dict[str, Tensor] = {}
    of_extras: list[Tensor] = []

    def loss_at(leaf_BC: Tensor) -> tuple[Tensor, Tensor]:
        loss, found = loss_of(leaf_BC)
        parts.update(found)
        of_logits_BC, *rest = torch.autograd.grad(loss, [leaf_BC, *extras])
        of_extras[:] = rest
        return loss.detach(), of_logits_BC

    batch = len(inputs[0]) if isinstance(inputs, tuple) else len(inputs)
    _, logits_BC, gradients = loss_gradient(student, inputs, loss_at, world, batch)
    for name, parameter in student.named_parameters():
        parameter.grad = gradients.get(name)
    named = {str(number): gradient for number, gradient in enumerate(of_extras)}
    for extra, gradient in zip(extras, world.from_leader(named).values(), strict=True):
        extra.grad = gradient
    return {name: part.detach() for name, part in parts.items()}, logits_BC


def set_rate_(optimizer: torch.optim.Optimizer, lr: float | Tensor) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def percent_right(logits_BC: Tensor, labels_B: Tensor) -> Tensor:
    """Percent of the batch predicted as labelled."""
    return 100 * (logits_BC.argmax(dim=1) == labels_B).double().mean()
