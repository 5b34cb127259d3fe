"""A data set that Hugging Face's `datasets` has saved to disk, read as the Arrow files it is.

    dataset_info.json, state.json, data-00000-of-00001.arrow, …      one split
    dataset_dict.json, train/, validation/, test/                    a folder as above for each

By Arrow alone: nothing that lies there is executed, and nothing is copied into a cache. Pictures
stay on disk, as everywhere; texts and numbers are read at once.
"""

import io
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.data.columns import AsTrained
from mlnt.data.given_labels import class_numbers
from mlnt.data.label_files import sorted_classes
from mlnt.data.oddities import span
from mlnt.data.pictures import NO_LABEL, Part, Parts, PathTable, PictureError, read_picture
from mlnt.data.raw import Raw
from mlnt.data.saved_splits import (
    INFO,
    SPLIT_NAMES,
    STATE,
    SavedSplit,
    expect_intact,
    find_splits,
    kinds_of,
    open_split,
    open_splits,
    read_features,
)
from mlnt.data.table_rows import places_left
from mlnt.data.tables import LABEL_NAMES, known_columns
from mlnt.errors import InputError, did_you_mean
from mlnt.files import exists


@dataclass(frozen=True)
class RawParts:
    """Texts or rows of numbers, split as they were found."""

    name: str
    classes: tuple[str, ...]  # in the order that the data set gives them, where it gives one
    train: Raw
    validation: Raw | None = None
    test: Raw | None = None
    notes: tuple[str, ...] = ()


def is_saved_dataset(path: str | Path) -> bool:
    """Whether it is a folder that save_to_disk has written."""
    path = Path(path)
    if not exists(path) or not path.is_dir():
        return False
    return (path / SPLIT_NAMES).is_file() or all((path / name).is_file() for name in (INFO, STATE))


def holds_pictures(path: str | Path) -> bool:
    """Whether a saved data set has a column of pictures."""
    folders, _ = find_splits(Path(path))
    return "image" in kinds_of(read_features(folders["train"])).values()


def read_saved(
    path: str | Path,
    label_column: str | None = None,
    text_column: str | None = None,
    drop: Sequence[str] = (),
) -> Parts | RawParts:
    """Its pictures if it has a column of them and no text column is named, else texts or rows."""
    if text_column is None and holds_pictures(path):
        return read_saved_pictures(path, label_column, drop)
    return read_saved_rows(path, label_column, text_column, drop=drop)


def read_saved_pictures(
    path: str | Path, label_column: str | None = None, drop: Sequence[str] = ()
) -> Parts:
    """Each picture goes by its split and row, such as train/17; NO_LABEL where labels lack."""
    root = Path(path).resolve()
    splits, notes = open_splits(root)
    with expect_intact(root):
        kinds = _without(kinds_of(splits["train"].features), drop, root)
        column = _find_pictures(kinds, root)
        label = _find_label(kinds, label_column, root)
        names = splits["train"].labels(label)
        classes = splits["train"].classes(label) or sorted_classes(names or ())
        found = {
            part: Part(_rows_of(split, root), _numbers(split, label, classes))
            for part, split in splits.items()
        }
        pictures = {str(split.folder): split.pictures(column) for split in splits.values()}
    return Parts(
        root.name,
        classes if names else (),
        found["train"],
        found.get("validation"),
        found.get("test"),
        notes,
        RowReader(column, pictures),
    )


def read_saved_rows(
    path: str | Path,
    label_column: str | None = None,
    text_column: str | None = None,
    as_trained: AsTrained | None = None,
    drop: Sequence[str] = (),
) -> RawParts:
    """Texts of one column, or the numbers of all, by the rules that `read_table` has."""
    root = Path(path)
    splits, notes = open_splits(root)
    with expect_intact(root):
        kinds = _without(kinds_of(splits["train"].features), drop, root)
        label = _find_label(kinds, label_column, root, as_trained)
        columns = None
        if as_trained is not None:
            text_column = text_column if text_column in kinds else None
            columns = _known_numbers(kinds, as_trained.columns, root)
        if columns is None:
            columns = _find_samples(kinds, label, text_column, root)
        is_text = kinds[columns[0]] == "text"
        found = {
            part: Raw(
                "text" if is_text else "table",
                split.texts(columns[0]) if is_text else split.numbers(columns),
                split.labels(label),
                columns,
                label=label,
            )
            for part, split in splits.items()
        }
        classes = splits["train"].classes(label)
    others = [name for name in kinds if name not in (label, *columns)]
    if others:
        notes = (*notes, f"passing over {span(others)}")
    return RawParts(
        root.resolve().name,
        classes,
        found["train"],
        found.get("validation"),
        found.get("test"),
        notes,
    )


def _without(kinds: Mapping[str, str], drop: Sequence[str], root: Path) -> dict[str, str]:
    """The kinds of all columns but those to be left out."""
    names = list(kinds)
    return {names[i]: kinds[names[i]] for i in places_left(names, drop, root)}


