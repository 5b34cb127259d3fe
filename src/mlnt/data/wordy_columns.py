"""Columns of a table that hold words where numbers were expected: what to do about them."""

import math
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from mlnt.errors import InputError

MOST_CATEGORIES = 50
EACH_SEEN = 2  # times, on average
# What tables write where they know nothing.
MISSING = ("nan", "n/a", "na", "none", "null", "?")

_NUMBER = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_WHOLE = re.compile(r"-?[0-9]+\.0")
_DECIMAL_COMMA = re.compile(r"[-+]?[0-9]*,[0-9]+(?:[eE][-+]?[0-9]+)?")


def as_number(name: str) -> float | None:
    """The finite number that a name is, if it is one as tables write them."""
    if not _NUMBER.fullmatch(name):
        return None
    value = float(name)
    return value if math.isfinite(value) else None


def whole_names(names: list[str]) -> list[str]:
    """Labels 0.0, 1.0 as 0, 1: so pandas writes them once one of their column was missing, ""."""
    return (
        [name[:-2] for name in names] if all(map(_WHOLE.fullmatch, filter(None, names))) else names
    )


def is_missing(cell: str) -> bool:
    cell = cell.strip()
    return not cell or cell.casefold() in MISSING


def is_number(cell: str) -> bool:
    """An empty cell counts: a missing number is an error of its own, not a text."""
    try:
        float(cell or "nan")
    except ValueError:
        return False
    return True


def check_numbers(
    path: str | Path, name: str, cells: Sequence[str], may_be_text: bool = False
) -> None:
    """Raise InputError where a column that holds words was to be one of numbers."""
    present = [(row, cell.strip()) for row, cell in enumerate(cells, 1) if not is_missing(cell)]
    words = [(row, cell) for row, cell in present if not is_number(cell)]
    row, first = words[0]
    first = first[:40]
    if all(_DECIMAL_COMMA.fullmatch(word) for _, word in words):
        raise InputError(
            f"{path}: column {name!r} holds {first!r} (row {row}); decimal commas? "
            f"write {first.replace(',', '.')}"
        )
    numbers = len(present) - len(words)
    if numbers > len(words) and not may_be_text:
        cells_that = "cell that is no number, or remove its row"
        if len(words) > 1:
            cells_that = f"{len(words):,} cells that are no numbers, or remove their rows"
        raise InputError(
            f"{path}: column {name!r} is not numeric (row {row}: {first!r}); fill the {cells_that}"
        )


def raise_words(path: str | Path, name: str, cells: Sequence[str]) -> NoReturn:
    """Of a column that holds words here, but numbers in the training data."""
    check_numbers(path, name, cells)
    row, cell = next((n, c) for n, c in enumerate(cells, 1) if not (is_number(c) or is_missing(c)))
    raise InputError(
        f"{path}: column {name!r} is not numeric (row {row}: {cell[:40]!r}), "
        "but that of the training data is"
    )


def are_categories(cells: Sequence[str]) -> bool:
    """Few distinct words, each seen again and again."""
    distinct = len(set(cells))
    return distinct <= MOST_CATEGORIES and EACH_SEEN * distinct <= len(cells)


def explain(
    path: Path, header: list[str], rows: list[list[str]], wordy: list[int], label: str | None
) -> None:
    """Raise InputError that says what to do about columns of words, and asks for nothing else."""
    texts = [i for i in wordy if _are_sentences([row[i] for row in rows])]
    categories = [i for i in wordy if i not in texts]
    advice = []
    if label is None:
        advice.append(f"the label column with --label-column{_only(categories, header)}")
    if texts:
        advice.append(f"the text column with --text-column{_only(texts, header)}")
    remedy = [f"name {' and '.join(advice)}"] if advice else []
    if label is not None and categories:
        names = shlex.quote(",".join(header[i] for i in categories))
        out = f"leave them out: --drop-columns {names}"
        remedy.append(f"make columns of 0 and 1 of categories, or {out}")
    if len(wordy) == 1:
        column = wordy[0]
        cells = [row[column] for row in rows]
        row = next(n for n, c in enumerate(cells, 1) if not (is_number(c) or is_missing(c)))
        cell = rows[row - 1][column][:40]
        what = f": column {header[column]!r} is not numeric (row {row}: {cell!r})"
    else:
        what = f" has several columns of words ({', '.join(header[i] for i in wordy)})"
    is_plain = not label or label.lower() in ("label", "labels")
    found = "" if is_plain else f" (labels: column {label!r})"
    raise InputError(f"{path}{what}{found}; {'; or '.join(remedy)}")


def _are_sentences(cells: list[str]) -> bool:
    """Three words or more on average, and seldom the same: categories come again and again."""
    words = sum(len(cell.split()) for cell in cells)
    return words >= 3 * len(cells) and 2 * len(set(cells)) > len(cells)


def _only(columns: list[int], header: list[str]) -> str:
    """The name to give, where there is but one to choose."""
    return f" {shlex.quote(header[columns[0]])}" if len(columns) == 1 else ""
