"""`open_dataset`: data sets known by name, CSV/TSV, .npz and arrays.

name or path or (X, y) -> raw samples and labels -> encoder fitted on train -> Dataset
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder, TextEncoder
from mlnt.data.known import NAMED, Known, Raw, Source, exists, find_known
from mlnt.data.tables import read_labels, read_table
from mlnt.errors import InputError, did_you_mean


@dataclass(frozen=True)
class Split:
    """Samples of one part of a data set: train, validation or test."""

    inputs: Tensor  # [N, ...], encoded
    labels: Tensor  # LongTensor [N], as given
    true_labels: Tensor | None = None  # LongTensor [N], where an experiment knows them
    texts: Sequence[str] | None = None  # what a person would recognise the sample by

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Split":
        """On a device; floating inputs in this type (numbers of words stay what they are)."""
        truth = self.true_labels
        return replace(
            self,
            inputs=self.inputs.to(device, dtype if self.inputs.is_floating_point() else None),
            labels=self.labels.to(device),
            true_labels=None if truth is None else truth.to(device),
        )

    def take(self, indices: Tensor) -> "Split":
        return Split(
            self.inputs[indices],
            self.labels[indices],
            None if self.true_labels is None else self.true_labels[indices],
            None if self.texts is None else [self.texts[i] for i in indices.tolist()],
        )


@dataclass(frozen=True)
class Dataset:
    """A data set ready for training."""

    name: str
    classes: tuple[str, ...]
    encoder: Encoder
    train: Split
    validation: Split | None = None
    test: Split | None = None
    # Which of the samples as they came were kept for training and which held out; None: all kept.
    train_indices: Tensor | None = None
    held_out_indices: Tensor | None = None
    usual_confusions: Mapping[int, int] | None = None  # for asymmetric noise
    label_column: str | None = None  # of a table, where the user named it
    text_column: str | None = None

    @property
    def kind(self) -> str:
        return self.encoder.kind


def open_dataset(
    source: Source,
    *,
    labels: str | Path | Sequence | np.ndarray | None = None,
    true_labels: str | Path | Sequence | np.ndarray | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
) -> Dataset:
    """Open a data set by name, path or as arrays.

    source        `digits`; a CSV or TSV with a label column beside numeric columns or one text
                  column; an .npz with X and y; a folder cifar-10-batches-bin; a pair (X, y)
    labels        other labels for the training data: FILE, FILE.npz:KEY, or a sequence
    true_labels   the correct labels, where an experiment knows them; used for reporting alone
    validation, test  further data in any of these forms
    """
    known = find_known(source)
    if known is not None:
        dataset = _from_known(known)
    else:
        raw = read(source, label_column, text_column)
        dataset = _from_raw(raw, _name_of(source), need_labels=labels is None)
        dataset = replace(dataset, label_column=label_column, text_column=text_column)
    if labels is not None:
        given, classes = _replacement(labels, dataset, "labels")
        dataset = replace(dataset, classes=classes, train=replace(dataset.train, labels=given))
    if true_labels is not None:
        truth, _ = _replacement(true_labels, dataset, "true_labels")
        dataset = replace(dataset, train=replace(dataset.train, true_labels=truth))
    if validation is not None:
        dataset = replace(dataset, validation=_further(validation, dataset, "validation"))
    if test is not None:
        dataset = replace(dataset, test=_further(test, dataset, "test"))
    check_dataset(dataset)
    return dataset


def read(
    source: Source,
    label_column: str | None = None,
    text_column: str | None = None,
    features: Sequence[str] = (),
) -> Raw:
    """Samples and labels (None if there are none) of a file or a pair of arrays.

    Of a data set that mlnt knows by name: its test part. `features` are columns known to be no
    labels, whatever their names.
    """
    if isinstance(source, tuple):
        if len(source) != 2:
            raise InputError(f"arrays are given as a pair (X, y), got {len(source)} values")
        return _from_arrays(*source)
    if not isinstance(source, str | Path):
        return _from_arrays(source, None)
    known = find_known(source)
    if known is not None:
        return known.test
    path = Path(source)
    if not exists(path):
        names = ", ".join(NAMED)
        hint = did_you_mean(str(source), NAMED)
        raise InputError(
            f"no data set {str(source)!r}{hint} (known: {names}; or a path to a CSV, TSV or .npz)"
        )
    if path.is_dir() or path.suffix.lower() not in (".csv", ".tsv", ".npz"):
        raise InputError(
            f"cannot read {path}: expected a CSV, a TSV, an .npz or a folder cifar-10-batches-bin"
        )
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path)
        if "X" not in arrays:
            raise InputError(f"{path} must hold arrays X and y, it holds {', '.join(arrays)}")
        return _from_arrays(arrays["X"], arrays.get("y"))
    table = read_table(path, label_column, text_column, features)
    return Raw(table.kind, table.samples, table.labels, table.columns)


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz; pickled objects are refused, so nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:
        raise InputError(f"{path} is not a readable .npz of plain arrays: {error}") from None


def _name_of(source: Source) -> str:
    return Path(source).stem if isinstance(source, str | Path) else "arrays"


def _from_arrays(samples: Any, labels: Any) -> Raw:
    names = None if labels is None else label_names(labels)
    if isinstance(samples, list | tuple) and all(isinstance(s, str) for s in samples):
        kind, samples, count = "text", list(samples), len(samples)
    else:
        samples = _array(samples, "features")
        if samples.dtype.kind in "US":
            return _from_arrays([str(text) for text in samples.reshape(-1)], labels)
        if samples.dtype.kind not in "biuf":
            raise InputError(f"features must be numbers or texts, got an array of {samples.dtype}")
        if samples.ndim not in (2, 3, 4):
            raise InputError(
                f"features must be rows [N, D] or images [N, H, W] or [N, C, H, W], "
                f"got shape {samples.shape}"
            )
        kind, count = ("table" if samples.ndim == 2 else "image"), len(samples)
    if names is not None and len(names) != count:
        raise InputError(f"{count} samples but {len(names)} labels; they must be as many")
    return Raw(kind, samples, names)


def label_names(labels: Any) -> list[str]:
    """Labels of any type as names; a label that is missing or not whole is refused."""
    array = _array(labels, "labels")
    if array.ndim != 1:
        raise InputError(f"labels must be one row, got shape {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            row = int((~np.isfinite(array)).argmax())
            raise InputError(f"labels must be finite, label {row} is {array[row]}")
        if (array != np.floor(array)).any() or (np.abs(array) > 2**53).any():
            raise InputError("labels must be names or whole numbers; these look like measurements")
        array = array.astype(np.int64)
    names = array.tolist()
    for row, name in enumerate(names):
        if name is None or name != name:
            raise InputError(f"label {row} is missing ({name})")
    return [str(name) for name in names]


def _array(values: Any, what: str) -> np.ndarray:
    """As a numpy array, from whatever holds numbers or names."""
    if isinstance(values, Tensor):
        values = values.detach().cpu()
        values = values.float() if values.dtype == torch.bfloat16 else values
    try:
        return np.asarray(values)
    except (ValueError, TypeError) as error:
        raise InputError(f"{what} cannot be made an array: {error}") from None


def _from_known(known: Known) -> Dataset:
    encoder = ImageEncoder.fit(known.train.samples)

    def split(raw: Raw) -> Split:
        labels = _numbers(raw.labels or (), known.classes, known.name)
        return Split(encoder.encode(raw.samples), labels, labels)

    return Dataset(
        known.name,
        known.classes,
        encoder,
        train=split(known.train),
        test=split(known.test),
        usual_confusions=known.usual_confusions,
    )


def _from_raw(raw: Raw, name: str, need_labels: bool = True) -> Dataset:
    if raw.labels is None and need_labels:
        raise InputError(f"{name} has no labels; training needs a column or an array of them")
    encoder: Encoder
    if len(raw.samples) == 0:
        raise InputError(f"{name} holds no samples")
    if raw.kind == "text":
        encoder = TextEncoder.fit(raw.samples)
    elif raw.kind == "table":
        encoder = TableEncoder.fit(raw.samples, raw.columns)
    else:
        encoder = ImageEncoder.fit(raw.samples)
    inputs = encoder.encode(raw.samples)
    if raw.labels is None:  # they come from elsewhere
        unknown = torch.full((len(inputs),), -1)
        return Dataset(name, (), encoder, Split(inputs, unknown, texts=raw.texts))
    classes = sorted_classes(raw.labels)
    labels = _numbers(raw.labels, classes, name)
    return Dataset(name, classes, encoder, Split(inputs, labels, texts=raw.texts))


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Distinct names, in the order of their numbers where all are whole numbers."""
    distinct = set(names)
    if all(re.fullmatch(r"-?[0-9]+", name) for name in distinct):
        return tuple(sorted(distinct, key=int))
    return tuple(sorted(distinct))


