"""What a method is: something that trains its models one step at a time."""

from dataclasses import dataclass
from typing import Protocol

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


class Method(Protocol):
    models: dict[str, nn.Module]  # the models worth evaluating, by name
    optimizer: torch.optim.Optimizer

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One training step; returns losses and the like, as tensors still on the device.

        `batch` comes from all training data, `class_batch` from what the mentor kept; without a
        mentor they are the same batch.
        """


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    trainable = [p for p in model.parameters() if p.requires_grad]
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
    for group in optimizer.param_groups:
        group["lr"] = lr
    student.train()
    loss, logits_BC, gradients = class_gradient(student, batch.inputs, batch.labels)
    for name, parameter in student.named_parameters():
        parameter.grad = gradients.get(name)
    hits_B = logits_BC.argmax(dim=1) == batch.labels
    return {"class_loss": loss, "train": 100 * hits_B.double().mean()}
