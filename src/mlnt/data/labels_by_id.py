"""Labels of a table by a column, such as an id, that a table of the data has too.

Taken by their order, they would be scrambled without a word wherever the rows of the one table
stand in another order than those of the other.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mlnt.data.frames import is_frame
from mlnt.data.label_tables import INDEX_NAMES, GivenLabels
from mlnt.data.labels_by_name import are_names, counts_rows, one_label_each
from mlnt.data.table_rows import read_rows
from mlnt.data.tables import is_table
from mlnt.data.wordy_columns import as_number
from mlnt.errors import InputError
from mlnt.files import exists

WHERE = "the column {!r} of the labels"


def by_shared_column(given: GivenLabels, source: Any) -> GivenLabels:
    """The labels in the order of the rows of a table or data frame, where a column of this, with
    hardly a value twice, stands beside the labels too: such as an id.

    A column that is the same row by row says that the labels are in order, whatever became of
    others. The labels may also be those of some rows alone, which they then number.
    """
    columns = _columns_of(source, given.others)
    shared = [_Shared(column, cells, given.others[column]) for column, cells in columns]
    ids = [one for one in shared if one.tells_apart]
    if given.numbers is not None:
        own = [list(map(int, cells)) for cells in _numbers_of(source)]
        if list(given.numbers) in own:
            return GivenLabels(given.names, others=given.others)
        for one in ids:
            one.check_numbers(given)
        counted = list(range(len(given.numbers)))
        is_meant = any(cells != counted == sorted(cells) for cells in own)
        return replace(given, notes=_of_two_meanings(given)) if is_meant else given
    if equal := [one for one in ids if one.wanted == one.found]:
        if all(one.counts for one in equal):
            _check_counted(equal[0], ids)
        return GivenLabels(given.names)
    for one in ids:
        if set(one.wanted) <= set(one.found) and (one.is_unique or not one.is_mostly_in_order):
            where = WHERE.format(one.column)
            label_of = one_label_each(one.found, given.names, set(one.wanted), where)
            return GivenLabels([label_of[cell] for cell in one.wanted])
    for one in ids:
        if one.is_unique and set(one.found) <= set(one.wanted):
            where = WHERE.format(one.column)
            label_of = one_label_each(one.found, given.names, set(one.found), where)
            place_of = {cell: place for place, cell in enumerate(one.wanted)}
            return GivenLabels(
                list(label_of.values()), [place_of[cell] for cell in label_of], where
            )
    for one in ids:
        one.refuse_part()
    in_order = {one.column for one in ids if one.is_mostly_in_order}
    others = {name: cells for name, cells in given.others.items() if name not in in_order}
    return replace(given, others=others)


class _Shared:
    """A column of the data that stands beside the labels too."""

    def __init__(self, column: str, cells: Sequence[str], beside: Sequence[str]) -> None:
        self.column, self.cells = column, cells
        self.wanted, self.found = list(map(_comparable, cells)), list(map(_comparable, beside))

    @property
    def tells_apart(self) -> bool:
        """By the data alone: beside the labels a value may stand twice by mistake."""
        return len(self.wanted) > 1 and are_names(self.wanted)

    @property
    def is_unique(self) -> bool:
        return len(set(self.wanted)) == len(self.wanted)

    @property
    def counts(self) -> bool:
        """Whether the data has the numbers of its rows there, from wherever it counts."""
        return counts_rows(self.wanted)

    @property
    def is_mostly_in_order(self) -> bool:
        """Row by row, as are measurements of which a few were put right."""
        pairs = zip(self.wanted, self.found, strict=False)
        same = sum(wanted == found for wanted, found in pairs)
        return len(self.wanted) == len(self.found) and 2 * same >= len(self.wanted)

    def check_numbers(self, given: GivenLabels) -> None:
        """Raise InputError if the numbers of the rows say another order than this column."""
        numbers = given.numbers or ()
        if len(self.found) == len(self.wanted):  # in the order of their numbers, whatever these are
            ranked = sorted(range(len(numbers)), key=numbers.__getitem__)
            pairs = [(self.wanted[row], self.found[i]) for row, i in enumerate(ranked)]
        elif max(numbers, default=0) < len(self.wanted):
            pairs = [(self.wanted[row], self.found[i]) for i, row in enumerate(numbers)]
        else:
            return
        there = set(self.wanted)
        named = [(wanted, found) for wanted, found in pairs if found in there]
        same = sum(wanted == found for wanted, found in named)
        if 2 * len(named) >= len(pairs) and 2 * same < len(named):
            raise InputError(
                f"{given.column} says another order than their column {self.column!r}, by the "
                "data; take one of both out"
            )

    def refuse_part(self) -> None:
        """Raise InputError if it names most rows of the data but not all, in another order."""
        there = set(self.found)
        missing = [c for c, key in zip(self.cells, self.wanted, strict=True) if key not in there]
        if self.is_mostly_in_order or not missing or 2 * len(missing) > len(self.cells):
            return
        raise InputError(
            f"{WHERE.format(self.column)} names {len(self.cells) - len(missing):,} of "
            f"the {len(self.cells):,} rows of the data; {missing[0][:80]!r} is missing; add it, or "
            "take the column out if the labels are in the order of the rows"
        )


def _of_two_meanings(given: GivenLabels) -> tuple[str, ...]:
    if sorted(given.numbers or ()) != list(range(len(given.names))):
        return ()
    return (
        f"{given.column} is taken for the numbers of the rows, counted from 0; a column of the "
        "data that is called so has them in another order",
    )


def _check_counted(counted: _Shared, ids: Sequence[_Shared]) -> None:
    """Raise InputError where the order that row numbers say, which tables get anew once they are
    sorted, is not that of a column which names all rows."""
    for one in ids:
        is_another = set(one.wanted) <= set(one.found) and not one.is_mostly_in_order
        if is_another and not one.counts:
            raise InputError(
                f"{WHERE.format(counted.column)} counts the rows as that of the data does, but "
                f"{one.column!r} says another order; take one of both out"
            )


def _comparable(cell: str) -> str:
    """5, 5.0 and 5.00 are one number, 0.10 and 0.1; 007 is none."""
    value = as_number(cell)
    if value is None or (cell.isdecimal() and cell != str(int(cell))):
        return " ".join(cell.split())
    return str(int(value)) if value.is_integer() else repr(value)


def _numbers_of(source: Any) -> Iterator[list[str]]:
    """The columns of the data itself that number something."""
    for _, cells in _columns_of(source, INDEX_NAMES):
        if all(cell.isdecimal() for cell in cells):
            yield cells


def _columns_of(source: Any, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Those of a table or data frame that have one of these names, be it in other letters."""
    if is_frame(source):
        header = [str(name) for name in source.columns]
        for name, place in _places(header, names):
            yield name, [str(cell).strip() for cell in source.iloc[:, place]]
    elif isinstance(source, str | Path) and is_table(Path(source)) and exists(Path(source)):
        header, _ = read_rows(Path(source), 1)
        shared = list(_places(header, names))
        _, rows = read_rows(Path(source)) if shared else ([], [])
        for name, place in shared:
            yield name, [row[place].strip() for row in rows]


def _places(header: Sequence[str], names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Where columns of these names stand: so written, or else in capitals or small letters."""
    lowered = [name.casefold() for name in header]
    for name in filter(None, names):
        for among, wanted in ((header, name), (lowered, name.casefold())):
            places = [place for place, other in enumerate(among) if other == wanted]
            if places:
                if len(places) == 1:
                    yield name, places[0]
                break
