"""Ablations: what is left of MLNT without the meta-learning.

    MeanTeacher   class loss and consistency with the teacher, in one step
    Iterative     class loss alone; the teacher follows, and the mentor filters between iterations

Axes: B batch, C classes.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.meta.teacher import copy_buffers_, ema_, make_teacher, teacher_target
from mlnt.methods.base import (
    Method,
    Rates,
    class_backward_,
    make_optimizer,
    percent_right,
    target_backward_,
)


class MeanTeacher(Method):
    """`weight` is that of the consistency loss after its ramp, which is the ramp of η."""

    def __init__(self, model: nn.Module, settings: Settings, weight: float = 1.0) -> None:
        self.student, self.teacher = model, make_teacher(model)
        self.models = {"student": self.student, "teacher": self.teacher}
        self.optimizer = make_optimizer(model, settings)
        self.weight_per_eta = weight / settings.eta if settings.eta else 0.0

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """θ ← θ − β ∇[L_c(X, Y, θ) + w KL(f(X, θ̃) ‖ f(X, θ))], then θ̃ ← γ θ̃ + (1 − γ) θ."""
        inputs, labels_B = class_batch.inputs, class_batch.labels
        rows = self.world.rows(len(labels_B))
        self.student.train()
        teacher_BC = teacher_target(self.teacher, self.student, class_batch.for_teacher, rows)
        weight = rates.eta * self.weight_per_eta
        # Both losses are cross entropies but for a constant: together one with the summed target.
        given_BC = F.one_hot(labels_B, teacher_BC.shape[1]).to(teacher_BC)
        if self.class_weights is not None:
            weights_B = self.class_weights[labels_B].to(teacher_BC)
            given_BC = given_BC * (weights_B / weights_B.mean())[:, None]
        target_BC = given_BC + weight * teacher_BC
        _, logits_BC = target_backward_(
            self.student, self.optimizer, inputs, target_BC, rates.lr, self.world
        )
        self.optimizer.step()
        ema_(self.teacher, self.student, rates.gamma)
        copy_buffers_(self.teacher, self.student, with_statistics=False)
        with torch.autocast(logits_BC.device.type, enabled=False):
            log_student_BC = logits_BC.to(teacher_BC).log_softmax(dim=1)
            return {
                "class_loss": F.nll_loss(log_student_BC, labels_B, self.class_weights),
                "consistency": F.kl_div(log_student_BC, teacher_BC, reduction="batchmean"),
                "train": percent_right(logits_BC, labels_B),
            }


class Iterative(Method):
    """Cross entropy with a teacher beside it, whom nobody asks."""

    teacher_answers = False

    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.student, self.teacher = model, make_teacher(model)
        self.models = {"student": self.student, "teacher": self.teacher}
        self.optimizer = make_optimizer(model, settings)

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """θ ← θ − β ∇L_c(X, Y, θ), then θ̃ ← γ θ̃ + (1 − γ) θ."""
        losses = class_backward_(
            self.student, self.optimizer, class_batch, rates.lr, self.world, self.class_weights
        )
        self.optimizer.step()
        ema_(self.teacher, self.student, rates.gamma)
        copy_buffers_(self.teacher, self.student, with_statistics=False)
        return losses
