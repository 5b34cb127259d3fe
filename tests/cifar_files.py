"""Small CIFAR-10s in every published form, for tests."""

import pickle
import struct
import tarfile
from pathlib import Path

import numpy as np

from mlnt.data.cifar10 import TEST_FILE, TRAIN_FILES
from mlnt.data.raw import Known

RECORDS = 20
FILES = (*TRAIN_FILES, TEST_FILE)


def batch(number: int, records: int = RECORDS) -> tuple[np.ndarray, list[int]]:
    generator = np.random.default_rng(number)
    pixels = generator.integers(0, 256, (records, 3072), dtype=np.uint8)
    return pixels, generator.integers(0, 10, records).tolist()


def as_binary(pixels: np.ndarray, labels: list[int]) -> bytes:
    return np.column_stack([np.array(labels, np.uint8), pixels]).tobytes()


def as_pickle(pixels: np.ndarray, labels: list[int], protocol: int = 2) -> bytes:
    return pickle.dumps({b"data": pixels, b"labels": labels}, protocol=protocol)


def as_python2_pickle(pixels: np.ndarray, labels: list[int]) -> bytes:
    """As Python 2 and numpy 1 wrote the published files: all strings are byte strings."""

    def string(text: bytes) -> bytes:
        return b"U" + bytes([len(text)]) + text

    number_type = (
        b"cnumpy\ndtype\n" + string(b"u1") + b"K\0K\1\x87R"
        b"(K\3" + string(b"|") + b"NNN" + 2 * b"J\xff\xff\xff\xff" + b"K\0tb"
    )
    array = (
        b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\0\x85" + string(b"b") + b"\x87R"
        b"(K\1" + b"M" + struct.pack("<H", len(labels)) + b"M\0\x0c\x86" + number_type + b"\x89"
        b"T" + struct.pack("<i", pixels.size) + pixels.tobytes() + b"tb"
    )
    listed = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\2}(" + string(b"labels") + listed + string(b"data") + array + b"u."


def write_binary(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        (folder / f"{name}.bin").write_bytes(as_binary(*batch(number)))
    return folder


def write_python(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for number, name in enumerate(FILES):
        (folder / name).write_bytes(as_python2_pickle(*batch(number)))
    return folder


def write_archive(path: Path, folder: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        archive.add(folder, folder.name)
    return path


def same(one: Known, other: Known) -> bool:
    return all(
        np.array_equal(a.samples, b.samples) and a.labels == b.labels
        for a, b in ((one.train, other.train), (one.test, other.test))
    )
