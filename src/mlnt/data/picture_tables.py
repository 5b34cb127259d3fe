"""Tables that name pictures: the column of their paths, and the labels beside it."""

from collections.abc import Sequence
from pathlib import Path

from mlnt.data.columns import (
    AsTrained,
)
from mlnt.data.pictures import are_picture_paths, is_picture_path
from mlnt.data.table_rows import first_row_as_names, read_rows, without
from mlnt.data.tables import Table, find_label, labels_of, named_columns, with_label
from mlnt.data.wordy_columns import (
    whole_names,
)
from mlnt.errors import InputError

LOOKED_AT_FIRST = 20  # rows
PATH_NAMES = ("path", "file", "filename", "image", "picture")  # which, of several with paths


def read_picture_paths(
    path: Path,
    label_column: str | None,
    further: bool = False,
    beside: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Table | None:
    """The paths of pictures that a table names, and their labels; None if it names none.

    Of `further` data, beside that of the training, labels may be missing; and where others are
    given `beside`, as in `read_table`, which `drop` too is as in.
    """
    header, rows = read_rows(path, LOOKED_AT_FIRST)  # most tables name none: enough to see that
    if not any(is_picture_path(cell) for row in rows for cell in row):
        return None
    header, rows = without(*read_rows(path), drop, path)
    label = find_label(header, label_column, path, AsTrained() if further else None)
    column = _find_paths(header, rows, label, path)
    if column is None:
        return None
    if label is None and not further and beside is None and (lost := first_row_as_names(header)):
        raise InputError(f"{path}: {lost}")
    labelled = None
    if label is not None and not further:
        rows, labelled = with_label(rows, label, beside)
    labels = labels_of(rows, label, path, may_lack=further or beside is not None)
    if labels is not None and not further:
        labels = whole_names(labels)
    others = (i for i in named_columns(header) if i not in (column, label))
    return Table(
        "paths",
        [row[column].strip() for row in rows],
        labels,
        columns=(header[column],),
        passed_over=tuple(header[i] for i in others),
        labelled=labelled,
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
            "from 'path', or leave the others out: --drop-columns NAME"
        )
    return holding[0] if holding else None
