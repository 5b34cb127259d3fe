"""How likely is each label wrong, how many are, and which class was taken for which.

A network's probabilities are no answer yet: it has learnt wrong labels too, and where half the
cats are called dogs it rightly expects cats to be called dogs.

    1. p̄ᵢ = mean of p over the nearest others of i. A network learns one wrong label by heart,
       hardly those of thirty neighbours.
    2. p̄ᵢ = Σ_c qᵢ_c a_c solved for qᵢ, where the anchor a_c is the mean of p̄ over the labels of
       class c that look best: what the network says of a sample that is surely c. That is half of
       its labels, or less where fewer look like the best: of a rare class most may be wrong.
    3. qᵢ ∝ qᵢ^(1/t), and labels arise by p(y | i) = Σ_c qᵢ_c T_cy, with the most likely T.
    4. p(c | i, yᵢ) ∝ qᵢ_c T_c,yᵢ; the label is wrong with probability 1 − p(yᵢ | i, yᵢ), which
       gives the noise rate.
    5. Labels are ranked by the odds of 4 at t=1, with the mean of T there and at t=1/2, times those
       of 1 − pᵢ,yᵢ half as strong: a network that rejects a label itself says something too. All
       odds are then multiplied by what makes their mean the noise rate.

Without features there are no neighbours, and the model may be any, which hardly knows a rare class:
there an anchor is taken only of a class that is told from its rival (`believed`).

Where q doubts, either the sample is hard and its label right, or the label is noise. The
temperature t=1 takes all doubt for the former, t→0 for the latter: the noise rate lies between the
two ends, give or take what chance and the model's own errors make, and t=1/2 lies between. (The
upper end is that of the held-out labels alone where the network has learnt the others by heart.)
Noise put in by a program does not care how hard a sample is; people are wrong where it is hard, and
where it is a little harder a little more often. That can be seen among samples that q hardly
doubts, and says which end is nearer: see `doubt_is_noise`.

Axes: N samples, H of them held out, R searched for neighbours, K neighbours, C classes, D features.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mlnt.similar import mean_of, most_similar, some_places

NEIGHBOURS = 30
ANCHOR_SHARE, LEAST_ANCHOR_SHARE = 0.5, 0.1  # of the labels of a class
TEMPERATURE, SOFT, HARD = 0.5, 1.0, 0.1
OWN_WEIGHT = 0.5  # of the network's own opinion of the label, in the ranking
# Of the network's own opinion beside that of the neighbours, in the noise rate.
OWN_SHARE = 0.5
# No trust is left if a third of the labels were learnt by heart that would not have been guessed.
WARINESS = 3.0
# What tells noise that does not care how hard a sample is from that of people: so much more where
# q is less sure, as a share of the noise rate (0 to 0.2 was seen, and 0.25 to 0.35), and of the
# doubt there, some of which is taken for noise in any case. Found on Fashion-MNIST, CIFAR-10 and
# CIFAR-10N with their true labels in view: see docs/label-issues.md.
RISE_OF_PEOPLE, RISE_OF_DOUBT = 1 / 6, 0.5
RISE_SPREAD = 0.04  # how different it is in different data: a larger standard error says little

# Share of the labels. In ten of 44 recorded judgements the true noise lay beyond the two ends and
# chance, in nine of them by 0.7 % of the labels at most: no network is exact.
BEYOND_THE_ENDS = 0.01

SURELY, FEWEST_TO_TELL = 2.0, 30  # standard errors; held-out labels
LEAST_EXPECTED = 1e-4  # probability of a label: one that nobody expected must not decide alone

FITTED = 20_000  # samples that T is found by
FEW_LABELS = 5.0  # an anchor of fewer is rather taken to be "surely c"
SURELY_NO_RIVAL = 1.25  # times what is said of a class for a more frequent one
TRANSITION_PRIOR = 1.0  # sample of each class, rightly labelled
# In the ranking fewer: the longer, the more weights reach zero, and what is merely hard looks like
# noise. More of both where the anchors are nearly alike, for each step says less then.
UNMIXING_STEPS, RANKING_STEPS, MOST_STEPS = 30, 6, 300
# What is said of a class for its rival beside for itself: at 0.8 it takes five times the steps.
MOST_RIVALRY = 0.8
TRANSITION_STEPS = 60
TINY = 1e-12
LEAST = 1e-6  # probability: nothing is surer than one in a million


@dataclass(frozen=True)
class Judgement:
    """What the labels look like beside a network's opinion."""

    posterior: Tensor  # [N, C] probability of each class, given the sample and its label
    wrong: Tensor  # [N] probability that the label is wrong
    transition: Tensor  # [C, C] probability of each label (column) for a sample of a class (row)
    noise_rate: float  # share of wrong labels to be expected
    noise_interval: tuple[float, float]  # all doubt for hard samples, all doubt for noise