def _numbers(names: Sequence[str], classes: Sequence[str], what: str) -> Tensor:
    number = {name: index for index, name in enumerate(classes)}
    for row, name in enumerate(names):
        if name not in number:
            shown = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
            raise InputError(
                f"{what}: label {name!r} (row {row}) is not a class{did_you_mean(name, classes)} "
                f"(classes: {shown})"
            )
    return torch.tensor([number[name] for name in names], dtype=torch.long)


def _replacement(labels: Any, dataset: Dataset, what: str) -> tuple[Tensor, tuple[str, ...]]:
    """Labels from FILE, FILE:KEY or a sequence, as many as the training data has samples."""
    if isinstance(labels, str | Path):
        names = _read_labels(labels, dataset.label_column)
    else:
        names = label_names(labels)
    if len(names) != len(dataset.train):
        raise InputError(
            f"{what}: {len(names)} labels for {len(dataset.train)} training samples; "
            "they must be as many"
        )
    if not dataset.classes:
        dataset = replace(dataset, classes=sorted_classes(names))
    as_numbers = all(name.isdigit() for name in names)
    if as_numbers and not any(name in dataset.classes for name in names):
        # Numbers for classes that have names, as in CIFAR-10N.
        classes = tuple(str(i) for i in range(len(dataset.classes)))
        return _numbers(names, classes, what), dataset.classes
    return _numbers(names, dataset.classes, what), dataset.classes


