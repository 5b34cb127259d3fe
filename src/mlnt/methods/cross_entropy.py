"""Cross entropy: conventional training on the labels as they are."""

from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.methods.base import Method, Rates, class_backward_, make_optimizer


class CrossEntropy(Method):
    def __init__(self, model: nn.Module, settings: Settings) -> None:
        self.models = {"student": model}
        self.optimizer = make_optimizer(model, settings)

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """θ ← θ − β ∇L_c(X, Y, θ)."""
        losses = class_backward_(
            self.models["student"], self.optimizer, class_batch, rates.lr, self.world
        )
        self.optimizer.step()
        return losses
