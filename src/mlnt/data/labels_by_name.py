"""Labels of a table by the column that names their samples: paths of pictures, texts, or an id.

Taken by their order, the labels of a folder would be scrambled without a word wherever the rows of
the table stand in another.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from mlnt.data.dataset import Dataset
from mlnt.data.frames import is_frame
from mlnt.data.label_tables import INDEX_NAMES, GivenLabels
from mlnt.data.picture_tables import PATH_NAMES
from mlnt.data.pictures import PathTable, are_picture_paths, is_picture_path
from mlnt.data.table_rows import read_rows
from mlnt.data.tables import is_table
from mlnt.data.wordy_columns import as_number
from mlnt.errors import InputError
from mlnt.files import exists

NAMING = (*PATH_NAMES, "sample", "file_name", "filepath")  # columns, whatever they hold

Key = Callable[[str], str]


def by_name(given: GivenLabels, dataset: Dataset, what: str) -> list[str] | None:
    """The labels in the order of the training samples, by a column that names all of these.

    None where no column does so. InputError where one does in part, or is called so and does not:
    its rows can hardly be in the order of the samples.
    """
    texts = dataset.train.texts
    if not given.others or texts is None:
        return None
    names, has_paths = list(texts), _are_paths(texts)
    if isinstance(texts, PathTable) and not has_paths:
        return None
    columns = given.others if has_paths else _of_texts(given.others, names)
    root = texts.root if isinstance(texts, PathTable) else ""
    for column, cells in columns.items():
        for key in _keys(names, cells, root) if has_paths else (_as_text,):
            wanted, found = list(map(key, names)), list(map(key, cells))
            if wanted == found:
                return given.names
            if set(wanted) <= set(found):
                where = f"{what}: column {column!r}"
                label_of = _labels(found, given.names, set(wanted), where)
                return [label_of[name] for name in wanted]
    for column, cells in columns.items():
        is_counted = list(cells) == [str(number) for number in range(len(cells))]
        is_to_name = not has_paths or are_picture_paths(cells) or column.lower() in NAMING
        if is_to_name and not is_counted:
            _refuse(column, cells, names, root, what)
    return None


def by_shared_column(given: GivenLabels, source: Any) -> GivenLabels:
    """The labels in the order of the rows of a table or data frame, where a column of this, with
    a value of its own in each row, stands beside the labels too: such as an id.

    A column that is the same row by row says that the labels are in order, whatever became of
    others. The labels may also be those of some rows alone, which they then number.
    """
    if given.numbers is not None:
        copied = (list(map(int, c)) for c in _numbers_of(source) if len(c) == len(given.names))
        is_copy = list(given.numbers) in copied
        return GivenLabels(given.names, others=given.others) if is_copy else given
    ids = [
        shared
        for column, cells in _columns_of(source, given.others)
        if (shared := _Shared(column, cells, given.others[column])).tells_apart
    ]
    if any(shared.wanted == shared.found for shared in ids):
        return GivenLabels(given.names)
    for shared in ids:
        if set(shared.wanted) <= set(shared.found):
            label_of = dict(zip(shared.found, given.names, strict=True))
            return GivenLabels([label_of[cell] for cell in shared.wanted])
    for shared in ids:
        if set(shared.found) <= set(shared.wanted):
            place_of = {cell: place for place, cell in enumerate(shared.wanted)}
            numbers = [place_of[cell] for cell in shared.found]
            return GivenLabels(given.names, numbers, f"the column {shared.column!r} of the labels")
    for shared in ids:
        shared.refuse_part()
    return given


class _Shared:
    """A column of the data that stands beside the labels too."""

    def __init__(self, column: str, cells: Sequence[str], beside: Sequence[str]) -> None:
        self.column, self.cells = column, cells
        self.wanted, self.found = list(map(_comparable, cells)), list(map(_comparable, beside))

    @property
    def tells_apart(self) -> bool:
        sides = (self.wanted, self.found)
        return len(self.wanted) > 1 and all(len(set(side)) == len(side) for side in sides)

    def refuse_part(self) -> None:
        """Raise InputError if it names most rows of the data but not all; not of measurements, of
        which a few may have been put right."""
        there = set(self.found)
        missing = [c for c, key in zip(self.cells, self.wanted, strict=True) if key not in there]
        is_measured = any("." in key and as_number(key) is not None for key in self.wanted)
        if is_measured or 2 * len(missing) > len(self.cells):
            return
        raise InputError(
            f"the column {self.column!r} of the labels names {len(self.cells) - len(missing):,} of "
            f"the {len(self.cells):,} rows of the data; {missing[0][:80]!r} is missing; add it, or "
            "take the column out if the labels are in the order of the rows"
        )


def _comparable(cell: str) -> str:
    """5, 5.0 and 5.00 are one number, 0.10 and 0.1; 007 is none."""
    value = as_number(cell)
    if value is None or (cell.isdecimal() and cell != str(int(cell))):
        return cell
    return str(int(value)) if value.is_integer() else repr(value)


def _numbers_of(source: Any) -> Iterator[list[str]]:
    """The columns of the data itself that number something."""
    for _, cells in _columns_of(source, INDEX_NAMES):
        if all(cell.isdecimal() for cell in cells):
            yield cells


def _columns_of(source: Any, names: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Those of a table or data frame that have one of these names."""
    if is_frame(source):
        for name in names:
            if list(source.columns).count(name) == 1:
                yield name, [str(cell).strip() for cell in source[name]]
    elif isinstance(source, str | Path) and is_table(Path(source)) and exists(Path(source)):
        header, _ = read_rows(Path(source), 1)
        shared = [name for name in names if name and header.count(name) == 1]
        _, rows = read_rows(Path(source)) if shared else ([], [])
        for name in shared:
            yield name, [row[header.index(name)].strip() for row in rows]


