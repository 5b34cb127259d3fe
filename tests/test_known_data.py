"""CIFAR-10 as it is published: binary and pickled files, archives, damage to any of them."""

import gzip
import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from cifar_files import (
    FILES,
    RECORDS,
    as_binary,
    as_pickle,
    as_python2_pickle,
    batch,
    same,
    write_archive,
    write_binary,
    write_python,
)
from mlnt.data import cifar10 as cifar
from mlnt.data.cifar10 import BINARY, PYTHON, cifar10, fetch_cifar10
from mlnt.data.known import NAMED, find_known
from mlnt.errors import InputError


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data folder, and no download unless a test allows it."""
    monkeypatch.setenv("MLNT_DATA", str(tmp_path / "data"))
    monkeypatch.delenv("MLNT_DOWNLOAD", raising=False)
    return tmp_path / "data"


class TestCifar10:
    def test_all_forms_give_the_same(self, tmp_path: Path) -> None:
        binary = write_binary(tmp_path / "a" / BINARY.folder)
        python = write_python(tmp_path / "b" / PYTHON.folder)
        archives = [
            write_archive(tmp_path / "c" / BINARY.archive, binary),
            write_archive(tmp_path / "d" / PYTHON.archive, python),
        ]
        first = cifar10(binary, RECORDS)
        pixels, labels = batch(0)
        assert first.train.samples.shape == (5 * RECORDS, 3, 32, 32)
        assert np.array_equal(first.train.samples[:RECORDS].reshape(RECORDS, -1), pixels)
        assert first.train.labels is not None
        assert first.train.labels[:RECORDS] == [cifar.CLASSES[label] for label in labels]
        assert np.array_equal(first.test.samples.reshape(RECORDS, -1), batch(5)[0])
        for path in (
            binary.parent,
            python,
            python.parent,
            *archives,
            *(a.parent for a in archives),
        ):
            assert same(cifar10(path, RECORDS), first), path

    def test_the_hand_written_pickle_is_one(self) -> None:
        pixels, labels = batch(0)
        read = pickle.loads(as_python2_pickle(pixels, labels), encoding="bytes")
        assert np.array_equal(read[b"data"], pixels)
        assert read[b"labels"] == labels

    @pytest.mark.parametrize("protocol", [2, 3, 4, 5])
    def test_every_binary_protocol(self, protocol: int) -> None:
        pixels, labels = batch(0)
        read = cifar.read_pickled(as_pickle(pixels, labels, protocol), RECORDS, "it")
        assert np.array_equal(read[0], pixels)
        assert read[1] == labels

    def test_by_name_in_full_size(self, data: Path) -> None:
        folder = data / "cifar10" / PYTHON.folder
        folder.mkdir(parents=True)
        pixels, labels = batch(7, 10_000)
        (folder / FILES[0]).write_bytes(as_python2_pickle(pixels, labels))
        for name in FILES[1:]:
            os.link(folder / FILES[0], folder / name)
        known = NAMED["cifar10"]()
        assert known.name == "cifar10"
        assert np.array_equal(known.train.samples[40_000:].reshape(10_000, -1), pixels)
        assert known.test.labels == [cifar.CLASSES[label] for label in labels]
        (folder / FILES[2]).unlink()
        (folder / FILES[2]).write_bytes(b"")
        with pytest.raises(InputError, match="data_batch_3 is not a readable pickle"):
            find_known("cifar10")

    def test_in_the_data_folder_itself(self, data: Path) -> None:
        write_binary(data / BINARY.folder)
        assert fetch_cifar10() == data

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            (b"", "must hold 20 records of 3,073 bytes, got 0 bytes"),
            (as_binary(*batch(1))[:-1], "20 records"),
            (as_binary(*batch(1)) + b"\0", "20 records"),
            (as_binary(batch(1)[0], [0] * 19 + [10]), "label of record 19 is none of CIFAR-10's"),
            (None, r"data_batch_2\.bin is missing"),
            (b"\0" * 2**17, "more than 100,000 bytes"),
        ],
    )
    def test_damaged_binary_files(
        self,
        content: bytes | None,
        message: str,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(cifar, "MOST_BYTES_OF_A_FILE", 100_000)
        folder = write_binary(tmp_path / "c")
        file = folder / "data_batch_2.bin"
        file.unlink() if content is None else file.write_bytes(content)
        for path in (folder, write_archive(tmp_path / BINARY.archive, folder)):
            with pytest.raises(InputError, match=message):
                cifar10(path, RECORDS)

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([1], "must hold a dictionary"),
            ({"data": batch(1)[0]}, "'data' and 'labels'"),
            ({"data": [0], "labels": batch(1)[1]}, "'data' must be an array of bytes"),
            ({"data": np.zeros((20, 3072)), "labels": [0] * 20}, "must be an array of bytes"),
            ({"data": batch(1)[0][:19], "labels": [0] * 20}, r"\(20, 3072\), got \(19, 3072\)"),
            ({"data": batch(1)[0], "labels": [0] * 19}, "list of 20 numbers"),
            ({"data": batch(1)[0], "labels": (0,) * 20}, "list of 20 numbers"),
            ({"data": batch(1)[0], "labels": [0] * 19 + [10]}, "label of record 19"),
            ({"data": batch(1)[0], "labels": [10**9999] + [0] * 19}, "label of record 0"),
            ({"data": batch(1)[0], "labels": ["cat"] * 20}, "label of record 0"),
        ],
    )
    def test_damaged_pickles(self, value: object, message: str, tmp_path: Path) -> None:
        folder = write_python(tmp_path / "c")
        (folder / "data_batch_2").write_bytes(pickle.dumps(value, protocol=2))
        with pytest.raises(InputError, match=message):
            cifar10(folder, RECORDS)

    def test_damaged_archives(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = write_archive(tmp_path / BINARY.archive, write_binary(tmp_path / "c"))
        whole = path.read_bytes()
        for damaged in (b"", b"no archive", whole[: len(whole) // 2], gzip.compress(b"no tar")):
            path.write_bytes(damaged)
            with pytest.raises(InputError, match=r"not a readable archive|is missing"):
                cifar10(path, RECORDS)
        path.write_bytes(whole)
        monkeypatch.setattr(cifar._AtMost, "left", 100_000)
        with pytest.raises(InputError, match="unpacks to more than"):
            cifar10(path, RECORDS)

    def test_an_archive_writes_nothing_and_follows_no_links(self, tmp_path: Path) -> None:
        folder = write_binary(tmp_path / "c")
        path = tmp_path / "d" / BINARY.archive
        path.parent.mkdir()
        with tarfile.open(path, "w:gz") as archive:
            for name in BINARY.files:
                archive.add(folder / name, f"../../outside/{name}")
        before = sorted(tmp_path.rglob("*"))
        assert same(cifar10(path, RECORDS), cifar10(folder, RECORDS))
        assert sorted(tmp_path.rglob("*")) == before
        (folder / "data_batch_2.bin").unlink()
        (folder / "data_batch_2.bin").symlink_to(folder / "data_batch_1.bin")
        with pytest.raises(InputError, match=r"data_batch_2.bin is missing"):
            cifar10(write_archive(path, folder), RECORDS)
