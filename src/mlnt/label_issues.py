"""Which labels look wrong: ranking, suggestions, export.

Axes: N samples, C classes.
"""

import csv
import itertools
import sys
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.arguments import as_tensor, in_one_line
from mlnt.errors import InputError
from mlnt.files import open_text
from mlnt.noise_model import FEWEST_TO_TELL, Judgement, judge
from mlnt.texts import LONGEST_CELL, harmless

COLUMNS = (
    "index", "sample", "given", "suggested",
    "given_probability", "suggested_probability", "score", "kept",
)  # fmt: skip

SUM_TOLERANCE = 0.02  # half precision, and files with two digits
MOST_IN_SUMMARY = 100  # classes
NEARLY_ALL = 0.9
# Shares of the held-out labels. Where labels are wrong so often that nobody could agree with more
# of them, a network that has learnt is not vague.
LITTLE_AGREEMENT, VAGUE = 0.5, 0.17
TOO_SURE = 0.15  # so much higher is what a model says of its guesses than they are right
CLASS_NUMBERS = "class numbers, counted from 0 as the columns are"


@dataclass(frozen=True, repr=False)
class LabelIssues:
    """One entry per sample that could be read, most suspicious first; then what is to be said of
    all of them."""

    positions: Tensor  # [N] into the labels as they were given, or rows of the data trained on
    given: Tensor  # [N] class numbers
    suggested: Tensor  # [N] the most probable other class where flagged, else the given one
    given_probability: Tensor  # [N] knowing both the sample and its label
    suggested_probability: Tensor  # [N]
    score: Tensor  # [N] probability that the label is wrong
    flagged: Tensor  # [N] bool: wrong rather than right
    noise_rate: float  # share of wrong labels to be expected
    noise_interval: tuple[float, float]
    transition: Tensor  # [C, C] probability of each label (column) for a sample of a class (row)
    doubt: str = ""  # why the estimate is not to be relied on, where `find_label_issues` knows

    def __repr__(self) -> str:
        low, high = self.noise_interval
        return (
            f"LabelIssues({len(self.score):,} labels of {len(self.transition):,} classes, "
            f"{int(self.flagged.sum()):,} flagged, noise rate {self.noise_rate:.3f} "
            f"({low:.3f} to {high:.3f}){', in doubt' if self.doubt else ''})"
        )

    def to_frame(self) -> Any:
        """The columns of label_issues.csv that are known here, as a DataFrame of pandas: classes
        by their numbers, without the samples and what a mentor kept."""
        try:
            import pandas
        except ImportError as error:
            raise InputError(f"to_frame needs pandas (pip install pandas): {error}") from None
        columns = {
            "index": self.positions,
            "given": self.given,
            "suggested": self.suggested,
            "given_probability": self.given_probability,
            "suggested_probability": self.suggested_probability,
            "score": self.score,
        }
        return pandas.DataFrame({name: values.cpu().numpy() for name, values in columns.items()})

    @property
    def expected_errors(self) -> float:
        return self.noise_rate * len(self.score)

    def _hardly_learnt(self, classes: Sequence[str]) -> list[str]:
        """Classes of which nearly all labels are flagged: rather the model does not know them."""
        labels_C = self.given.bincount(minlength=len(classes))
        flagged_C = self.given[self.flagged].bincount(minlength=len(classes))
        is_so_C = (labels_C > 0) & (flagged_C >= NEARLY_ALL * labels_C)
        return [classes[number] for number in is_so_C.nonzero().flatten().tolist()]

    def in_words(self, classes: Sequence[str]) -> dict[str, Any]:
        """As they go into summary.json; shares in percent. A very large T is left out."""
        is_small = len(self.transition) <= MOST_IN_SUMMARY
        return {
            "hardly_learnt": self._hardly_learnt(classes),
            "flagged": int(self.flagged.sum()),
            "expected_errors": self.expected_errors,
            "noise_rate": 100 * self.noise_rate,
            "noise_interval": [100 * end for end in self.noise_interval],
            "transition": self.transition.tolist() if is_small else None,
        }


