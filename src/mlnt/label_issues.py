"""Which labels look wrong: ranking, suggestions, export.

Axes: N samples, C classes.
"""

import csv
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.errors import InputError
from mlnt.files import open_text
from mlnt.texts import LONGEST_CELL, harmless

COLUMNS = (
    "index", "sample", "given", "suggested",
    "given_probability", "suggested_probability", "score", "kept",
)  # fmt: skip


@dataclass(frozen=True)
class LabelIssues:
    """One entry per sample, most suspicious first."""

    positions: Tensor  # [N] into the labels as they were given
    given: Tensor  # [N] class numbers
    suggested: Tensor  # [N] the most probable class
    given_probability: Tensor  # [N]
    suggested_probability: Tensor  # [N]
    score: Tensor  # [N] in [0, 1]: how suspicious
    flagged: Tensor  # [N] bool: another class is more probable than the given one


def suspicion(labels_N: Tensor, probabilities_NC: Tensor) -> Tensor:
    """(1 + p(most probable other class) − p(given class)) / 2, in [0, 1]; above 1/2: flagged."""
    given_N = probabilities_NC.gather(1, labels_N[:, None]).squeeze(1)
    others_NC = probabilities_NC.scatter(1, labels_N[:, None], -1.0)
    return (1 + others_NC.amax(dim=1) - given_N) / 2


def find_label_issues(
    labels: Tensor | np.ndarray | Sequence[int], probabilities: Tensor | np.ndarray
) -> LabelIssues:
    """Rank labels [N] by how suspicious a model's probabilities [N, C] make them.

    See `suspicion` for the score. The suggestion is the most probable class.
    """
    labels_N, probabilities_NC = _as_tensor(labels), _as_tensor(probabilities).double()
    if probabilities_NC.ndim != 2 or labels_N.shape != probabilities_NC.shape[:1]:
        raise InputError(
            f"need labels [N] and probabilities [N, C], got {tuple(labels_N.shape)} and "
            f"{tuple(probabilities_NC.shape)}"
        )
    classes = probabilities_NC.shape[1]
    if labels_N.is_floating_point() or classes < 2:
        raise InputError(f"labels must be class numbers of 2 or more classes, got {labels_N.dtype}")
    labels_N = labels_N.long()
    if len(labels_N) and not 0 <= int(labels_N.min()) <= int(labels_N.max()) < classes:
        raise InputError(f"labels must lie in [0, {classes - 1}], as probabilities have columns")
    if not ((probabilities_NC >= 0) & (probabilities_NC <= 1)).all():
        raise InputError("probabilities must lie in [0, 1]")
    score = suspicion(labels_N, probabilities_NC)
    order = torch.argsort(score, descending=True, stable=True)
    suggested_probability, suggested = probabilities_NC.max(dim=1)
    return LabelIssues(
        positions=order,
        given=labels_N[order],
        suggested=suggested[order],
        given_probability=probabilities_NC.gather(1, labels_N[:, None]).squeeze(1)[order],
        suggested_probability=suggested_probability[order],
        score=score[order],
        flagged=score[order] > 0.5,
    )


def write_label_issues(
    path: Path,
    issues: LabelIssues,
    classes: Sequence[str],
    kept: Sequence[bool | None],
    texts: Sequence[str] | None,
) -> None:
    """label_issues.csv. `kept` (None where no mentor was asked) and `texts` are by position."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for row, position in enumerate(issues.positions.tolist()):
            writer.writerow(
                [
                    position,
                    harmless(texts[position][:LONGEST_CELL]) if texts is not None else "",
                    harmless(classes[int(issues.given[row])]),
                    harmless(classes[int(issues.suggested[row])]),
                    f"{float(issues.given_probability[row]):.6f}",
                    f"{float(issues.suggested_probability[row]):.6f}",
                    f"{float(issues.score[row]):.6f}",
                    {True: "yes", False: "no", None: ""}[kept[position]],
                ]
            )


def read_label_issues(path: Path, top: int | None = None) -> list[dict[str, Any]]:
    """The rows of label_issues.csv, or the first of them."""
    rows: list[dict[str, Any]] = []
    try:
        with open_text(path) as file:
            for row in itertools.islice(csv.DictReader(file), top):
                if tuple(row) != COLUMNS or None in row.values():
                    break
                rows.append(row)
            else:
                if rows:
                    return rows
    except FileNotFoundError:
        raise InputError(f"no {path}; the run has not finished") from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    raise InputError(f"{path} is damaged: it must hold the columns {', '.join(COLUMNS)}")


def _as_tensor(values: Any) -> Tensor:
    return (
        values.detach().cpu() if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    )
