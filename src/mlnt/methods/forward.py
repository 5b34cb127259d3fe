"""Forward correction (Patrini et al. 2017): the network's answer passes through the noise.

    cross entropy -> probabilities -> estimate_transition -> Forward on a fresh network

Axes: N samples, B batch, C classes (of a transition [C, C]: true label, then noisy label).
"""

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.data.noise import check_transition
from mlnt.errors import InputError
from mlnt.methods.single_stage import SingleStage

# As the authors' code on CIFAR-10, where a tenth of the samples is of each class. With a hundred
# classes the percentile would fall outside of the class: then 1, the maximum.
ANCHOR_QUANTILE = 0.97


class Forward(SingleStage):
    """`transition_CC` [i, j] = p(ỹ = j | y = i), estimated or given.

    softmax(f(x, θ)) then estimates p(y | x) itself.
    """

    def __init__(self, model: nn.Module, settings: Settings, transition_CC: Tensor) -> None:
        check_transition(transition_CC)
        super().__init__(model, settings, samples=0, classes=len(transition_CC))
        self.transition_CC = transition_CC.to(next(model.parameters()), copy=True)

    def loss(self, logits_BC: Tensor, batch: Batch) -> Tensor:
        return forward_loss(logits_BC, batch.labels, self.transition_CC)

    def tensors(self) -> dict[str, Tensor]:
        return {"transition": self.transition_CC}


def forward_loss(logits_BC: Tensor, labels_B: Tensor, transition_CC: Tensor) -> Tensor:
    """−mean log (Tᵀ softmax(logits))_ỹ."""
    # In logarithms: a class that the network has ruled out must not make the loss infinite, nor a
    # zero of the matrix its gradient NaN.
    log_transition_CC = transition_CC.clamp(min=torch.finfo(transition_CC.dtype).tiny).log()
    of_label_BC = log_transition_CC.T[labels_B]
    return -torch.logsumexp(logits_BC.log_softmax(dim=1) + of_label_BC, dim=1).mean()


def estimate_transition(probabilities_NC: Tensor, quantile: float = ANCHOR_QUANTILE) -> Tensor:
    """T_ij = p(ỹ = j | x̄ⁱ), x̄ⁱ the sample at the quantile of p(ỹ = i | x); 1 is the maximum.

    `probabilities_NC` are those of a network trained with cross entropy on the noisy labels. A
    quantile below 1 passes over the few samples the network is surest of, which may be outliers.
    (The authors' code also sets what it passes over to 0 for the classes that follow; not so here.)
    """
    if not 0 <= quantile <= 1:
        raise InputError(f"quantile must lie in [0, 1], got {quantile:g}; did you mean 0.97?")
    place = int(quantile * (len(probabilities_NC) - 1))
    anchors_C = probabilities_NC.argsort(dim=0)[place]
    return probabilities_NC[anchors_C]


def true_transition(noisy_N: Tensor, true_N: Tensor, classes: int) -> Tensor:
    """T_ij = share of the samples of class i that are labelled j; a class without samples keeps
    its label."""
    pairs_N = true_N * classes + noisy_N
    counts_CC = torch.bincount(pairs_N, minlength=classes**2).reshape(classes, classes).double()
    absent_C = counts_CC.sum(dim=1) == 0
    counts_CC[absent_C, absent_C] = 1
    return counts_CC / counts_CC.sum(dim=1, keepdim=True)
