"""Files of labels: tables, arrays, words, and archives of several sets such as CIFAR-10N's."""

import io
import re
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.data.array_files import read_npy, read_npz
from mlnt.data.array_pickle import load_pickle, pass_legacy_header
from mlnt.data.label_tables import GivenLabels, read_labels
from mlnt.data.wordy_columns import as_number
from mlnt.errors import InputError, did_you_mean
from mlnt.files import exists, read_at_most, read_file

MOST_BYTES = 2**28  # a hundred times CIFAR-10N's file
MOST_FRACTIONS = 20  # labels with fractions that may be classes, if they have
SAMPLES_OF_FRACTION = 4  # so many samples each

_WITH_KEY = re.compile(r"(?P<file>.+\.(?:npz|pt)):(?P<key>.+)", re.IGNORECASE | re.DOTALL)
_WHOLE = re.compile(r"-?[0-9]{1,100}")
_TRUTH = "clean_label"  # as the authors of CIFAR-10N call it


def read_label_file(place: str | Path, label_column: str | None = None) -> GivenLabels:
    """The labels of FILE, or of the set KEY in FILE.npz:KEY or FILE.pt:KEY."""
    path, key = _split(place)
    if not exists(path) or path.is_dir():
        raise InputError(f"no label file at {path}")
    suffix = path.suffix.lower()
    if suffix in (".npz", ".pt"):
        return GivenLabels(label_names(_choose(_read_sets(path), key, path)))
    if suffix in (".csv", ".tsv"):
        return read_labels(path, label_column)
    if suffix == ".npy":
        return GivenLabels(label_names(read_npy(path)))
    try:
        return GivenLabels(_in_text(read_file(path, MOST_BYTES).decode("utf-8-sig")))
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not a file of labels: {error}") from None


def _in_text(text: str) -> list[str]:
    """A label a line, which may hold blanks; these separate whole numbers, and labels of one line.

    Empty lines are passed over: that labels are missing shows in their number.
    """
    words = text.split()
    lines = [line.strip() for line in io.StringIO(text, newline=None) if line.strip()]
    return words if len(lines) == 1 or all(map(_WHOLE.fullmatch, words)) else lines


def known_truth(place: str | Path) -> list[str] | None:
    """The clean labels that a file of several sets holds beside the noisy ones, if it does."""
    path, _ = _split(place)
    if path.suffix.lower() not in (".npz", ".pt") or not exists(path):
        return None
    sets = _read_sets(path)
    return label_names(sets[_TRUTH]) if _TRUTH in sets else None


def read_pt(path: Path) -> dict[str, np.ndarray]:
    """The numpy arrays of a dictionary written by torch.save; nothing in it is executed.

    Not by torch.load: it would let the file call numpy, which takes the memory it is told to.
    """
    stream, what = io.BytesIO(read_file(path, MOST_BYTES)), str(path)
    if _is_zip(stream):
        stream = io.BytesIO(_zipped_pickle(stream, path))
    else:
        stream.seek(0)
        pass_legacy_header(stream, what)
    content = load_pickle(stream, what)
    arrays = content.items() if isinstance(content, dict) else ()
    found = {name: values for name, values in arrays if isinstance(values, np.ndarray)}
    if not found:
        raise InputError(f"{path} must hold a dictionary of numpy arrays")
    return found


