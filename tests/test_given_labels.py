"""Labels given beside the data: `--labels` and `--true-labels`."""

from pathlib import Path

import numpy as np
import pytest

import mlnt
from mlnt.terminal import describe_data

ROWS = np.random.default_rng(0).normal(size=(30, 2))
ANIMALS = ["wolf", "cat", "dog"] * 10


class TestNumbersForNames:
    def test_which_class_each_was_taken_for(self, tmp_path: Path) -> None:
        (tmp_path / "l.txt").write_text("\n".join(["0", "1", "2"] * 10))
        said = "labels: 0, 1, 2 are taken for cat, dog, wolf, in this order"
        data = mlnt.open_dataset((ROWS, ANIMALS), labels=tmp_path / "l.txt")
        assert data.train.labels.tolist() == [0, 1, 2] * 10
        assert f"  mind: {said}" in list(describe_data(data))
        data = mlnt.open_dataset((ROWS, ANIMALS), true_labels=[0, 1, 2] * 10)
        assert data.notes == (f"true_{said}",)

    def test_names_need_no_note(self) -> None:
        assert mlnt.open_dataset((ROWS, ANIMALS), labels=ANIMALS[::-1]).notes == ()
        assert mlnt.open_dataset(ROWS, labels=[3, 4] * 15).notes == ()

    def test_other_numbers_than_the_classes_are_no_places(self) -> None:
        said = r"^labels: label '0' \(at index 0\) is not a class.* \(classes: 10, 20, 30\)$"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset((ROWS, [10, 20, 30] * 10), labels=[0, 1, 2] * 10)
