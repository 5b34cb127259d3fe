"""Early-learning regularization (Liu et al. 2020): what was predicted early on is held on to.

A network learns right labels first. Of each sample a running average t of its predictions is kept,
and a term of the loss pulls the predictions towards it before wrong labels are learnt by heart.

λ and β are the publication's for CIFAR-10 with symmetric noise; for asymmetric noise it takes 1 and
0.9. Here nobody is told the kind of noise: one pair serves all.

Axes: N samples, B batch, C classes.
"""

from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.methods.single_stage import SingleStage

WEIGHT = 3.0  # λ
MEMORY = 0.7  # β
LEAST = 1e-4  # probabilities stay this far from 0 and 1


class ELR(SingleStage):
    def __init__(self, model: nn.Module, settings: Settings, samples: int, classes: int) -> None:
        super().__init__(model, settings, samples, classes)
        self.targets_NC = next(model.parameters()).new_zeros(samples, classes).detach()

    def loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        """mean [−log p_y + λ log(1 − ⟨p, t⟩)], t with the prediction of this step in it."""
        target_BC = averaged(self.targets_NC[batch.indices], logits_BC.detach())
        return early_learning_loss(logits_BC, batch.labels, target_BC)

    def remember_(self, logits_BC: Tensor, batch: Batch) -> None:
        self.targets_NC[batch.indices] = averaged(self.targets_NC[batch.indices], logits_BC)

    def tensors(self) -> dict[str, Tensor]:
        return {"targets": self.targets_NC}


def probabilities(logits_BC: Tensor) -> Tensor:
    return logits_BC.softmax(dim=1).clamp(LEAST, 1 - LEAST)


def averaged(target_BC: Tensor, logits_BC: Tensor) -> Tensor:
    """t ← β t + (1 − β) p / Σ_c p_c."""
    p_BC = probabilities(logits_BC)
    return MEMORY * target_BC + (1 - MEMORY) * p_BC / p_BC.sum(dim=1, keepdim=True)


def early_learning_loss(logits_BC: Tensor, labels_B: Tensor, target_BC: Tensor) -> Tensor:
    """mean [−log softmax(logits)_y + λ log(1 − ⟨p, t⟩)]; no gradient passes through t."""
    given = nn.functional.cross_entropy(logits_BC, labels_B)
    agreement_B = (probabilities(logits_BC) * target_BC).sum(dim=1)
    return given + WEIGHT * (1 - agreement_B).log().mean()