def find_label_issues(
    labels: Tensor | np.ndarray | Sequence[int],
    probabilities: Tensor | np.ndarray,
    features: Tensor | np.ndarray | None = None,
    held_out: Tensor | np.ndarray | None = None,
) -> LabelIssues:
    """Rank labels [N] by how probably they are wrong, given a model's probabilities [N, C].

    features  [N, D], where similar samples lie close: then the model may have been trained on
              these labels. Without, it should not have been (cross-validation).
    held_out  [N] bool: labels that the model was not trained on; None: with features none of them,
              as nobody knows, without features all

    See `mlnt.noise_model` for the probability. Warns where the model is weak or too sure, so that
    the estimate may be far off: `doubt` of what is returned says why. The interval need not reach
    errors that are just what the model confuses.
    """
    labels_N, probabilities_NC = _checked(labels, probabilities)
    features_ND = None if features is None else as_tensor(features, "features").cpu().float()
    held_out_N = None if held_out is None else _checked_held_out(held_out)
    if held_out_N is None and features_ND is not None:
        held_out_N = torch.zeros(len(labels_N), dtype=torch.bool)
    if features_ND is not None and not (features_ND.ndim == 2 and features_ND.isfinite().all()):
        raise InputError(f"need finite features [N, D], got {tuple(features_ND.shape)}")
    for name, values in (("features", features_ND), ("held_out", held_out_N)):
        if values is not None and len(values) != len(labels_N):
            raise InputError(f"need {name} of {len(labels_N)} samples, got {len(values)}")
    described = () if features_ND is None else (features_ND,)
    issues = rank_labels(labels_N, judge(labels_N, probabilities_NC, described, held_out_N))
    everything_N = torch.ones_like(labels_N).bool()
    asked_N = everything_N if held_out_N is None else held_out_N
    doubt = _doubt(labels_N[asked_N], probabilities_NC[asked_N], issues.noise_interval)
    if doubt:
        warnings.warn(doubt, stacklevel=2)
    return replace(issues, doubt=doubt)


def _doubt(labels_H: Tensor, probabilities_HC: Tensor, interval: tuple[float, float]) -> str:
    """Of labels H that the model was not trained on: whether it says too little of them, or more
    than it knows. Its errors then count as wrong labels."""
    if len(labels_H) < FEWEST_TO_TELL:
        return ""
    said_H, guess_H = probabilities_HC.max(1)
    sure, agrees = float(said_H.mean()), float((guess_H == labels_H).double().mean())
    if sure - agrees >= TOO_SURE:
        return (
            f"the model gives its guesses a probability of {sure:.2f}, but agrees with "
            f"{agrees:.0%} of the labels: unless it was trained on better ones, it is too sure, "
            "and its errors may be counted as wrong labels; calibrated probabilities, or those of "
            "another model, would tell them apart better"
        )
    low, high = interval
    if agrees < LITTLE_AGREEMENT and high - low >= VAGUE:
        return (
            f"the model agrees with only {agrees:.0%} of the labels, and the estimate is vague "
            f"({low:.0%} to {high:.0%} wrong): errors of a weak model may be counted as wrong "
            "labels; a stronger one would tell them apart better"
        )
    return ""


def rank_labels(
    labels_N: Tensor,
    judgement: Judgement,
    seen_N: Tensor | None = None,
    rows_N: Tensor | None = None,
) -> LabelIssues:
    """The labels as judged, most suspicious first; without those of samples that nobody saw.

    rows_N  where they stand in the data, if others there have no label
    """
    score = judgement.wrong
    order = torch.argsort(score, descending=True, stable=True)
    if seen_N is not None:
        order = order[seen_N[order]]
    flagged = score > 0.5
    others_NC = judgement.posterior.scatter(1, labels_N[:, None], -1.0)
    suggested = torch.where(flagged, others_NC.argmax(dim=1), labels_N)
    given_probability, suggested_probability = (
        judgement.posterior.gather(1, classes_N[:, None]).squeeze(1)
        for classes_N in (labels_N, suggested)
    )
    return LabelIssues(
        positions=order if rows_N is None else rows_N[order],
        given=labels_N[order],
        suggested=suggested[order],
        given_probability=given_probability[order],
        suggested_probability=suggested_probability[order],
        score=score[order],
        flagged=flagged[order],
        noise_rate=judgement.noise_rate,
        noise_interval=judgement.noise_interval,
        transition=judgement.transition,
    )


