"""How likely is each label wrong, how many are, and which class was taken for which.

A network's probabilities are no answer yet: it has learnt wrong labels too, it is too sure or not
sure enough, and where half the cats are called dogs it rightly expects cats to be called dogs.

    1. p̄ᵢ = mean of p over the nearest others of i. A network learns one wrong label by heart,
       hardly those of thirty neighbours.
    2. p̄ᵢ = Σ_c qᵢ_c a_c solved for qᵢ, where the anchor a_c is the mean of p̄ over the labels of
       class c that look best: what the network says of a sample that is surely c.
    3. qᵢ ∝ qᵢ^(1/t); labels arise by p(y | i) = Σ_c qᵢ_c T_cy. T is the most likely one;
       temperatures t count by how likely they make labels that no network was trained on.
    4. p(c | i, yᵢ) ∝ qᵢ_c T_c,yᵢ; the label is wrong with probability 1 − p(yᵢ | i, yᵢ).

Axes: N samples, R of them searched for neighbours, K neighbours, C classes, D features.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

NEIGHBOURS = 30
ANCHOR_SHARE = 0.5  # of the labels of a class
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0)
# What might as well have been chosen: how far the noise rate moves with it is part of its error.
OTHER_VIEWS = ((15, 0.5), (60, 0.5), (30, 0.3), (30, 0.7))  # neighbours, share

MODEL_ERROR = 0.06  # of the noise rate, one standard error: no set of noisy labels obeys the model

SEARCHED = 50_000  # samples among which neighbours are sought: enough, and bounded
FITTED = 20_000  # samples that T and t are found by
CHUNK = 4_096
FEW_LABELS = 5.0  # an anchor of fewer is rather taken to be "surely c"
TRANSITION_PRIOR = 1.0  # sample of each class, rightly labelled
UNMIXING_STEPS = 60
TRANSITION_STEPS = 100
TINY = 1e-12


@dataclass(frozen=True)
class Judgement:
    """What the labels look like beside a network's opinion."""

    posterior: Tensor  # [N, C] probability of each class, given the sample and its label
    wrong: Tensor  # [N] probability that the label is wrong
    transition: Tensor  # [C, C] probability of each label (column) for a sample of a class (row)
    noise_rate: float  # share of wrong labels to be expected
    noise_interval: tuple[float, float]  # two standard errors around it


def judge(
    labels_N: Tensor,
    probabilities_NC: Tensor,
    features_ND: Tensor | None = None,
    held_out_N: Tensor | None = None,
) -> Judgement:
    """Judge labels by a network's probabilities.

    features  where neighbours are sought; without, probabilities are taken as they are: then
              they should come from a network that was not trained on the sample
    held_out  [N] bool: labels that no network was trained on; None: all of them
    """
    device = torch.device("cuda" if probabilities_NC.is_cuda else "cpu")  # others lack float64
    labels_N = labels_N.to(device)
    probabilities_NC = probabilities_NC.to(device, torch.float64)
    held_out_N = torch.ones_like(labels_N, dtype=torch.bool) if held_out_N is None else held_out_N
    held_out_N = held_out_N.to(device)
    nearest_NK = None
    if features_ND is not None and len(labels_N) > 1:
        most = max(NEIGHBOURS, *(neighbours for neighbours, _ in OTHER_VIEWS))
        nearest_NK = nearest_others(features_ND, min(most, len(labels_N) - 1)).to(device)
    chosen = _some(len(labels_N), FITTED).to(device)

    def view(neighbours: int, share: float) -> tuple[Tensor, Tensor]:
        smooth_NC = probabilities_NC
        if nearest_NK is not None:
            smooth_NC = mean_of(probabilities_NC, nearest_NK[:, :neighbours])
        mixture_NC = unmix(smooth_NC, anchors(smooth_NC, labels_N, share))
        return _posterior(mixture_NC, labels_N, held_out_N, chosen)

    posterior_NC, transition_CC = view(NEIGHBOURS, ANCHOR_SHARE)
    wrong_N = _wrong(posterior_NC, labels_N)
    others = torch.stack([_wrong(view(*other)[0], labels_N).mean() for other in OTHER_VIEWS])
    rate, error = float(wrong_N.mean()), _standard_error(wrong_N, others)
    return Judgement(
        posterior=posterior_NC,
        wrong=wrong_N,
        transition=transition_CC,
        noise_rate=rate,
        noise_interval=(max(0.0, rate - 2 * error), min(1.0, rate + 2 * error)),
    )


def nearest_others(features_ND: Tensor, neighbours: int) -> Tensor:
    """The places [N, K] of the most similar others by cosine, the nearest first."""
    unit_ND = torch.nn.functional.normalize(features_ND.float(), dim=1)
    searched_R = _some(len(unit_ND), SEARCHED).to(unit_ND.device)
    neighbours = min(neighbours, len(searched_R) - 1)
    searched_RD = unit_ND[searched_R]
    found = []
    for start in range(0, len(unit_ND), CHUNK):
        part_ND = unit_ND[start : start + CHUNK]
        similar_NR = part_ND @ searched_RD.T
        own_N = torch.arange(start, start + len(part_ND), device=unit_ND.device)
        similar_NR[own_N[:, None] == searched_R] = -torch.inf
        found.append(searched_R[similar_NR.topk(neighbours, dim=1).indices])
    return torch.cat(found)


