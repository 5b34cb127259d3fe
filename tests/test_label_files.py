"""Files of labels, CIFAR-10N's among them; a hostile file is refused and nothing in it runs."""

import io
import os
import pickle
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import mlnt
from mlnt.data.array_pickle import load_pickle
from mlnt.data.label_files import known_truth, read_label_file, read_pt
from mlnt.errors import InputError

CLEAN = np.arange(12) % 10
WORSE = CLEAN[::-1].copy()
SETS = {"clean_label": CLEAN, "worse_label": WORSE, "random_label1": WORSE.astype(np.uint8)}


def names(labels: np.ndarray) -> list[str]:
    return [str(label) for label in labels.tolist()]


def of_numpy_1(content: bytes) -> bytes:
    """The same pickle as numpy 1 would have written it."""
    assert b"numpy._core." in content
    return content.replace(b"numpy._core.", b"numpy.core.")


def write_pt(path: Path, value: Any, zipped: bool = True, old_numpy: bool = False) -> Path:
    torch.save(value, path, _use_new_zipfile_serialization=zipped)
    if old_numpy and not zipped:
        path.write_bytes(of_numpy_1(path.read_bytes()))
    elif old_numpy:
        with zipfile.ZipFile(path) as archive:
            members = {name: archive.read(name) for name in archive.namelist()}
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in members.items():
                is_pickle = name.endswith("data.pkl")
                archive.writestr(name, of_numpy_1(content) if is_pickle else content)
    return path


