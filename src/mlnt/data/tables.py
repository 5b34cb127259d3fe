"""CSV and TSV files: numeric columns, one text column or paths of pictures, and labels."""

import csv
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NoReturn, TextIO

import numpy as np

from mlnt.data.columns import Column, are_plain, fit_columns, names_of, numbers_of, parsed
from mlnt.data.encoding import unnamed
from mlnt.data.oddities import few_of
from mlnt.data.pictures import are_picture_paths, is_picture_path
from mlnt.data.wordy_columns import (
    are_categories,
    check_numbers,
    explain,
    is_missing,
    is_number,
    whole_names,
)
from mlnt.errors import InputError, did_you_mean
from mlnt.files import open_file, open_text

LABEL_NAMES = ("label", "labels", "class", "target", "y")
INDEX_NAMES = ("index", "row")  # of the sample that a label belongs to, as the report writes it
LONGEST_LINE = 2**22  # characters
MOST_COLUMNS = 100_000
LOOKED_AT_FIRST = 20  # rows
SAVED_INDEX = "Unnamed: 0"  # as pandas calls a column without a name once it has read it
PATH_NAMES = ("path", "file", "filename", "image", "picture")  # which, of several with paths

_QUOTED = re.compile(r'"[^"]*"')


@dataclass(frozen=True)
class Table:
    kind: str  # table, text or paths
    samples: np.ndarray | list[str]
    labels: list[str] | None
    columns: tuple[str, ...]
    passed_over: tuple[str, ...] = ()  # columns beside one of texts or of paths
    label: str | None = None  # the column that the labels came from
    unlabelled: int = 0  # rows that were left out, as they had no label
    made_of: tuple[Column, ...] = ()  # as in Raw


def is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def read_labels(path: Path, label_column: str | None) -> list[str]:
    """The labels alone, whatever the other columns hold.

    The label column of the data may have another name here, as in what the report writes.
    """
    header, rows = _read_rows(path)
    wanted = label_column if label_column in header else None
    label = _find_label(header, wanted, (), path)
    if label is None:
        either = "" if label_column is None else f"{label_column!r} or "
        raise InputError(f"{path} has no column {either}'label' (columns: {', '.join(header)})")
    labels = _labels(rows, label, path)
    assert labels is not None
    for name in INDEX_NAMES:
        if name in header and header.index(name) != label:
            return _in_order(labels, [row[header.index(name)] for row in rows], name, path)
    return labels


def _in_order(labels: list[str], numbers: Sequence[str], name: str, path: Path) -> list[str]:
    """Labels by the number of their sample, where the rows have been sorted by something else."""
    if not all(number.strip().isdecimal() for number in numbers):
        return labels  # it says something else
    places = [int(number) for number in numbers]
    if all(before < after for before, after in pairwise(places)):
        return labels
    if sorted(places) != list(range(len(places))):
        raise InputError(
            f"{path}: the column {name!r} is neither in order nor all of 0 to {len(places) - 1}; "
            "sort the rows as the samples are, or leave the column out"
        )
    return [label for _, label in sorted(zip(places, labels, strict=True))]


def read_picture_paths(path: Path, label_column: str | None, further: bool = False) -> Table | None:
    """The paths of pictures that a table names, and their labels; None if it names none."""
    header, rows = _read_rows(path, LOOKED_AT_FIRST)  # most tables name none: enough to see that
    if not any(is_picture_path(cell) for row in rows for cell in row):
        return None
    header, rows = _read_rows(path)
    label = _find_label(header, label_column, (), path, further)
    column = _find_paths(header, rows, label, path)
    if column is None:
        return None
    unlabelled = 0
    if label is not None and not further:
        rows, unlabelled = _with_label(rows, label)
    labels = _labels(rows, label, path, further)
    if labels is not None and not further:
        labels = whole_names(labels)
    others = (i for i in named_columns(header) if i not in (column, label))
    return Table(
        "paths",
        [row[column].strip() for row in rows],
        labels,
        (header[column],),
        tuple(header[i] for i in others),
        unlabelled=unlabelled,
    )


