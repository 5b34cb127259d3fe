"""The command line as a user runs it."""

import csv
import io
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import typer
from PIL import Image
from rich.text import Text
from safetensors.torch import load_file
from sklearn.datasets import load_digits

import mlnt
from mlnt import cli
from mlnt.data.known import NAMED
from mlnt.errors import Stopped
from mlnt.label_issues import read_label_issues
from mlnt.terminal import PlainConsole, TerminalProgress, chosen_line, issues_table
from mlnt.training import Stage
from small_runs import leave_out_reports, shorten_digits

QUICK = ["--epochs", "2", "--sets", "2", "--iterations", "2"]
NOISY = ["--noise", "symmetric:0.4"]


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One finished run, for all tests that look at one."""
    folder = tmp_path_factory.mktemp("runs") / "digits"
    assert cli.run(["train", "digits", *QUICK, *NOISY, "--out", str(folder)]) == 0
    return folder


def test_run_folder_holds_what_the_design_says(run_folder: Path) -> None:
    names = {path.name for path in run_folder.iterdir()}
    assert names == {
        "config.json", "metrics.jsonl", "summary.json", "best.safetensors",
        "student.safetensors", "teacher.safetensors",
        "label_issues.csv", "gallery.jsonl", "filtered.csv", "curves.png", "report.html",
    }  # fmt: skip
    config = json.loads((run_folder / "config.json").read_text())
    assert config["settings"]["sets"] == 2
    assert config["data"]["classes"] == list("0123456789")
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()]
    assert [(row["method"], row["iteration"], row["epoch"]) for row in rows] == [
        ("cross_entropy", 0, 1), ("cross_entropy", 0, 2), ("mlnt", 1, 1),
        ("mlnt", 1, 2), ("mlnt", 2, 1), ("mlnt", 2, 2),
    ]  # fmt: skip
    assert rows[-1]["teacher"].keys() == {"validation", "test"}
    summary = json.loads((run_folder / "summary.json").read_text())
    assert len(summary["models"]) == 5
    assert summary["noise"]["asked"] == "symmetric:0.4"
    assert 30 < summary["noise"]["wrong_in_train"] < 42
    assert summary["filters"][0]["of"] == config["data"]["samples"]["train"]


def test_label_issues_are_ranked_and_point_into_the_data(run_folder: Path) -> None:
    with (run_folder / "label_issues.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    config = json.loads((run_folder / "config.json").read_text())
    samples = config["data"]["samples"]
    assert len(rows) == samples["train"] + samples["validation"], "held-out labels are judged too"
    scores = [float(row["score"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    truth = mlnt.open_dataset("digits").train.labels
    top = rows[:100]
    right = [str(int(truth[int(row["index"])])) == row["suggested"] for row in top]
    assert sum(right) > 60
    assert {row["kept"] for row in rows} == {"yes", "no", ""}
    assert sum(row["kept"] == "" for row in rows) == samples["validation"]


def test_predict_writes_classes_and_probabilities(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "predictions.csv"
    assert cli.run(["predict", str(run_folder), "digits", "--out", str(out)]) == 0
    said = capsys.readouterr()
    with out.open(newline="") as file:
        rows = list(csv.DictReader(file))
    test = mlnt.open_dataset("digits").test
    assert len(rows) == len(test)
    hits = [row["predicted"] == str(int(y)) for row, y in zip(rows, test.labels, strict=True)]
    assert f"{100 * sum(hits) / len(hits):.2f} %" in said.err
    total = sum(float(rows[0][f"p({name})"]) for name in range(10))
    assert total == pytest.approx(1, abs=1e-4)
    assert cli.run(["predict", str(run_folder), "digits", "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_predict_notes_images_of_another_scale(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    images = load_digits().images[:50]
    for factor, is_noted in ((1, False), (1 / 255, True)):
        np.savez(tmp_path / "images.npz", X=images * factor)
        assert cli.run(["predict", str(run_folder), str(tmp_path / "images.npz")]) == 0
        assert ("note: these images have values from" in capsys.readouterr().err) == is_noted


def test_best_model_is_the_one_in_the_table(run_folder: Path) -> None:
    summary = json.loads((run_folder / "summary.json").read_text())
    prediction = mlnt.predict(run_folder, "digits")
    assert prediction.accuracy == pytest.approx(summary["chosen"]["best"])
    for name in ("best", "student", "teacher"):
        assert load_file(run_folder / f"{name}.safetensors")["0.weight"].dtype == torch.float32


def flag(run: Path, count: int) -> None:
    """As if so many labels of the run were flagged."""
    summary = json.loads((run / "summary.json").read_text())
    summary["label_issues"]["flagged"] = count
    (run / "summary.json").write_text(json.dumps(summary))


def test_issues_shows_what_is_flagged(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    rows = read_label_issues(run / "label_issues.csv", 3)
    for count, shown in ((9, 3), (1, 1), (0, 0)):
        flag(run, count)
        assert cli.run(["issues", str(run), "--top", "3"]) == 0
        said = capsys.readouterr().out
        assert ("most suspicious labels" in said) == (count > 0)
        assert [f"│ {row['index']} " in said for row in rows] == [n < shown for n in range(3)]
        assert ("no other label is more probably wrong than right" in said) == (count == 1)
        assert ("no label is more probably wrong than right" in said) == (count == 0)
        out = tmp_path / f"{count}.csv"
        assert cli.run(["issues", str(run), "--top", "3", "--out", str(out)]) == 0
        assert f"{shown} label{'' if shown == 1 else 's'} in {out}" in capsys.readouterr().out
        with out.open(newline="") as file:
            assert [*csv.DictReader(file)] == rows[:shown]
    assert cli.run(["issues", str(run), "--out", str(out)]) == 2
    assert "exists already" in capsys.readouterr().err


def test_issues_and_report(run_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["issues", str(run_folder), "--top", "99999999999999999999"]) == 0
    assert "flagged" in capsys.readouterr().out
    before = (run_folder / "report.html").read_text()
    (run_folder / "report.html").unlink()
    assert cli.run(["report", str(run_folder)]) == 0
    assert (run_folder / "report.html").read_text() == before
    assert "http" not in before.replace("http-equiv", ""), "the report asks nothing of the network"


def test_issues_name_each_sample_in_full(
    run_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(run_folder, tmp_path / "run")
    names = [f"shirt/02eb668a-0d65-4a1c-8e07-{end}.jpg" for end in ("2c1f7be1a3d0", "9f27")]
    rows = [f"{n},{name},shirt,coat,0.1,0.9,0.9," for n, name in enumerate(names)]
    heading = (run / "label_issues.csv").read_text().splitlines()[0]
    (run / "label_issues.csv").write_text("\n".join([heading, *rows]) + "\n")
    flag(run, 2)
    assert cli.run(["issues", str(run)]) == 0
    said = capsys.readouterr().out
    for name in names:
        assert name in said, "on one line, where it goes into a pipe"
    assert "kept" not in said, "nothing was asked about that"
    narrow = PlainConsole(width=60, file=io.StringIO())
    narrow.print(issues_table(read_label_issues(run / "label_issues.csv"), ""))
    shown = narrow.file.getvalue()
    assert "…" not in shown
    last = "".join(line.rpartition("│")[0].rpartition("│")[2] for line in shown.splitlines())
    assert "".join(names) in last.replace(" ", "")


def test_a_table_from_csv_to_predictions(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i % 7},{i % 2 * 4 + i % 3},{'yes' if i % 2 else 'no'}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")
    arguments = ["train", str(tmp_path / "t.csv"), *QUICK, "--batch-size", "32", "--out"]
    assert cli.run([*arguments, str(tmp_path / "run")]) == 0
    said = capsys.readouterr().out
    assert "run folder" in said
    assert "look" in said
    assert "validation" in said
    page = (tmp_path / "run" / "report.html").read_text()
    assert "test (best)" not in said, "there is no test data"
    assert "test, best epoch" not in page
    chosen = json.loads((tmp_path / "run" / "summary.json").read_text())["chosen"]
    name = f"mlnt {chosen['model']}, iteration {chosen['iteration']}"
    why = r" \(what came last; nothing before is better by more than chance\)"
    assert re.search(rf"^chosen: {name}({why})?$", said, flags=re.MULTILINE)
    (tmp_path / "new.csv").write_text("a,b\n3,4\n3,0\n")
    assert cli.run(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 0
    predicted = capsys.readouterr().out
    assert predicted.splitlines()[0] == "index,predicted,p(no),p(yes)"
    (tmp_path / "other.csv").write_text("a,c\n3,4\n")
    assert cli.run(["predict", str(tmp_path / "run"), str(tmp_path / "other.csv")]) == 2
    said = "not all columns of the training data: 'b' is missing (columns: a, c)"
    assert said in capsys.readouterr().err
    # By their names, whatever their order and whatever stands beside them.
    (tmp_path / "new.csv").write_text("b,id,a,label\n4,7,3,yes\n0,8,3,no\n")
    assert cli.run(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 0
    again = capsys.readouterr()
    assert again.out == predicted
    assert "agrees with the labels" in again.err
    (tmp_path / "new.csv").write_text("a,b,label\n3,4,yes\n3,0,perhaps\n")
    assert cli.run(["predict", str(tmp_path / "run"), str(tmp_path / "new.csv")]) == 0
    assert "'perhaps' is no class of this run" in capsys.readouterr().err


def test_pictures_that_could_not_be_read_are_mentioned(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(40):
        name = ("dark", "light")[number % 2]
        (tmp_path / "d" / name).mkdir(parents=True, exist_ok=True)
        picture = Image.new("RGB", (16, 16), (250 * (number % 2),) * 3)
        picture.save(tmp_path / "d" / name / f"{number}.png")
    (tmp_path / "d" / "dark" / "torn.png").write_bytes(b"no picture")
    options = [*QUICK, "--image-size", "16", "--batch-size", "16", "--workers", "0", "--out"]
    arguments = ["train", str(tmp_path / "d"), *options, str(tmp_path / "run")]
    assert cli.run(arguments) == 0, capsys.readouterr().err
    assert "\n1 picture could not be read: see faults.csv\n" in capsys.readouterr().out


def test_hostile_texts_stay_texts(tmp_path: Path) -> None:
    script = "<script>alert(1)</script>"
    rows = [f"{script} word{i % 2},=cmd{i % 2}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    arguments = ["train", str(tmp_path / "t.csv"), *QUICK, "--batch-size", "16", "--out"]
    assert cli.run([*arguments, str(tmp_path / "run"), "--noise", "symmetric:0.3"]) == 0
    assert script not in (tmp_path / "run" / "report.html").read_text()
    assert "\n=" not in (tmp_path / "run" / "label_issues.csv").read_text().replace(",", "\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "digitz"], "no data set 'digitz'; did you mean 'digits'"),
        (["train", "digits", "--epocs", "3"], "--epocs"),
        (["train", "digits", "--rho", "50"], "rho must lie in [0, 1], got 50; did you mean 0.5?"),
        (["train", "digits", "--noise", "symmetric:1.4"], "noise rate must lie in [0, 1], got 1.4"),
        (["train", "digits", "--noise", "sym:0.4"], "noise must be none, symmetric:RATE"),
        (["train", "digits", "--batch-size", "5000"], "fewer than a batch of 5000"),
        (["train", "digits", "--model", "smal_conv"], "did you mean 'small_conv'"),
        (["train", "digits", "--model", "gru"], "is for text data, this data is image"),
        (["train", "digits", "--device", "cuda:9"], "device 'cuda:9' cannot be used"),
        (["train", "digits", "--device", "gpu"], "device 'gpu' cannot be used"),
        (["train", "digits", "--labels", "nowhere.csv"], "no label file at nowhere.csv"),
        (["train", "digits", "--preset", "digit"], "did you mean 'digits'"),
        (["train", "digits", "--epochs", "x"], "--epochs"),
        (["train"], "DATA"),
        (["predict", "nowhere", "digits"], "nowhere is not a run folder"),
        (["issues", "nowhere"], "nowhere is not a run folder"),
        (["reproduce", "digit"], "cannot reproduce 'digit'; did you mean 'digits'"),
        (["reproduce", "hausa-news"], "--data FOLDER"),
        (["tran", "digits"], "tran"),
    ],
)
def test_a_mistake_is_one_line_and_status_2(
    arguments: list[str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(arguments) == 2
    said = capsys.readouterr()
    assert message.lower() in said.err.lower()
    assert said.err.count("\n") == 1
    assert said.err.startswith("mlnt: ")
    assert not list(tmp_path.iterdir()), "nothing is written"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--weights", "imagenet"], "weights imagenet are for pictures, this data is table"),
        (["--model", "torchvision:resnet18"], "the networks of torchvision are for pictures"),
    ],
)
def test_networks_of_pictures_are_not_for_tables(
    options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whether or not the library is here."""
    rows = [f"{i},{i % 7},{i % 2}" for i in range(80)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *rows]))
    arguments = ["train", str(tmp_path / "t.csv"), *options, "--out", str(tmp_path / "run")]
    assert cli.run(arguments) == 2
    said = capsys.readouterr().err
    assert message in said
    assert "; try --model mlp --weights none" in said


