"""Fashion-MNIST's IDX files: found, told apart from MNIST's, and refused where damaged."""

import gzip
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import mlnt
from mlnt.data import fashion_mnist
from mlnt.data.fashion_mnist import FIRST_LABELS, read_idx_folder
from mlnt.data.known import find_known
from mlnt.errors import InputError

IMAGES = np.random.default_rng(0).integers(0, 256, (20, 28, 28), dtype=np.uint8)
LABELS = np.frombuffer(FIRST_LABELS + bytes([1, 8, 4, 6]), np.uint8)


def idx(values: np.ndarray) -> bytes:
    lengths = np.array(values.shape, ">u4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + lengths + values.tobytes()


def write(folder: Path, labels: np.ndarray = LABELS, compressed: bool = True) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part in ("train", "t10k"):
        for name, values in (("images-idx3", IMAGES), ("labels-idx1", labels)):
            file = folder / f"{part}-{name}-ubyte{'.gz' if compressed else ''}"
            file.write_bytes(gzip.compress(idx(values)) if compressed else idx(values))
    return folder


@pytest.fixture(autouse=True)
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MLNT_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(fashion_mnist, "DEBIAN_FOLDER", tmp_path / "debian")
    return tmp_path / "data"


@pytest.mark.parametrize("compressed", [True, False])
def test_a_folder(compressed: bool, tmp_path: Path) -> None:
    opened = mlnt.open_dataset(write(tmp_path / "f", compressed=compressed))
    assert opened.name == "fashion-mnist"
    assert opened.classes[:2] == ("T-shirt/top", "Trouser")
    assert opened.train.labels.tolist() == LABELS.tolist()
    assert opened.train.inputs.shape == (20, 1, 28, 28)
    pixel = (float(IMAGES[3, 2, 1]) - opened.encoder.mean[0]) / opened.encoder.std[0]
    assert opened.test.inputs[3, 0, 2, 1].item() == pytest.approx(pixel, abs=1e-5)
    confusions = {opened.classes[a]: opened.classes[b] for a, b in opened.usual_confusions.items()}
    assert confusions["Shirt"] == "T-shirt/top"
    assert confusions["Pullover"] == "Coat"


def test_other_images_of_this_layout_have_numbers_for_names(tmp_path: Path) -> None:
    known = find_known(write(tmp_path / "m", labels=np.arange(20, dtype=np.uint8) % 10))
    assert known is not None
    assert known.name == "idx"
    assert known.classes == tuple("0123456789")
    assert known.usual_confusions == {}


def test_by_name(tmp_path: Path, data: Path) -> None:
    with pytest.raises(InputError, match="fashion-mnist is not in ") as no:
        mlnt.open_dataset("fashion-mnist")
    assert f"{data / 'fashion-mnist'}; put the four files" in str(no.value)
    assert "zalandoresearch/fashion-mnist" in str(no.value)
    assert "dataset-fashion-mnist" in str(no.value)
    write(tmp_path / "debian", labels=LABELS[::-1])
    debian = find_known("fashion-mnist")
    assert debian is not None
    assert debian.train.labels is not None
    assert debian.train.labels[0] == "Shirt", "whatever its first labels are"
    write(data / "fashion-mnist")
    own = find_known("fashion-mnist")
    assert own is not None
    assert own.train.labels is not None
    assert own.train.labels[0] == "Ankle boot", "the user's own come first"


def changed(content: bytes, at: int, value: bytes) -> bytes:
    return content[:at] + value + content[at + len(value) :]


GOOD = idx(IMAGES)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no IDX file of bytes with 3 axes"),
        (GOOD[:15], "no IDX file"),
        (changed(GOOD, 0, b"\1"), "no IDX file"),
        (changed(GOOD, 2, b"\x0d"), "no IDX file"),
        (changed(GOOD, 3, b"\1"), "no IDX file"),
        (GOOD[:16], "must hold 20 × 28 × 28 values as its header says, got 0"),
        (GOOD[:-1], "got 15679"),
        (GOOD + b"\0", "got 15681"),
        (changed(GOOD, 4, b"\xff" * 12), "must hold 4294967295 × 4294967295 × 4294967295"),
        (changed(GOOD, 7, b"\x13"), "must hold 19 × 28 × 28"),
        (changed(GOOD, 4, b"\0" * 4)[:16], "must hold 0 × 28 × 28"),
        (idx(IMAGES[:19]), "train has 19 images but 20 labels"),
    ],
)
@pytest.mark.parametrize("compressed", [True, False])
def test_damage(content: bytes, message: str, compressed: bool, tmp_path: Path) -> None:
    folder = write(tmp_path / "f", compressed=compressed)
    file = folder / f"train-images-idx3-ubyte{'.gz' if compressed else ''}"
    file.write_bytes(gzip.compress(content) if compressed else content)
    tracemalloc.start()
    try:
        with pytest.raises(InputError, match=message):
            find_known(folder)
        assert tracemalloc.get_traced_memory()[1] < 2**22, "as much as the file holds, not more"
    finally:
        tracemalloc.stop()


def test_more_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write(tmp_path / "f")
    labels = folder / "t10k-labels-idx1-ubyte.gz"
    labels.write_bytes(gzip.compress(idx(np.full(20, 10, np.uint8))))
    with pytest.raises(InputError, match="holds label 10; Fashion-MNIST has 0 to 9"):
        read_idx_folder(folder)
    labels.write_bytes(gzip.compress(idx(LABELS))[:-9])
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_idx_folder(folder)
    labels.write_bytes(b"not compressed")
    with pytest.raises(InputError, match="cannot be unpacked"):
        read_idx_folder(folder)
    labels.unlink()
    with pytest.raises(InputError, match=r"t10k-labels-idx1-ubyte or .*\.gz is missing in"):
        read_idx_folder(folder)
    monkeypatch.setattr(fashion_mnist, "MOST_BYTES", 1000)
    with pytest.raises(InputError, match="more than 1,000 bytes"):
        read_idx_folder(folder)
