"""Which classes were mixed up, as a table of percentages."""

import math
from dataclasses import dataclass

import numpy as np

from mlnt.report.findings import Findings

MOST_CLASSES = 20
HEAT_LEVELS = 9  # as many as page.css has
LONGEST_NAME = 14  # characters for which page.css has room


@dataclass(frozen=True)
class Cell:
    share: float  # percent
    is_diagonal: bool

    @property
    def text(self) -> str:
        return "0" if self.share < 0.05 else f"{self.share:.{1 if self.share < 9.95 else 0}f}"

    @property
    def level(self) -> int:
        """Of colour, by the square root: a few percent in a cell are much."""
        if self.share < 0.05:
            return 0
        return min(HEAT_LEVELS, math.ceil(HEAT_LEVELS * math.sqrt(self.share / 100) - 1e-9))


@dataclass(frozen=True)
class Matrix:
    """Of the samples of each class (row), the percentage that was given each label (column)."""

    names: list[str]
    rows: list[tuple[str, list[Cell]]]
    is_estimate: bool  # else counted, the model's opinion taken for the truth
    is_part: bool  # only the classes most involved

    @property
    def is_long(self) -> bool:
        """Then the headings of its columns stand upright."""
        return max(map(len, self.names)) > 3


def short_name(name: str) -> str:
    """For a heading: cut in the middle, for `class number 17` differs from others at its end."""
    if len(name) <= LONGEST_NAME:
        return name
    behind = LONGEST_NAME // 2 - 1
    return f"{name[: LONGEST_NAME - 1 - behind]}…{name[-behind:]}"


def make_matrix(findings: Findings, transition: list[list[float]] | None) -> Matrix:
    """From the transition as estimated with the label issues, or else counted."""
    count = len(findings.classes)
    if transition is None:
        involved_C, total_C = findings.involved(), findings.suggested()
        chosen = _most(involved_C)
        weights = findings.joint_counts(chosen)
    else:
        weights_CC = np.array(transition)
        if weights_CC.shape != (count, count):
            raise ValueError(f"the transition must be {count} × {count}, got {weights_CC.shape}")
        total_C = weights_CC.sum(1)
        chosen = _most(weights_CC.sum(0) + total_C - 2 * weights_CC.diagonal())
        weights = weights_CC[np.ix_(chosen, chosen)]
    names = [findings.classes[number] for number in chosen]
    totals = total_C[chosen]
    shares = 100 * weights / np.where(totals > 0, totals, 1)[:, None]
    return Matrix(
        names=names,
        rows=[
            (
                name,
                [Cell(share, row == column) for column, share in enumerate(shares[row].tolist())],
            )
            for row, name in enumerate(names)
        ],
        is_estimate=transition is not None,
        is_part=len(chosen) < count,
    )


def _most(involved_C: np.ndarray) -> np.ndarray:
    """The classes most involved, in their order."""
    return np.sort(np.argsort(-involved_C, kind="stable")[:MOST_CLASSES])
