"""Columns as tables hold them, with words and missing cells; the columns of numbers they become.

age      61, ?      ->  age: 61, median        age is missing: 0, 1
married  yes, no    ->  married: 1, 0
city     Oslo, Rome ->  city=Oslo: 1, 0        city=Rome: 0, 1
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlnt.data.wordy_columns import are_categories, is_missing, raise_words
from mlnt.errors import InputError
from mlnt.texts import counted

TRUTH = {"true": 1.0, "yes": 1.0, "false": 0.0, "no": 0.0}
MOST_MADE = 10_000  # columns, of all categories together

Cells = Sequence[str] | np.ndarray  # as a table writes them, or numbers, NaN where one is missing


@dataclass(frozen=True)
class Column:
    """What has been learnt of a column: how it becomes one or several of numbers."""

    name: str
    fill: float = 0.0  # in the place of a missing cell: the median; 0 for that of categories
    marks: bool = False  # whether a further column says where one was missing
    categories: tuple[str, ...] = ()  # of a column of words; "" is a missing one

    @classmethod
    def fit(cls, name: str, cells: Cells, what: str | Path) -> "Column":
        numbers = parsed(cells)
        if numbers is None:
            words = _words(cells)
            if not are_categories(words):
                row, word = next((n, word) for n, word in enumerate(words, 1) if word)
                raise InputError(
                    f"{what}: column {name!r} is not numeric (row {row}: {word[:40]!r}), and its "
                    f"{len(set(words)):,} different words for {len(words):,} rows are too many for "
                    "categories; name it as the column of texts, or leave it out (drop_columns)"
                )
            return cls(name, categories=tuple(sorted(set(words))))
        _check_infinite(numbers, name, what)
        there = numbers[~np.isnan(numbers)]
        return cls(name, float(np.median(there)) if len(there) else 0.0, len(there) < len(numbers))

    @property
    def names(self) -> tuple[str, ...]:
        """What the columns are called that it becomes."""
        if self.categories:
            return tuple(f"{self.name}={c}" if c else _missing(self.name) for c in self.categories)
        return (self.name, _missing(self.name)) if self.marks else (self.name,)

    @property
    def knows_gaps(self) -> bool:
        """Whether cells were missing in training."""
        return self.marks or "" in self.categories

    def made(self, cells: Cells, what: str | Path) -> Iterator[np.ndarray]:
        """These columns, of the cells of any table; a category not seen in training is none."""
        if self.categories:
            words = np.array(_words(cells), dtype=object)
            made = [(words == category).astype(np.float64) for category in self.categories]
            if "" not in self.categories:
                made[0][words == ""] = self.fill  # once, where cells are counted
            yield from made
            return
        numbers = parsed(cells)
        if numbers is None:
            raise_words(what, self.name, list(cells))
        _check_infinite(numbers, self.name, what)
        is_missing_N = np.isnan(numbers)
        yield np.where(is_missing_N, self.fill, numbers)
        if self.marks:
            yield is_missing_N.astype(np.float64)


@dataclass(frozen=True)
class AsTrained:
    """How data beside that of the training is read: by the columns that this had.

    Its labels may be missing, and a column of texts may have another name.
    """

    columns: tuple[str, ...] = ()  # where they are known: no others are read
    made_of: tuple[Column, ...] = ()  # what became of them, where that is known


def parsed(cells: Cells) -> np.ndarray | None:
    """Numbers [N], NaN where a cell is missing; None where it holds words."""
    if isinstance(cells, np.ndarray):
        return cells
    try:
        return np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:  # seldom, and then a closer look is worth its time
        pass
    present = [cell.strip().casefold() for cell in cells if not is_missing(cell)]
    try:
        if all(cell in TRUTH for cell in present):
            found = [TRUTH[cell] for cell in present]
        else:
            found = list(map(float, present))
    except ValueError:
        return None
    numbers = np.full(len(cells), np.nan)
    numbers[[not is_missing(cell) for cell in cells]] = found
    return numbers


def fit_columns(
    names: Sequence[str], cells: Sequence[Cells], what: str | Path
) -> tuple[Column, ...]:
    columns = tuple(Column.fit(name, of_it, what) for name, of_it in zip(names, cells, strict=True))
    count = len(names_of(columns))
    if count > max(MOST_MADE, 2 * len(columns)):
        raise InputError(
            f"{what}: its categories would make {count:,} columns, the limit is {MOST_MADE:,}; "
            "leave some out (drop_columns)"
        )
    return columns


def are_plain(columns: Sequence[Column]) -> bool:
    """Whether all hold numbers, none of them missing."""
    return not any(column.marks or column.categories for column in columns)


def names_of(columns: Sequence[Column]) -> tuple[str, ...]:
    return tuple(name for column in columns for name in column.names)


def numbers_of(columns: Sequence[Column], cells: Sequence[Cells], what: str | Path) -> np.ndarray:
    """Numbers [N, D] of the cells of each column."""
    if len(cells) != len(columns):
        given = counted(len(cells), "column")
        raise InputError(f"{what} has {given}, the training data had {len(columns):,}")
    pairs = zip(columns, cells, strict=True)
    return np.column_stack([made for column, of_it in pairs for made in column.made(of_it, what)])


def cells_of(frame: Any) -> list[Cells]:
    """Of each column of a data frame: numbers, or cells as a table on disk has them."""
    return [_cells(frame.iloc[:, i]) for i in range(frame.shape[1])]


def needs_columns(frame: Any) -> bool:
    """Whether a data frame holds more than numbers."""
    return any(kind.kind not in "biuf" for kind in frame.dtypes) or bool(
        frame.isna().any(axis=None)
    )


def columns_to_json(columns: Sequence[Column]) -> list[dict[str, Any]]:
    return [{**asdict(column), "categories": list(column.categories)} for column in columns]


def columns_from_json(values: Any) -> tuple[Column, ...]:
    """What `columns_to_json` gave; ValueError where a stranger's file holds anything else."""
    columns = tuple(Column(**{**v, "categories": tuple(v["categories"])}) for v in values)
    for column in columns:
        if not all(isinstance(text, str) for text in (column.name, *column.categories)):
            raise ValueError("the names of columns and of their categories must be texts")
        if type(column.fill) not in (int, float) or not np.isfinite(column.fill):
            raise ValueError("fill must be a finite number")
        if type(column.marks) is not bool:
            raise ValueError("marks must be true or false")
    return columns


def _cells(series: Any) -> Cells:
    if series.dtype.kind in "biuf":
        return series.to_numpy("float64", na_value=np.nan)
    return ["" if lacks else str(v) for v, lacks in zip(series, series.isna(), strict=True)]


def _words(cells: Cells) -> list[str]:
    if isinstance(cells, np.ndarray):  # of a frame whose categories are numbers here
        return ["" if np.isnan(value) else f"{value:.15g}" for value in cells]
    return ["" if is_missing(cell) else cell.strip() for cell in cells]


def _check_infinite(numbers: np.ndarray, name: str, what: str | Path) -> None:
    if np.isinf(numbers).any():
        row = int(np.isinf(numbers).argmax())
        raise InputError(
            f"{what}: row {row + 1} has '{numbers[row]}' in column {name!r}; fill in a finite "
            "number, or leave the cell empty"
        )


def _missing(name: str) -> str:
    return f"{name} is missing"
