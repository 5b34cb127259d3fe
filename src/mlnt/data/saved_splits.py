"""The splits of a data set saved by Hugging Face's `datasets`: Arrow files, mapped into memory."""

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlnt.data.folders import SPLITS
from mlnt.data.label_files import label_names
from mlnt.errors import InputError, first_line, kind_and_reason
from mlnt.files import open_file, parse_json, read_file

INFO, STATE, SPLIT_NAMES = "dataset_info.json", "state.json", "dataset_dict.json"
MOST_BYTES = 2**26  # of these: the largest holds the names of all classes
NUMBERS = ("int", "uint", "float", "double", "bool", "decimal")  # as types of values begin
TEXTS = ("string", "large_string")


@dataclass(frozen=True)
class SavedSplit:
    """The rows of one folder."""

    folder: Path
    features: dict[str, Any]  # by column, as Hugging Face describes them
    table: Any  # of Arrow

    def __len__(self) -> int:
        return self.table.num_rows

    def column(self, name: str) -> Any:
        if name not in self.table.column_names:
            raise InputError(f"{self.folder} has no column {name!r}, which train has")
        return self.table.column(name)

    def classes(self, label: str | None) -> tuple[str, ...]:
        """The names of the labels, in the order of their numbers, if the column has such."""
        if label is None or kinds_of(self.features).get(label) != "class":
            return ()
        return tuple(str(name) for name in self.features[label]["names"])

    def labels(self, column: str | None) -> list[str] | None:
        """Names of labels; None where no row has one. A few that lack are an error."""
        if column is None or column not in self.table.column_names:
            return None
        values, classes = self.column(column).to_pylist(), self.classes(column)
        if classes:  # -1 stands for a label that is kept secret
            values = [None if value is None or value < 0 else value for value in values]
        if all(value is None for value in values):
            return None
        if None in values:
            raise InputError(f"{self.folder}: row {values.index(None)} has no label")
        if classes and max(values) >= len(classes):
            raise InputError(
                f"{self.folder}: label {max(values)} is beyond the {len(classes)} classes"
            )
        return [classes[value] for value in values] if classes else label_names(values)

    def pictures(self, column: str) -> Any:
        """Each a record of its encoded bytes."""
        found = self.column(column)
        if "bytes" not in {field.name for field in getattr(found.type, "fields", ())}:
            raise InputError(f"{self.folder}: column {column!r} holds no encoded pictures")
        return found

    def texts(self, column: str) -> list[str]:
        texts = self.column(column).to_pylist()
        for row, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"{self.folder}: row {row} has no text in {column!r}")
        return texts

    def numbers(self, columns: Sequence[str]) -> np.ndarray:
        """Float64 [N, D]; NaN where a number is missing."""
        values = [self.column(name).cast("float64", safe=False).to_numpy() for name in columns]
        return np.stack(values, axis=1)


def find_splits(root: Path) -> tuple[dict[str, Path], tuple[str, ...]]:
    """The folders of train and, where there are, validation and test; and what is left out."""
    if not (root / SPLIT_NAMES).is_file():
        return {"train": root}, ()
    names = _read_json(root / SPLIT_NAMES).get("splits")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise InputError(f"{root / SPLIT_NAMES} is damaged: it must name the splits")
    found: dict[str, Path] = {}
    notes = []
    for name in names:
        if name not in SPLITS:
            notes.append(f"the split {name[:80]!r} is left out: it is no train, validation or test")
        elif SPLITS[name] in found:
            raise InputError(f"{root} has both {found[SPLITS[name]].name} and {name}; keep one")
        else:
            found[SPLITS[name]] = root / name
    if "train" not in found:
        raise InputError(
            f"{root} has no split train (splits: {', '.join(names)}); one of them alone is a data "
            "set too: give its folder"
        )
    return found, tuple(notes)


def open_splits(root: Path) -> tuple[dict[str, SavedSplit], tuple[str, ...]]:
    folders, notes = find_splits(root)
    opened = {part: open_split(folder) for part, folder in folders.items()}
    if len(opened["train"]) == 0:
        raise InputError(f"{folders['train']} holds no samples")
    return {part: split for part, split in opened.items() if len(split)}, notes


def open_split(folder: Path) -> SavedSplit:
    arrow = import_arrow()
    features, state = read_features(folder), _read_json(folder / STATE)
    if state.get("_indices_data_files"):
        raise InputError(f"{folder} was saved by a very old version of datasets; save it again")
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
        for name in names:
            if os.path.basename(name) != name:
                raise InputError(f"{folder / STATE} leads out of its folder ({name[:80]!r})")
        tables = []
        for name in names:
            # Mapped into memory: of pictures, only those that are asked for are read.
            open_file(folder / name).close()  # a pipe would be waited for
            with arrow.memory_map(str(folder / name)) as file:
                table = arrow.ipc.open_stream(file).read_all()
            _check_rows(table, (folder / name).stat().st_size)
            tables.append(table)
        table = arrow.concat_tables(tables)
    except InputError:
        raise
    except Exception as error:  # Arrow has many names for a damaged file
        raise InputError(f"{folder} cannot be read: {first_line(error)}") from None
    return SavedSplit(folder, features, table)


def _check_rows(table: Any, size: int) -> None:
    """Raise ValueError where a table claims what its file of so many bytes cannot hold."""
    # A column of nulls takes no room at all: its length could be any.
    if table.num_rows > 8 * size:
        raise ValueError(f"it claims {table.num_rows:,} rows in {size:,} bytes")
    table.validate(full=True)  # else an offset that lies would be followed beyond the file


def read_features(folder: Path) -> dict[str, Any]:
    features = _read_json(folder / INFO).get("features")
    if not isinstance(features, dict):
        raise InputError(f"{folder / INFO} is damaged: it must describe the columns")
    return features


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = parse_json(read_file(path, MOST_BYTES))
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is damaged: {error}") from None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged: it must hold a JSON object")
    return content


def kinds_of(features: Mapping[str, Any]) -> dict[str, str]:
    """Of each column: image, class, text, number or other."""

    def kind(feature: Any) -> str:
        described = feature if isinstance(feature, dict) else {}
        named, values = described.get("_type"), str(described.get("dtype"))
        if named == "Value" and values in TEXTS:
            return "text"
        if named == "Value" and values.startswith(NUMBERS):
            return "number"
        return {"Image": "image", "ClassLabel": "class"}.get(str(named), "other")

    return {name: kind(feature) for name, feature in features.items()}


@contextlib.contextmanager
def expect_intact(root: Path) -> Iterator[None]:
    """Inside, the columns are taken to be what the description says of them."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:  # a stranger's file may make any step of it go wrong
        what = kind_and_reason(error)
        raise InputError(f"{root} is damaged: columns differ from {INFO} ({what})") from None


def import_arrow() -> Any:
    try:
        return importlib.import_module("pyarrow")
    except Exception as error:  # one built for another numpy may raise anything
        raise InputError(
            f"pyarrow cannot be used here ({first_line(error)}); pip install pyarrow"
        ) from None
