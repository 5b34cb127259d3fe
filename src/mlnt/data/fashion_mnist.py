"""Fashion-MNIST in the IDX files it is published as, compressed or not."""

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
from rich.console import Console

from mlnt.data.downloads import data_folder, download_allowed, download_file
from mlnt.data.raw import Known, Raw
from mlnt.errors import InputError
from mlnt.files import exists, most_unpacked, open_file, read_at_most, read_file

CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip

# What looks alike: SHIRT→T-SHIRT/TOP, PULLOVER↔COAT, SANDAL→SNEAKER, SNEAKER→ANKLE BOOT. Our
# choice in the manner of the paper's for CIFAR-10; the paper has no Fashion-MNIST.
CONFUSIONS = {6: 0, 2: 4, 4: 2, 5: 7, 7: 9}

ADDRESS = "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion"
MD5 = {  # of each file with .gz, as published beside them
    "train-images-idx3-ubyte": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
    "train-labels-idx1-ubyte": "25c81989df183df01b3e8a0aad5dffbe",
    "t10k-images-idx3-ubyte": "bef4ecab320f06d8554ea6380940ec79",
    "t10k-labels-idx1-ubyte": "bb300cfdad3c16e7a12a480ee83cd310",
}
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist

# MNIST and its relatives have files of the same names; these are the labels that theirs are not.
FIRST_LABELS = bytes([9, 0, 0, 3, 0, 2, 7, 2, 5, 5, 0, 9, 5, 5, 7, 9])

MOST_BYTES = 2**30  # twenty times the largest of the published files


def fetch_fashion_mnist(download: bool = False, tell: Console | None = None) -> Path:
    """The folder of Fashion-MNIST: mlnt's own or that of Debian's package, else downloaded."""
    own = data_folder() / "fashion-mnist"
    for folder in (own, DEBIAN_FOLDER):
        if _is_complete(folder):
            return folder
    if not download_allowed(download):
        raise InputError(
            f"fashion-mnist is not in {own}; put the four files *-ubyte.gz from {ADDRESS} there, "
            "install Debian's package dataset-fashion-mnist, or allow the download with "
            "--download or MLNT_DOWNLOAD=1"
        )
    for name, md5 in MD5.items():
        if not exists(own / f"{name}.gz") and not exists(own / name):
            download_file(f"{ADDRESS}/{name}.gz", own / f"{name}.gz", md5, MOST_BYTES, tell)
    return own


def _is_complete(folder: Path) -> bool:
    return all(exists(folder / name) or exists(folder / f"{name}.gz") for name in MD5)


def has_idx_files(folder: Path) -> bool:
    return any(exists(folder / f"train-images-idx3-ubyte{suffix}") for suffix in ("", ".gz"))


def read_idx_folder(folder: Path, is_fashion: bool | None = None) -> Known:
    """The images and labels of a folder's four IDX files.

    Where nobody says whether it `is_fashion`, the first labels do; if they are not those of
    Fashion-MNIST (but of MNIST, say), the classes have numbers for names.
    """
    train_images, train_labels = _read_part(folder, "train")
    test_images, test_labels = _read_part(folder, "t10k")
    if is_fashion is None:
        start = train_labels[: len(FIRST_LABELS)].tobytes()
        is_fashion = start == FIRST_LABELS[: len(start)]
    largest = int(max(train_labels.max(), test_labels.max()))
    if is_fashion and largest >= len(CLASSES):
        raise InputError(f"{folder} holds label {largest}; Fashion-MNIST has 0 to 9")
    classes = CLASSES if is_fashion else tuple(str(number) for number in range(largest + 1))

    def raw(images: np.ndarray, labels: np.ndarray) -> Raw:
        return Raw("image", images, [classes[label] for label in labels.tolist()])

    return Known(
        "fashion-mnist" if is_fashion else "idx",
        classes,
        raw(train_images, train_labels),
        raw(test_images, test_labels),
        CONFUSIONS if is_fashion else {},
        labels_are_true=bool(is_fashion),
    )


def _read_part(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images = _read_idx(folder, f"{part}-images-idx3-ubyte", axes=3)
    labels = _read_idx(folder, f"{part}-labels-idx1-ubyte", axes=1)
    if len(images) != len(labels):
        raise InputError(
            f"{folder}: {part} has {len(images)} images but {len(labels)} labels; "
            "they must be as many"
        )
    return images, labels


def _read_idx(folder: Path, name: str, axes: int) -> np.ndarray:
    """An array of bytes: 0, 0, 8 (for bytes), the number of axes, their lengths, the values."""
    path = next((p for p in (folder / name, folder / f"{name}.gz") if exists(p)), None)
    if path is None:
        raise InputError(f"{name} or {name}.gz is missing in {folder}")
    content = _unpacked(path) if path.suffix == ".gz" else read_file(path, MOST_BYTES)
    start = 4 + 4 * axes
    if len(content) < start or content[:4] != bytes([0, 0, 8, axes]):
        raise InputError(f"{path} is no IDX file of bytes with {axes} axes")
    shape = tuple(int(length) for length in np.frombuffer(content[4:start], ">u4"))
    # Compared before an array is made: the header may claim any size.
    if len(content) - start != math.prod(shape) or 0 in shape:
        raise InputError(
            f"{path} must hold {' × '.join(map(str, shape))} values as its header says, "
            f"got {len(content) - start}"
        )
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _unpacked(path: Path) -> bytes:
    try:
        with open_file(path) as packed, gzip.open(packed) as file:
            most = min(MOST_BYTES, most_unpacked(path.stat().st_size))
            return read_at_most(file, most, str(path))
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be unpacked: {error}") from None