def _find_paths(
    header: list[str], rows: list[list[str]], label: int | None, path: Path
) -> int | None:
    """The column of paths of pictures, whatever its name, if not that of the labels; of several
    the one that has a usual name.

    The name of a class is often part of a path: learnt from as words, it would tell all labels.
    """
    lowered = ["" if i == label else name.lower() for i, name in enumerate(header)]
    usual = (lowered.index(name) for name in PATH_NAMES if name in lowered)
    column = next((i for i in usual if is_picture_path(rows[0][i])), None)
    if column is not None:
        return column
    first = rows[:LOOKED_AT_FIRST]  # of most columns there is no need to look at all cells
    likely = [i for i in range(len(header)) if any(is_picture_path(row[i]) for row in first)]
    holding = [i for i in likely if i != label and are_picture_paths([row[i] for row in rows])]
    if len(holding) > 1:
        names = ", ".join(header[i] for i in holding)
        raise InputError(
            f"{path} has several columns of paths of pictures ({names}); call the one to learn "
            "from 'path', or take the others out"
        )
    return holding[0] if holding else None


def named_columns(header: list[str], features: Sequence[str] = ()) -> list[int]:
    """All columns but those without a name; a saved index has but the one that pandas gives."""
    begin = 1 if header[:1] == [SAVED_INDEX] and SAVED_INDEX not in features else 0
    return [i for i in range(begin, len(header)) if header[i]]


def read_table(
    path: Path,
    label_column: str | None,
    text_column: str | None,
    features: Sequence[str] = (),
    further: bool = False,
    made_of: tuple[Column, ...] = (),
) -> Table:
    """Read a table with a header. A column without a name (a saved row index) is passed over.

    features    columns of the training data, where that is known: no others are read
    made_of     what became of these, where that is known
    further     than those: labels may be missing, and a column of texts may have another name
    """
    header, rows = _read_rows(path)
    label = _find_label(header, label_column, features, path, further)
    others = [i for i in named_columns(header, features) if i != label]
    unlabelled = 0
    if label is not None and not further:
        rows, unlabelled = _with_label(rows, label)
        if label_column is None:
            _check_is_label(path, header, rows, label)
    labels = _labels(rows, label, path, further)
    if labels is not None and not further:
        labels = whole_names(labels)
    found = None if label is None else header[label]
    known = known_columns(header, features, str(path))
    if known is None and made_of:
        known = others  # by their order
    if known is not None:
        given = [[row[i] for row in rows] for i in known]
        if made_of:
            samples, columns = numbers_of(made_of, given, path), names_of(made_of)
        else:
            samples, columns = _numbers(path, features, given), tuple(features)
        return Table("table", samples, labels, columns, label=found)
    if further and text_column not in header and _is_of_words(rows, others):
        text_column = header[others[0]]
    if text_column is not None:
        if text_column not in header:
            raise InputError(unknown_column(text_column, header, path))
        if header.index(text_column) == label:
            raise InputError(f"{text_column!r} cannot be both the text and the label column")
        column = header.index(text_column)
        passed_over = tuple(header[i] for i in others if i != column)
        return Table(
            "text",
            [row[column] for row in rows],
            labels,
            (text_column,),
            passed_over,
            found,
            unlabelled,
        )
    if not others:
        raise InputError(f"{path} has no column but the label; nothing to learn from")
    by_column = list(zip(*rows, strict=True))
    numbers = {i: parsed(by_column[i]) for i in others}
    wordy = [i for i in others if numbers[i] is None]
    is_text = len(wordy) == len(others) == 1
    for i in wordy:
        check_numbers(path, header[i], by_column[i], may_be_text=is_text)
    if is_text:
        column = wordy[0]
        return Table(
            "text", list(by_column[column]), labels, (header[column],), (), found, unlabelled
        )
    # Without a label column, one of these may be meant for it.
    strange = [i for i in wordy if label is None or not are_categories(by_column[i])]
    if strange:
        explain(path, header, rows, strange, found or ("" if features else None))
    names = tuple(header[i] for i in others)
    cells = [by_column[i] if (values := numbers[i]) is None else values for i in others]
    made = () if further else fit_columns(names, cells, path)
    if are_plain(made):
        samples = _numbers(path, names, [by_column[i] for i in others], numbers.values())
        return Table("table", samples, labels, names, (), found, unlabelled)
    samples = numbers_of(made, cells, path)
    return Table("table", samples, labels, names_of(made), (), found, unlabelled, made)


