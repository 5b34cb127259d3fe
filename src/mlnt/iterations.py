"""Iterations led by mentors: the best model of one filters the data for the next.

    iteration 1 -> mentor -> filter -> iteration 2 -> mentor -> filter -> iteration 3

Axes: N samples, H held out, C classes.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.dataset import Split
from mlnt.data.noise import wrong_share
from mlnt.distributed import ALL_ALONE, World
from mlnt.evaluation import predict_probabilities
from mlnt.judging import Judge, seen
from mlnt.left_out import Proof
from mlnt.methods import Method
from mlnt.models import copy_model
from mlnt.training import Stage, StageResult, Trainer

MOST_WEIGHT = 3.0  # of a label in the class loss: a few labels must not count for a class
LIMITING_ROUNDS = 50
# Of T: two classes of which 45 % are called the other make 10; near 50 % chance would decide.
MOST_CONDITION = 20.0


@dataclass(frozen=True)
class Kept:
    """What a mentor left in the class loss."""

    indices: Tensor  # LongTensor, into the training set
    tau: float | None  # None: see `worth_keeping`
    probabilities: Tensor  # [N, C], what the mentor says of all training samples
    rescued: dict[int, int] = field(
        default_factory=dict
    )  # class: how many of it stay in spite of τ
    class_weights: Tensor | None = None  # [C], in the class loss; None: all alike
    transition: Tensor | None = None  # [C, C], how labels became others; None: nobody judged


def otsu_threshold(values_N: Tensor, bins: int = 100) -> float:
    """The threshold in [0, 1] that splits values into two groups of least variance within each.

    Otsu's method: over a histogram, maximise w₀ w₁ (μ₀ − μ₁)². Where several thresholds do
    equally well, as between two separate groups, the middle one.
    """
    values = values_N.double().clamp(0, 1).cpu()
    counts = torch.histc(values, bins=bins, min=0, max=1)
    centres = (torch.arange(bins, dtype=torch.float64) + 0.5) / bins
    below = counts.cumsum(0)[:-1]
    above = counts.sum() - below
    sum_below = (counts * centres).cumsum(0)[:-1]
    sum_above = (counts * centres).sum() - sum_below
    split = (below > 0) & (above > 0)
    if not split.any():
        return 0.0  # all in one bin: nothing to tell apart, nothing to filter
    difference = sum_below / below.clamp(min=1) - sum_above / above.clamp(min=1)
    between = torch.where(split, below * above * difference.square(), 0.0)
    best = (between >= between.max() * (1 - 1e-12)).nonzero().squeeze(1)
    return float((best.double().mean() + 1) / bins)


def filter_samples(
    probabilities_NC: Tensor,
    labels_N: Tensor,
    tau: float | str,
    keep_per_class: float,
    wrong_N: Tensor | None = None,
) -> Kept:
    """D′ = {i : y_i · f(x_i, θ*) > τ}, but never less of a class than its most probable samples.

    tau="auto" keeps the likeliest labels, as many as together say most: see `worth_keeping`;
    `wrong_N` is what the noise model makes of the mentor's opinion. tau="otsu" takes Otsu's
    threshold of the probabilities of the given labels, at most 1/2: a label with more than that is
    the mentor's own answer. Of each class at least the share `keep_per_class` (and one sample)
    stays.
    """
    right_N = probabilities_NC.gather(1, labels_N[:, None]).squeeze(1)
    threshold: float | None = None
    if tau == "auto":
        if wrong_N is None:
            raise ValueError("tau='auto' needs the probability that each label is wrong")
        right_N = 1 - wrong_N
        kept_N = _largest(right_N, worth_keeping(right_N, probabilities_NC.shape[1]))
    else:
        threshold = min(otsu_threshold(right_N), 0.5) if tau == "otsu" else float(tau)
        kept_N = right_N > threshold
    rescued = {}
    for number in labels_N.unique().tolist():
        members = (labels_N == number).nonzero().squeeze(1)
        wanted = max(1, round(keep_per_class * len(members)))
        if int(kept_N[members].sum()) < wanted:
            rescued[number] = wanted
            kept_N[members] |= _largest(right_N[members], wanted)
    return Kept(kept_N.nonzero().squeeze(1), threshold, probabilities_NC, rescued)


def worth_keeping(right_N: Tensor, classes: int) -> int:
    """How many labels to keep, given how likely each is right, so that they say most.

    A label that is right with probability p says s = (p − 1/C) / (1 − 1/C), of C classes, and k of
    them say as much as (Σ s)² / k right ones. So it is worth keeping if it says at least half of
    what the kept ones say on average. Where those are sure, it must be right with about 1/2; where
    nearly all labels are wrong with less, or hardly any would be left.
    """
    # On a CPU, where sums have the same order every time.
    said_N = (right_N.double().cpu() - 1 / classes).clamp(min=0).sort(descending=True).values
    count_N = torch.arange(1, len(said_N) + 1)
    return int((said_N.cumsum(0).square() / count_N).argmax()) + 1


def restoring_weights(kept_labels: Tensor, shares_C: Tensor) -> Tensor:
    """Weights [C] by which kept labels count as if their classes came in these shares.

    A filter takes more from some classes than from others: 40 % of the cats have a wrong label, or
    they are hard. A network that learns from what is left would expect cats less often than they
    come. The mean over the kept labels is 1.
    """
    counts_C = kept_labels.bincount(minlength=len(shares_C)).double()
    kept_C = counts_C / counts_C.sum()
    there_C = counts_C > 0
    weights_C = torch.where(there_C, shares_C.double() / kept_C, 0.0)
    for _ in range(LIMITING_ROUNDS):  # what is cut off counts for the others
        weights_C = (weights_C / (kept_C * weights_C).sum()).clamp(max=MOST_WEIGHT)
    return torch.where(there_C, weights_C, 1.0)


def _largest(values_N: Tensor, count: int) -> Tensor:
    """[N] bool: the so many largest."""
    largest_N = torch.zeros_like(values_N, dtype=torch.bool)
    largest_N[values_N.argsort(descending=True, stable=True)[:count]] = True
    return largest_N


MakeMethod = Callable[[nn.Module | None, Settings], Method]


@dataclass
class Led:
    """What the iterations came to."""

    stages: list[StageResult]
    kept: Kept | None = None  # what the last filter left
    filters: list[dict[str, Any]] = field(default_factory=list)
    judge: Judge | None = None
    proof: Proof | None = None  # that filtering is worth it, or not; None: not asked for


def run_iterations(
    trainer: Trainer,
    name: str,
    make_method: MakeMethod,
    judge: Judge,
    classes: Sequence[str],
    leader: StageResult | None = None,
    prove: Callable[[], Proof | None] | None = None,
) -> Led:
    """Train `settings.iterations` times; `make_method` gets the mentor and the settings for it.

    Nobody leads the first iteration, unless there is a `leader`, a stage before it. `prove` says
    whether filtering is worth it; where it is not, all labels are kept.
    """
    led = Led([], judge=judge)
    candidates = [] if leader is None else [leader]
    iterations = trainer.settings.iterations
    for iteration in range(1, iterations + 1):
        mentor, kept = None, None
        if iteration == iterations > 1:
            trainer = trainer.at_last()
        if candidates:
            # An iteration that went wrong leads nobody: the one before it does so again.
            choice = choose_stage(candidates, trainer.validation, led.kept, trainer.world)
            mentor = best_model(choice)
            if prove is not None and led.proof is None:
                led.proof = prove()
            if led.proof is None or led.proof.holds:
                kept = filtered_by(mentor, choice.is_led, trainer.train, trainer.settings, judge)
            else:
                kept = everything(mentor, trainer.train, judge)
            led.kept = kept
            led.filters.append(describe_filter(kept, trainer, classes, iteration - 1))
            if led.proof is not None:
                led.filters[-1]["proof"] = led.proof.to_json()
            for watcher in trainer.watchers:
                watcher.filtered(led.filters[-1])
        its_trainer = trainer if kept is None else trainer.where_led()
        indices, method = None, make_method(mentor, its_trainer.settings)
        if kept is not None:
            # The same tensor: where the run goes on, it gets the weights that it was begun with.
            indices, method.class_weights = kept.indices, kept.class_weights
        stage = its_trainer.run(Stage(name, iteration), method, indices)
        trainer.closing_seconds = its_trainer.closing_seconds
        if kept and stage.kept is not None and not torch.equal(kept.indices, stage.kept):
            # Another process began this iteration, and a GPU may answer a little differently twice.
            led.kept = replace(kept, indices=stage.kept)
            led.filters[-1] = describe_filter(led.kept, trainer, classes, iteration - 1)
        led.stages.append(stage)
        candidates.append(stage)
    return led


def filtered_by(
    mentor: nn.Module, is_led: bool, train: Split, settings: Settings, judge: Judge
) -> Kept:
    """What this mentor leaves in the class loss; `is_led`: it had a mentor itself."""
    probabilities_NC = predict_probabilities(mentor, train.inputs, judge.world)
    if settings.tau != "auto":
        return filter_samples(probabilities_NC, train.labels, settings.tau, settings.keep_per_class)
    judgement = judge(mentor, probabilities_NC, is_led)
    wrong_N = judgement.wrong[: len(train)]
    kept = filter_samples(probabilities_NC, train.labels, "auto", settings.keep_per_class, wrong_N)
    seen_N = seen(train).to(train.labels.device)
    shares_C = judgement.posterior[: len(train)].to(seen_N.device)[seen_N].mean(0)
    weights_C = restoring_weights(train.labels[kept.indices[seen_N[kept.indices]]], shares_C)
    return replace(
        kept,
        class_weights=weights_C.to(probabilities_NC.dtype),
        transition=judgement.transition,
    )


def everything(mentor: nn.Module, train: Split, judge: Judge) -> Kept:
    """All labels, where filtering is not worth it; the mentor still has a say in the target."""
    indices = torch.arange(len(train), device=train.labels.device)
    return Kept(indices, None, predict_probabilities(mentor, train.inputs, judge.world))


def choose_stage(
    stages: Sequence[StageResult],
    validation: Split,
    kept: Kept | None = None,
    world: World = ALL_ALONE,
    surely: float = 1.0,
) -> StageResult:
    """The last stage, unless an earlier one is better by more than so many standard errors.

    Every iteration had the better mentor; a small or noisy validation set cannot tell close ones
    apart, but it can tell when an iteration went wrong. Two are compared sample by sample, for they
    err on much the same ones. If labels became what they are by T, which the last filter may have
    found, the earlier must be better by what T makes of them as well: see `right_by`.
    """
    counted_H = seen(validation)
    labels_H = validation.labels.cpu()[counted_H]
    answers = [_answers(stage, validation, world)[counted_H] for stage in stages]
    ways = [None, *_transition(validation, kept)]

    def is_better(answers_H: Tensor) -> bool:
        return all(
            _is_clear(
                right_by(labels_H, answers_H, way) - right_by(labels_H, answers[-1], way), surely
            )
            for way in ways
        )

    better = [place for place, answers_H in enumerate(answers) if is_better(answers_H)]
    right = [float(right_by(labels_H, answers_H).mean()) for answers_H in answers]
    place = max(better, key=lambda place: right[place], default=len(stages) - 1)
    # Each process found T for itself: all must come to the same end, however close it is.
    return stages[world.share(place)]


def _transition(validation: Split, kept: Kept | None) -> list[Tensor]:
    """T, if the validation labels arose by it and it says which class a label came from."""
    given = validation.given_labels
    if kept is None or kept.transition is None or given is None:
        return []
    arose_so = torch.equal(given, validation.labels)  # else true labels took their place
    says_something = float(torch.linalg.cond(kept.transition.cpu().double())) < MOST_CONDITION
    return [kept.transition] if arose_so and says_something else []


def right_by(labels_H: Tensor, answers_H: Tensor, transition_CC: Tensor | None = None) -> Tensor:
    """[H]: 1 where an answer is the label, else 0; with T, what has the mean of that by the truth.

    Who has learnt that cats are called dogs agrees with such labels more often than who knows cats.
    With T_cy, the probability that a label of class c becomes y, g(y, a) = (T⁻¹)_ya has the mean
    Σ_y T_cy (T⁻¹)_ya = [a = c] over the labels of a sample of class c.
    """
    if transition_CC is None:
        return (answers_H == labels_H).double()
    return torch.linalg.pinv(transition_CC.cpu().double())[labels_H, answers_H]


def _is_clear(gain_H: Tensor, surely: float) -> bool:
    """Whether its mean is above 0 by more than so many standard errors."""
    return len(gain_H) > 1 and bool(gain_H.mean() > surely * (gain_H.var() / len(gain_H)).sqrt())


def _answers(stage: StageResult, validation: Split, world: World) -> Tensor:
    """[H], the classes that its best model finds in the held-out samples."""
    if stage.best.answers is not None:
        return stage.best.answers
    # It was finished before they were kept.
    return predict_probabilities(best_model(stage), validation.inputs, world).argmax(dim=1).cpu()


def best_model(result: StageResult) -> nn.Module:
    """The student or teacher with the weights of its best epoch, whichever validates better."""
    model = copy_model(result.models[result.best_name])
    model.load_state_dict(result.best.state)
    return model.eval()


def describe_filter(
    kept: Kept, trainer: Trainer, classes: Sequence[str], iteration: int
) -> dict[str, Any]:
    """What the filter did, for people; with the true labels also how well."""
    train = trainer.train
    seen_N = seen(train).to(train.labels.device)
    report: dict[str, Any] = {
        "after_iteration": iteration,
        "tau": kept.tau,
        "kept": int(seen_N[kept.indices].sum()),
        "of": int(seen_N.sum()),
        "rescued": {classes[number]: count for number, count in kept.rescued.items()},
    }
    if kept.class_weights is not None:
        weights = kept.class_weights.tolist()
        report["class_weights"] = dict(zip(classes, weights, strict=True))
    if train.true_labels is not None:
        dropped_N = torch.ones(len(train), dtype=torch.bool, device=train.labels.device)
        dropped_N[kept.indices] = False
        parts = {"wrong_among_kept": ~dropped_N & seen_N, "wrong_among_dropped": dropped_N & seen_N}
        for name, mask in parts.items():
            if mask.any():
                report[name] = 100 * wrong_share(train.labels[mask], train.true_labels[mask])
    return report
