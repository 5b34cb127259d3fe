"""Rows without a label are left out of training; the others keep their place."""

import csv
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mlnt
from mlnt.cli import run as command
from mlnt.filtered import write_filtered
from mlnt.iterations import Kept
from mlnt.label_issues import read_label_issues
from mlnt.report.download import label_header

LACKING = (0, 1, 7, 30, 39)
COUNT = 40
QUICK: dict[str, Any] = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8}
THERE = [row for row in range(COUNT) if row not in LACKING]
CLASSES = ["no", "yes"]


@dataclass
class Given:
    """Data of forty rows of which five have no label, and a label for each."""

    data: Any
    labels: list[str]
    options: dict[str, Any]

    @property
    def there(self) -> list[str]:
        return [self.labels[row] for row in THERE]


@pytest.fixture(params=["table", "texts", "pictures", "frame"])
def given(request: pytest.FixtureRequest, tmp_path: Path) -> Given:
    kind = request.param
    labels = [CLASSES[row % 2] for row in range(COUNT)]
    named = ["" if row in LACKING else name for row, name in enumerate(labels)]
    # What a row is can be told from its sample: see `place_of`.
    cells = {
        "texts": [f"good day {row}" for row in range(COUNT)],
        "pictures": [f"{row}.png" for row in range(COUNT)],
    }.get(kind, [f"{row}" for row in range(COUNT)])
    if kind == "frame":
        pandas = pytest.importorskip("pandas", reason="mlnt takes data frames, without need")
        frame = {"n": np.arange(COUNT) + 0.5, "label": [name or None for name in named]}
        return Given(pandas.DataFrame(frame), labels, QUICK)
    rows = "".join(f"{cell},{name}\n" for cell, name in zip(cells, named, strict=True))
    path = tmp_path / "data.csv"
    path.write_text(f"{'path' if kind == 'pictures' else 'n'},label\n{rows}")
    options = QUICK
    if kind == "pictures":
        options = {**QUICK, "image_size": 8, "workers": 0}
        for row in range(COUNT):
            Image.new("RGB", (8, 8), (6 * row, 90, 0)).save(tmp_path / f"{row}.png")
    return Given(path, labels, options)


def place_of(entry: dict[str, Any]) -> int:
    """The row that a sample was, by what it says itself."""
    shown = entry["text"] if "text" in entry else entry["row"][0][1]
    return int(float(shown.removesuffix(".png").split()[-1]))


class TestWhatComesOfTraining:
    def test_positions(self, given: Given, tmp_path: Path) -> None:
        issues = mlnt.train(given.data, **given.options).label_issues
        assert sorted(issues.positions.tolist()) == THERE
        assert [CLASSES[n] for n in issues.given] == [given.labels[i] for i in issues.positions]
        if hasattr(given.data, "iloc"):
            own = given.data.iloc[issues.positions.numpy()]["label"]
            assert own.tolist() == [CLASSES[n] for n in issues.given]

    def test_files(self, given: Given, tmp_path: Path) -> None:
        folder = tmp_path / "run"
        mlnt.train(given.data, out=folder, **given.options)
        with (folder / "label_issues.csv").open(newline="") as file:
            found = {int(row["index"]): row for row in csv.DictReader(file)}
        assert sorted(found) == THERE
        assert [found[row]["given"] for row in THERE] == given.there
        assert all(place_of({"text": r["sample"]}) == i for i, r in found.items() if r["sample"])
        entries = [json.loads(line) for line in (folder / "gallery.jsonl").read_text().splitlines()]
        assert [place_of(entry) for entry in entries] == [entry["index"] for entry in entries]

    def test_what_a_mentor_left_out(self, given: Given, tmp_path: Path) -> None:
        data = mlnt.open_dataset(given.data)
        # All but the fourth, ninth and last of those that have a label.
        kept = torch.tensor([i for i in range(len(THERE)) if i not in (3, 8, 34)])
        opinion = torch.full((len(THERE), 2), 0.5)
        write_filtered(tmp_path / "filtered.csv", Kept(kept, None, opinion), data)
        with (tmp_path / "filtered.csv").open(newline="") as file:
            assert [int(row["index"]) for row in csv.DictReader(file)] == [5, 11, 38]


