"""`mlnt reproduce`: cells that run, stop and go on, on the digits and in seconds."""

import csv
import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mlnt
from mlnt import cli
from mlnt.errors import InputError, Stopped, TrainingError
from mlnt.reproduce import EXPERIMENTS, Row, cells, places, run_experiment
from mlnt.reproduce.annotators import annotated_digits
from mlnt.reproduce.cells import choose, plan
from mlnt.reproduce.experiments import METHODS
from mlnt.reproduce.places import find_place
from mlnt.runs import RunFolder
from mlnt.terminal import TerminalProgress
from mlnt.training import Trainer
from small_runs import leave_out_reports, shorten_digits

HEADER = "method,model,iteration,noise,n,best_mean,best_error,last_mean,last_error,paper,difference"
QUICK = {"epochs": 1, "sets": 1, "batch_size": 64}
MODELS = [(0, "student")] + [(i, model) for i in (1, 2, 3) for model in ("student", "teacher")]


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    """Table 1 with two methods, two rates, 400 digits and one epoch of four steps a stage."""
    shorten_digits(monkeypatch, 400)
    leave_out_reports(monkeypatch)
    table1 = EXPERIMENTS["table1"]
    small = dataclasses.replace(
        table1, methods=("cross_entropy", "mlnt"), noises=("symmetric:0", "symmetric:0.5")
    )
    monkeypatch.setitem(EXPERIMENTS, "table1", small)
    monkeypatch.setattr(places, "FAST_DIGITS", QUICK)


def table1(out: Path, *more: str) -> list[str]:
    return ["reproduce", "table1", "--data", "digits", "--fast", "--out", str(out), *more]