def judge(
    labels_N: Tensor,
    probabilities_NC: Tensor,
    features: Sequence[Tensor] = (),
    held_out_N: Tensor | None = None,
) -> Judgement:
    """Judge labels by a network's probabilities.

    features  [N, D] each, of one network or of several: where neighbours are sought; without,
              probabilities are taken as they are: then they should come from a network that was
              not trained on the sample
    held_out  [N] bool: labels that no network was trained on; None: all of them
    """
    device = _counting_device(probabilities_NC)
    labels_N = labels_N.to(device)
    own_NC = probabilities_NC.to(device, torch.float64)
    held_out_N = torch.ones_like(labels_N) if held_out_N is None else held_out_N
    held_out_N = held_out_N.to(device).bool()
    trust = max(0.0, 1 - WARINESS * learnt_by_heart(own_NC, labels_N, held_out_N))
    smooth_NC = blend_NC = own_NC
    if features and len(labels_N) > 1:
        nearest_NK = most_similar(features, NEIGHBOURS).to(device)
        smooth_NC = mean_of(own_NC, nearest_NK)
        share = OWN_SHARE * trust
        blend_NC = share * own_NC + (1 - share) * smooth_NC

    def anchors_of(values_NC: Tensor) -> Tensor:
        anchors_CC = anchors(values_NC, labels_N)
        return anchors_CC if features else believed(anchors_CC, labels_N)

    mixture_NC = unmix(blend_NC, anchors_of(blend_NC), UNMIXING_STEPS)
    low, middle, high = (
        noise_rate(mixture_NC, labels_N, held_out_N, t) for t in (SOFT, TEMPERATURE, HARD)
    )
    posterior_NC, transition_CC = _posterior(mixture_NC, labels_N, TEMPERATURE)
    lean = doubt_is_noise(mixture_NC, _wrong(posterior_NC, labels_N), held_out_N, middle)
    rate = middle + abs(2 * lean - 1) * ((high if lean > 0.5 else low) - middle)
    margin = 2 * math.sqrt(_variance(rate, len(labels_N))) + BEYOND_THE_ENDS
    # What was learnt by heart looks right. Held-out labels tell how much more may be wrong; or how
    # hard the samples are, so that the estimate itself does not follow them.
    high = max(high, rate, noise_rate(mixture_NC, labels_N, held_out_N, HARD, trust))

    rather_NC = unmix(smooth_NC, anchors_of(smooth_NC), RANKING_STEPS)
    _, softer_CC = _posterior(rather_NC, labels_N, SOFT)
    # Not that T alone: where the network hardly tells a rare class apart, q is so vague here that
    # the likeliest T may have no wrong label of that class, and all of them would rank last.
    both_CC = (transition_CC + softer_CC) / 2
    posterior_NC = _normalised(rather_NC * both_CC.T[labels_N])
    odds_N = _log_odds(_wrong(posterior_NC, labels_N))
    wrong_N = _with_mean(odds_N + OWN_WEIGHT * _log_odds(_wrong(own_NC, labels_N)), rate)
    return Judgement(
        posterior=_agreeing(posterior_NC, labels_N, wrong_N),
        wrong=wrong_N,
        transition=transition_CC,
        noise_rate=rate,
        noise_interval=(max(0.0, min(low, rate) - margin), min(1.0, high + margin)),
    )


