"""CIFAR-10 as it is published: binary or pickled files, in a folder or in their archive."""

import gzip
import io
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np
from rich.console import Console

from mlnt.data.array_pickle import load_pickle
from mlnt.data.downloads import data_folder, download_allowed, download_file
from mlnt.data.raw import Known, Raw
from mlnt.errors import InputError
from mlnt.files import exists, open_file, read_at_most, read_file

CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

ADDRESS = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
MD5 = "c32a1d4ab5d03f1284b67883e8d87530"  # as published beside it

TRAIN_FILES = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST_FILE = "test_batch"

# About twice what the published files take: one that claims more is none of them.
MOST_BYTES_OF_A_FILE = 2**26
MOST_BYTES_OF_AN_ARCHIVE = 2**29

PIXELS = 3 * 32 * 32


def read_binary(content: bytes, records: int, what: str) -> tuple[np.ndarray, list[int]]:
    """Pixels [N, 3072] and labels of a file in which each record is a label and its pixels."""
    if len(content) != records * (1 + PIXELS):
        raise InputError(
            f"{what} must hold {records:,} records of 3,073 bytes, got {len(content)} bytes"
        )
    rows = np.frombuffer(content, np.uint8).reshape(records, 1 + PIXELS)
    return rows[:, 1:], rows[:, 0].tolist()


def read_pickled(content: bytes, records: int, what: str) -> tuple[np.ndarray, list[int]]:
    """Pixels [N, 3072] and labels of a pickled dictionary; nothing in it is run."""
    batch = load_pickle(io.BytesIO(content), what)
    if not isinstance(batch, dict) or not {"data", "labels"} <= batch.keys():
        raise InputError(f"{what} must hold a dictionary with 'data' and 'labels'")
    pixels, labels = batch["data"], batch["labels"]
    if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8:
        raise InputError(f"{what}: 'data' must be an array of bytes")
    if pixels.shape != (records, PIXELS):
        raise InputError(
            f"{what}: 'data' must have the shape ({records}, 3072), got {pixels.shape}"
        )
    if not isinstance(labels, list) or len(labels) != records:
        raise InputError(f"{what}: 'labels' must be a list of {records:,} numbers")
    return pixels, labels


@dataclass(frozen=True)
class Layout:
    """One of the two forms in which CIFAR-10 is published."""

    folder: str  # what the archive unpacks to
    archive: str
    suffix: str  # of each file
    read: Callable[[bytes, int, str], tuple[np.ndarray, list[int]]]

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(name + self.suffix for name in (*TRAIN_FILES, TEST_FILE))


BINARY = Layout("cifar-10-batches-bin", "cifar-10-binary.tar.gz", ".bin", read_binary)
PYTHON = Layout("cifar-10-batches-py", "cifar-10-python.tar.gz", "", read_pickled)


@dataclass(frozen=True)
class Found:
    """Where CIFAR-10 was found: the folder with its files, or their archive."""

    path: Path
    layout: Layout


def find_cifar10(path: Path) -> Found | None:
    """CIFAR-10 at a path: its files, a folder of theirs or an archive within, or the archive."""
    for layout in (BINARY, PYTHON):
        if path.name == layout.archive and exists(path) and path.is_file():
            return Found(path, layout)
        for folder in (path, path / layout.folder):
            if any(exists(folder / name) for name in layout.files):
                return Found(folder, layout)
    for layout in (BINARY, PYTHON):
        if exists(path / layout.archive):
            return Found(path / layout.archive, layout)
    return None


def fetch_cifar10(
    folder: Path | None = None, download: bool = False, tell: Console | None = None
) -> Path:
    """Where CIFAR-10 lies within a folder, after a download into it where that is allowed.

    folder   mlnt's own if not given
    tell     shows the progress; on the terminal if not given
    """
    target = folder or data_folder() / "cifar10"
    for candidate in (target, target.parent) if folder is None else (target,):
        if find_cifar10(candidate) is not None:
            return candidate
    archive = target / BINARY.archive
    if not download_allowed(download):
        raise InputError(
            f"cifar10 is not in {target}; put {archive.name} from {ADDRESS} there, "
            "or allow the download with --download or MLNT_DOWNLOAD=1"
        )
    download_file(ADDRESS, archive, MD5, MOST_BYTES_OF_AN_ARCHIVE, tell)
    return archive


def cifar10(path: Path, records: int = 10_000) -> Known:
    """CIFAR-10 from where it lies; `records` is the number of images in each of its six files."""
    found = find_cifar10(path)
    if found is None:
        raise InputError(f"{path} holds no CIFAR-10: neither its files nor their archive")
    layout = found.layout
    contents = _unpack(found) if found.path.is_file() else _read_folder(found)

    def part(names: tuple[str, ...]) -> Raw:
        pixels, labels = [], []
        for name in (name + layout.suffix for name in names):
            if name not in contents:
                raise InputError(f"{name} is missing in {found.path}; it belongs to CIFAR-10")
            what = str(found.path / name)
            some_pixels, some_labels = layout.read(contents[name], records, what)
            pixels.append(some_pixels)
            labels.extend(_class_names(some_labels, what))
        return Raw("image", np.concatenate(pixels).reshape(-1, 3, 32, 32), labels)

    # The paper: TRUCK→AUTOMOBILE, BIRD→AIRPLANE, DEER→HORSE, CAT↔DOG.
    confusions = {9: 1, 2: 0, 4: 7, 3: 5, 5: 3}
    return Known("cifar10", CLASSES, part(TRAIN_FILES), part((TEST_FILE,)), confusions)


def _class_names(labels: list[int], what: str) -> list[str]:
    for row, label in enumerate(labels):
        if type(label) is not int or not 0 <= label < len(CLASSES):
            raise InputError(f"{what}: the label of record {row} is none of CIFAR-10's 0 to 9")
    return [CLASSES[label] for label in labels]


def _read_folder(found: Found) -> Mapping[str, bytes]:
    files = (found.path / name for name in found.layout.files)
    return {file.name: read_file(file, MOST_BYTES_OF_A_FILE) for file in files if exists(file)}


def _unpack(found: Found) -> Mapping[str, bytes]:
    """The files of an archive by name, in memory; nothing is written, other members are passed."""
    contents: dict[str, bytes] = {}
    try:
        with (
            open_file(found.path) as packed,
            _AtMost(fileobj=packed) as unpacked,
            tarfile.open(fileobj=unpacked, mode="r|") as archive,
        ):
            for member in archive:
                name = PurePosixPath(member.name).name
                # A member that is a link may lead to itself.
                is_wanted = name in found.layout.files and member.isreg()
                stream = archive.extractfile(member) if is_wanted else None
                if stream is not None:
                    contents[name] = read_at_most(stream, MOST_BYTES_OF_A_FILE, f"{name} in it")
                if len(contents) == len(found.layout.files):
                    break
    except Exception as error:  # of a damaged archive tarfile raises nearly anything
        raise InputError(
            f"{found.path} is not a readable archive of CIFAR-10 ({error}); download it again"
        ) from None
    return contents


class _AtMost(gzip.GzipFile):
    """A compressed file that ends in an error where it goes on for too long."""

    left = MOST_BYTES_OF_AN_ARCHIVE

    def read(self, size: int | None = -1) -> bytes:
        content = super().read(size)
        self.left -= len(content)
        if self.left < 0:
            raise OSError(f"it unpacks to more than {MOST_BYTES_OF_AN_ARCHIVE:,} bytes")
        return content
