"""MLNT: one step of Algorithm 1."""

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.distributed import World
from mlnt.meta.tolerance import NoiseTolerance
from mlnt.methods.base import Method, Rates, class_backward_, make_optimizer


class MLNT(Method):
    """Student and teacher; `features_ND` are those of all training samples, for the neighbours."""

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        features_ND: Tensor,
        mentor: nn.Module | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.student = model
        self.settings = settings
        self.features_ND = features_ND
        self.optimizer = make_optimizer(model, settings)
        self.tolerance = NoiseTolerance(
            model,
            sets=settings.sets,
            rho=settings.rho,
            neighbours=settings.neighbours,
            alpha=settings.alpha,
            order=settings.order,
            consistency=settings.consistency,
            engine=settings.engine,
            mentor=mentor,
            generator=generator,
        )
        self.tolerance.watches = False  # the trainer looks at losses, and rates are the settings'
        self.models = {"student": model, "teacher": self.tolerance.teacher}

    def join(self, world: World) -> None:
        self.world = self.tolerance.world = world

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """Meta update, class update, teacher update."""
        features_BD = self.features_ND[batch.indices]
        self.student.train()
        if self.settings.update == "separate":
            meta_loss = self.tolerance.meta_update(
                batch.inputs, batch.labels, features_BD, rates.eta, rates.lam, batch.for_teacher
            )
            losses = self._class_backward_(class_batch, rates)
        else:
            losses = self._class_backward_(class_batch, rates)
            # Both gradients share β; η/β at full rates is the weight that the meta step has
            # in the separate form, and it follows the ramp of η.
            weight = rates.eta / self.settings.lr
            meta_loss = self.tolerance.add_meta_gradient(
                batch.inputs, batch.labels, features_BD, weight, rates.lam, batch.for_teacher
            )
        self.optimizer.step()
        self.tolerance.update_teacher(rates.gamma)
        return {"meta_loss": meta_loss, **losses}

    def _class_backward_(self, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        return class_backward_(
            self.student, self.optimizer, class_batch, rates.lr, self.world, self.class_weights
        )
