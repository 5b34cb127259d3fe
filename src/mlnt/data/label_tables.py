"""Labels in a table of their own, beside the data, and the rows or samples that they are of."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from mlnt.data.table_rows import read_rows
from mlnt.data.tables import find_label, labels_of
from mlnt.errors import InputError

INDEX_NAMES = ("index", "row")  # of the sample that a label belongs to, as the report writes it


@dataclass(frozen=True)
class GivenLabels:
    """Labels beside the data, and the rows that they are of where a column says so."""

    names: list[str]
    numbers: Sequence[int] | None = None
    column: str = ""  # of the numbers, and of which file
    # The other columns of a table: one of them may name the samples that the labels are of.
    others: Mapping[str, Sequence[str]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def in_order(self, rows: Sequence[int] | None = None) -> list[str]:
        """By the number of their row, where they have been sorted by something else.

        rows    of the data, those that have a label; None: all, or any
        """
        if self.numbers is None:
            return self.names
        in_order = sorted(self.numbers)
        if rows is not None and in_order != list(rows):
            first = ", ".join(map(str, rows[:5]))
            raise InputError(
                f"{self.column} does not number the rows of the data that have a label "
                f"({first}, …); leave it out if the labels are in their order"
            )
        if rows is None and all(before < after for before, after in pairwise(self.numbers)):
            return self.names
        if rows is None and in_order != list(range(len(in_order))):
            raise InputError(
                f"{self.column} is neither in order nor all of 0 to {len(in_order) - 1}; "
                "sort the rows as the samples are, or leave the column out"
            )
        return [name for _, name in sorted(zip(self.numbers, self.names, strict=True))]


def read_labels(path: Path, label_column: str | None) -> GivenLabels:
    """The labels alone, whatever the other columns hold.

    The label column of the data may have another name here, as in what the report writes.
    """
    header, rows = read_rows(path)
    wanted = label_column if label_column in header else None
    label = find_label(header, wanted, path)
    if label is None:
        either = "" if label_column is None else f"{label_column!r} or "
        raise InputError(f"{path} has no column {either}'label' (columns: {', '.join(header)})")
    labels = labels_of(rows, label, path)
    assert labels is not None
    others = {header[i]: [r[i].strip() for r in rows] for i in range(len(header)) if i != label}
    for name in INDEX_NAMES:
        if name in others:
            cells = others[name]
            if not all(cell.isdecimal() for cell in cells):
                break  # it says something else
            del others[name]
            numbers = [int(cell) for cell in cells]
            return GivenLabels(labels, numbers, f"{path}: the column {name!r}", others)
    return GivenLabels(labels, others=others)
