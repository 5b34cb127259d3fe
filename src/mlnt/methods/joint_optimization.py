"""Joint Optimization (Tanaka et al. 2018): the labels are learned along with the weights.

    JointOptimization at a constant rate -> soft labels -> SoftCrossEntropy on a fresh network

The authors' code for CIFAR-10: 200 epochs, the labels replaced from the 70th on by the mean
prediction of the last ten; then 120 epochs on the soft labels. α = 1.2, β = 0.8, lr = 0.08 for
symmetric 70 % and 0.8, 0.4, 0.03 for asymmetric 40 % are those of a reimplementation (YU1ut).

Axes: N samples, B batch, C classes, E epochs remembered.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.methods.base import (
    Method,
    Rates,
    loss_backward_,
    make_optimizer,
    percent_right,
    target_backward_,
)


class JointOptimization(Method):
    """First stage. `soft_labels_NC` are the labels as far as they have been corrected.

    labels_N  as given
    prior_C   distribution of the true classes, uniform if not given
    alpha     weight of the loss that keeps the mean prediction at the prior
    beta      weight of the entropy, which makes predictions decided
    start     share of the epochs after which labels are replaced
    window    epochs whose predictions are averaged
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        labels_N: Tensor,
        classes: int,
        prior_C: Tensor | None = None,
        *,
        alpha: float = 1.2,
        beta: float = 0.8,
        start: float = 70 / 200,
        window: int = 10,
    ) -> None:
        weight = next(model.parameters())
        self.models = {"student": model}
        self.optimizer = make_optimizer(model, settings)
        self.alpha, self.beta = alpha, beta
        self.start_epoch = max(1, round(start * settings.epochs))
        uniform_C = torch.full((classes,), 1 / classes)
        self.prior_C = (uniform_C if prior_C is None else prior_C).to(weight, copy=True)
        self.soft_labels_NC = F.one_hot(labels_N, classes).to(weight)
        # What each sample was last predicted as; a sample not drawn in an epoch keeps it, one not
        # drawn yet has its label.
        self.latest_NC = self.soft_labels_NC.clone()
        self.remembered_ENC = self.latest_NC.new_zeros(window, *self.latest_NC.shape)

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """θ ← θ − lr · ∇(L_c + α L_p + β L_e), on the labels as they are now."""
        soft_BC = self.soft_labels_NC[batch.indices]

        def loss_of(logits_BC: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            parts = {
                "class_loss": soft_label_loss(soft_BC, logits_BC),
                "prior_loss": prior_loss(self.prior_C, logits_BC),
                "entropy": mean_entropy(logits_BC),
            }
            loss, prior, entropy = parts.values()
            return loss + self.alpha * prior + self.beta * entropy, parts

        losses, logits_BC = loss_backward_(
            self.models["student"],
            self.optimizer,
            batch.inputs,
            loss_of,
            rates.lr,
            world=self.world,
        )
        self.optimizer.step()
        self.latest_NC[batch.indices] = logits_BC.softmax(dim=1)
        return {**losses, "train": percent_right(logits_BC, batch.labels)}

    def epoch_ends(self, epoch: int) -> None:
        """y ← mean of the predictions in the last epochs, from the start epoch on."""
        window = len(self.remembered_ENC)
        self.remembered_ENC[(epoch - 1) % window] = self.latest_NC
        if epoch >= self.start_epoch:
            # A schedule so short that fewer epochs than the window came before: those there are.
            self.soft_labels_NC.copy_(self.remembered_ENC[: min(epoch, window)].mean(dim=0))

    def tensors(self) -> dict[str, Tensor]:
        return {
            "soft_labels": self.soft_labels_NC,
            "latest": self.latest_NC,
            "remembered": self.remembered_ENC,
        }


class SoftCrossEntropy(Method):
    """Second stage: conventional training on the soft labels of the first."""

    def __init__(self, model: nn.Module, settings: Settings, soft_labels_NC: Tensor) -> None:
        self.models = {"student": model}
        self.optimizer = make_optimizer(model, settings)
        self.soft_labels_NC = soft_labels_NC.to(next(model.parameters()), copy=True)

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """θ ← θ − β ∇ of −mean Σ_c y_c log f_c(x, θ)."""
        student, target_BC = self.models["student"], self.soft_labels_NC[class_batch.indices]
        loss, logits_BC = target_backward_(
            student, self.optimizer, class_batch.inputs, target_BC, rates.lr, self.world
        )
        self.optimizer.step()
        return {"class_loss": loss, "train": percent_right(logits_BC, class_batch.labels)}

    def tensors(self) -> dict[str, Tensor]:
        return {"soft_labels": self.soft_labels_NC}


def soft_label_loss(soft_BC: Tensor, logits_BC: Tensor) -> Tensor:
    """L_c = mean KL(y ‖ s); for hard labels the cross entropy."""
    return F.kl_div(logits_BC.log_softmax(dim=1), soft_BC, reduction="batchmean")


def prior_loss(prior_C: Tensor, logits_BC: Tensor) -> Tensor:
    """L_p = KL(p ‖ mean s) = Σ_c p_c log(p_c / s̄_c): not all samples into one class."""
    # In logarithms, so that a class nobody is predicted to be keeps a finite gradient.
    log_mean_C = logits_BC.log_softmax(dim=1).logsumexp(dim=0) - math.log(len(logits_BC))
    return F.kl_div(log_mean_C, prior_C, reduction="sum")


def mean_entropy(logits_BC: Tensor) -> Tensor:
    """L_e = −mean Σ_c s_c log s_c."""
    log_BC = logits_BC.log_softmax(dim=1)
    return -(log_BC.exp() * log_BC).sum(dim=1).mean()
