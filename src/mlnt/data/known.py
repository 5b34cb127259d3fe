"""Data sets that mlnt knows by name or layout: digits (embedded) and CIFAR-10's binary files."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.errors import InputError

Source = str | Path | tuple[Any, Any]


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


@dataclass(frozen=True)
class Known:
    """A data set that mlnt knows: its parts, its classes and what is often confused in it."""

    name: str
    classes: tuple[str, ...]
    train: Raw
    test: Raw
    usual_confusions: Mapping[int, int]


def find_known(source: Source) -> Known | None:
    """The data set of that name or with that layout, if it is one mlnt knows."""
    if isinstance(source, str) and source in NAMED:
        return NAMED[source]()
    if isinstance(source, str | Path) and exists(Path(source) / "test_batch.bin"):
        return cifar10(Path(source))
    return None


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def digits() -> Known:
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

    def part(mask: Tensor) -> Raw:
        return Raw("image", images[mask.numpy()], [str(label) for label in labels[mask].tolist()])

    confusions = {2: 7, 3: 8, 5: 6, 6: 5, 7: 1}
    return Known("digits", tuple("0123456789"), part(~in_test), part(in_test), confusions)


CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


def cifar10(folder: Path) -> Known:
    """CIFAR-10 from its official binary files."""
    parts = [_cifar10_file(folder / f"data_batch_{i}.bin") for i in range(1, 6)]
    train = Raw(
        "image",
        np.concatenate([part.samples for part in parts]),
        [label for part in parts for label in part.labels or ()],
    )
    test = _cifar10_file(folder / "test_batch.bin")
    # The paper: TRUCK→AUTOMOBILE, BIRD→AIRPLANE, DEER→HORSE, CAT↔DOG.
    return Known("cifar10", CIFAR10_CLASSES, train, test, {9: 1, 2: 0, 4: 7, 3: 5, 5: 3})


NAMED = {"digits": digits}


def _cifar10_file(path: Path) -> Raw:
    if not path.is_file():
        raise InputError(f"{path.name} is missing in {path.parent}; it belongs to CIFAR-10")
    content = np.fromfile(path, np.uint8)
    if len(content) != 10_000 * 3073:
        raise InputError(f"{path} must hold 10,000 records of 3,073 bytes, got {len(content)}")
    records = content.reshape(-1, 3073)
    if records[:, 0].max() > 9:
        raise InputError(f"{path} holds label {records[:, 0].max()}; CIFAR-10 has 0 to 9")
    names = [CIFAR10_CLASSES[label] for label in records[:, 0].tolist()]
    return Raw("image", records[:, 1:].reshape(-1, 3, 32, 32), names)
