"""Which labels look wrong: ranking, suggestions, export.

Axes: N samples, C classes.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.errors import InputError

COLUMNS = (
    "index", "sample", "given", "suggested",
    "given_probability", "suggested_probability", "score", "kept",
)  # fmt: skip


@dataclass(frozen=True)
class LabelIssues:
    """One entry per training sample, most suspicious first."""

    indices: Tensor  # [N] into the data as it came
    given: Tensor  # [N] class numbers
    suggested: Tensor  # [N] the most probable class
    given_probability: Tensor  # [N]
    suggested_probability: Tensor  # [N]
    score: Tensor  # [N] in [0, 1]: how suspicious
    flagged: Tensor  # [N] bool: another class is more probable than the given one


def find_label_issues(
    labels: Tensor | np.ndarray | Sequence[int],
    probabilities: Tensor | np.ndarray,
    indices: Tensor | None = None,
) -> LabelIssues:
    """Rank labels by how suspicious a model's probabilities [N, C] make them.

    score = (1 + p(suggested) − p(given)) / 2, where the suggested class is the most probable:
    1/2 where the model agrees with the label, 1 where it is sure of another class. Among samples
    it agrees with, the least sure come first.
    """
    probabilities_NC = torch.as_tensor(np.asarray(probabilities, dtype=np.float64))
    labels_N = torch.as_tensor(np.asarray(labels)).long()
    if probabilities_NC.ndim != 2 or labels_N.shape != probabilities_NC.shape[:1]:
        raise InputError(
            f"need labels [N] and probabilities [N, C], got {tuple(labels_N.shape)} and "
            f"{tuple(probabilities_NC.shape)}"
        )
    classes = probabilities_NC.shape[1]
    if len(labels_N) and not 0 <= int(labels_N.min()) <= int(labels_N.max()) < classes:
        raise InputError(f"labels must lie in [0, {classes - 1}], as probabilities have columns")
    if not torch.isfinite(probabilities_NC).all():
        raise InputError("probabilities must be finite")
    given_probability = probabilities_NC.gather(1, labels_N[:, None]).squeeze(1)
    suggested_probability, suggested = probabilities_NC.max(dim=1)
    score = (1 + suggested_probability - given_probability) / 2
    agrees = suggested_probability == given_probability
    # The margin is zero wherever the model agrees; there its doubt decides.
    order = torch.argsort(score - agrees * suggested_probability, descending=True, stable=True)
    where = torch.arange(len(labels_N)) if indices is None else indices.cpu()
    return LabelIssues(
        indices=where[order],
        given=labels_N[order],
        suggested=torch.where(agrees, labels_N, suggested)[order],
        given_probability=given_probability[order],
        suggested_probability=suggested_probability[order],
        score=score[order],
        flagged=~agrees[order],
    )


def write_label_issues(
    path: Path,
    issues: LabelIssues,
    classes: Sequence[str],
    kept: Tensor | None,
    texts: Sequence[str] | None,
) -> None:
    """label_issues.csv: every training sample. `kept` and `texts` are by training order."""
    positions = _positions(issues.indices)
    kept_set = None if kept is None else set(kept.tolist())
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row, position in enumerate(positions):
            writer.writerow(
                [
                    int(issues.indices[row]),
                    _harmless(texts[position]) if texts is not None else "",
                    _harmless(classes[int(issues.given[row])]),
                    _harmless(classes[int(issues.suggested[row])]),
                    f"{float(issues.given_probability[row]):.6f}",
                    f"{float(issues.suggested_probability[row]):.6f}",
                    f"{float(issues.score[row]):.6f}",
                    "" if kept_set is None else ("yes" if position in kept_set else "no"),
                ]
            )


def read_label_issues(path: Path, top: int | None = None) -> list[dict[str, Any]]:
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return rows if top is None else rows[:top]


def _positions(indices: Tensor) -> list[int]:
    """Where each sample stands in the training set: its rank among the indices."""
    order = torch.argsort(indices)
    positions = torch.empty_like(order)
    positions[order] = torch.arange(len(order))
    return positions.tolist()


def _harmless(text: str) -> str:
    """A spreadsheet must not take a text from the data for a formula; a number is none."""
    if text[:1] not in ("=", "+", "-", "@", "\t", "\r"):
        return text
    try:
        float(text)
    except ValueError:
        return f"'{text}"
    return text
