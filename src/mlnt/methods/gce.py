"""Generalized cross entropy (Zhang & Sabuncu 2018): between cross entropy and the mean error.

Without the truncation of the same publication, which asks for a threshold and a second pass.

Axes: B batch, C classes.
"""

import torch
from torch import Tensor

from mlnt.data.batches import Batch
from mlnt.methods.single_stage import SingleStage

Q = 0.7  # as published


class GCE(SingleStage):
    def loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        return generalized_cross_entropy(logits_BC, batch.labels, Q)


def generalized_cross_entropy(logits_BC: Tensor, labels_B: Tensor, q: float) -> Tensor:
    """mean (1 − p_y^q) / q: cross entropy as q → 0, the mean error 1 − p_y at q = 1."""
    # In logarithms: the gradient of p^q is infinite where p is rounded to 0.
    log_of_label_B = logits_BC.log_softmax(dim=1).gather(1, labels_B[:, None]).squeeze(1)
    return -torch.expm1(q * log_of_label_B).mean() / q