def _counting_device(tensor: Tensor) -> torch.device:
    return torch.device("cuda" if tensor.is_cuda else "cpu")  # others lack float64


def learnt_by_heart(own_NC: Tensor, labels_N: Tensor, held_out_N: Tensor) -> float:
    """Of the labels it would not have guessed, the share that the network repeats after training.

    (a − h) / (1 − h), where it agrees with a of its training labels and with h of those held out.
    """
    if held_out_N.all():
        return 0.0
    if not held_out_N.any():
        return 1.0  # nobody knows
    agrees_N = (own_NC.argmax(1) == labels_N).double()
    trained, held_out = float(agrees_N[~held_out_N].mean()), float(agrees_N[held_out_N].mean())
    return min(max((trained - held_out) / max(1 - held_out, TINY), 0.0), 1.0)


def says_more(
    labels_N: Tensor,
    probabilities_NC: Tensor,
    features: Sequence[Tensor],
    others: Sequence[Tensor],
    held_out_N: Tensor,
) -> bool:
    """Whether neighbours by `others` surely say more of held-out labels than those by `features`.

    By the mean of log p(yᵢ | i), p(y | i) = Σ_c p̄ᵢ_c T_cy: p̄ are the means over the neighbours, T
    is found by labels that were trained on. It tells who tells the classes apart, not who has
    learnt wrong labels by heart: held-out ones nobody has learnt.
    """
    held_out, trained = (part.nonzero().squeeze(1).cpu() for part in (held_out_N, ~held_out_N))
    if len(held_out) < FEWEST_TO_TELL or len(trained) == 0:
        return False
    device = _counting_device(probabilities_NC)
    labels_N, own_NC = labels_N.to(device), probabilities_NC.to(device, torch.float64)
    trained, held_out = (
        part[some_places(len(part), FITTED)].to(device) for part in (trained, held_out)
    )

    def of_held_out(described: Sequence[Tensor]) -> Tensor:
        around_NK = most_similar(described, NEIGHBOURS, torch.cat([trained, held_out])).to(device)
        smooth_NC = mean_of(own_NC, around_NK)
        transition_CC = fit_transition(smooth_NC[: len(trained)], labels_N[trained])
        expected_HC = smooth_NC[len(trained) :] @ transition_CC
        expected_H = expected_HC.gather(1, labels_N[held_out][:, None]).squeeze(1)
        return expected_H.clamp(min=LEAST_EXPECTED).log()

    gain_H = of_held_out(others) - of_held_out(features)
    return float(gain_H.mean()) > SURELY * math.sqrt(float(gain_H.var()) / len(gain_H))


def anchors(smooth_NC: Tensor, labels_N: Tensor) -> Tensor:
    """What is said of samples surely of each class [C, C]: the mean over its best labels.

    Those are the better half of them; fewer where the others look like samples of other labels
    rather than like the best tenth, and that tenth at least.
    """
    classes = smooth_NC.shape[1]
    anchors_CC = torch.eye(classes, dtype=smooth_NC.dtype, device=smooth_NC.device)
    for number in labels_N.unique().tolist():
        of_class, of_others = smooth_NC[labels_N == number], smooth_NC[labels_N != number, number]
        own_N = of_class[:, number].sort(descending=True).values
        least, most = (max(1, int(s * len(own_N))) for s in (LEAST_ANCHOR_SHARE, ANCHOR_SHARE))
        usual = of_others.mean() if len(of_others) else 0.0
        like_best = int((own_N > (own_N[:least].mean() + usual) / 2).sum())
        count = min(max(like_best, least), most)
        best = of_class[of_class[:, number].topk(count).indices]
        trust = count**2 / (count**2 + FEW_LABELS**2)
        anchors_CC[number] = trust * best.mean(0) + (1 - trust) * anchors_CC[number]
    return anchors_CC