def _checked(labels: Any, probabilities: Any) -> tuple[Tensor, Tensor]:
    labels_N = as_tensor(labels, "labels", CLASS_NUMBERS).cpu()
    probabilities_NC = as_tensor(probabilities, "probabilities").cpu().double()
    if probabilities_NC.ndim != 2 or labels_N.shape != probabilities_NC.shape[:1]:
        raise InputError(
            f"need labels [N] and probabilities [N, C], got {tuple(labels_N.shape)} and "
            f"{tuple(probabilities_NC.shape)}"
        )
    classes = probabilities_NC.shape[1]
    if classes < 2:
        raise InputError("need the probabilities of 2 or more classes, got those of one")
    if labels_N.is_floating_point():
        raise InputError(f"labels must be class numbers, got {labels_N.dtype}")
    labels_N = labels_N.long()
    if len(labels_N) and not 0 <= int(labels_N.min()) <= int(labels_N.max()) < classes:
        raise InputError(f"labels must lie in [0, {classes - 1}], as probabilities have columns")
    if not ((probabilities_NC >= 0) & (probabilities_NC <= 1)).all():
        raise InputError("probabilities must lie in [0, 1]")
    off_N = (probabilities_NC.sum(dim=1) - 1).abs() > SUM_TOLERANCE
    if off_N.any():
        row = int(off_N.int().argmax())
        raise InputError(
            f"the probabilities of a sample must sum to 1; those at index {row} sum to "
            f"{float(probabilities_NC[row].sum()):g}"
        )
    return labels_N, probabilities_NC


def _checked_held_out(held_out: Any) -> Tensor:
    """[N] bool. Whoever gives positions would be told of other labels than those they mean."""
    held_out_N = as_tensor(held_out, "held_out", "true or false for each label").cpu()
    if held_out_N.ndim != 1:
        raise InputError(f"need held_out [N], got {tuple(held_out_N.shape)}")
    if not ((held_out_N == 0) | (held_out_N == 1)).all():
        raise InputError(
            f"held_out must be true or false for each label, got {in_one_line(held_out)}; of "
            "positions make it with np.isin(np.arange(len(labels)), positions)"
        )
    return held_out_N.bool()


def write_label_issues(
    path: Path,
    issues: LabelIssues,
    classes: Sequence[str],
    kept: Sequence[bool | None] | Mapping[int, bool | None],
    texts: Sequence[str] | Mapping[int, str] | None,
    unseen: Mapping[int, int] | None = None,
) -> None:
    """label_issues.csv. `kept` (None where no mentor was asked) and `texts` are by position.

    `unseen` are the other labels by position: they come last, and nothing is said of them.
    """

    def sample(position: int) -> str:
        return "" if texts is None else harmless(texts[position][:LONGEST_CELL])

    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        columns = (
            issues.positions, issues.given, issues.suggested,
            issues.given_probability, issues.suggested_probability, issues.score,
        )  # fmt: skip
        for position, given, suggested, *numbers in zip(
            *(c.tolist() for c in columns), strict=True
        ):
            writer.writerow(
                [
                    position,
                    sample(position),
                    harmless(classes[given]),
                    harmless(classes[suggested]),
                    *(f"{number:.6f}" for number in numbers),
                    {True: "yes", False: "no", None: ""}[kept[position]],
                ]
            )
        for position, label in (unseen or {}).items():
            nothing = [""] * len(COLUMNS[3:])
            writer.writerow([position, sample(position), harmless(classes[label]), *nothing])


def read_label_issues(path: Path, top: int | None = None) -> list[dict[str, Any]]:
    """The rows of label_issues.csv, or the first of them; without those of samples nobody saw."""
    top = None if top is None else min(top, sys.maxsize)  # islice takes no larger number
    rows: list[dict[str, Any]] = []
    try:
        with open_text(path) as file:
            for row in itertools.islice(csv.DictReader(file), top):
                if tuple(row) != COLUMNS or None in row.values():
                    break
                if row["score"]:
                    rows.append(row)
            else:
                if rows:
                    return rows
    except FileNotFoundError:
        raise InputError(f"no {path}; the run has not finished") from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    raise InputError(f"{path} is damaged: it must hold the columns {', '.join(COLUMNS)}")
