"""Data sets that mlnt knows by name or layout: digits (embedded), CIFAR-10, Fashion-MNIST."""

from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mlnt.data.cifar10 import cifar10, fetch_cifar10, find_cifar10
from mlnt.data.fashion_mnist import fetch_fashion_mnist, has_idx_files, read_idx_folder
from mlnt.data.raw import Known, Raw, Source


def find_known(source: Source, download: bool = False) -> Known | None:
    """The data set of that name or with that layout, if it is one mlnt knows.

    download   a data set given by name may be fetched where it is not on this machine
    """
    if not isinstance(source, str | Path):
        return None
    if isinstance(source, str) and source in NAMED:
        return NAMED[source](download)
    path = Path(source)
    if find_cifar10(path) is not None:
        return cifar10(path)
    return read_idx_folder(path) if has_idx_files(path) else None


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


# Each may be told whether it may be downloaded.
NAMED: Mapping[str, Callable[..., Known]] = {
    "digits": lambda download=False: digits(),
    "cifar10": lambda download=False: cifar10(fetch_cifar10(download=download)),
    "fashion-mnist": lambda download=False: read_idx_folder(
        fetch_fashion_mnist(download), is_fashion=True
    ),
}
