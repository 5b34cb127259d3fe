"""Labels of a table by the column that names their samples: paths of pictures, or texts.

Taken by their order, the labels of a folder would be scrambled without a word wherever the rows of
the table stand in another.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import PurePosixPath

from mlnt.data.dataset import Dataset
from mlnt.data.label_tables import GivenLabels
from mlnt.data.picture_tables import PATH_NAMES
from mlnt.data.pictures import PathTable, are_picture_paths, is_picture_path
from mlnt.data.wordy_columns import as_number
from mlnt.errors import InputError

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
                label_of = one_label_each(found, given.names, set(wanted), where)
                return [label_of[name] for name in wanted]
    for column, cells in columns.items():
        is_counted = list(cells) == [str(number) for number in range(len(cells))]
        is_to_name = not has_paths or are_picture_paths(cells) or column.lower() in NAMING
        if is_to_name and not is_counted:
            _refuse(column, cells, names, root, what)
    return None


def says_the_same(given: GivenLabels, placed: list[str], dataset: Dataset) -> bool:
    """Whether no column names the samples, or it gives them the labels that their numbers do."""
    try:
        return by_name(given, dataset, "") in (None, placed)
    except InputError:  # it does not name all, or some twice: the numbers decide
        return True


def in_their_order(given: GivenLabels, dataset: Dataset, what: str) -> Iterator[str]:
    """Notes of columns that may name the samples, of labels that are taken in their order since
    nothing in the data could be compared with them."""
    for column, cells in given.others.items():
        if are_picture_paths(cells) and not _are_paths(dataset.train.texts):
            yield (
                f"{what}: the data has no paths to compare column {column!r} with; the labels are "
                "taken in their order"
            )
        elif _are_ids(cells):
            yield (
                f"{what}: column {column!r} does not name the samples of the data; the labels are "
                "taken in their order"
            )


def _are_ids(cells: Sequence[str]) -> bool:
    """No measurements, nor the numbers of the rows."""
    if not are_names(cells) or counts_rows(cells):
        return False
    return not any("." in cell and as_number(cell) is not None for cell in cells)


def are_names(cells: Sequence[str]) -> bool:
    """Whether hardly one stands twice."""
    return 10 * len(set(cells)) >= 9 * len(cells)


def counts_rows(cells: Sequence[str]) -> bool:
    """Whether they are consecutive numbers, in order."""
    if not cells or not cells[0].isdecimal():
        return False
    first = int(cells[0])
    return list(cells) == [str(number) for number in range(first, first + len(cells))]


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


def one_label_each(
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
