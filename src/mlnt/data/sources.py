"""`open_dataset`: digits (embedded), CIFAR-10 files, CSV/TSV, .npz and arrays.

name or path or (X, y) -> raw samples and labels -> encoder fitted on train -> Dataset
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder, TextEncoder
from mlnt.data.tables import read_table
from mlnt.errors import InputError, did_you_mean

Source = str | Path | tuple[Any, Any]


@dataclass(frozen=True)
class Split:
    """Samples of one part of a data set: train, validation or test."""

    inputs: Tensor  # [N, ...], encoded
    labels: Tensor  # LongTensor [N], as given
    true_labels: Tensor | None = None  # LongTensor [N], where an experiment knows them
    texts: Sequence[str] | None = None  # what a person would recognise the sample by

    def __len__(self) -> int:
        return len(self.inputs)

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
    train_indices: Tensor | None = None  # where a held-out training set came from
    usual_confusions: Mapping[int, int] | None = None  # for asymmetric noise

    @property
    def kind(self) -> str:
        return self.encoder.kind


@dataclass(frozen=True)
class Raw:
    """Samples as they were found: before encoding, labels still names."""

    kind: str  # image, table or text
    samples: Any
    labels: list[str] | None
    columns: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str] | None:
        return list(self.samples) if self.kind == "text" else None


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
    if isinstance(source, str) and source in NAMED:
        dataset = NAMED[source]()
    elif isinstance(source, str | Path) and _is_cifar10(Path(source)):
        dataset = cifar10(Path(source))
    else:
        raw = read(source, label_column, text_column)
        dataset = _from_raw(raw, _name_of(source), need_labels=labels is None)
    if labels is not None:
        given, classes = _replacement(labels, dataset, "labels")
        dataset = replace(dataset, classes=classes, train=replace(dataset.train, labels=given))
    if true_labels is not None:
        known, _ = _replacement(true_labels, dataset, "true_labels")
        dataset = replace(dataset, train=replace(dataset.train, true_labels=known))
    if validation is not None:
        split = _further(validation, dataset, "validation", label_column, text_column)
        dataset = replace(dataset, validation=split)
    if test is not None:
        split = _further(test, dataset, "test", label_column, text_column)
        dataset = replace(dataset, test=split)
    _check(dataset)
    return dataset


def read(source: Source, label_column: str | None = None, text_column: str | None = None) -> Raw:
    """Samples and labels (None if there are none) of a file or a pair of arrays."""
    if isinstance(source, tuple):
        if len(source) != 2:
            raise InputError(f"arrays are given as a pair (X, y), got {len(source)} values")
        return _from_arrays(*source)
    if not isinstance(source, str | Path):
        return _from_arrays(source, None)
    path = Path(source)
    if not path.exists():
        known = ", ".join(NAMED)
        hint = did_you_mean(str(source), NAMED)
        raise InputError(
            f"no data set {str(source)!r}{hint} (known: {known}; or a path to a CSV, TSV or .npz)"
        )
    if path.suffix.lower() in (".csv", ".tsv"):
        table = read_table(path, label_column, text_column)
        return Raw(table.kind, table.samples, table.labels, table.columns)
    if path.suffix.lower() == ".npz":
        arrays = read_npz(path)
        if "X" not in arrays:
            raise InputError(f"{path} must hold arrays X and y, it holds {', '.join(arrays)}")
        return _from_arrays(arrays["X"], arrays.get("y"))
    raise InputError(
        f"cannot read {path}: expected a CSV, a TSV, an .npz or a folder cifar-10-batches-bin"
    )


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz; pickled objects are refused, so nothing in it is executed."""
    try:
        with np.load(path, allow_pickle=False) as file:
            return {key: file[key] for key in file.files}
    except Exception as error:
        raise InputError(f"{path} is not a readable .npz of plain arrays: {error}") from None


