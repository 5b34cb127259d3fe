"""Data frames of pandas: samples and labels by the names of columns, as in a table on disk."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from mlnt.data.columns import AsTrained
from mlnt.data.label_files import check_name, label_names
from mlnt.data.table_rows import unknown_column
from mlnt.data.tables import LABEL_NAMES, first_called, known_columns, named_columns
from mlnt.errors import InputError

# In Python nobody reads which column was taken, and class, target or y is often a feature: those
# are to be named.
SURE_NAMES = ("label", "labels")


def is_frame(source: Any) -> bool:
    return hasattr(source, "iloc") and getattr(source, "ndim", 0) == 2


def part_frame(
    frame: Any,
    label_column: str | None,
    text_column: str | None,
    as_trained: AsTrained | None,
) -> tuple[Any, Any]:
    """(samples, labels or None); `as_trained` as in `read_table`: then labels are names, ""
    where one is missing."""
    further = as_trained is not None
    features = () if as_trained is None else as_trained.columns
    header = [str(name) for name in frame.columns]
    if not any(isinstance(name, str) and not _is_sure(name) for name in frame.columns):
        features = ()  # numbers are no names: such columns go by their order, as an array's do
    label = _find_label(header, label_column, features, further)
    labels = None if label is None else frame.iloc[:, label]
    if further and labels is not None:
        # By name, as those of a table: whether they are classes of the training data is seen later.
        labels = _names(labels)
    if text_column is not None and (text_column in header or not further):
        if text_column not in header:
            raise InputError(unknown_column(text_column, header, "the data frame"))
        return frame.iloc[:, header.index(text_column)], labels
    columns = known_columns(header, features, "the data frame")
    if columns is None:
        columns = [i for i in named_columns(header, features) if i != label]
    return frame.iloc[:, columns], labels


def _names(labels: Any) -> list[str] | None:
    """As a table on disk has them, 1.0 for 1 where one is missing; None where none is there."""
    there = _is_there(labels)
    names = [str(name) if is_one else "" for name, is_one in zip(labels, there, strict=True)]
    for row, name in enumerate(names):
        check_name(name, f"the label at index {row}")
    return names if there.any() else None


def _is_there(labels: Any) -> np.ndarray:
    """[N] bool; a blank cell is a missing one, as in a table on disk."""
    blank = [isinstance(label, str) and not label.strip() for label in labels]
    return labels.notna().to_numpy() & ~np.array(blank, dtype=bool)


def labelled_alone(
    samples: Any, labels: Any, beside: Sequence[str] | None
) -> tuple[Any, list[str] | None, np.ndarray | None]:
    """Samples and names of labels of the rows to train on, and which these are, as in Raw.

    beside  as in `read_table`
    """
    there = _is_there(labels)
    if not there.any() and beside is not None:
        return samples, None, None
    if there.all() or not there.any():
        return samples, label_names(labels), None
    names = label_names(labels[there])
    if beside is not None and len(beside) != len(names):
        own = iter(names)
        return samples, [next(own) if is_one else "" for is_one in there], None
    return samples[there], names, there


def _find_label(
    header: list[str], wanted: str | None, features: tuple[str, ...], further: bool
) -> int | None:
    if wanted is not None and wanted not in header and not further:
        raise InputError(unknown_column(wanted, header, "the data frame"))
    if wanted is not None:
        return header.index(wanted) if wanted in header else None
    return first_called(["" if name in features else name for name in header], SURE_NAMES)


def _is_sure(name: str) -> bool:
    return name.lower() in SURE_NAMES


def may_be_labels(columns: Sequence[str]) -> str | None:
    """The column that would be learnt from, were the frame a table on disk."""
    place = first_called(columns, LABEL_NAMES)
    return None if place is None else columns[place]