def says_the_same(given: GivenLabels, placed: list[str], dataset: Dataset) -> bool:
    """Whether no column names the pictures, or it gives them the labels that their numbers do."""
    if not _are_paths(dataset.train.texts):
        return True
    try:
        return by_name(given, dataset, "") in (None, placed)
    except InputError:  # it does not name all, or some twice: the numbers decide
        return True


def passed_over(given: GivenLabels, dataset: Dataset, what: str) -> Iterator[str]:
    """A note of a column that names samples, where the data has no names to compare with."""
    if _are_paths(dataset.train.texts) or given.numbers is not None:
        return
    for column, cells in given.others.items():
        if are_picture_paths(cells):
            yield (
                f"{what}: the data has no paths to compare column {column!r} with; the labels are "
                "taken in their order"
            )


def _are_paths(texts: Sequence[str] | None) -> bool:
    """Not the rows of a saved data set, which has no names for its pictures."""
    return isinstance(texts, PathTable) and is_picture_path(texts[0])


def _of_texts(
    columns: Mapping[str, Sequence[str]], names: Sequence[str]
) -> dict[str, Sequence[str]]:
    """Those that hold at least half of the texts: else they say something else of them."""
    wanted = set(map(_as_text, names))
    held = {column: wanted & set(map(_as_text, cells)) for column, cells in columns.items()}
    return {
        column: columns[column] for column, some in held.items() if 2 * len(some) >= len(wanted)
    }


def _as_text(text: str) -> str:
    return " ".join(text.split())


def _keys(names: Sequence[str], cells: Sequence[str], root: str) -> Iterator[Key]:
    """Ways to compare paths: whole, by fewer and fewer of their folders, and without their ending;
    none by which two samples would be the same."""
    deepest = max(_depth(name, root) for name in (*names, *cells))
    for is_whole in (True, False):
        for depth in range(deepest, 0, -1):
            key = _key(root, depth, is_whole)
            if len(set(map(key, names))) == len(set(names)):
                yield key


def _key(root: str, depth: int, is_whole: bool) -> Key:
    def key(path: str) -> str:
        parts = _parts(path, root)[-depth:]
        if parts and not is_whole and is_picture_path(parts[-1]):
            parts = (*parts[:-1], PurePosixPath(parts[-1]).stem)
        return "/".join(parts)

    return key


def _parts(path: str, root: str) -> tuple[str, ...]:
    """Below the root; a table may be written by Windows, or begin at the root of the disk."""
    inside = path.removeprefix(root + os.sep)
    return PurePosixPath(inside if os.sep in inside else inside.replace("\\", "/")).parts


def _depth(path: str, root: str) -> int:
    return len(_parts(path, root))


def _labels(
    found: Sequence[str], labels: Sequence[str], wanted: set[str], what: str
) -> dict[str, str]:
    """Label by name; InputError where one sample has two."""
    label_of: dict[str, str] = {}
    for name, label in zip(found, labels, strict=True):
        if name in wanted and label_of.setdefault(name, label) != label:
            raise InputError(
                f"{what} names {name[:80]!r} twice, with the labels {label_of[name]!r} and "
                f"{label!r}; keep one"
            )
    return label_of


def _refuse(column: str, cells: Sequence[str], names: Sequence[str], root: str, what: str) -> None:
    """Raise InputError of a column that is to name the samples, and does not name all."""
    compare: list[Key] = list(_keys(names, cells, root)) if root else [_as_text]
    # By what most of them are found.
    key = max(compare, key=lambda key: len({*map(key, names)} & {*map(key, cells)}))
    found = set(map(key, cells))
    missing = [name for name in names if key(name) not in found]
    count = "none" if len(missing) == len(names) else f"{len(names) - len(missing):,}"
    raise InputError(
        f"{what}: column {column!r} names {count} of the {len(names):,} training samples; "
        f"{missing[0][:80]!r} is missing; add it, or take the column out if the labels are in the "
        "order of the samples"
    )
