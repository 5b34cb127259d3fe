"""What label_issues.csv says: which labels look wrong, by class, by pair of classes, by score.

Axes: N labels, most suspicious first; C classes.
"""

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from mlnt.errors import InputError
from mlnt.files import open_text
from mlnt.gallery import MOST_SAMPLES, shortened
from mlnt.label_issues import COLUMNS
from mlnt.texts import harmless

MOST_ROWS = 2**32  # that the page can count


@dataclass(frozen=True)
class Suspect:
    """A label that looks wrong."""

    index: int  # of the row in the data as it was given
    given: int  # class number
    suggested: int
    given_probability: float
    suggested_probability: float
    score: float
    text: str  # what a person would recognise the sample by; may be empty


@dataclass(frozen=True)
class Confusion:
    """Labels of one class that look like another."""

    given: int
    suggested: int
    count: int


@dataclass(frozen=True)
class OfClass:
    """The labels of one class."""

    name: str
    labels: int
    flagged: int
    suggestion: Confusion | None  # the most frequent one

    @property
    def share(self) -> float:
        return 100 * self.flagged / self.labels if self.labels else 0.0


@dataclass(frozen=True)
class Findings:
    classes: tuple[str, ...]
    index_N: np.ndarray
    given_N: np.ndarray
    suggested_N: np.ndarray
    score_N: np.ndarray
    flagged: int  # so many of the first look wrong
    suspects: list[Suspect]  # the first of them, as many as one page shows
    unseen: dict[int, int] = field(
        default_factory=dict
    )  # index and class of what nobody could read

    def __len__(self) -> int:
        """How many labels were judged."""
        return len(self.index_N)

    @property
    def total(self) -> int:
        """How many labels the data came with."""
        return len(self) + len(self.unseen)

    @property
    def share(self) -> float:
        return 100 * self.flagged / len(self)

    @property
    def threshold(self) -> float:
        """The score from which on labels are flagged: 1/2 where that agrees with the number."""
        above = self.score_N[self.flagged - 1] if self.flagged else 1.0
        below = self.score_N[self.flagged] if self.flagged < len(self) else 0.0
        return 0.5 if below <= 0.5 <= above else float(above + below) / 2

    def labels_in_order(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the data that have a label, in order, and the class numbers of these."""
        unseen = np.array([*self.unseen.items()], np.int64).reshape(-1, 2)
        rows_N = np.concatenate([self.index_N, unseen[:, 0]])
        labels_N = np.concatenate([self.given_N, unseen[:, 1]])
        order = np.argsort(rows_N, kind="stable")
        rows_N = rows_N[order]
        if rows_N[0] < 0 or rows_N[-1] >= MOST_ROWS or (np.diff(rows_N) == 0).any():
            raise ValueError("the labels must hold each index once")
        return rows_N, labels_N[order]

    def confusions(self) -> list[Confusion]:
        """Pairs (given, suggested) among the flagged labels, the most frequent first."""
        given, suggested = self.given_N[: self.flagged], self.suggested_N[: self.flagged]
        count = len(self.classes)
        pairs, counts = np.unique(
            (given * count + suggested)[given != suggested], return_counts=True
        )
        order = np.argsort(-counts, kind="stable")
        return [
            Confusion(pair // count, pair % count, times)
            for pair, times in zip(pairs[order].tolist(), counts[order].tolist(), strict=True)
        ]

    def by_class(self) -> list[OfClass]:
        count = len(self.classes)
        labels_C = np.bincount(self.given_N, minlength=count).tolist()
        flagged_C = np.bincount(self.given_N[: self.flagged], minlength=count).tolist()
        most: dict[int, Confusion] = {}
        for confusion in self.confusions():
            most.setdefault(confusion.given, confusion)
        return [
            OfClass(name, labels_C[number], flagged_C[number], most.get(number))
            for number, name in enumerate(self.classes)
        ]

    def suggested(self) -> np.ndarray:
        """How often the model says each class [C]."""
        return np.bincount(self.suggested_N, minlength=len(self.classes))

    def involved(self) -> np.ndarray:
        """In how many disagreements of model and label each class [C] has a part."""
        differ_N = self.given_N != self.suggested_N
        both = np.concatenate([self.given_N[differ_N], self.suggested_N[differ_N]])
        return np.bincount(both, minlength=len(self.classes))

    def joint_counts(self, chosen: np.ndarray) -> np.ndarray:
        """How often the model says one of these classes (row) and the label another (column).

        Of these alone: all pairs of very many classes would not fit into memory.
        """
        place_C = np.full(len(self.classes), -1)
        place_C[chosen] = np.arange(len(chosen))
        rows_N, columns_N = place_C[self.suggested_N], place_C[self.given_N]
        among_N = (rows_N >= 0) & (columns_N >= 0)
        pairs = rows_N[among_N] * len(chosen) + columns_N[among_N]
        return np.bincount(pairs, minlength=len(chosen) ** 2).reshape(len(chosen), -1)

    def histogram(self, bins: int) -> np.ndarray:
        """How many labels have a score in each of `bins` equal parts of [0, 1]."""
        return np.histogram(self.score_N, bins=bins, range=(0.0, 1.0))[0]


def read_findings(path: Path, classes: Sequence[str], flagged: int) -> Findings:
    """Row by row: of a million labels only the numbers stay, and the first few texts."""
    # The file protects class names from spreadsheets; no two of them become one by that.
    number = {harmless(name): place for place, name in enumerate(classes)}
    index, given, suggested, score = [], [], [], []
    suspects: list[Suspect] = []
    unseen: dict[int, int] = {}
    try:
        with open_text(path) as file:
            rows = csv.reader(file)
            columns = {name: place for place, name in enumerate(next(rows, ()))}
            if not columns.keys() >= set(COLUMNS):
                raise ValueError(f"it must hold the columns {', '.join(COLUMNS)}")
            at = [columns[name] for name in COLUMNS[:7]]
            for row in rows:
                position, text, label, other, p_given, p_suggested, suspicion = (row[i] for i in at)
                if not suspicion:
                    unseen[int(position)] = number[label]
                    continue
                index.append(int(position))
                given.append(number[label])
                suggested.append(number[other])
                score.append(float(suspicion))
                if not 0 <= score[-1] <= 1:
                    raise ValueError(f"the score of {position} lies outside [0, 1]")
                is_suspect = len(index) <= flagged and given[-1] != suggested[-1]
                if is_suspect and len(suspects) < MOST_SAMPLES:
                    suspects.append(
                        Suspect(
                            index[-1], given[-1], suggested[-1],
                            float(p_given), float(p_suggested), score[-1], shortened(text),
                        )
                    )  # fmt: skip
    except FileNotFoundError:
        raise InputError(f"no {path}; the run has not finished") from None
    except (OSError, ValueError, TypeError, LookupError, csv.Error) as error:
        raise InputError(f"{path} is damaged: {error}") from None
    if not index:
        raise InputError(f"{path} is damaged: it holds no labels")
    return Findings(
        classes=tuple(classes),
        index_N=np.array(index),
        given_N=np.array(given),
        suggested_N=np.array(suggested),
        score_N=np.array(score),
        flagged=min(flagged, len(index)),
        suspects=suspects,
        unseen=unseen,
    )
