"""Data in forms that are not read as they are, and an .npz that is divided."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import mlnt

QUICK: dict[str, Any] = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8}
X = np.random.default_rng(0).normal(size=(40, 3))
Y = np.array(["a", "b"] * 20)


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("t.parquet", "read_parquet"),
        ("t.csv.gz", "read_csv"),
        ("t.JSONL", "read_json.*lines=True"),
        ("t.json", "read_json"),
        ("t.xlsx", "read_excel"),
    ],
)
def test_the_way_out_is_said(tmp_path: Path, name: str, call: str) -> None:
    (tmp_path / name).write_text("x")
    said = rf"cannot read .*: save it as a CSV, or give .* pandas\.{call}.* in Python"
    with pytest.raises(mlnt.InputError, match=said):
        mlnt.open_dataset(tmp_path / name)


def test_a_data_set_in_memory() -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is optional for users")
    made = datasets.Dataset.from_dict({"a": [1, 2], "label": [0, 1]})
    for given in (made, datasets.DatasetDict({"train": made})):
        with pytest.raises(mlnt.InputError, match="is read from its folder: give that"):
            mlnt.open_dataset(given)


class TestArraysThatAreDivided:
    @pytest.mark.parametrize("letter", ["X", "x"])
    def test_train_and_test(self, letter: str, tmp_path: Path) -> None:
        arrays = {f"{letter}_train": X, "y_train": Y, f"{letter}_test": X[:6], "y_test": Y[:6]}
        np.savez(tmp_path / "d.npz", **arrays)
        data = mlnt.open_dataset(tmp_path / "d.npz")
        assert data.test is not None
        assert (len(data.train), len(data.test), data.classes) == (40, 6, ("a", "b"))
        assert data.notes == (f"{letter}_test is the data for test",)
        training = mlnt.train(tmp_path / "d.npz", out=tmp_path / "run", **QUICK)
        assert training.summary["models"][0]["best"] is not None
        found = mlnt.predict(tmp_path / "run", tmp_path / "d.npz")
        assert (len(found.predicted), found.part) == (6, "test")
        assert torch.equal(found.probabilities, training.predict_probabilities(X[:6]))

    def test_a_test_without_labels_is_left_out(self, tmp_path: Path) -> None:
        np.savez(tmp_path / "d.npz", X_train=X, y_train=Y, X_test=X[:6])
        data = mlnt.open_dataset(tmp_path / "d.npz")
        assert data.test is None
        assert "the split 'test' has no labels and is left out" in data.notes

    def test_one_part_alone(self, tmp_path: Path) -> None:
        mlnt.train((X, Y), out=tmp_path / "run", **QUICK)
        np.savez(tmp_path / "new.npz", X_test=X[:6])
        found = mlnt.predict(tmp_path / "run", tmp_path / "new.npz")
        assert (len(found.predicted), found.part) == (6, "")
