"""A CSV or TSV as rows of cells, whatever these hold."""

import csv
import io
import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import TextIO

from mlnt.data.pictures import is_picture_path
from mlnt.data.wordy_columns import as_number
from mlnt.errors import InputError, did_you_mean
from mlnt.files import open_file, open_text
from mlnt.texts import counted

LONGEST_LINE = 2**22  # characters
MOST_COLUMNS = 100_000

_QUOTED = re.compile(r'"[^"]*"')


def read_rows(path: Path, most: int | None = None) -> tuple[list[str], list[list[str]]]:
    """Names of the columns, and cells of all rows or the first; InputError if it is no table."""
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
                        f"{path}: row {number} has {counted(len(row), 'cell')}, the header has "
                        f"{len(header)}"
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


def names_to_drop(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """Columns to leave out, `id,date` or a list; a name that holds a comma in double quotes."""
    if isinstance(names, str):
        row = next(csv.reader([names], skipinitialspace=True), [])
        return tuple(name.strip() for name in row if name.strip())
    return tuple(names or ())


def as_one_text(names: str | Sequence[str] | None) -> str | None:
    """What `names_to_drop` reads back."""
    if names is None or isinstance(names, str):
        return names
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(names)
    return line.getvalue()


def places_left(header: Sequence[str], drop: Sequence[str], what: str | Path) -> list[int]:
    """Of the columns that are not left out; InputError where one of these is none."""
    for name in drop:
        if name not in header:
            raise InputError(f"nothing to leave out: {unknown_column(name, header, what)}")
    return [place for place, name in enumerate(header) if name not in drop]


def without(
    header: list[str], rows: list[list[str]], drop: Sequence[str], path: Path
) -> tuple[list[str], list[list[str]]]:
    """The table less the columns that are to be left out."""
    left = places_left(header, drop, path)
    if len(left) == len(header):
        return header, rows
    return [header[i] for i in left], [[row[i] for i in left] for row in rows]


def unknown_column(column: str, header: Sequence[str], what: str | Path) -> str:
    hint = did_you_mean(column, header)
    return f"{what} has no column {column!r}{hint} (columns: {', '.join(header)})"


def first_row_as_names(names: Sequence[str]) -> str:
    """What to do where the names of columns look like the first row of a table without any; empty
    where they do not. Whole numbers that count up are names, as those of an array are."""
    values = [as_number(name) for name in names]
    numbers = [value for value in values if value is not None]
    do_count = all(after == before + 1 for before, after in pairwise(numbers))
    are_mostly = 2 * len(numbers) > len(names) and not (do_count and numbers[0].is_integer())
    if not are_mostly and not any(map(is_picture_path, names)):
        return ""
    shown = ", ".join(names[:4]) + (", …" if len(names) > 4 else "")
    return (
        f"its first line ({shown}) looks like a row, not like names of columns, and would be lost; "
        "write a line of names before it, such as a,b,c,label"
    )


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
        raise InputError(f"{path} has {len(cells):,} columns, the limit is {MOST_COLUMNS:,}")
    return [name.strip() for name in cells]