def test_classes_that_look_like_formulas(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mark before them is said; a sign alone is no formula."""
    for names, marked in ((("=a", "b"), True), (("+", "-"), False)):
        rows = [f"{i % 2},{i % 7},{names[i % 2]}" for i in range(80)]
        data, run, out = (tmp_path / f"{marked}{end}" for end in (".csv", "", "-found.csv"))
        data.write_text("\n".join(["a,b,label", *rows]))
        mlnt.train(data, out=run, epochs=1, method="cross_entropy")
        assert cli.run(["predict", str(run), str(data), "--out", str(out)]) == 0
        said = capsys.readouterr().err
        assert ("note: a quote mark stands before =a, which" in said) == marked
        shown = {f"p({name})" for name in names}
        heading = out.read_text().splitlines()[0]
        assert shown <= set(heading.split(","))
        with out.open(newline="") as file:
            answers = {row["predicted"] for row in csv.DictReader(file)}
        assert answers <= ({"'=a", "b"} if marked else {"+", "-"})


def test_an_existing_run_is_never_written_over(
    run_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = {path.name: path.read_bytes() for path in run_folder.iterdir()}
    assert cli.run(["train", "digits", *QUICK, "--out", str(run_folder)]) == 2
    assert "already holds a run; choose another folder" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in run_folder.iterdir()} == before


def test_help_names_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    from mlnt.config import fields_by_name

    assert cli.run(["train", "--help"]) == 0
    said = capsys.readouterr().out
    for name in fields_by_name():
        assert f"--{name.replace('_', '-')}" in said


def test_help_loses_nothing_in_brackets() -> None:
    """They are marks to rich, unless a backslash stands before them."""

    def commands(group: Any) -> Iterator[Any]:
        yield group
        for command in getattr(group, "commands", {}).values():
            yield from commands(command)

    every = list(commands(typer.main.get_command(cli.app)))
    texts = [o.help for command in every for o in command.params if getattr(o, "help", None)]
    texts += [command.help for command in every if command.help]
    assert "run folder \\[runs/NAME-001, …]" in texts
    for text in texts:
        assert Text.from_markup(text).plain == text.replace("\\[", "["), text


def test_help_names_all_that_is_read() -> None:
    for words in ("pictures", "CSV", "TSV", "paths of", ".npz", "Hugging Face", *NAMED):
        assert words in cli.DATA_HELP


@pytest.mark.parametrize(("given", "name"), [(".", "mine"), ("..", "above"), ("x/y.csv", "y")])
def test_a_run_is_called_after_its_data(
    given: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "above" / "mine").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "mine")
    folders = []

    def stop(data: str, *, out: Path, **options: object) -> None:
        folders.append(out)
        raise Stopped("enough")

    monkeypatch.setattr(cli.api, "train", stop)
    assert cli.run(["train", given]) == 0
    assert folders == [Path("runs") / f"{name}-001"]


def test_as_a_process(tmp_path: Path) -> None:
    """The module really starts, and a mistake is no traceback there either."""
    command = [sys.executable, "-m", "mlnt", "train", "digits", "--tau", "high"]
    environment = {**os.environ, "PYTHONPATH": str(Path(mlnt.__file__).parent.parent)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.strip() == "mlnt: tau must be a number or one of auto, otsu, got 'high'"


@pytest.mark.parametrize(
    "arguments", [["predict", "RUN", "digits"], ["issues", "RUN"], ["train", "--help"]]
)
def test_a_reader_that_leaves_is_no_mistake(arguments: list[str], run_folder: Path) -> None:
    """As in `mlnt predict RUN DATA | head -1`, but gone from the beginning."""
    reader, writer = os.pipe()
    os.close(reader)
    words = [str(run_folder) if word == "RUN" else word for word in arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(mlnt.__file__).parent.parent)}
    with open(writer, "wb") as unread:
        done = subprocess.run(
            [sys.executable, "-m", "mlnt", *words],
            env=environment,
            stdout=unread,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 0
    assert "rror" not in done.stderr


def test_reproduce_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlnt import api, reproduce

    shorten_digits(monkeypatch, 400)
    leave_out_reports(monkeypatch)
    calls = []
    original = api.train

    def counting(*arguments: object, **options: object) -> api.Training:
        calls.append(options["seed"])
        return original(*arguments, **options)

    monkeypatch.setattr(api, "train", counting)
    small = {"epochs": 1, "sets": 1, "iterations": 1}
    reproduce.run_experiment("digits", 1, None, tmp_path, **small)
    (tmp_path / "seed-1").mkdir()
    table = reproduce.run_experiment("digits", 2, None, tmp_path, **small)
    assert calls == [0, 1]
    assert [row.iteration for row in table.rows] == [0, 1, 1]
    assert len(table.rows[0].best.values) == 2
    assert (tmp_path / "table.md").read_text().count("\n") == 9
    header = (tmp_path / "table.csv").read_text().splitlines()[0]
    assert header.startswith("method,model,iteration,noise,n,")


def test_spread_by_hand() -> None:
    from mlnt.reproduce import Spread

    # mean 3, standard deviation 2, standard error 2 / sqrt(3)
    assert str(Spread((1.0, 3.0, 5.0))) == "3.00 ± 1.15"
    assert str(Spread((2.0,))) == "2.00"


@pytest.mark.parametrize(("width", "words"), [(80, "6/9"), (140, "1234 ms/step")])
def test_a_line_of_progress_fits(width: int, words: str) -> None:
    console = PlainConsole(file=io.StringIO(), width=width, force_terminal=True)
    progress = TerminalProgress(console)  # as it is drawn, but by hand
    progress.stage_begins(Stage("mlnt", 3), 9, steps=10, done=5)
    figures = {name: {"validation": 91.25} for name in ("student", "teacher")}
    progress.epoch_ends({"epoch": 6, "step_ms": 1234.0, "waiting_share": 0.2, **figures})
    plain = PlainConsole(file=io.StringIO(), width=width)
    plain.print(progress.progress.get_renderable())
    shown = plain.file.getvalue()
    assert words in shown
    assert "validation: student  91.2 teacher  91.2" in shown
    assert shown.rstrip().endswith("--:--"), "the time left, not yet known"
    assert "…" not in shown


def test_why_a_model_is_chosen_that_validates_lower() -> None:
    row = {"method": "mlnt", "model": "teacher"}
    summary = {
        "models": [
            {**row, "iteration": 1, "validation": 35.0},
            {**row, "iteration": 2, "validation": 34.0},
        ],
        "chosen": {**row, "iteration": 2},
    }
    assert chosen_line(summary).endswith(
        "(what came last; nothing before is better by more than chance)"
    )
    summary["models"].append({**row, "iteration": 3, "validation": 20.0})
    assert chosen_line(summary) == "chosen: mlnt teacher, iteration 2", "not the last"
    summary["models"].pop()
    summary["models"][1]["validation"] = 35.0
    assert chosen_line(summary) == "chosen: mlnt teacher, iteration 2"