def mean_of(values_NC: Tensor, places_NK: Tensor) -> Tensor:
    """Mean over K of values[places[i, k]]."""
    total_NC = torch.zeros_like(values_NC)
    for places_N in places_NK.unbind(1):  # K small sums instead of one of N × K × C numbers
        total_NC += values_NC[places_N]
    return total_NC / places_NK.shape[1]


def anchors(smooth_NC: Tensor, labels_N: Tensor, share: float) -> Tensor:
    """What is said of samples surely of each class [C, C]: the mean over its best labels."""
    classes = smooth_NC.shape[1]
    anchors_CC = torch.eye(classes, dtype=smooth_NC.dtype, device=smooth_NC.device)
    for number in labels_N.unique().tolist():
        of_class = smooth_NC[labels_N == number]
        count = max(1, int(share * len(of_class)))
        best = of_class[of_class[:, number].topk(count).indices]
        trust = count**2 / (count**2 + FEW_LABELS**2)
        anchors_CC[number] = trust * best.mean(0) + (1 - trust) * anchors_CC[number]
    return anchors_CC


def unmix(smooth_NC: Tensor, anchors_CC: Tensor) -> Tensor:
    """Weights q [N, C] of the anchors whose mixture Σ_c q_c a_c is nearest to p̄ (in KL)."""
    classes = smooth_NC.shape[1]
    mixture_NC = 0.5 * smooth_NC + 0.5 / classes
    for _ in range(UNMIXING_STEPS):
        ratio_NC = smooth_NC / (mixture_NC @ anchors_CC).clamp(min=TINY)
        mixture_NC = mixture_NC * (ratio_NC @ anchors_CC.T)
        mixture_NC = mixture_NC / mixture_NC.sum(1, keepdim=True).clamp(min=TINY)
    return mixture_NC


def fit_transition(mixture_NC: Tensor, labels_N: Tensor) -> Tensor:
    """The most likely T [C, C] in p(y | i) = Σ_c qᵢ_c T_cy, by expectation maximisation."""
    classes = mixture_NC.shape[1]
    eye_CC = torch.eye(classes, dtype=mixture_NC.dtype, device=mixture_NC.device)
    given_NC = eye_CC[labels_N]
    transition_CC = 0.7 * eye_CC + 0.3 * (1 - eye_CC) / max(1, classes - 1)
    for _ in range(TRANSITION_STEPS):
        before_CC = transition_CC
        posterior_NC = _normalised(mixture_NC * transition_CC.T[labels_N])
        joint_CC = posterior_NC.T @ given_NC  # a product: sums in the same order every time
        transition_CC = _normalised(joint_CC + TRANSITION_PRIOR * eye_CC)
        if (transition_CC - before_CC).abs().max() < 1e-4:
            break
    return transition_CC


def _posterior(
    mixture_NC: Tensor, labels_N: Tensor, held_out_N: Tensor, chosen: Tensor
) -> tuple[Tensor, Tensor]:
    """p(c | i, yᵢ) and T, the temperatures weighed by the likelihood of held-out labels."""
    some_NC, some_labels_N, some_held_out_N = (
        values[chosen] for values in (mixture_NC, labels_N, held_out_N)
    )
    if not some_held_out_N.any():
        some_held_out_N = torch.ones_like(some_held_out_N)
    likelihoods, transitions = [], []
    for temperature in TEMPERATURES:
        tempered_NC = _temper(some_NC, temperature)
        transition_CC = fit_transition(tempered_NC, some_labels_N)
        likely_N = (tempered_NC * transition_CC.T[some_labels_N]).sum(1).clamp(min=TINY)
        likelihoods.append(likely_N.log()[some_held_out_N].sum())
        transitions.append(transition_CC)
    weights = torch.stack(likelihoods).softmax(0)
    posterior_NC, mean_CC = torch.zeros_like(mixture_NC), torch.zeros_like(transitions[0])
    for weight, temperature, transition_CC in zip(
        weights.tolist(), TEMPERATURES, transitions, strict=True
    ):
        if weight > 1e-3:
            of_temperature = _temper(mixture_NC, temperature) * transition_CC.T[labels_N]
            posterior_NC += weight * _normalised(of_temperature)
            mean_CC += weight * transition_CC
    return _normalised(posterior_NC), _normalised(mean_CC)


def _wrong(posterior_NC: Tensor, labels_N: Tensor) -> Tensor:
    """1 − p(yᵢ), summed over the others so that the smallest do not round to zero."""
    others_NC = posterior_NC.scatter(1, labels_N[:, None], 0.0)
    return others_NC.sum(1).clamp(0, 1)


def _standard_error(wrong_N: Tensor, other_rates: Tensor) -> float:
    """Of the rate: chance in each label, what might as well have been chosen, the model itself."""
    rate = wrong_N.mean()
    chance = (wrong_N * (1 - wrong_N)).sum() / len(wrong_N) ** 2
    choice = (other_rates - rate).square().mean()
    return float((chance + choice + (MODEL_ERROR * rate).square()).sqrt())


def _temper(mixture_NC: Tensor, temperature: float) -> Tensor:
    return _normalised(mixture_NC.clamp(min=1e-6) ** (1 / temperature))


def _normalised(values: Tensor) -> Tensor:
    return values / values.sum(1, keepdim=True).clamp(min=1e-300)


def _some(count: int, most: int) -> Tensor:
    """All places, or a fixed random choice of so many, in their order."""
    if count <= most:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(count, generator=generator)[:most].sort().values