def _check_is_label(path: Path, header: list[str], rows: list[list[str]], label: int) -> None:
    """Raise InputError where y, found by its name alone, may be a measurement beside others."""
    if header[label].lower() != "y" or not all(is_number(row[label]) for row in rows):
        return
    lowered = [name.lower() for name in header]
    others = [i for i in named_columns(header) if i != label]
    other = lowered.index("x") if "x" in lowered else None
    for i in others if other is None else ():
        cells = [row[i].strip() for row in rows]
        if not any(map(is_number, cells)) and are_categories(cells):
            other = i
            break
    if other is not None:
        raise InputError(
            f"{path}: are the labels in {header[label]!r}? It holds numbers, and there is a column "
            f"{header[other]!r} beside it; name the label column: --label-column NAME"
        )


def _numbers(
    path: Path,
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    numbers: Iterable[np.ndarray | None] | None = None,
) -> np.ndarray:
    """The values [N, D] of columns of numbers, of which none may be missing or infinite."""
    found = [parsed(of_it) for of_it in cells] if numbers is None else list(numbers)
    for name, of_it, values in zip(names, cells, found, strict=True):
        if values is None:
            _raise_words(path, name, of_it)
    values_ND = np.column_stack([values for values in found if values is not None])
    is_bad = ~np.isfinite(values_ND)
    if is_bad.any():
        row, place = (int(i) for i in np.argwhere(is_bad)[0])
        cell = cells[place][row].strip()[:40]
        raise InputError(
            f"{path}: row {row + 1} has {repr(cell) if cell else 'nothing'} in column "
            f"{names[place]!r}; {int(is_bad.any(axis=1).sum()):,} of {len(is_bad):,} rows "
            "have a cell that is empty, NaN or infinite: fill these, or remove the rows"
        )
    return values_ND


def known_columns(header: Sequence[str], features: Sequence[str], what: str) -> list[int] | None:
    """Where the columns of the training data stand.

    None where these have no names, or a name stands twice: then they go by their order.
    """
    if not features or tuple(features) == unnamed(len(features)):
        return None
    times = Counter(header)
    missing = [repr(name) for name in features if name not in times]
    if missing:
        raise InputError(
            f"{what} has not all columns of the training data: {few_of(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing (columns: {few_of(header)})"
        )
    if any(times[name] > 1 for name in features):
        return None
    places = {name: place for place, name in enumerate(header)}
    return [places[name] for name in features]


def _raise_words(path: Path, name: str, cells: Sequence[str]) -> NoReturn:
    """Of a column that holds words here, but numbers in the training data."""
    check_numbers(path, name, cells)
    row, cell = next((n, c) for n, c in enumerate(cells, 1) if not (is_number(c) or is_missing(c)))
    raise InputError(
        f"{path}: column {name!r} is not numeric (row {row}: {cell[:40]!r}), "
        "but that of the training data is"
    )


def _is_of_words(rows: list[list[str]], columns: Sequence[int]) -> bool:
    """Whether there is but one column, and that of words."""
    return len(columns) == 1 and not all(is_number(row[columns[0]]) for row in rows)