def _read_labels(place: str | Path, label_column: str | None) -> list[str]:
    text = str(place)
    file, _, key = text.partition(".npz:")
    if key:
        arrays = read_npz(Path(file + ".npz"))
        if key not in arrays:
            raise InputError(f"{file}.npz has no {key!r}, it holds {', '.join(arrays)}")
        return label_names(arrays[key])
    path = Path(text)
    if not exists(path) or path.is_dir():
        raise InputError(f"no label file at {path}")
    if path.suffix == ".npz":
        arrays = read_npz(path)
        raise InputError(f"say which labels of {path}: {', '.join(f'{path}:{k}' for k in arrays)}")
    if path.suffix.lower() in (".csv", ".tsv"):
        return read_labels(path, label_column)
    try:
        if path.suffix == ".npy":
            return label_names(np.load(path, allow_pickle=False))
        return path.read_text(encoding="utf-8").split()
    except (OSError, ValueError, EOFError) as error:
        raise InputError(f"{path} is not a file of labels: {error}") from None


def _further(source: Source, dataset: Dataset, what: str) -> Split:
    """Validation or test data, in the encoding of the training data."""
    raw = read(source, dataset.label_column, dataset.text_column)
    check_fits(raw, dataset.encoder, what)
    if raw.labels is None:
        raise InputError(f"{what} data has no labels")
    if len(raw.samples) == 0:
        raise InputError(f"{what} data holds no samples")
    labels = _numbers(raw.labels, dataset.classes, what)
    return Split(dataset.encoder.encode(raw.samples), labels, texts=raw.texts)


def check_fits(raw: Raw, encoder: Encoder, what: str) -> None:
    """Raise InputError unless data is of the kind and has the columns of the training data."""
    if raw.kind != encoder.kind:
        raise InputError(f"{what} data is {raw.kind}, but the training data is {encoder.kind}")
    if isinstance(encoder, TableEncoder) and raw.columns and raw.columns != encoder.columns:
        raise InputError(
            f"the columns must be those of the training data ({', '.join(encoder.columns)}), "
            f"got {', '.join(raw.columns)}"
        )


def check_dataset(dataset: Dataset) -> None:
    """Raise InputError unless there is something to tell apart."""
    present = dataset.train.labels.unique()
    if len(present) < 2:
        raise InputError(
            f"{dataset.name} has one class only ({dataset.classes[int(present[0])]!r}); "
            "a classifier needs at least two"
        )
