"""The headline and other sentences of the report."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from mlnt.progress import EPOCHS_TOGETHER
from mlnt.report.findings import Confusion, Findings

# Percent: a model that agrees with fewer labels is weak, unless nearly as many are wrong.
LITTLE_AGREEMENT = 50
# So many points below what the estimate leaves right, and standard errors. CIFAR-10 as it comes,
# where an estimate of 0.5 % stands beside an agreement of 95 %, is 4.6 points below.
FAR_BELOW, SURELY = 7, 3
FEWEST_CONFUSED, BY_CHANCE = 5, 0.001
WORTH_A_WORD = 0.05  # of the flagged labels; or half of those of the class
ADVICE = {
    "image": "a stronger or pretrained network may",
    "table": "more rows, or columns that say more, may help",
    "text": "more texts may help",
}
LITTLE_NOISE = 0.5  # percent of the labels: of hardly more it can be said that none looks wrong


def headline(findings: Findings, summary: dict[str, Any]) -> str:
    """How many labels look wrong: as estimated, which may be more than were flagged."""
    estimate = summary["label_issues"]
    if findings.flagged == 0 and not are_some_wrong(estimate):
        return "No label looks wrong"
    none = ", but none can be pointed at" if findings.flagged == 0 else ""
    return f"About {noise_in_words(estimate)} of the labels look wrong{none}"


def are_some_wrong(estimate: dict[str, Any]) -> bool:
    """By the estimate alone, whatever was flagged."""
    return estimate["noise_rate"] >= LITTLE_NOISE


def none_flagged(findings: Findings, summary: dict[str, Any]) -> str:
    """What is said in the place of what was flagged: some labels may be wrong all the same."""
    expected = round(summary["label_issues"]["noise_rate"] / 100 * len(findings))
    said = f"Of {len(findings):,} labels none is more probably wrong than right"
    if expected == 0:
        return f"{said}."
    verb = "is" if expected == 1 else "are"
    return f"{said}; about {expected:,} {verb} wrong by the estimate, but nothing tells which."


def noise_in_words(estimate: dict[str, Any]) -> str:
    """38 % ± 2 %."""
    rate = estimate["noise_rate"]
    return f"{percent(rate)}{spread(rate, estimate.get('noise_interval'))}"


def spread(rate: float, interval: Sequence[float] | None) -> str:
    """± half of the interval where the rate lies in its middle, else from where to where."""
    if interval is None or None in interval:
        return ""
    low, high = interval
    half = (high - low) / 2
    is_centred = abs((low + high) / 2 - rate) <= 0.25 * half
    if half <= rate and (is_centred or round(rate - low) == round(high - rate)):
        return f" ± {half:.0f} %" if rate >= 9.95 and half >= 0.95 else f" ± {percent(half)}"
    return f" ({percent(low)} to {percent(high)})"


def chosen_row(summary: dict[str, Any]) -> dict[str, Any]:
    """The figures of the deployed model."""
    keys = ("method", "iteration", "model")
    for row in summary["models"]:
        if all(row[key] == summary["chosen"][key] for key in keys):
            return row
    raise ValueError("the chosen model is not among the models")


def doubt(summary: dict[str, Any], config: dict[str, Any]) -> str:
    """Where the model agrees with far fewer validation labels than the estimate leaves right.

    Nobody has learnt them: a model that tells the classes apart agrees with those that are right.
    One that agrees with fewer errs, and where it agrees with less than half, its errors may have
    been counted as wrong labels. Where it agrees with more, the end of the interval is compared:
    that the samples are hard is in it.
    """
    estimate, samples = summary["label_issues"], config["data"]["samples"]
    interval: Sequence[Any] = estimate.get("noise_interval") or (None,)
    agreement, count = chosen_row(summary)["validation"], samples.get("validation", 0)
    if None in (*interval, agreement) or count == 0:
        return ""
    is_weak = agreement < LITTLE_AGREEMENT
    wrong = estimate["noise_rate"] if is_weak else max(interval)
    right = 100 - wrong
    between = (right + agreement) / 200
    chance = 100 * math.sqrt(between * (1 - between) / count)
    if right - agreement <= max(FAR_BELOW, SURELY * chance):
        return ""
    most = "" if is_weak else "at most "
    is_held_out = _is_held_out(summary, samples)
    said = (
        f"the model agrees with only {percent(agreement)} of the {count:,} "
        f"{'held-out' if is_held_out else 'validation'} labels, where {most}{percent(wrong)} wrong "
        f"ones would leave {percent(right)} right"
    )
    if not is_held_out and 2 * estimate["noise_rate"] < 100 - agreement:
        # It agrees with most labels that it is trained on, so it has learnt something.
        return (
            f"{said}: these are other data, or many training labels are wrong in a way that the "
            "model has learnt, which no estimate from them can see"
        )
    return (
        f"{said}: it does not tell the classes apart well enough to say which labels are wrong, "
        f"or how many; {ADVICE[config['data']['encoder']['kind']]}"
    )


def _is_held_out(summary: dict[str, Any], samples: dict[str, int]) -> bool:
    """Whether the validation labels came among those that are judged."""
    return summary.get("is_held_out", summary["labels"] > samples["train"])


def confused_most(findings: Findings) -> list[Confusion]:
    """Directions, given class to suggested one, in which errors are much more frequent than in the
    others, the most frequent first; those that are worth a word.

    One after the other is compared with the mean m of those that are left: p(X ≥ count), X ~
    Poisson(m), is P(count, m), the incomplete gamma function.
    """
    found = findings.confusions()
    left = sum(way.count for way in found)
    classes, enough = len(findings.classes), WORTH_A_WORD * left
    of_class_C = np.bincount(findings.given_N[: findings.flagged], minlength=classes)
    directions = classes * (classes - 1)
    chance = BY_CHANCE / directions  # that any of them is so frequent
    stand_out = []
    for others, way in zip(range(directions - 1, 0, -1), found, strict=False):
        left -= way.count
        count, mean = torch.tensor([way.count, left / others], dtype=torch.float64)
        if way.count < FEWEST_CONFUSED or torch.special.gammainc(count, mean) > chance:
            break
        if way.count >= min(enough, of_class_C[way.given] / 2):
            stand_out.append(way)
    return stand_out


def epochs_together(summary: dict[str, Any]) -> int:
    """Of how many epochs the validation of led iterations is the mean: fewer where a stage had
    fewer; 0 without any."""
    if not summary["filters"]:
        return 0
    first = summary["filters"][0]["after_iteration"]
    led = [row["best_epoch"] for row in summary["models"] if row["iteration"] > first]
    return min(EPOCHS_TOGETHER, max(led, default=0))


def times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count:,} times")


def percent(value: float) -> str:
    """38 %, but 3.8 %: two digits say enough."""
    return f"{value:.0f} %" if value >= 9.95 or value == 0 else f"{value:.1f} %"


def duration(seconds: float) -> str:
    """21 s, 4 min 10 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 1 else f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