def digits() -> Dataset:
    """scikit-learn's 1,797 handwritten digits of 8 × 8 pixels, a quarter of each class for test."""
    from sklearn.datasets import load_digits

    bunch = load_digits()
    labels = torch.from_numpy(bunch.target).long()
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(1797))
    in_test = torch.zeros(len(labels), dtype=torch.bool)
    for number in range(10):
        members = order[labels[order] == number]
        in_test[members[: len(members) // 4]] = True
    images = bunch.images.astype(np.float32)
    encoder = ImageEncoder.fit(images[~in_test.numpy()])
    everything = Split(encoder.encode(images), labels, labels)
    return Dataset(
        name="digits",
        classes=tuple("0123456789"),
        encoder=encoder,
        train=everything.take((~in_test).nonzero().squeeze(1)),
        test=everything.take(in_test.nonzero().squeeze(1)),
        usual_confusions={2: 7, 3: 8, 5: 6, 6: 5, 7: 1},
    )


CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def cifar10(folder: Path) -> Dataset:
    """CIFAR-10 from its official binary files."""
    parts = [_cifar10_file(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    images = np.concatenate([part[0] for part in parts])
    labels = torch.from_numpy(np.concatenate([part[1] for part in parts])).long()
    test_images, test_labels = _cifar10_file(folder / "test_batch.bin")
    test_labels_N = torch.from_numpy(test_labels).long()
    encoder = ImageEncoder.fit(images)
    return Dataset(
        name="cifar10",
        classes=CIFAR10_CLASSES,
        encoder=encoder,
        train=Split(encoder.encode(images), labels, labels),
        test=Split(encoder.encode(test_images), test_labels_N, test_labels_N),
        # The paper: TRUCK→AUTOMOBILE, BIRD→AIRPLANE, DEER→HORSE, CAT↔DOG.
        usual_confusions={9: 1, 2: 0, 4: 7, 3: 5, 5: 3},
    )


NAMED = {"digits": digits}


def _is_cifar10(path: Path) -> bool:
    return (path / "test_batch.bin").is_file()


def _cifar10_file(path: Path) -> tuple[np.ndarray, np.ndarray]:
    if not path.is_file():
        raise InputError(f"{path.name} is missing in {path.parent}; it belongs to CIFAR-10")
    content = np.fromfile(path, np.uint8)
    if len(content) != 10_000 * 3073:
        raise InputError(f"{path} must hold 10,000 records of 3,073 bytes, got {len(content)}")
    records = content.reshape(-1, 3073)
    return records[:, 1:].reshape(-1, 3, 32, 32), records[:, 0]


def _name_of(source: Source) -> str:
    return Path(source).stem if isinstance(source, str | Path) else "arrays"


def _from_arrays(samples: Any, labels: Any) -> Raw:
    names = None if labels is None else label_names(labels)
    if isinstance(samples, Tensor):
        samples = samples.detach().cpu().numpy()
    if isinstance(samples, list | tuple) and all(isinstance(s, str) for s in samples):
        kind, samples, count = "text", list(samples), len(samples)
    else:
        samples = np.asarray(samples)
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
    """Labels of any type as names; a label that is missing or NaN is refused."""
    if isinstance(labels, Tensor):
        labels = labels.detach().cpu().numpy()
    array = np.asarray(labels)
    if array.ndim != 1:
        raise InputError(f"labels must be one row, got shape {array.shape}")
    if array.dtype.kind == "f":
        if not np.isfinite(array).all():
            row = int((~np.isfinite(array)).argmax())
            raise InputError(f"labels must be finite, label {row} is {array[row]}")
        if (array == np.floor(array)).all():
            array = array.astype(np.int64)
    return [str(label) for label in array.tolist()]


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
    names = raw.labels or ["?"] * len(raw.samples)
    classes = sorted_classes(names)
    split = Split(encoder.encode(raw.samples), _numbers(names, classes, name), texts=raw.texts)
    return Dataset(name, classes, encoder, split)


def sorted_classes(names: Sequence[str]) -> tuple[str, ...]:
    """Distinct names, in the order of their numbers where all are whole numbers."""
    distinct = set(names)
    if all(name.lstrip("-").isdigit() for name in distinct):
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
    names = _read_labels(labels) if isinstance(labels, str | Path) else label_names(labels)
    if len(names) != len(dataset.train):
        raise InputError(
            f"{what}: {len(names)} labels for {len(dataset.train)} training samples; "
            "they must be as many"
        )
    if dataset.classes == ("?",):
        dataset = replace(dataset, classes=sorted_classes(names))
    as_numbers = all(name.isdigit() for name in names)
    if as_numbers and not any(name in dataset.classes for name in names):
        # Numbers for classes that have names, as in CIFAR-10N.
        classes = tuple(str(i) for i in range(len(dataset.classes)))
        return _numbers(names, classes, what), dataset.classes
    return _numbers(names, dataset.classes, what), dataset.classes


def _read_labels(place: str | Path) -> list[str]:
    text = str(place)
    file, _, key = text.partition(".npz:")
    if key:
        arrays = read_npz(Path(file + ".npz"))
        if key not in arrays:
            raise InputError(f"{file}.npz has no {key!r}, it holds {', '.join(arrays)}")
        return label_names(arrays[key])
    path = Path(text)
    if not path.is_file():
        raise InputError(f"no label file at {path}")
    if path.suffix == ".npz":
        arrays = read_npz(path)
        raise InputError(f"say which labels of {path}: {', '.join(f'{path}:{k}' for k in arrays)}")
    if path.suffix == ".npy":
        return label_names(np.load(path, allow_pickle=False))
    if path.suffix.lower() in (".csv", ".tsv"):
        found = read_table(path, None, None).labels
        if found is None:
            raise InputError(f"{path} has no column named label")
        return found
    return path.read_text(encoding="utf-8").split()


def _further(
    source: Source, dataset: Dataset, what: str, label_column: str | None, text_column: str | None
) -> Split:
    raw = read(source, label_column, text_column)
    if raw.kind != dataset.kind:
        raise InputError(f"{what} data is {raw.kind}, but the training data is {dataset.kind}")
    if raw.labels is None:
        raise InputError(f"{what} data has no labels")
    labels = _numbers(raw.labels, dataset.classes, what)
    return Split(dataset.encoder.encode(raw.samples), labels, labels, raw.texts)


def _check(dataset: Dataset) -> None:
    present = dataset.train.labels.unique()
    if len(present) < 2:
        raise InputError(
            f"{dataset.name} has one class only ({dataset.classes[int(present[0])]!r}); "
            "a classifier needs at least two"
        )