def label_names(labels: Any) -> list[str]:
    """Labels of any type as names; a label that is missing or not whole is refused."""
    array = as_array(labels, "labels")
    if array.ndim != 1:
        raise InputError(f"labels must be one row, got shape {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            row = int((~np.isfinite(array)).argmax())
            raise InputError(f"labels must be finite, at index {row} there is {array[row]}")
        if (array != np.floor(array)).any() or (np.abs(array) > 2**53).any():
            raise InputError("labels must be names or whole numbers; these look like measurements")
        array = array.astype(np.int64)
    try:
        names = (np.char.decode(array, "utf-8") if array.dtype.kind == "S" else array).tolist()
    except (ValueError, SystemError) as error:  # a damaged file: bytes that are no characters
        raise InputError(f"labels cannot be read: {error}") from None
    for row, name in enumerate(names):
        if name is None or name != name or name == "":
            raise InputError(f"the label at index {row} is missing ({name!r})")
    return [check_name(str(name), f"the label at index {row}") for row, name in enumerate(names)]


def classes_of(names: Sequence[str]) -> tuple[str, ...]:
    """The classes that labels name, sorted; InputError where these are measurements.

    A file of text has no types: a few numbers with fractions, each with many samples, such as
    ratings of 0.5 to 5 stars, may be classes.
    """
    _check_are_no_measurements(names)
    return sorted_classes(names)


def _check_are_no_measurements(names: Sequence[str]) -> None:
    distinct = set(names)
    if len(distinct) <= MOST_FRACTIONS and SAMPLES_OF_FRACTION * len(distinct) <= len(names):
        return
    values = {name: as_number(name) for name in distinct}
    if any(value is None for value in values.values()):
        return
    fractions = [name for name in names if not float(values[name] or 0).is_integer()]
    if fractions:
        raise InputError(
            "labels must be names or whole numbers; these look like measurements "
            f"({fractions[0][:40]} …, {len(distinct):,} values for {len(names):,} samples); "
            "if they are classes, give them names"
        )


def check_name(name: str, what: str) -> str:
    """The name of a class, if a file of text can hold it."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(f"{what} is no text in Unicode ({name[:80]!a}); rename it") from None
    if "\0" in name:
        raise InputError(f"{what} holds a NUL ({name[:80]!a}); rename it")
    return name


def as_texts(values: Any, what: str) -> list[str] | None:
    """The texts in a list, an array or a column, bytes as UTF-8; None where it holds others."""
    if hasattr(values, "iloc") and values.ndim == 2 and values.shape[1] == 1:
        values = values.iloc[:, 0]  # a data frame of one column
    if not isinstance(values, list | tuple) and getattr(values, "ndim", 0) != 1:
        return None
    texts = list(values)
    if not any(isinstance(text, str | bytes) for text in texts):
        return None
    for row, text in enumerate(texts):
        if isinstance(text, bytes):
            texts[row] = _decoded(text, what, row)
        elif not isinstance(text, str):
            raise InputError(f"{what} must be texts or numbers; at index {row} there is {text!r}")
    return texts


def _decoded(text: bytes, what: str, row: int) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:
        raise InputError(
            f"{what}: at index {row} there are bytes that are not UTF-8 ({text[:40]!r}); "
            "decode the texts first"
        ) from None


def as_array(values: Any, what: str) -> np.ndarray:
    """As a numpy array, from whatever holds numbers or names."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{what} cannot be made an array: {error}") from None


def _split(place: str | Path) -> tuple[Path, str | None]:
    match = _WITH_KEY.fullmatch(str(place))
    return (Path(match["file"]), match["key"]) if match else (Path(place), None)


def _read_sets(path: Path) -> dict[str, np.ndarray]:
    return read_npz(path) if path.suffix.lower() == ".npz" else read_pt(path)


def _choose(sets: dict[str, np.ndarray], key: str | None, path: Path) -> np.ndarray:
    if key is None:
        raise InputError(f"say which labels of {path}: {', '.join(f'{path}:{k}' for k in sets)}")
    if key not in sets:
        raise InputError(
            f"{path} has no {key!r}, it holds {', '.join(sets)}{did_you_mean(key, sets)}"
        )
    return sets[key]


def _is_zip(stream: io.BytesIO) -> bool:
    try:
        return zipfile.is_zipfile(stream)
    except zipfile.BadZipFile:  # it is none that could be read, but no other file either
        return True


def _zipped_pickle(stream: io.BytesIO, path: Path) -> bytes:
    """The one pickle in the archive that torch.save writes; the other members hold tensors."""
    try:
        with zipfile.ZipFile(stream) as archive:
            names = [name for name in archive.namelist() if name.endswith("/data.pkl")]
            if len(names) != 1:
                raise InputError("it has no single data.pkl")
            with archive.open(names[0]) as member:
                return read_at_most(member, MOST_BYTES, names[0])
    except Exception as error:
        raise InputError(f"{path} was not written by torch.save: {error}") from None


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Distinct names, in the order of their numbers where all are whole numbers."""
    distinct = set(names)
    if all(map(_WHOLE.fullmatch, distinct)):
        return tuple(sorted(distinct, key=int))
    return tuple(sorted(distinct))