def _with_label(rows: list[list[str]], label: int) -> tuple[list[list[str]], int]:
    """Those that have one, and how many are left out; all where none has one."""
    labelled = [row for row in rows if row[label].strip()]
    return (labelled, len(rows) - len(labelled)) if labelled else (rows, 0)


def _labels(
    rows: Sequence[Sequence[str]], label: int | None, path: Path, further: bool = False
) -> list[str] | None:
    """The labels, of which in `further` rows some may be missing; None where there are none."""
    if label is None:
        return None
    labels = [row[label].strip() for row in rows]
    if further:
        return labels if any(labels) else None
    check_labelled(labels, str(path))
    return labels


def check_labelled(labels: Sequence[str | bool], what: str) -> None:
    """Labels, or whether they are there."""
    row = next((row for row, label in enumerate(labels, start=1) if not label), None)
    if row is not None:
        raise InputError(f"{what}: row {row} has no label")


def _read_rows(path: Path, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    try:
        with open_text(path, "utf-8-sig") as file:
            text = _lines(file, path)
            first = next(text, "")
            delimiter = "\t" if path.suffix.lower() == ".tsv" else _delimiter(first)
            every = csv.reader(chain([first], text), delimiter=delimiter)
            rows = (row for row in every if row)
            header = _checked_header(next(rows, []), path)
            lines = []
            for number, row in enumerate(islice(rows, most), start=1):
                if len(row) != len(header):
                    raise InputError(
                        f"{path}: row {number} has {len(row)} cells, the header has {len(header)}"
                    )
                lines.append(row)
    except UnicodeDecodeError as error:
        raise InputError(_other_coding(path, error)) from None
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None
    except csv.Error as error:
        raise InputError(f"{path} is not a readable table: {error}") from None
    if not lines:
        raise InputError(f"{path} must hold a line of column names and at least one row")
    return header, lines


def _other_coding(path: Path, error: UnicodeDecodeError) -> str:
    """What to do about a file that is not UTF-8; UTF-16 begins with one of two marks."""
    with open_file(path) as file:
        head = file.read(1000)
    is_utf16 = head[:2] in (b"\xff\xfe", b"\xfe\xff")
    if b"\0" in head and not is_utf16:
        return f"{path} is not UTF-8 text, nor any other; a table is text"
    what = "UTF-16 text" if is_utf16 else f"not UTF-8 text ({error.reason})"
    coding = "utf16" if is_utf16 else "latin1"
    command = f"iconv -f {coding} -t utf8 {shlex.quote(str(path))} > NEW{path.suffix}"
    return f"{path} is {what}; save it as UTF-8, or: {command}"


def _delimiter(header: str) -> str:
    """What stands most often between the column names; where none stands oftener, a comma."""
    outside_quotes = _QUOTED.sub("", header)
    return max(",;\t", key=outside_quotes.count)


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """Line by line, so that a file that is no table is refused before it fills the memory."""
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise InputError(f"{path}: line {number} is longer than {LONGEST_LINE:,} characters")
        if "\0" in line:
            raise InputError(f"{path}: line {number} holds a NUL; a table is text")
        yield line


def _checked_header(cells: list[str], path: Path) -> list[str]:
    if len(cells) > MOST_COLUMNS:
        raise InputError(f"{path} has {len(cells):,} columns, at most {MOST_COLUMNS:,} are read")
    return [name.strip() for name in cells]


def _find_label(
    header: list[str],
    wanted: str | None,
    features: Sequence[str],
    path: Path,
    further: bool = False,
) -> int | None:
    if wanted is not None:
        if wanted in header:
            return header.index(wanted)
        if further:
            return None
        raise InputError(unknown_column(wanted, header, path))
    lowered = ["" if name in features else name.lower() for name in header]
    for name in LABEL_NAMES:
        if name in lowered:
            return lowered.index(name)
    return None


def unknown_column(column: str, header: list[str], what: str | Path) -> str:
    hint = did_you_mean(column, header)
    return f"{what} has no column {column!r}{hint} (columns: {', '.join(header)})"