def believed(anchors_CC: Tensor, labels_N: Tensor) -> Tensor:
    """The anchors, with "surely c" for those of classes that the model does not know.

    It knows a class if it takes even the best of its labels rather for it than for its rival, by a
    quarter if labels of the rival are the more frequent by so much: a model that doubts says the
    frequent class. That is no noise, and taken for some it would excuse all labels of the rare.
    """
    own_C = anchors_CC.diagonal()
    rival_C, rival_of_C = (anchors_CC - torch.diag(own_C)).max(1)
    labels_C = labels_N.bincount(minlength=len(anchors_CC)).to(anchors_CC)
    needed_C = (labels_C[rival_of_C] / labels_C.clamp(min=1)).clamp(1, SURELY_NO_RIVAL)
    is_known_C = own_C >= needed_C * rival_C
    return torch.where(is_known_C[:, None], anchors_CC, torch.eye(len(own_C)).to(anchors_CC))


def unmix(smooth_NC: Tensor, anchors_CC: Tensor, steps: int) -> Tensor:
    """Weights q [N, C] of the anchors whose mixture Σ_c q_c a_c is nearest to p̄ (in KL)."""
    mixture_NC = 0.5 * smooth_NC + 0.5 / smooth_NC.shape[1]
    steps_N = _lengthened(steps, smooth_NC, anchors_CC)
    step = 0
    while (going_N := steps_N > step).any():
        given_NC, now_NC = smooth_NC[going_N], mixture_NC[going_N]
        ratio_NC = given_NC / (now_NC @ anchors_CC).clamp(min=TINY)
        further_NC = now_NC * (ratio_NC @ anchors_CC.T)
        further_NC = further_NC / further_NC.sum(1, keepdim=True).clamp(min=TINY)
        part_N1 = (steps_N[going_N] - step).clamp(max=1)[:, None]  # the last step may be a part
        mixture_NC[going_N] = now_NC + part_N1 * (further_NC - now_NC)
        step += 1
    return _normalised(mixture_NC.clamp(min=LEAST))


def _lengthened(steps: int, smooth_NC: Tensor, anchors_CC: Tensor) -> Tensor:
    """The steps of each sample [N], more of them where anchors are alike, for each says less then.

    All anchors are, of a network that has seen 80 % noise: that concerns all samples. Where 40 %
    of the cats are called dogs, much of what the network says of a cat goes to one rival, and it
    takes 1 / (1 − rivalry) times as long to see that it is none of that: for what may be a cat.
    """
    own_C = anchors_CC.diagonal()
    own = float(own_C.mean())
    contrast = own - (1 - own) / max(1, len(anchors_CC) - 1)  # 1: sure, 0: all alike
    of_all = max(1.0, 1 / max(2 * contrast, TINY))
    rival_C = (anchors_CC - torch.diag(own_C)).max(1).values
    rivalry_C = (rival_C / own_C.clamp(min=TINY)).clamp(max=MOST_RIVALRY)  # 0: no rival
    of_rivals_N = smooth_NC @ (1 / (1 - rivalry_C))
    return (steps * of_rivals_N.clamp(min=of_all)).clamp(max=MOST_STEPS)


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


