"""Nothing in a file is executed, followed out of its folder, or shown as more than text."""

import ast
import csv
import dataclasses
import io
import json
import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from rich.table import Table

import mlnt
from mlnt import cli, models, prediction, runs
from mlnt.data.check import check_tree
from mlnt.data.image_files import FaultLog
from mlnt.errors import InputError
from mlnt.files import most_unpacked, open_file, parse_json
from mlnt.label_issues import find_label_issues, read_label_issues, write_label_issues
from mlnt.reproduce.cells import plan
from mlnt.reproduce.experiments import EXPERIMENTS
from mlnt.reproduce.places import find_place
from mlnt.reproduce.tables import Grid
from mlnt.runs import RunFolder
from mlnt.terminal import PlainConsole
from mlnt.texts import harmless, markdown_cell, one_line, visible

SOURCE = Path(mlnt.__file__).parent
ROWS = np.random.default_rng(0).normal(size=(60, 2))
LABELS = np.arange(60) % 3
QUICK = {"epochs": 1, "sets": 1, "iterations": 1, "batch_size": 16}

# What would execute a file, or take it at its word, and where none of that may stand.
FORBIDDEN = {
    "pickle", "_pickle", "cPickle", "dill", "joblib", "cloudpickle", "shelve", "marshal", "yaml",
}  # fmt: skip
CALLS = {"eval", "exec", "compile", "__import__"}
ATTRIBUTES = {("torch", "load"), ("np", "load"), ("numpy", "load"), ("np", "fromfile")}


def test_nothing_in_the_source_loads_a_pickle() -> None:
    checked = 0
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.name}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & FORBIDDEN, where
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in FORBIDDEN, where
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in CALLS, where
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                assert (node.value.id, node.attr) not in ATTRIBUTES, where
            checked += 1
    assert checked > 10_000


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("untrusted") / "run"
    mlnt.train((ROWS, LABELS), out=folder, **QUICK)
    return folder


def test_a_run_folder_names_no_code_to_run(finished: Path, tmp_path: Path) -> None:
    """Neither for predictions nor for going on: only the user's own word imports anything."""
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "evil.py").write_text("raise SystemExit('it ran')")
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    config["settings"]["model"] = "evil:build"
    config["source"] = {"data": "digits"}
    path.write_text(json.dumps(config))
    with pytest.raises(InputError, match="name it again with --model"):
        mlnt.predict(tmp_path / "run", (ROWS, LABELS))
    (tmp_path / "run" / "summary.json").unlink()
    with pytest.raises(InputError, match="name it: --model"):
        mlnt.api.resume_run(tmp_path / "run")