class Harm:
    """Unpickled carelessly, it makes a folder."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.marker),)


class TestSeveralSets:
    @pytest.mark.parametrize("zipped", [True, False])
    @pytest.mark.parametrize("old_numpy", [True, False])
    def test_pt(self, zipped: bool, old_numpy: bool, tmp_path: Path) -> None:
        path = write_pt(tmp_path / "CIFAR-10_human.pt", SETS, zipped, old_numpy)
        for key, labels in SETS.items():
            assert read_label_file(f"{path}:{key}").in_order() == names(labels)
        assert known_truth(f"{path}:worse_label") == names(CLEAN)

    def test_npz(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "n.npz", **SETS)
        assert read_label_file(f"{tmp_path / 'n.npz'}:worse_label").in_order() == names(WORSE)
        assert known_truth(f"{tmp_path / 'n.npz'}:worse_label") == names(CLEAN)
        np.savez(tmp_path / "o.npz", noisy=WORSE)
        assert known_truth(f"{tmp_path / 'o.npz'}:noisy") is None

    @pytest.mark.parametrize("name", ["n.npz", "n.pt"])
    def test_which_set(self, name: str, tmp_path: Path) -> None:
        path = tmp_path / name
        np.savez(path, **SETS) if name.endswith("npz") else write_pt(path, SETS)
        held = "it holds clean_label, worse_label, random_label1"
        with pytest.raises(InputError, match=f"no 'worst_label', {held}; did you mean 'worse_lab"):
            read_label_file(f"{path}:worst_label")
        with pytest.raises(InputError, match=f"no 'zz', {held}$"):
            read_label_file(f"{path}:zz")
        with pytest.raises(InputError, match=f"say which labels of .*: {path}:clean_label, "):
            read_label_file(path)
        with pytest.raises(InputError, match="no label file at"):
            read_label_file(f"{tmp_path / 'absent'}{path.suffix}:clean_label")

    def test_two_axes_are_not_labels(self, tmp_path: Path) -> None:
        path = write_pt(tmp_path / "n.pt", {"a": np.eye(2), "f": np.array([0.0, 1.0])})
        with pytest.raises(InputError, match=r"one row, got shape \(2, 2\)"):
            read_label_file(f"{path}:a")
        assert read_label_file(f"{path}:f").in_order() == ["0", "1"]


@pytest.mark.parametrize(
    ("column", "numbers", "labels"),
    [
        ("index", "0 1 2 3", "a b c d"),
        ("index", "3 1 0 2", "c b d a"),  # sorted by something else, in a spreadsheet
        ("row", "3 1 0 2", "c b d a"),
        ("index", "1 2 3 4", "a b c d"),
        ("index", "10 20 21 40", "a b c d"),
        ("index", "w x y z", "a b c d"),
        ("other", "3 1 0 2", "a b c d"),
    ],
)
def test_labels_belong_to_the_sample_of_their_number(
    tmp_path: Path, column: str, numbers: str, labels: str
) -> None:
    rows = [f"{i},{label}" for i, label in zip(numbers.split(), "abcd", strict=True)]
    (tmp_path / "t.csv").write_text("\n".join([f"{column},label", *rows]))
    assert read_label_file(tmp_path / "t.csv").in_order() == labels.split()


@pytest.mark.parametrize("numbers", ["0 0 0 0", "0 2 1 4", "4 3 2 1"])
def test_numbers_that_belong_to_no_sample(tmp_path: Path, numbers: str) -> None:
    rows = [f"{i},{label}" for i, label in zip(numbers.split(), "abcd", strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["index,label", *rows]))
    with pytest.raises(InputError, match="'index' is neither in order nor all of 0 to 3; sort"):
        read_label_file(tmp_path / "t.csv").in_order()


def test_the_label_column_of_the_data_may_have_another_name_here(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("a,kind\n1,x\n2,y\n3,x\n")
    (tmp_path / "fix.csv").write_text("index,label\n2,y\n1,x\n0,x\n")
    files = {"labels": tmp_path / "fix.csv", "label_column": "kind"}
    assert mlnt.open_dataset(tmp_path / "data.csv", **files).train.labels.tolist() == [0, 0, 1]
    (tmp_path / "fix.csv").write_text("index,other\n0,y\n1,x\n2,x\n")
    with pytest.raises(InputError, match=r"no column 'kind' or 'label' \(columns: index, other\)"):
        mlnt.open_dataset(tmp_path / "data.csv", **files)


def test_other_files(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,label\n1,x\n2,y\n")
    (tmp_path / "t.txt").write_text("x\nbig cat \r\n\ny\u2028z\n")
    (tmp_path / "line.txt").write_text("x y z\n")
    (tmp_path / "whole.txt").write_text("1 2\n-3\n")
    (tmp_path / "bom.txt").write_text("x\ny\n", encoding="utf-8-sig")  # as some editors save
    np.save(tmp_path / "t.npy", np.array([2, 1]))
    np.save(tmp_path / "bytes.npy", np.array(["é".encode(), b"x"]))
    np.save(tmp_path / "torn.npy", np.array([b"\xc3", b"x"]))
    np.save(tmp_path / "o.npy", np.array([object()]))
    np.savez(tmp_path / "u.npz", a=np.frombuffer(b"\xff" * 8, "<U1"))
    assert read_label_file(tmp_path / "t.csv").in_order() == ["x", "y"]
    assert read_label_file(tmp_path / "t.csv", "a").in_order() == ["1", "2"]
    assert read_label_file(str(tmp_path / "t.txt")).in_order() == ["x", "big cat", "y\u2028z"]
    assert read_label_file(tmp_path / "line.txt").in_order() == ["x", "y", "z"]
    assert read_label_file(tmp_path / "whole.txt").in_order() == ["1", "2", "-3"]
    assert read_label_file(tmp_path / "bom.txt").in_order() == ["x", "y"]
    assert read_label_file(tmp_path / "t.npy").in_order() == ["2", "1"]
    assert read_label_file(tmp_path / "bytes.npy").in_order() == ["é", "x"]
    assert all(known_truth(tmp_path / name) is None for name in ("t.csv", "t.txt", "absent.pt"))
    for place, message in {
        "o.npy": "pickled objects",
        "u.npz:a": "labels cannot be read",
        "torn.npy": "labels cannot be read",
        "absent.txt": "no label file at",
        ".": "no label file at",
    }.items():
        with pytest.raises(InputError, match=message):
            read_label_file(f"{tmp_path}/{place}")


class TestHostileFiles:
    @pytest.mark.parametrize("zipped", [True, False])
    def test_nothing_is_run(self, zipped: bool, tmp_path: Path) -> None:
        marker = tmp_path / "made"
        path = write_pt(tmp_path / "n.pt", {**SETS, "harm": Harm(marker)}, zipped)
        for place in (f"{path}:clean_label", path):
            with pytest.raises(InputError, match=r"nothing in it was run: .*'posix.mkdir'") as no:
                read_label_file(place)
            assert "\n" not in str(no.value)
        with pytest.raises(InputError, match="refused"):
            known_truth(path)
        assert not marker.exists()
        torch.load(path, weights_only=False)
        assert marker.exists(), "read carelessly, it does harm"

    @pytest.mark.parametrize("protocol", range(6))
    def test_in_every_protocol(self, protocol: int, tmp_path: Path) -> None:
        content = pickle.dumps({"a": Harm(tmp_path / "made")}, protocol=protocol)
        with pytest.raises(InputError, match="nothing in it was run"):
            load_pickle(io.BytesIO(content), "it")
        assert not (tmp_path / "made").exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"cbuiltins\neval\n.",
            b"\x80\4\x8c\x08builtins\x8c\x04eval\x93.",
            b"cnumpy\nload\n.",
            b"(S'x'\nios\nsystem\n.",
            b"\x82\1.",
            b"P1\n.",
            b"}K\1Q.",
            b"U\1xU\1x\x85R.",
            b"c_codecs\nencode\n}b.",
            b"c_codecs\nencode\nU\1xU\6rot_13\x86R.",
            b"]K\1]b.",
            b"K\1K\1a.",
            b"K\1K\1K\1s.",
            b"}" + b")" + b"\x85" * 500_000 + b"K\1s.",
            b"}U\xc9" + b"x" * 201 + b"K\1s.",
            b"c" + b"x" * 10_000 + b"\ny\n.",
            b"cnumpy\ndtype\nU\1O\x85R.",
            b"cnumpy\ndtype\nU\x04V9e9\x85R.",
        ],
    )
    def test_what_no_array_needs(self, content: bytes) -> None:
        with pytest.raises(InputError, match="is refused, and nothing in it was run") as refused:
            load_pickle(io.BytesIO(content), "it")
        assert len(str(refused.value)) < 400

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b".",
            b"K\1",
            b"t.",
            b"h\7.",
            b"\x85.",
            b"\xff",
            b"r\xff\xff\xff\xff.",
            b"\x8e" + b"\xff" * 7 + b"\x0f.",
            b"\x96" + b"\xff" * 7 + b"\x0f.",
            b"T\xff\xff\xff\x7f.",
            b"\x8b\xff\xff\xff\x7f.",
        ],
    )
    def test_broken_pickles(self, content: bytes) -> None:
        tracemalloc.start()
        try:
            with pytest.raises(InputError, match="is not a readable pickle"):
                load_pickle(io.BytesIO(content), "it")
            assert tracemalloc.get_traced_memory()[1] < 2**22
        finally:
            tracemalloc.stop()

    def test_no_shape_takes_memory(self) -> None:
        content = pickle.dumps({"a": np.zeros(200, np.uint8)}, protocol=2)
        assert content.count(b"K\xc8\x85") == 1
        huge = content.replace(b"K\xc8\x85", b"J\xff\xff\xff\x7f\x85")
        with pytest.raises(InputError, match="cannot reshape array of size 200"):
            load_pickle(io.BytesIO(huge), "it")

    def test_one_text_is_not_encoded_again_and_again(self) -> None:
        text = b"X" + (2**16).to_bytes(4, "little") + b"x" * 2**16 + b"q\1"
        again = b"c_codecs\nencode\nq\2](" + b"h\2h\1\x85R" * 1000 + b"e."
        with pytest.raises(InputError, match="more memory than the file itself"):
            load_pickle(io.BytesIO(text + again), "it")

    @given(st.integers(0, 2000), st.binary(min_size=1, max_size=4), st.integers(0, 5))
    def test_any_damage_is_one_line(self, at: int, change: bytes, protocol: int) -> None:
        content = pickle.dumps(SETS, protocol=protocol)
        at %= len(content)
        damaged = content[:at] + change + content[at + len(change) :]
        said = ""
        try:
            load_pickle(io.BytesIO(damaged), "it")  # the damage may be to a label alone
        except InputError as error:
            said = str(error)
        assert "\n" not in said

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ({"a": [1, 2]}, "must hold a dictionary of numpy arrays"),
            ([1], "must hold a dictionary of numpy arrays"),
            ({"a": torch.tensor([1])}, r"asks for '.*_rebuild_tensor_v2'"),
            ({"a": np.array(["x"])}, "only numbers are read"),
            ({"a": np.array([object], dtype=object)}, "refused"),
        ],
    )
    def test_other_contents(self, value: object, message: str, tmp_path: Path) -> None:
        for zipped in (True, False):
            with pytest.raises(InputError, match=message):
                read_pt(write_pt(tmp_path / "n.pt", value, zipped))

    def test_not_of_torch(self, tmp_path: Path) -> None:
        path = tmp_path / "n.pt"
        for content in (b"", b"garbage", pickle.dumps(SETS), b"PK\5\6" + b"\0" * 18):
            path.write_bytes(content)
            with pytest.raises(InputError, match=r"not written by torch\.save|not a readable"):
                read_label_file(f"{path}:clean_label")
        whole = write_pt(path, SETS).read_bytes()
        path.write_bytes(whole[:200])
        with pytest.raises(InputError):
            read_label_file(f"{path}:clean_label")


def test_the_truth_beside_the_labels_must_be_that_of_the_data(tmp_path: Path) -> None:
    truth = mlnt.open_dataset("digits").train.labels.numpy()
    np.savez(tmp_path / "same.npz", clean_label=truth, noisy=np.roll(truth, 1))
    np.savez(tmp_path / "other.npz", clean_label=truth[::-1], noisy=truth)
    data = mlnt.open_dataset("digits", labels=f"{tmp_path}/same.npz:noisy")
    assert torch.equal(data.train.true_labels, torch.from_numpy(truth))
    with pytest.raises(mlnt.InputError, match="its order is another"):
        mlnt.open_dataset("digits", labels=f"{tmp_path}/other.npz:noisy")
