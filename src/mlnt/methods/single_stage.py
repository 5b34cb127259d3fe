"""Methods of one stage that differ from cross entropy by their loss: one file and one line each.

`config.SINGLE_STAGE` has their names, each with the class in the file of that name.

Axes: N samples, B batch, C classes.
"""

import importlib
from abc import abstractmethod

from torch import Tensor, nn

from mlnt.config import SINGLE_STAGE, Settings
from mlnt.data.batches import Batch
from mlnt.methods.base import Method, Rates, loss_backward_, make_optimizer, percent_right


class SingleStage(Method):
    """Trains one network by `loss`. What a method keeps of each sample goes into `tensors`."""

    def __init__(self, model: nn.Module, settings: Settings, samples: int, classes: int) -> None:
        self.models = {"student": model}
        self.optimizer = make_optimizer(model, settings)

    @abstractmethod
    def loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """A number to be made small; changes nothing."""

    def remember_(self, logits_BC: Tensor, batch: Batch) -> None:
        """Called after each step with the logits that its loss was of."""

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """θ ← θ − β ∇ of the loss."""

        def loss_of(logits_BC: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            loss = self.loss(logits_BC, class_batch)
            return loss, {"class_loss": loss}

        losses, logits_BC = loss_backward_(
            self.models["student"],
            self.optimizer,
            class_batch.inputs,
            loss_of,
            rates.lr,
            world=self.world,
        )
        self.optimizer.step()
        self.remember_(logits_BC, class_batch)
        return {**losses, "train": percent_right(logits_BC, class_batch.labels)}


def single_stage(name: str) -> type[SingleStage]:
    """The class of a method in `SINGLE_STAGE`."""
    kind: type[SingleStage] = getattr(
        importlib.import_module(f"mlnt.methods.{name}"), SINGLE_STAGE[name]
    )
    return kind