def _posterior(mixture_NC: Tensor, labels_N: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """p(c | i, yᵢ) and T."""
    tempered_NC = _normalised(mixture_NC ** (1 / temperature))
    some = some_places(len(labels_N), FITTED).to(labels_N.device)
    transition_CC = fit_transition(tempered_NC[some], labels_N[some])
    return _normalised(tempered_NC * transition_CC.T[labels_N]), transition_CC


def noise_rate(
    mixture_NC: Tensor, labels_N: Tensor, held_out_N: Tensor, temperature: float, trust: float = 1.0
) -> float:
    """By all labels; the more by the held-out ones alone, the surer these say something else.

    All are many, but the network may have learnt them by heart: the less `trust`, the more is known
    of that. The held-out ones are few: with full trust, as long as the difference is within two of
    their standard errors, it says nothing.
    """

    def rate_of(part_N: Tensor) -> float:
        posterior_NC, _ = _posterior(mixture_NC[part_N], labels_N[part_N], temperature)
        return float(_wrong(posterior_NC, labels_N[part_N]).mean())

    if len(labels_N) == 0:
        return 0.0
    by_all = rate_of(torch.ones_like(held_out_N))
    if not held_out_N.any():
        return by_all
    by_held_out = rate_of(held_out_N)
    noise = 4 * trust * _variance(by_held_out, int(held_out_N.sum()))
    difference = by_all - by_held_out
    return by_held_out + difference * noise / max(difference**2, noise, TINY)


def _variance(share: float, count: int) -> float:
    """Of a share that was found among so many, as if one more had had it and one had not: a few
    that are all right do not prove that all are."""
    share = (share * count + 1) / (count + 2)
    return share * (1 - share) / max(1, count)


def doubt_is_noise(mixture_NC: Tensor, wrong_N: Tensor, held_out_N: Tensor, rate: float) -> float:
    """How surely labels are wrong rather where samples are hard, as those of people: 0 to 1.

    Of the samples of each class in the order of confidence, the third fifth against the first:
    most of both are clear, so that what is wrong there can be counted. By held-out labels
    alone, for others make the network sure of themselves. Near 1/2 where there are few, or none.
    """
    sure_N, class_N = mixture_NC[held_out_N].max(1)
    order_N = sure_N.argsort(descending=True, stable=True)
    order_N = order_N[class_N[order_N].argsort(stable=True)]
    size_C = class_N.bincount(minlength=mixture_NC.shape[1])
    begin_C = size_C.cumsum(0) - size_C
    of_N = class_N[order_N]
    place_N = (torch.arange(len(of_N), device=of_N.device) - begin_C[of_N] + 0.5) / size_C[of_N]

    wrong_N, sure_N = wrong_N[held_out_N][order_N], sure_N[order_N]
    is_third_N = (place_N >= 0.4) & (place_N < 0.6)
    first_N, third_N = wrong_N[place_N < 0.2], wrong_N[is_third_N]
    if min(len(first_N), len(third_N)) == 0:
        return 0.5
    first, third = float(first_N.mean()), float(third_N.mean())
    count = min(len(first_N), len(third_N))
    # As if one label more had been wrong: a few right ones do not prove that all are.
    variance = (first * (1 - first) + third * (1 - third) + 1 / count) / count
    doubt = 1 - float(sure_N[is_third_N].mean())
    beyond = third - first - max(RISE_OF_PEOPLE * rate, RISE_OF_DOUBT * doubt)
    reliable = RISE_SPREAD**2 / (RISE_SPREAD**2 + variance)
    return 0.5 + 0.5 * reliable * math.erf(beyond / math.sqrt(2 * variance))


def _wrong(posterior_NC: Tensor, labels_N: Tensor) -> Tensor:
    """1 − p(yᵢ), summed over the others so that the smallest do not round to zero."""
    others_NC = posterior_NC.scatter(1, labels_N[:, None], 0.0)
    return others_NC.sum(1).clamp(0, 1)


def _with_mean(odds_N: Tensor, mean: float) -> Tensor:
    """Probabilities of log odds that are all shifted alike, so that their mean is this one."""
    low, high = -60.0, 60.0
    for _ in range(60):
        middle = (low + high) / 2
        is_high = float(torch.sigmoid(odds_N + middle).mean()) > mean
        low, high = (low, middle) if is_high else (middle, high)
    return torch.sigmoid(odds_N + low)


def _agreeing(posterior_NC: Tensor, labels_N: Tensor, wrong_N: Tensor) -> Tensor:
    """The same proportions among the other classes, where the label is wrong with `wrong_N`."""
    others_NC = posterior_NC.clamp(min=TINY).scatter(1, labels_N[:, None], 0.0)
    others_NC = _normalised(others_NC) * wrong_N[:, None]
    return others_NC.scatter(1, labels_N[:, None], (1 - wrong_N)[:, None])


def _log_odds(probability: Tensor) -> Tensor:
    return torch.logit(probability.clamp(LEAST, 1 - LEAST))


def _normalised(values: Tensor) -> Tensor:
    return values / values.sum(1, keepdim=True).clamp(min=1e-300)
