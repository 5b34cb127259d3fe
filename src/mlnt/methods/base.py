"""What a method is: something that trains its models one step at a time."""

from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch


@dataclass(frozen=True)
class Rates:
    """What the schedule says at one step."""

    lr: float  # β
    eta: float  # η
    gamma: float  # γ
    lam: float  # λ


class Method(Protocol):
    models: dict[str, nn.Module]  # the models worth evaluating, by name

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One training step; returns losses and the like, as tensors still on the device.

        `batch` comes from all training data, `class_batch` from what the mentor kept; without a
        mentor they are the same batch.
        """


def make_optimizer(model: nn.Module, settings: Settings) -> torch.optim.SGD:
    trainable = [p for p in model.parameters() if p.requires_grad]
    return torch.optim.SGD(
        trainable,
        lr=settings.lr,
        momentum=settings.momentum,
        weight_decay=settings.weight_decay,
    )


def class_backward_(
    student: nn.Module, optimizer: torch.optim.Optimizer, batch: Batch, lr: float
) -> dict[str, Tensor]:
    """Set `.grad` to ∇L_c(X, Y, θ) and the rate to β; the step itself is the caller's."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    student.train()
    optimizer.zero_grad()
    logits_BC = student(batch.inputs)
    loss = F.cross_entropy(logits_BC, batch.labels)
    loss.backward()
    hits_B = logits_BC.detach().argmax(dim=1) == batch.labels
    return {"class_loss": loss.detach(), "train": 100 * hits_B.double().mean()}
