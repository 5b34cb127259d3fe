"""Contrastive learning (SimCLR, Chen et al. 2020): features learnt without labels.

    batch -> two views of each picture -> features -> projection
    loss: of all views in the batch, find the other one of the same picture

Wrong labels cannot harm what never saw a label. Only afterwards the network's last layer learns
them, from the features as they are (`mlnt.linear`).

Axes: B batch, V = 2B views, D features, P projected.
"""

import math
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlnt.config import Settings
from mlnt.data.batches import Batch, random_flip
from mlnt.data.views import random_view
from mlnt.defaults import FEWEST_STEPS
from mlnt.meta.features import split_at_features
from mlnt.methods.base import Method, Rates, loss_backward_, make_optimizer

PROJECTED = 64
TEMPERATURE = 0.2  # of similarities: the lower, the more the most similar others count
# Of the usual batch: the more others a view is to be told from, the more is learnt.
BATCHES_AT_ONCE = 4


class Contrastive(Method):
    """generator: draws the views; on the device, and the one the trainer draws with."""

    def __init__(
        self, model: nn.Module, settings: Settings, some_inputs: Tensor, generator: torch.Generator
    ) -> None:
        self.models = {"student": model}
        self.generator, self.flip = generator, settings.flip
        self.encoder, self.last = split_at_features(model, some_inputs)
        width, like = self.last.in_features, self.last.weight
        self.projection = nn.Sequential(
            nn.Linear(width, width), nn.ReLU(), nn.Linear(width, PROJECTED)
        ).to(like.device, like.dtype)
        self.extras = list(self.projection.parameters())
        self.optimizer = make_optimizer(self.encoder, settings, self.extras)

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One step on the contrast of the views."""
        views = random_view(batch.inputs.repeat(2, 1, 1, 1), self.generator)
        if self.flip:
            views = random_flip(views, self.generator)

        def loss_of(features_VD: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            loss = contrast(self.projection(features_VD))
            return loss, {"contrast": loss}

        losses, _ = loss_backward_(
            self.encoder, self.optimizer, views, loss_of, rates.lr, self.extras, self.world
        )
        self.optimizer.step()
        return losses

    def tensors(self) -> dict[str, Tensor]:
        """The projection."""
        return {name: p.detach() for name, p in self.projection.named_parameters()}


def contrastive_settings(settings: Settings, samples: int) -> Settings:
    """Of a stage without labels: its epochs, larger batches, and rates that go with them."""
    usual = settings.batch_size
    size = max(usual, min(BATCHES_AT_ONCE * usual, samples // FEWEST_STEPS))
    epochs = settings.epochs if isinstance(settings.self_epochs, str) else settings.self_epochs
    return replace(
        settings,
        batch_size=size,
        epochs=epochs,
        lr=settings.lr * math.sqrt(size / usual),
        crop_padding=0,  # a view is a crop already, and padding would tell whose it is
        cutout=0,
    )


def contrast(projected_VP: Tensor) -> Tensor:
    """Cross entropy of picking each view's other one (B rows away) among all others, by cosine."""
    unit_VP = F.normalize(projected_VP, dim=1)
    views = len(unit_VP)
    itself_VV = torch.eye(views, dtype=torch.bool, device=unit_VP.device)
    similar_VV = (unit_VP @ unit_VP.T / TEMPERATURE).masked_fill(itself_VV, -torch.inf)
    other_V = torch.arange(views, device=unit_VP.device).roll(views // 2)
    return F.cross_entropy(similar_VV, other_V)