def only_labelled(parts: Parts | RawParts) -> Parts | RawParts:
    """For training: validation and test without labels, as of competitions, are left out."""
    for name in ("validation", "test"):
        part = getattr(parts, name)
        if isinstance(part, Part):
            is_labelled = bool((part.labels != NO_LABEL).all())
        else:
            is_labelled = part is None or part.labels is not None
        if not is_labelled:
            note = f"the split {name!r} has no labels and is left out"
            changes: dict[str, Any] = {name: None, "notes": (*parts.notes, note)}
            parts = replace(parts, **changes)
    return parts


class RowReader:
    """Reads the picture of a row; its path is the folder of its split and the row's number."""

    def __init__(self, name: str, columns: Mapping[str, Any] | None = None) -> None:
        self.name, self.columns = name, dict(columns or {})

    def __call__(self, path: str, size: int, crop: int) -> np.ndarray:
        folder, row = os.path.split(path)
        if folder not in self.columns:
            self.columns[folder] = open_split(Path(folder)).pictures(self.name)
        # Where a row has a path in the place of bytes, that may lead anywhere: it is not followed.
        content = (self.columns[folder][int(row)].as_py() or {}).get("bytes")
        if not content:
            raise PictureError("no picture in this row")
        return read_picture(io.BytesIO(content), size, crop)

    def __reduce__(self) -> tuple[type["RowReader"], tuple[str]]:
        """To other processes the name goes alone: they map the files into their memory again."""
        return RowReader, (self.name,)


def _find_label(
    kinds: Mapping[str, str], wanted: str | None, root: Path, as_trained: AsTrained | None = None
) -> str | None:
    if wanted is not None:
        if wanted in kinds:
            return wanted
        if as_trained is not None:
            return None
        raise InputError(_unknown(wanted, kinds, root))
    features = () if as_trained is None else as_trained.columns
    for name in LABEL_NAMES:
        for column in kinds:
            if column.lower() == name and column not in features:
                return column
    classes = [column for column, kind in kinds.items() if kind == "class"]
    if len(classes) > 1:
        raise InputError(
            f"{root} has several columns of classes ({', '.join(classes)}); name the label column"
        )
    return classes[0] if classes else None


def _find_pictures(kinds: Mapping[str, str], root: Path) -> str:
    columns = [name for name, kind in kinds.items() if kind == "image"]
    if len(columns) != 1:
        raise InputError(
            f"{root} must have one column of pictures, not {len(columns)} ({', '.join(columns)}); "
            "take out the others, with remove_columns"
        )
    return columns[0]


def _known_numbers(
    kinds: Mapping[str, str], features: tuple[str, ...], root: Path
) -> tuple[str, ...] | None:
    """The columns of the training data, if that is known and they have names."""
    if known_columns(list(kinds), features, str(root)) is None:
        return None
    wrong = [name for name in features if kinds[name] != "number"]
    if wrong:
        raise InputError(
            f"{root}: column {wrong[0]!r} holds no numbers, but that of the training data does"
        )
    return features


def _find_samples(
    kinds: Mapping[str, str], label: str | None, text_column: str | None, root: Path
) -> tuple[str, ...]:
    """The one column of texts, or all of numbers."""
    if text_column is not None:
        if text_column == label:
            raise InputError(f"{text_column!r} cannot be both the text and the label column")
        if kinds.get(text_column) != "text":
            raise InputError(_unknown(text_column, kinds, root, "column of texts"))
        return (text_column,)
    others = [name for name in kinds if name != label]
    texts = [name for name in others if kinds[name] == "text"]
    odd = [name for name in others if kinds[name] not in ("text", "number")]
    if not others:
        raise InputError(f"{root} has no column but the label; nothing to learn from")
    if odd:
        raise InputError(
            f"{root}: column {odd[0]!r} holds neither pictures nor texts nor numbers; leave it "
            f"out: --drop-columns {shlex.quote(odd[0])}"
        )
    if texts and len(others) > 1:
        raise InputError(
            f"{root} has texts beside other columns ({', '.join(others)}); name the text column, "
            "or leave out what is no number: --drop-columns NAME,NAME"
        )
    return tuple(others)


def _rows_of(split: SavedSplit, root: Path) -> PathTable:
    below = "" if split.folder == root else f"{split.folder.name}/"
    return PathTable.of(root, [f"{below}{row}" for row in range(len(split))])


def _numbers(split: SavedSplit, label: str | None, classes: Sequence[str]) -> Tensor:
    names = split.labels(label)
    if names is None:
        return torch.full((len(split),), NO_LABEL)
    return class_numbers(names, classes, str(split.folder))


def _unknown(column: str, known: Mapping[str, str], root: Path, what: str = "column") -> str:
    hint = did_you_mean(column, known)
    return f"{root} has no {what} {column!r}{hint} (columns: {', '.join(known)})"
