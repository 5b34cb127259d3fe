"""Columns that are left out: `--drop-columns`, `drop_columns`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mlnt
from mlnt.cli import run as command
from mlnt.data.table_rows import as_one_text, names_to_drop

QUICK: dict[str, Any] = {"epochs": 1, "iterations": 1, "sets": 1, "batch_size": 8}
ROWS = [f"{i},{i * 7 % 11},2020-01-{i % 28 + 1:02d},{i % 3},{'xy'[i % 2]}" for i in range(40)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,a,date,b,label", *ROWS]))
    return path


@pytest.mark.parametrize("names", [[], ["id"], ["id", "date"], ["a,b", 'a "quoted" one', " c"]])
def test_a_list_as_one_text(names: list[str]) -> None:
    assert names_to_drop(as_one_text(names)) == tuple(name.strip() for name in names)
    assert names_to_drop("id, date") == ("id", "date")


@pytest.mark.parametrize("drop", ["id,date", ["date", "id"]])
def test_of_a_table_and_of_a_frame(table: Path, drop: Any) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is optional for users")
    for source in (table, pandas.read_csv(table)):
        data = mlnt.open_dataset(source, drop_columns=drop)
        assert data.encoder.columns == ("a", "b")
        assert not any("counts the rows" in note for note in data.notes)
        with pytest.raises(mlnt.InputError, match=r"no column 'dat'; did you mean 'date'\?"):
            mlnt.open_dataset(source, drop_columns="id,dat")
        with pytest.raises(mlnt.InputError, match="has no column 'label' "):
            mlnt.open_dataset(source, drop_columns="label", label_column="label")


def test_of_a_table_of_pictures(tmp_path: Path) -> None:
    for name in ("a", "b"):
        Image.new("RGB", (4, 4)).save(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("first,second,label\na.png,b.png,x\nb.png,a.png,y\n")
    with pytest.raises(mlnt.InputError, match="leave the others out: --drop-columns NAME"):
        mlnt.open_dataset(tmp_path / "t.csv")
    data = mlnt.open_dataset(tmp_path / "t.csv", drop_columns="second")
    assert list(data.train.texts or ()) == ["a.png", "b.png"]


def test_of_a_saved_set(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is optional for users")
    content = {"id": ["u", "v"], "a": [1, 2], "label": [0, 1]}
    datasets.Dataset.from_dict(content).save_to_disk(tmp_path / "saved")
    data = mlnt.open_dataset(tmp_path / "saved", drop_columns="id")
    assert data.encoder.columns == ("a",)
    with pytest.raises(mlnt.InputError, match="has no column 'ids'; did you mean 'id'"):
        mlnt.open_dataset(tmp_path / "saved", drop_columns="ids")


def test_where_there_are_no_columns() -> None:
    rows = np.arange(12).reshape(6, 2)
    for source in ("digits", (rows, [0, 1] * 3)):
        with pytest.raises(mlnt.InputError, match=r"no named columns to leave out \(id\); that is"):
            mlnt.open_dataset(source, drop_columns=["id"])


def test_messages_name_the_option(table: Path) -> None:
    (note,) = (n for n in mlnt.open_dataset(table, drop_columns="date").notes if "counts" in n)
    assert note.endswith("leave it out unless it means more: --drop-columns id")
    many = [f"word{i},{i},{'xy'[i % 2]}" for i in range(40)]
    table.write_text("\n".join(["name of it,n,label", *many]))
    with pytest.raises(mlnt.InputError, match=r"leave them out: --drop-columns 'name of it'$"):
        mlnt.open_dataset(table)


def test_the_command_and_going_on(
    table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(table.parent)
    Path("label").touch()  # a file that is called like a column is none
    quick = [f"--{name.replace('_', '-')}={value}" for name, value in QUICK.items()]
    dropped = ["--drop-columns", "id,date", *quick, "--out", "run", "--label-column", "label"]
    command(["train", "t.csv", *dropped, "--minutes", "0"])
    assert "go on with: mlnt train --resume run" in capsys.readouterr().out
    config = json.loads(Path("run/config.json").read_text("utf-8"))
    assert config["source"]["drop_columns"] == "id,date"
    assert config["source"]["label_column"] == "label"
    assert command(["train", "--resume", "run"]) == 0
    assert "drop_columns=id,date" in capsys.readouterr().out
    expected = mlnt.predict("run", "t.csv")
    assert expected.accuracy is not None
    rows = [",".join(row.split(",")[:0:-1]) for row in ROWS]
    Path("new.csv").write_text("\n".join(["label,b,date,a", *rows]))
    assert torch.equal(mlnt.predict("run", "new.csv").probabilities, expected.probabilities)
    assert command(["train", "t.csv", "--drop-columns", "idd", "--out", "other"]) == 2
    assert "no column 'idd'; did you mean 'id'?" in capsys.readouterr().err
