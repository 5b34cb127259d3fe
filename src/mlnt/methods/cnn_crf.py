"""CNN-CRF (Vahdat 2017): a random field over clean label ŷ, noisy label y and hidden units h.

    E(ŷ, y, h | x) = −(a(x)_ŷ − κ_ŷ) − b_y − cᵀh − W_ŷy − (U_ŷ + V_y)ᵀh

The network gives a(x), the rest is trained along with it. Noisy samples are learned from by EM:

    q(ŷ, h | y, x) ∝ (p(ŷ, h | y, x) · p_aux(ŷ, h | y)^α)^(1/(1+α))
    minimise −mean E_q log p(ŷ, y, h | x)  −  mean log p(ŷ, y | x) of clean samples

where p_aux is fitted to the small clean set beforehand and α falls as the field learns.

One label per sample lets ŷ and y be enumerated, and h is independent given both: all that the
paper samples is exact here. Ours, where the paper is for many labels per sample or could not be
checked: U (the paper's graph, as far as known, joins h to y alone); b without x, so that no noisy
label can be explained but through ŷ; κ_ŷ, which makes softmax(a(x)) itself p(ŷ | x), so that the
network alone is the classifier; the numbers of `CNNCRF`.

Axes: B batch, C clean labels, K noisy labels (as many), H hidden units.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from mlnt.config import Settings
from mlnt.data.batches import Augmentation, Batch
from mlnt.methods.base import Method, Rates, loss_backward_, make_optimizer, percent_right


class Field(NamedTuple):
    """The part of −E that does not depend on x."""

    noisy_K: Tensor  # b
    hidden_H: Tensor  # c
    pair_CK: Tensor  # W
    clean_hidden_CH: Tensor  # U
    noisy_hidden_KH: Tensor  # V


class Clean(NamedTuple):
    """Samples whose true labels are known along with the noisy ones."""

    inputs: Tensor  # [N, ...]
    true: Tensor  # LongTensor [N]
    noisy: Tensor  # LongTensor [N]


class CNNCRF(Method):
    """p_aux and the field start from the clean set; every step draws a batch of it besides.

    generator    draws the clean batches; on the device, and the one the trainer draws with
    hidden       hidden units
    alpha_first  α in the first epoch, from where it falls linearly
    alpha_last   α once a share `anneal` of the epochs is over; of 5, 1, 0.3 and 0 the last did
                 best on the digits, by validation (symmetric 50 %, asymmetric 40 %, n=6 each)
    """

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        clean: Clean,
        classes: int,
        generator: torch.Generator,
        *,
        hidden: int = 10,
        alpha_first: float = 40.0,
        alpha_last: float = 0.0,
        anneal: float = 0.5,
    ) -> None:
        weight = next(model.parameters())
        self.models = {"student": model}
        self.clean, self.generator = clean, generator
        self.clean_batch = min(settings.batch_size, len(clean.true))
        self.augmentation = Augmentation.of(settings, clean.inputs)
        self.auxiliary = fit_auxiliary(clean.true, clean.noisy, classes, hidden, weight)
        self.field = Field(*(start.clone() for start in self.auxiliary))
        for coupling_H in (self.field.clean_hidden_CH, self.field.noisy_hidden_KH):
            # Small and unlike each other, or all hidden units would learn the same.
            coupling_H.normal_(std=0.1, generator=generator)
        for part in self.field:
            part.requires_grad_()
        self.optimizer = make_optimizer(model, settings, self.field)
        self.alphas = (alpha_first, alpha_last)
        self.anneal_epochs = max(anneal * settings.epochs, 1.0)
        self.alpha = torch.tensor(alpha_first).to(weight)

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One step on −mean E_q log p(ŷ, y, h | x) of the noisy batch − mean log p(ŷ, y | x) of
        a clean one."""
        noisy_B, count = class_batch.labels, len(class_batch.labels)
        drawn = torch.randint(
            len(self.clean.true),
            (self.clean_batch,),
            generator=self.generator,
            device=self.clean.true.device,
        )
        clean_inputs = self.augmentation(self.clean.inputs[drawn], self.generator)
        clean_true, clean_noisy = self.clean.true[drawn], self.clean.noisy[drawn]

        def loss_of(logits_BC: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
            of_noisy_BC, of_clean_BC = logits_BC[:count], logits_BC[count:]
            with torch.no_grad():
                q_BC, hidden_CKH = posterior(
                    of_noisy_BC, noisy_B, self.field, self.auxiliary, self.alpha
                )
            log_p_BC = expected_log_joint(of_noisy_BC, noisy_B, self.field, hidden_CKH)
            noisy_loss = -(q_BC * log_p_BC).sum(dim=1).mean()
            log_clean_BC = log_joint(of_clean_BC, clean_noisy, self.field)
            clean_loss = F.nll_loss(log_clean_BC, clean_true)
            return noisy_loss + clean_loss, {"class_loss": noisy_loss, "clean_loss": clean_loss}

        # One pass for both, so that batch norm sees one population.
        inputs = torch.cat([class_batch.inputs, clean_inputs])
        losses, logits_BC = loss_backward_(
            self.models["student"],
            self.optimizer,
            inputs,
            loss_of,
            rates.lr,
            self.field,
            self.world,
        )
        self.optimizer.step()
        return {**losses, "train": percent_right(logits_BC[:count], noisy_B)}

    def epoch_ends(self, epoch: int) -> None:
        """The α of the next epoch."""
        first, last = self.alphas
        self.alpha.fill_(first + (last - first) * min(epoch / self.anneal_epochs, 1.0))

    def tensors(self) -> dict[str, Tensor]:
        """The field, p_aux and α."""
        field = {f"field.{name}": part.detach() for name, part in self.field._asdict().items()}
        auxiliary = {f"auxiliary.{name}": part for name, part in self.auxiliary._asdict().items()}
        return {**field, **auxiliary, "alpha": self.alpha}


def fit_auxiliary(
    true_N: Tensor, noisy_N: Tensor, classes: int, hidden: int, like: Tensor
) -> Field:
    """The field of p_aux(ŷ, y, h) = p̂(ŷ, y) · 2^−H: of highest likelihood on the clean labels.

    p̂ are their frequencies, with one sample more of each noisy label spread over the classes.
    A table of all pairs fits any frequencies, so that hidden units would have nothing to add.
    """
    pairs_N = true_N * classes + noisy_N
    counts_CK = torch.bincount(pairs_N, minlength=classes**2).reshape(classes, classes)
    smoothed_CK = counts_CK.to(like) + 1 / classes
    return Field(
        noisy_K=like.new_zeros(classes),
        hidden_H=like.new_zeros(hidden),
        pair_CK=(smoothed_CK / smoothed_CK.sum()).log(),
        clean_hidden_CH=like.new_zeros(classes, hidden),
        noisy_hidden_KH=like.new_zeros(classes, hidden),
    )


def hidden_logits(field: Field) -> Tensor:
    """c + U_ŷ + V_y [C, K, H], the log-odds of each hidden unit given both labels."""
    return field.hidden_H + field.clean_hidden_CH[:, None] + field.noisy_hidden_KH


def log_table(field: Field) -> Tensor:
    """log Σ_h exp(b_y + W_ŷy + (c + U_ŷ + V_y)ᵀh) [C, K]."""
    return field.noisy_K + field.pair_CK + F.softplus(hidden_logits(field)).sum(dim=2)


def log_joint(logits_BC: Tensor, noisy_B: Tensor, field: Field) -> Tensor:
    """log p(ŷ, y | x) = log softmax(a(x))_ŷ + log p(y | ŷ), of the y given and all ŷ [B, C]."""
    log_noise_CK = log_table(field).log_softmax(dim=1)  # minus κ
    return logits_BC.log_softmax(dim=1) + log_noise_CK.T[noisy_B]


def expected_log_joint(
    logits_BC: Tensor, noisy_B: Tensor, field: Field, hidden_CKH: Tensor
) -> Tensor:
    """E_h log p(ŷ, y, h | x) for hidden units of the means given, of the y given and all ŷ [B, C].

    log p(ŷ, y, h | x) = log softmax(a(x))_ŷ − κ_ŷ + b_y + W_ŷy + (c + U_ŷ + V_y)ᵀh
    """
    kappa_C1 = log_table(field).logsumexp(dim=1, keepdim=True)
    of_hidden_CK = (hidden_CKH * hidden_logits(field)).sum(dim=2)
    pair_CK = field.noisy_K + field.pair_CK + of_hidden_CK - kappa_C1
    return logits_BC.log_softmax(dim=1) + pair_CK.T[noisy_B]


def posterior(
    logits_BC: Tensor, noisy_B: Tensor, field: Field, auxiliary: Field, alpha: Tensor
) -> tuple[Tensor, Tensor]:
    """q(ŷ | y, x) [B, C] and the means of h under q(h | ŷ, y) [C, K, H].

    The geometric mean of two fields is the field of their mean energies, weighed 1 : α.
    """
    share = 1 / (1 + alpha)
    mean = Field(
        *(share * own + (1 - share) * aux for own, aux in zip(field, auxiliary, strict=True))
    )
    kappa_C = log_table(field).logsumexp(dim=1)
    scores_BC = share * (logits_BC - kappa_C) + log_table(mean).T[noisy_B]
    return scores_BC.softmax(dim=1), hidden_logits(mean).sigmoid()