class TestLabelsGivenBeside:
    def corrected(self, given: Given, folder: Path, order: list[int]) -> Path:
        """As the report writes it, though perhaps sorted; every second label is another."""
        other = {"no": "yes", "yes": "no"}
        lines = [f"{i},{other[given.labels[i]] if i % 4 else given.labels[i]}" for i in order]
        (folder / "corrected.csv").write_text("\n".join([label_header(None), *lines]))
        return folder / "corrected.csv"

    @pytest.mark.parametrize("order", [THERE, THERE[::-1], THERE[5:] + THERE[:5]])
    def test_corrected_labels_find_their_rows(
        self, given: Given, order: list[int], tmp_path: Path
    ) -> None:
        path = self.corrected(given, tmp_path, order)
        data, before = mlnt.open_dataset(given.data, labels=path), mlnt.open_dataset(given.data)
        changed = [row for row in THERE if row % 4]
        differ = (data.train.labels != before.train.labels).nonzero().flatten()
        assert [THERE[i] for i in differ.tolist()] == changed
        assert data.encoder == before.encoder

    def test_those_of_other_rows_are_refused(self, given: Given, tmp_path: Path) -> None:
        path = self.corrected(given, tmp_path, list(range(len(THERE))))
        said = r"column 'index' does not number the rows .* a label \(2, 3, 4, 5, 6, …\); leave it"
        with pytest.raises(mlnt.InputError, match=said):
            mlnt.open_dataset(given.data, labels=path)

    def test_for_all_rows_none_is_left_out(self, given: Given) -> None:
        data = mlnt.open_dataset(given.data, labels=given.labels)
        assert (len(data.train), data.rows.tolist()) == (COUNT, list(range(COUNT)))
        assert [data.classes[n] for n in data.train.labels] == given.labels
        data = mlnt.open_dataset(given.data, labels=given.there)
        assert data.rows.tolist() == THERE
        assert [data.classes[n] for n in data.train.labels] == given.there
        with pytest.raises(mlnt.InputError, match="38 labels for 40 training samples; they must"):
            mlnt.open_dataset(given.data, labels=given.labels[:38])

    def test_the_data_may_have_none(self, given: Given) -> None:
        if isinstance(given.data, Path):
            lines = given.data.read_text().splitlines()
            given.data.write_text("\n".join(line.split(",")[0] + "," for line in lines[1:]))
            given.data.write_text(f"{lines[0]}\n{given.data.read_text()}\n")
        else:
            given.data["label"] = None
        data = mlnt.open_dataset(given.data, labels=given.labels)
        assert [data.classes[n] for n in data.train.labels] == given.labels

    def test_whole_numbers_with_a_point_are_the_same_classes(self, given: Given) -> None:
        numbers = [str(CLASSES.index(name)) for name in given.labels]
        if isinstance(given.data, Path):
            text = given.data.read_text().replace(",yes", ",1.0").replace(",no", ",0.0")
            given.data.write_text(text)
        else:
            given.data["label"] = [None if i in LACKING else float(i % 2) for i in range(COUNT)]
        data = mlnt.open_dataset(given.data, labels=numbers)
        assert data.classes == ("0", "1")
        assert data.train.labels.tolist() == [int(number) for number in numbers]

    def test_true_ones_may_be_known_of_all(self, given: Given, tmp_path: Path) -> None:
        for labels in (given.labels, given.there):
            data = mlnt.open_dataset(given.data, true_labels=labels)
            assert torch.equal(data.train.true_labels, data.train.labels)
        with pytest.raises(mlnt.InputError, match="38 labels for 35 training samples; they must"):
            mlnt.open_dataset(given.data, true_labels=given.labels[:38])


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{n},{n % 3},{'' if n in LACKING else n % 2}" for n in range(COUNT)]
    (tmp_path / "data.csv").write_text("\n".join(["a,b,label", *rows]))
    options = ["--epochs", "1", "--iterations", "1", "--sets", "1", "--batch-size", "8"]
    run = str(tmp_path / "run")
    assert command(["train", str(tmp_path / "data.csv"), *options, "--out", run]) == 0
    said = capsys.readouterr().out
    assert "note: 5 rows without a label left out\n" in said
    ranked = read_label_issues(tmp_path / "run" / "label_issues.csv")
    assert sorted(int(row["index"]) for row in ranked) == THERE