def read_rows(out: Path) -> list[dict[str, str]]:
    with (out / "table.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.usefixtures("tiny")
def test_killed_in_the_middle_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(table1(tmp_path / "whole", "--seeds", "2")) == 0
    written = "written: " + ", ".join(str(tmp_path / "whole" / f"table.{s}") for s in ("md", "csv"))
    assert written in capsys.readouterr().out

    steps = []

    def interrupted(self: TerminalProgress) -> None:
        steps.append(self)
        if len(steps) == 26:  # four a stage: within the second iteration of the second cell
            raise KeyboardInterrupt

    parts = table1(tmp_path / "parts", "--seeds", "2")
    with monkeypatch.context() as patched:
        patched.setattr(TerminalProgress, "step_ends", interrupted)
        assert cli.run(parts) == 130
    assert not (tmp_path / "parts" / "table.csv").exists()
    assert cli.run(parts) == 0
    assert "(2 of 4)" in capsys.readouterr().out, "the first cell was not run again"
    for name in ("table.md", "table.csv"):
        whole, resumed = ((tmp_path / f / name).read_bytes() for f in ("whole", "parts"))
        assert whole == resumed

    rows = read_rows(tmp_path / "parts")
    assert (tmp_path / "parts" / "table.csv").read_text().splitlines()[0].startswith(HEADER)
    assert len(rows) == 2 * len(MODELS)
    assert {row["n"] for row in rows} == {"2"}
    assert {row["data"] for row in rows} == {"digits"}
    for row in rows:
        difference = float(row["best_mean"]) - float(row["paper"])
        assert float(row["difference"]) == pytest.approx(difference, abs=1e-3)


@pytest.mark.usefixtures("tiny")
def test_minutes_stop_it_and_the_same_command_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = table1(tmp_path, "--seeds", "1", "--minutes", "0")
    assert cli.run(command) == 0
    assert "0 of 2 runs are finished; the same command goes on" in capsys.readouterr().out
    rows = read_rows(tmp_path)
    assert len(rows) == 2 * len(MODELS), "a row for every cell, run or not"
    assert {row["n"] for row in rows} == {"0"}
    empty = ("best_mean", "best_error", "last_mean", "last_error", "difference", "peak_mean")
    assert {row[name] for row in rows for name in empty} == {""}
    assert rows[0]["paper"] == "91.84"

    asked = []
    original = Trainer._check_time

    def up_in_the_second_cell(self: Trainer) -> None:
        original(self)
        asked.append(self.train)
        if self.train is not asked[0]:
            raise Stopped

    with monkeypatch.context() as patched:
        patched.setattr(Trainer, "_check_time", up_in_the_second_cell)
        assert cli.run(table1(tmp_path, "--seeds", "1", "--minutes", "5")) == 0
    assert "1 of 2 runs are finished; the same command goes on" in capsys.readouterr().out
    assert sorted(row["n"] for row in read_rows(tmp_path)) == ["0"] * 7 + ["1"] * 7
    assert cli.run(table1(tmp_path, "--seeds", "1", "--minutes", "5")) == 0
    assert "goes on" not in capsys.readouterr().out
    assert {row["n"] for row in read_rows(tmp_path)} == {"1"}


@pytest.mark.usefixtures("tiny")
def test_what_is_shown_is_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Cross entropy that was run on its own, though MLNT's cells will hold it too."""
    one = table1(tmp_path, "--seeds", "1", "--cells", "cross_entropy/symmetric-0")
    assert cli.run(one) == 0
    assert cli.run(table1(tmp_path, "--seeds", "1", "--minutes", "0")) == 0
    assert [row["noise"] for row in read_rows(tmp_path) if row["n"] != "0"] == ["symmetric:0"]
    assert "1 of 3 runs are finished; the same command goes on" in capsys.readouterr().out


@pytest.mark.usefixtures("tiny")
def test_a_cell_that_another_process_is_at_is_left_to_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = RunFolder(tmp_path / "cells/mlnt/symmetric-0/seed-0")
    with first.locked():
        assert cli.run(table1(tmp_path, "--seeds", "1")) == 0
    said = capsys.readouterr().out
    assert "mlnt/symmetric-0/seed-0 (1 of 2)\n  another process is at it\n" in said
    assert "1 of 2 runs are finished; the same command goes on" in said
    assert cli.run(table1(tmp_path, "--seeds", "1")) == 0
    assert {row["n"] for row in read_rows(tmp_path)} == {"1"}


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("meanwhile", ["all of them", "the same"])
def test_a_cell_that_another_process_has_finished_is_not_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    experiment = EXPERIMENTS["table1"]
    place = find_place("table1", experiment, Path("digits"), True)
    every = choose(plan(experiment, place, 1, tmp_path, {}), None)
    original, begun = cells.run_cell, []

    def beside_another(cell: cells.Cell, *arguments: Any) -> None:
        begun.append(cell)
        for one in every if meanwhile == "all of them" else [cell]:
            original(one, *arguments)
        original(cell, *arguments)

    monkeypatch.setattr(cells, "run_cell", beside_another)
    assert cells.run_cells(every, "cpu") == {}
    assert begun == (every[:1] if meanwhile == "all of them" else every)
    assert all(cell.is_finished for cell in every)


@pytest.mark.usefixtures("tiny")
def test_some_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(table1(tmp_path, "--seeds", "1", "--cells", "cross_entropy/symmetric-0.5")) == 0
    assert [p.name for p in (tmp_path / "cells").iterdir()] == ["cross_entropy"]
    found = {(r["method"], r["noise"]): r["n"] for r in read_rows(tmp_path)}
    assert found["cross_entropy", "symmetric:0.5"] == "1"
    assert found["cross_entropy", "symmetric:0"] == found["mlnt", "symmetric:0.5"] == "0"
    capsys.readouterr()
    for pattern, hint in (
        ("mnlt/*", "did you mean 'mlnt/*'?"),
        ("symetric:0.5", "did you mean 'symmetric-0.5'?"),
        ("", "there are {mlnt, cross_entropy}/{symmetric-0, symmetric-0.5}/{seed-0, seed-1}"),
    ):
        command = table1(tmp_path, "--seeds", "2", "--cells", "cross_entropy", "--cells", pattern)
        assert cli.run(command) == 2
        assert capsys.readouterr().err == f"mlnt: no cell matches {pattern!r}; {hint}\n"


def planned(what: str, out: Path, seeds: int = 1) -> list[cells.Cell]:
    experiment = EXPERIMENTS[what]
    return plan(experiment, find_place(what, experiment, Path("digits"), True), seeds, out, {})


@pytest.mark.parametrize(
    ("what", "patterns", "expected"),
    [
        ("table1", ["forward", "iterative/symmetric-0"],
         {"forward/symmetric-0/seed-0", "forward/symmetric-0.5/seed-0",
          "iterative/symmetric-0/seed-0"}),
        ("table1", ["forward/symmetric-0,iterative/*-0.5/*"],
         {"forward/symmetric-0/seed-0", "iterative/symmetric-0.5/seed-0"}),
        ("table1", ["*/symmetric:0.5"],
         {"forward/symmetric-0.5/seed-0", "iterative/symmetric-0.5/seed-0"}),
        ("table1", ["symmetric-0.5"],
         {"forward/symmetric-0.5/seed-0", "iterative/symmetric-0.5/seed-0"}),
        ("sweep-m", ["symmetric:0.3/sets=5"], {"mlnt/symmetric-0.3/sets-5/seed-0"}),
        ("sweep-rho", ["rho=0.5"],
         {f"mlnt/asymmetric-0.{n}/rho-0.5/seed-0" for n in (2, 3, 4)}),
    ],
)  # fmt: skip
def test_patterns(
    what: str,
    patterns: list[str],
    expected: set[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    small = dataclasses.replace(
        EXPERIMENTS["table1"],
        methods=("cross_entropy", "forward", "iterative"),
        noises=("symmetric:0", "symmetric:0.5"),
    )
    monkeypatch.setitem(EXPERIMENTS, "table1", small)
    assert {cell.name for cell in choose(planned(what, tmp_path), patterns)} == expected


@pytest.mark.usefixtures("tiny")
def test_cells_given_twice_are_both_run(tmp_path: Path) -> None:
    options = ["--cells", "cross_entropy/symmetric-0", "--cells", "cross_entropy/symmetric:0.5"]
    assert cli.run(table1(tmp_path, "--seeds", "1", *options)) == 0
    assert [row["noise"] for row in read_rows(tmp_path) if row["n"] == "1"] == [
        "symmetric:0",
        "symmetric:0.5",
    ]


@pytest.mark.usefixtures("tiny")
def test_one_folder_is_of_one_experiment_and_shows_all_its_seeds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one = ("--cells", "cross_entropy/symmetric-0")
    assert cli.run(table1(tmp_path, "--seeds", "2", *one)) == 0
    before = (tmp_path / "table.csv").read_bytes()
    assert cli.run(table1(tmp_path, "--seeds", "1", *one, "--minutes", "0")) == 0
    assert (tmp_path / "table.csv").read_bytes() == before, "n = 2 as before"
    (tmp_path / "seed-99999999").mkdir()  # of something else: not all seeds up to it are looked for
    (tmp_path / "seed-99999999" / "summary.json").write_text("{}")
    assert cli.run(table1(tmp_path, "--seeds", "1", *one, "--minutes", "0")) == 0
    assert (tmp_path / "table.csv").read_bytes() == before
    capsys.readouterr()
    other = ["cifar10n", "--data", "digits", "--fast", "--seeds", "1", "--minutes", "0"]
    assert cli.run(["reproduce", *other, "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err == (
        f"mlnt: {tmp_path} holds table1, not cifar10n; choose another folder with --out\n"
    )
    assert (tmp_path / "table.csv").read_bytes() == before
    # More seeds than asked for, but made otherwise, are not shown among the others.
    assert cli.run(table1(tmp_path, "--seeds", "1", "--minutes", "0", "--set", "epochs=2")) == 2
    assert "was run with epochs=1, now it would be 2" in capsys.readouterr().err


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("when", ["skipped", "last"])
def test_what_another_process_makes_otherwise_meanwhile_is_refused(
    when: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = "cross_entropy/symmetric-0" if when == "last" else "cross_entropy"
    original, begun = cells.run_cell, []

    def beside_another(cell: cells.Cell, *arguments: Any) -> None:
        begun.append(cell.name)
        original(cell, *arguments)
        run = cell.folder.parents[1] / "symmetric-0.5" / "seed-0"
        mlnt.train("digits", method="cross_entropy", out=run, epochs=2, seed=0,
                   noise="symmetric:0.5", validation="clean", batch_size=64)  # fmt: skip

    monkeypatch.setattr(cells, "run_cell", beside_another)
    with pytest.raises(InputError, match=r"symmetric-0\.5.* was run with .*choose another folder"):
        run_experiment("table1", 1, Path("digits"), tmp_path, fast=True, cells=one, device="cpu")
    assert begun == ["cross_entropy/symmetric-0/seed-0"]
    assert not (tmp_path / "table.csv").exists()


@pytest.mark.usefixtures("tiny")
def test_cross_entropy_is_run_where_mlnt_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = cells.run_cell

    def failing(cell: cells.Cell, *arguments: Any) -> None:
        if cell.method == "mlnt":
            raise TrainingError("not finite")
        original(cell, *arguments)

    monkeypatch.setattr(cells, "run_cell", failing)
    outcome = run_experiment("table1", 1, Path("digits"), tmp_path, fast=True, device="cpu")
    assert set(outcome.failed) == {"mlnt/symmetric-0/seed-0", "mlnt/symmetric-0.5/seed-0"}
    assert (outcome.finished, outcome.asked) == (2, 4)
    assert [row.n for row in outcome.rows if row.method == "cross_entropy"] == [1, 1]


def test_cross_entropy_of_other_methods_is_shown(
    tiny: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    methods = ("cross_entropy", "forward", "mlnt")
    small = dataclasses.replace(EXPERIMENTS["table1"], methods=methods, noises=("symmetric:0.5",))
    monkeypatch.setitem(EXPERIMENTS, "table1", small)
    given = {"fast": True, "device": "cpu", "cells": ["forward/*", "cross_entropy/*"]}
    outcome = run_experiment("table1", 1, Path("digits"), tmp_path, **given)
    assert outcome.asked == 1, "Forward's run holds it"
    assert {r.method: r.n for r in outcome.rows} == {"cross_entropy": 1, "forward": 1, "mlnt": 0}


@pytest.mark.usefixtures("tiny")
def test_a_run_with_other_settings_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = "cross_entropy/symmetric-0/seed-0"
    assert cli.run(table1(tmp_path, "--seeds", "1", "--cells", cell)) == 0
    monkeypatch.setattr(places, "FAST_DIGITS", {**QUICK, "epochs": 2})
    capsys.readouterr()
    assert cli.run(table1(tmp_path, "--seeds", "1")) == 2
    said = capsys.readouterr().err
    folder = tmp_path / "cells" / cell
    assert said.startswith(f"mlnt: {folder} was run with epochs=1, now it would be 2; choose")


def test_a_diverging_cell_does_not_stop_the_others(
    tiny: None, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(places, "FAST_DIGITS", {**QUICK, "lr": 1e30})
    assert cli.run(table1(tmp_path, "--seeds", "1")) == 1
    said = capsys.readouterr().out
    assert "mlnt/symmetric-0/seed-0 failed: " in said
    assert "mlnt/symmetric-0.5/seed-0 failed: " in said


@pytest.mark.parametrize(
    ("what", "data", "message"),
    [
        ("table1", None, "--data FOLDER (or --data digits: in miniature)"),
        ("sweep-m", "empty", "empty holds no CIFAR-10"),
        ("cifar10n", "images", "put cifar10n.npz or CIFAR-10_human.pt into it"),
    ],
)
def test_data_that_is_not_there(
    what: str,
    data: str | None,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("empty", "images"):
        Path(name).mkdir()
    Path("images/test_batch.bin").touch()
    with pytest.raises(InputError) as error:
        run_experiment(what, 1, None if data is None else Path(data), tmp_path / "out")
    assert message in str(error.value)
    assert not (tmp_path / "out").exists()


def test_cifar10_by_its_name_is_where_it_was_fetched_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLNT_DATA", str(tmp_path))
    with pytest.raises(InputError, match="allow the download with --download"):
        places.find_place("table1", EXPERIMENTS["table1"], Path("cifar10"), fast=True)
    (tmp_path / "data_batch_1.bin").touch()
    place = places.find_place("table1", EXPERIMENTS["table1"], Path("cifar10"), fast=True)
    assert place.arguments("symmetric:0.5")["data"] == tmp_path


@pytest.mark.parametrize(
    ("what", "change", "message"),
    [
        ("table1", "seed=7", "the cells differ in their seed"),
        ("table1", "noise=symmetric:0.9", "the cells differ in their noise"),
        ("digits", "method=forward", "the cells differ in their method"),
        ("sweep-m", "sets=2", "the cells differ in their sets"),
        ("digits", "device=cpu", "has an option of its own: --device"),
        ("digits", "out=x", "unknown setting 'out'"),
        ("digits", "preset=table", "unknown setting 'preset'"),
        ("digits", "epochs", "takes NAME=VALUE"),
        ("digits", "model=resnet99", "unknown model 'resnet99'; did you mean 'resnet"),
    ],
)
def test_what_cannot_be_set_for_all_cells(
    what: str, change: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    asked = ["reproduce", what, "--data", "digits", "--out", str(out), "--set", change]
    assert cli.run(asked) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


def test_a_setting_has_one_value(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    twice = ["--set", "epochs=3", "--set", "epochs=4"]
    assert cli.run(["reproduce", "digits", "--out", str(tmp_path / "out"), *twice]) == 2
    assert capsys.readouterr().err == "mlnt: --set says epochs=3 and epochs=4; give one\n"
    assert not (tmp_path / "out").exists()


def test_human_labels_are_those_present(tmp_path: Path) -> None:
    (tmp_path / "test_batch.bin").touch()
    names = ("clean_label", "worse_label", "random_label1")
    np.savez(tmp_path / "cifar10n.npz", **{name: np.arange(10) for name in names})
    place = find_place("cifar10n", EXPERIMENTS["cifar10n"], tmp_path, fast=True)
    assert place.noises == ("random1", "worst")
    arguments = place.arguments("worst")
    assert arguments["labels"] == f"{tmp_path}/cifar10n.npz:worse_label"
    assert arguments["validation"] == "noisy"  # no clean label is used anywhere


def test_clothing1m_has_a_stand_in(tmp_path: Path) -> None:
    """Any folder of pictures by class, with noise put in."""
    for name in ("hat", "shoe"):
        for number in range(40):
            colour = (200, number, 0) if name == "hat" else (0, number, 200)
            part = "train" if number % 4 else "test"
            path = tmp_path / "clothes" / part / name / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (16, 16), colour).save(path)
    outcome = run_experiment(
        "table4", 1, tmp_path / "clothes", tmp_path / "out", fast=True, cells="mlnt/*", epochs=1,
        sets=1, batch_size=16, model="small_conv", weights="none", image_size=8, workers=0,
        iterations=1,
    )  # fmt: skip
    assert outcome.finished == outcome.asked == 1
    assert {row.noise for row in outcome.rows} == {"symmetric:0.4"}
    assert sum(len(row.best.values) for row in outcome.rows) == 3


def test_annotators_err_about_as_often_as_people() -> None:
    truth = mlnt.open_dataset("digits").train.labels

    def wrong(kind: str) -> float:
        given = torch.tensor([int(name) for name in annotated_digits(kind)])
        return 100 * float((given != truth).double().mean())

    # CIFAR-10N: 9.0, 17.2 and 40.2 %.
    assert wrong("aggregate") == pytest.approx(12, abs=1)
    assert wrong("random1") == pytest.approx(15, abs=1)
    assert wrong("worst") == pytest.approx(36, abs=1)


@pytest.mark.parametrize("what", [what for what in EXPERIMENTS if what != "hausa-news"])
def test_every_experiment_has_a_miniature(what: str, tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENTS[what], methods=("cross_entropy", "mlnt"))
    place = find_place(what, experiment, Path("digits"), fast=True)
    cells = plan(experiment, place, 2, tmp_path, {})
    assert len({cell.folder for cell in cells}) == len(cells)
    assert {cell.settings.model for cell in cells} == {"small_conv"}
    assert {cell.data["data"] for cell in cells} == {"digits"}
    assert {cell.settings.validation for cell in cells} == {"clean"}
    assert {cell.noise for cell in cells} == set(experiment.noises)
    swept = {getattr(c.settings, experiment.swept or "seed") for c in cells if c.method == "mlnt"}
    assert swept == set(experiment.values or (0, 1))
    assert {c.method for c in choose(cells, None)} == {"mlnt"}, "it holds cross entropy"


@pytest.mark.parametrize(
    ("what", "beginning", "ending"),
    [
        ("table1", "This is a miniature on the digits: the paper's figures", "will stand."),
        ("cifar10n", "This is a miniature on the digits, whose labels", "made-up annotators."),
        ("digits", "", ""),
    ],
)
def test_a_miniature_says_that_it_is_one(
    what: str, beginning: str, ending: str, tmp_path: Path
) -> None:
    table = run_experiment(what, 1, Path("digits"), tmp_path, fast=True, minutes=0).table
    assert table.note.startswith(beginning)
    assert table.note.endswith(ending)
    assert bool(table.note) == bool(beginning)


def test_filtered_images_of_a_run(tmp_path: Path) -> None:
    outcome = run_experiment(
        "filtered", 1, Path("digits"), tmp_path, device="cpu", epochs=3, sets=1, batch_size=256
    )
    assert [path.name for path in outcome.files[2:]] == ["filtered.svg", "filtered.png"]
    with Image.open(outcome.files[3]) as picture:
        picture.load()
        assert min(picture.size) > 1000
    text = outcome.files[2].read_text(encoding="utf-8")
    assert text.count("<image ") == 24, "as many as the sheet has places"


# Minutes: run by make test-slow


@pytest.mark.slow
def test_the_miniature_of_table_1(tmp_path: Path) -> None:
    assert cli.run(table1(tmp_path, "--seeds", "2")) == 0
    rows = read_rows(tmp_path)
    assert {row["method"] for row in rows} == set(METHODS)
    assert {row["n"] for row in rows} == {"2"}


@pytest.mark.slow
def test_digits_under_70_percent_noise(tmp_path: Path) -> None:
    """What the README claims, measured again."""
    table = run_experiment("digits", 5, None, tmp_path, device="cpu")

    def row(method: str, model: str, iteration: int) -> Row:
        wanted = (method, model, iteration)
        return next(r for r in table.rows if (r.method, r.model, r.iteration) == wanted)

    baseline, teacher = row("cross_entropy", "student", 0), row("mlnt", "teacher", 3)
    assert teacher.best.mean - baseline.best.mean >= 8
    assert teacher.best.mean - baseline.peak.mean >= 8, "even against the best epoch by hindsight"
    assert teacher.best.mean - baseline.last.mean >= 25