def test_sizes_are_checked_before_a_network_is_made_of_them(
    finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, made = [], []
    load_file, build_model = runs.load_file, prediction.build_model
    monkeypatch.setattr(runs, "load_file", lambda path: read.append(path.name) or load_file(path))
    monkeypatch.setattr(
        prediction, "build_model", lambda *given: made.append(given[2]) or build_model(*given)
    )
    mlnt.predict(finished, ROWS)
    assert (read, made) == (["best.safetensors"], [3])
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    config = json.loads((run / "config.json").read_text())
    config["data"]["classes"] = [str(number) for number in range(10**4)]
    (run / "config.json").write_text(json.dumps(config))
    with pytest.raises(InputError, match="no layer for the 10,000 classes of config"):
        mlnt.predict(run, ROWS)
    assert made == [3]


@pytest.mark.parametrize("name", [".report.html.part.html", "report.html", ".lock", "curves.png"])
def test_nothing_is_written_through_a_link(name: str, finished: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    shutil.copytree(finished, tmp_path / "run")
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(victim)
    for command in (
        ["report", "{}"],
        ["train", "--resume", "{}"],
        ["train", "digits", "--out", "{}"],
    ):
        run = tmp_path / "run"
        assert cli.run([part.format(run) for part in command]) == 2
        assert victim.read_text() == "precious"


def test_a_file_that_lies_in_the_way_is_never_written_through(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".x.json.part.json").symlink_to("victim")
    RunFolder(tmp_path).write_text("x.json", "new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert (tmp_path / "x.json").read_text() == "new"


def test_files_are_opened_at_once_or_not_at_all(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for place in (tmp_path / "pipe", tmp_path, Path("/dev/null")):
        with pytest.raises(OSError, match=r"no ordinary file|Is a directory"):
            open_file(place)
    assert most_unpacked(100) == 2**28
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 10**6)


@pytest.mark.parametrize("summary", [{}, {"models": [3], "noise": {}}, {"models": 3}])
def test_reproduce_over_damaged_cells(
    summary: dict, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    experiment = EXPERIMENTS["table1"]
    place = find_place("table1", experiment, Path("digits"), False)
    cell = plan(experiment, place, 1, tmp_path, {})[0]
    cell.folder.mkdir(parents=True)
    config = {"settings": dataclasses.asdict(cell.settings)}
    (cell.folder / "config.json").write_text(json.dumps(config))
    (cell.folder / "summary.json").write_text(json.dumps(summary))
    command = ["reproduce", "table1", "--data", "digits", "--seeds", "1", "--minutes", "0"]
    assert cli.run([*command, "--out", str(tmp_path)]) == 2
    assert f"the files of {tmp_path} are damaged" in capsys.readouterr().err


def test_what_spreadsheets_terminals_and_markdown_would_read() -> None:
    for text in ("=1", "+x", "-x", "@x", "\tx", "\rx", "\n=x", "'=x", "＝x"):
        assert harmless(text) == f"'{text}"
    assert [harmless(text) for text in ("+", "-", "'-")] == ["+", "-", "''-"]
    assert [harmless(text) for text in ("-1", "+2.5", "x=1", "", "'x")] == [
        "-1", "+2.5", "x=1", "", "'x",
    ]  # fmt: skip
    assert visible("a\x1b[2J\x07\u202eb\udcffc\n\t") == "a\\x1b[2J\\x07\\u202eb\\udcffc\n\t"
    assert one_line("a\nb\tc\r") == "a\\nb\\tc\\r"
    assert len(one_line("a" * 10**6)) == 2000
    assert markdown_cell("a|b\n<b>*c*") == "a\\|b\\\\n\\<b\\>\\*c\\*"
    assert "[x](http" not in Grid("[x](http://y)", ["a"], [("1",)]).to_markdown()


def test_the_terminal_shows_texts_as_texts() -> None:
    file = io.StringIO()
    console = PlainConsole(file=file, width=200)
    table = Table("[b]head[/b]", title="\x1b[31mtitle")
    table.add_row("\x1b]0;owned\x07[red]:bomb:")
    console.print(table)
    console.print("[link=x]\x9b31m:smile:")
    shown = file.getvalue()
    assert "\x1b" not in shown
    assert "\x07" not in shown
    assert "\x9b" not in shown
    for kept in (
        "[b]head[/b]",
        "\\x1b[31mtitle",
        "\\x1b]0;owned\\x07[red]:bomb:",
        "[link=x]\\x9b31m",
    ):
        assert kept in shown


def test_an_error_is_one_line_whatever_it_names(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["train", "\x1b[2J\n[red]no\tsuch\r file"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert not any(c in said for c in "\x1b\r\t")


def test_lists_of_faults_are_no_formulas(tmp_path: Path) -> None:
    faults = FaultLog(10)
    faults.record([("=cmd()/x.png", "-broken"), ("two\nlines.png", "truncated")])
    faults.write(tmp_path / "faults.csv")
    with (tmp_path / "faults.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    assert rows[1:] == [["'=cmd()/x.png", "'-broken"], ["two\nlines.png", "truncated"]]


def test_texts_too_long_for_a_cell_are_cut_where_they_are_written(tmp_path: Path) -> None:
    """Python's csv module would not read them back: the report of a run would fail at its end."""
    issues = find_label_issues([0, 1], torch.tensor([[0.1, 0.9], [0.2, 0.8]]))
    texts = ["a" * 300_000, "\ud800"[:0]]
    write_label_issues(tmp_path / "l.csv", issues, ("x", "y"), [None, None], texts)
    assert len(read_label_issues(tmp_path / "l.csv")[0]["sample"]) == 100_000


def test_half_characters_in_arrays(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="label at index 0 is no text in Unicode"):
        mlnt.open_dataset((ROWS, ["\ud800", "x", "y"] * 20))
    texts = ["good day \ud800", "bad night"] * 30
    mlnt.train((texts, LABELS[:60] % 2), out=tmp_path / "run", **QUICK)
    assert "good day \\ud800" in (tmp_path / "run" / "label_issues.csv").read_text()


class Weights:
    """As torchvision describes them."""

    url = "https://127.0.0.1:1/models/resnet18-0000.pth"

    def get_state_dict(self, progress: bool) -> dict:
        raise AssertionError("it was downloaded")


def test_weights_of_a_library_are_downloaded_only_when_allowed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = SimpleNamespace(
        __name__="torchvision.models",
        list_models=lambda: ["resnet18"],
        get_model=lambda name, num_classes: torch.nn.Linear(2, num_classes),
        get_model_weights=lambda name: SimpleNamespace(DEFAULT=Weights()),
    )
    monkeypatch.setattr(models.importlib, "import_module", lambda name: library)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.delenv("MLNT_DOWNLOAD", raising=False)
    with pytest.raises(InputError, match="not on this machine; allow the download with --download"):
        models._from_library("torchvision", "resnet18", 3, pretrained=True)
    with pytest.raises(InputError, match="it was downloaded"):
        models._from_library("torchvision", "resnet18", 3, pretrained=True, download=True)
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "resnet18-0000.pth").touch()  # fetched before
    with pytest.raises(InputError, match="it was downloaded"):
        models._from_library("torchvision", "resnet18", 3, pretrained=True)


@pytest.mark.parametrize("has_pictures", [True, False])
def test_saved_sets_are_checked(has_pictures: bool, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is optional for users")
    from corpus.pictures import encoded

    features = {"label": datasets.ClassLabel(names=["x", "y"])}
    if has_pictures:
        features["image"] = datasets.Image()
        content = {"image": [{"bytes": encoded("PNG", n), "path": None} for n in range(6)]}
        content["image"][3] = {"bytes": b"no picture", "path": None}
    else:
        features["text"] = datasets.Value("string")
        content = {"text": ["a b"] * 6}
    data = {**content, "label": [0, 1, 0, 1, 0, 1]}
    made = datasets.Dataset.from_dict(data, features=datasets.Features(features))
    made.save_to_disk(tmp_path / "saved")
    found = check_tree(tmp_path / "saved")
    assert found.parts[0].per_class == [3, 3]
    assert found.decoded == 6
    if has_pictures:
        assert found.unreadable == {"3": "no picture of a known format"}
        assert "1 of 6 pictures cannot be read" in found.verdict
    else:
        assert found.verdict == "complete: 6 rows are there, and all can be read"
    assert cli.run(["data", "check", str(tmp_path / "saved")]) == int(has_pictures)
