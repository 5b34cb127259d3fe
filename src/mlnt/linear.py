"""A linear layer on features as they are, fitted to labels of which many may be wrong.

Multinomial logistic regression with weight decay, to its optimum. The more labels are wrong, the
more decay it takes. How much, labels say that were left out, though as many of them are wrong: by
what holds for all samples they are likeliest. Decay makes a layer timid as well, and where nearly
all labels are wrong that alone makes them likelier: so each is asked at the scale that suits it
best. Where they say little, what suits the number of weights and samples is taken. The layer itself
is made surer than labels are, for it is to say what is true of a sample.

Axes: N samples, M of them left out, C classes, D features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrize import is_parametrized

# Of the weights of features with standard deviation 1 on average, times D / N; strongest first.
DECAYS = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01, 0.003)
USUAL = 3.0
PARTS = 5  # one is left out, then the next, until so many samples have been:
ENOUGH = 2_000
SCALES = tuple(2 ** (step / 4) for step in range(-16, 25))
# Than the optimum: of what a mentor with this layer keeps, with true labels in view, 20 instead of
# 43 % is wrong of CIFAR-10 at symmetric 90 %, and 3.1 instead of 5.0 of the digits at 70 %.
SHARPER = 2.0
# Samples to fit to: a layer learns little from more, and one with many weights takes its time.
MOST_SAMPLES, LEAST_SAMPLES, MOST_PRODUCTS = 100_000, 5_000, 10**9
MOST_ROUNDS, REMEMBERED = 100, 20  # of L-BFGS
LEAST_DEVIATION = 1e-6  # of features that are always the same


@torch.no_grad()
def fit_last_layer_(last: nn.Linear, features_ND: Tensor, labels_N: Tensor) -> None:
    """Make the layer say the labels as likely as it can, with as much decay as does best."""
    with torch.autocast(features_ND.device.type, enabled=False):
        # A line search sees differences that float32, and less of it on a GPU, would round away.
        features_ND = features_ND.double()
        variance_D, mean_D = torch.var_mean(features_ND, dim=0, correction=0)
        deviation = variance_D.mean().sqrt().clamp(min=LEAST_DEVIATION)
        has_bias = last.bias is not None
        standard_ND = (features_ND - mean_D * has_bias) / deviation
        problem = _Problem(standard_ND, labels_N, last.out_features, has_bias)
        everything_N = torch.ones_like(labels_N, dtype=torch.bool)
        weights = SHARPER * problem.fit(problem.start(), _best_decay(problem), everything_N)
        weight_CD, bias_C = problem.layer(weights)
        last.weight.copy_(weight_CD / deviation)
        if last.bias is not None:
            last.bias.copy_(bias_C - weight_CD @ mean_D / deviation)


def can_be_fitted(last: nn.Linear) -> bool:
    """Whether it is what its name says, and all of it may be trained."""
    is_plain = type(last) is nn.Linear and not is_parametrized(last)
    return is_plain and all(parameter.requires_grad for parameter in last.parameters())


def some_of(samples: int, last: nn.Linear) -> Tensor | None:
    """Indices of the samples to fit a layer to; None: all."""
    most = min(max(MOST_PRODUCTS // last.weight.numel(), LEAST_SAMPLES), MOST_SAMPLES)
    return None if samples <= most else _shuffled(samples)[:most].sort().values


def _best_decay(problem: "_Problem") -> float:
    """By the labels left out; the usual one unless another is better by a standard error."""
    parts = _parts_left_out(len(problem.labels_N), problem.labels_N.device)
    found, losses = [problem.start() for _ in parts], {}
    for decay in DECAYS:
        found = [problem.fit(w, decay, ~part_N) for w, part_N in zip(found, parts, strict=True)]
        losses[decay] = problem.losses_left_out(found, parts)
    best = min(DECAYS, key=lambda decay: float(losses[decay].mean()))
    gain_M = losses[USUAL] - losses[best]
    error = math.sqrt(float(gain_M.var(correction=0)) / len(gain_M))
    return best if float(gain_M.mean()) > error else USUAL


def _parts_left_out(samples: int, device: torch.device) -> list[Tensor]:
    """[N] bool each: equally large parts."""
    size = max(1, samples // PARTS)
    part_N = torch.empty(samples, dtype=torch.long)
    part_N[_shuffled(samples)] = torch.arange(samples) // size
    count = min(PARTS, samples, math.ceil(ENOUGH / size))
    return [(part_N == part).to(device) for part in range(count)]


def _shuffled(samples: int) -> Tensor:
    # A stride would be of some classes alone where these take turns.
    return torch.randperm(samples, generator=torch.Generator().manual_seed(0))


@dataclass(frozen=True)
class _Problem:
    """Of weights [C, D] and a bias [C] that lie behind each other in one tensor."""

    features_ND: Tensor
    labels_N: Tensor
    classes: int
    has_bias: bool

    def start(self) -> Tensor:
        return self.features_ND.new_zeros(self.classes * (self.features_ND.shape[1] + 1))

    def layer(self, weights: Tensor) -> tuple[Tensor, Tensor]:
        own, bias_C = weights[: -self.classes], weights[-self.classes :]
        return own.view(self.classes, -1), bias_C * self.has_bias

    @torch.enable_grad()
    def fit(self, begin: Tensor, decay: float, counted_N: Tensor) -> Tensor:
        """The weights of least cross entropy of some of the samples, with decay."""
        weights = begin.clone().requires_grad_()
        rounds = torch.optim.LBFGS(
            [weights],
            max_iter=MOST_ROUNDS,
            history_size=REMEMBERED,
            line_search_fn="strong_wolfe",
        )
        features_ND, labels_N = self.features_ND[counted_N], self.labels_N[counted_N]
        half = decay * self.features_ND.shape[1] / len(self.labels_N) / 2

        def loss_with_decay() -> Tensor:
            rounds.zero_grad()
            weight_CD, bias_C = self.layer(weights)
            loss = F.cross_entropy(F.linear(features_ND, weight_CD, bias_C), labels_N)
            total = loss + half * weight_CD.square().sum()
            total.backward()
            return total

        rounds.step(loss_with_decay)
        return weights.detach()

    def losses_left_out(self, found: Sequence[Tensor], parts: Sequence[Tensor]) -> Tensor:
        """Cross entropy [M] of the parts that each did not learn from, at the best scale for it."""
        pairs = list(zip(found, parts, strict=True))
        logits_MC = torch.cat(
            [F.linear(self.features_ND[part_N], *self.layer(weights)) for weights, part_N in pairs]
        )
        labels_M = torch.cat([self.labels_N[part_N] for part_N in parts])
        losses = [
            F.cross_entropy(scale * logits_MC, labels_M, reduction="none") for scale in SCALES
        ]
        return min(losses, key=lambda losses_M: float(losses_M.mean()))
