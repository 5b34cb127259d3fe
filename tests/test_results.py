"""`mlnt results`: finished runs written down, and the page made of them."""

import csv
import dataclasses
import json
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mlnt
from mlnt import cli
from mlnt.config import PRESETS, make_settings
from mlnt.errors import InputError
from mlnt.reproduce import EXPERIMENTS, _write_sheets, places, run_experiment, write_results
from mlnt.reproduce.cells import plan
from mlnt.reproduce.naming import changes_words, schedule_of, untold, without_folders
from mlnt.reproduce.page import COLUMNS, PAGE, TABLE, to_csv, to_markdown
from mlnt.reproduce.places import Place
from mlnt.reproduce.recorded import read_recorded
from mlnt.reproduce.sheet import SHEET
from recorded_runs import make_run

ROOT = Path(__file__).parent.parent
AT_50 = Path("cifar10/mlnt/symmetric-0.5")


def contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def line_with(text: str, beginning: str) -> list[str]:
    line = next(line for line in text.splitlines() if line.startswith(f"| {beginning}"))
    return [cell.strip() for cell in line.strip("|").split("|")]


def test_what_is_committed_is_what_the_command_makes() -> None:
    results = ROOT / "results"
    if not results.exists():
        pytest.skip("no results yet")
    runs = read_recorded(results)
    assert (results / TABLE).read_text(encoding="utf-8") == to_csv(runs)
    assert (ROOT / PAGE).read_text(encoding="utf-8") == to_markdown(runs, results)
    for path in results.rglob("*.json"):
        assert "/home/" not in path.read_text(encoding="utf-8"), path


def test_figures_by_hand(tmp_path: Path) -> None:
    """Three seeds: 90, 91 and 92.5; mean 91.17, standard deviation 1.258, error 0.73."""
    for seed, best in enumerate((90.0, 91.0, 92.5)):
        make_run(tmp_path / f"run-{seed}", best, last=best - 0.25 * seed, minutes=10 + seed,
                 seed=seed)  # fmt: skip
    results = tmp_path / "results"
    write_results([tmp_path / f"run-{seed}" for seed in range(3)], results)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert line_with(page, "CIFAR-10, symmetric 0.5") == [
        "CIFAR-10, symmetric 0.5", "90.65 ± 0.09", "≥ 90.65", "91.17 ± 0.73", "3", "−0.25", "11.0",
        "yes",
    ]  # fmt: skip
    assert line_with(page, "CIFAR-10, symmetric 0.7")[3:] == ["not run", "0", "", "", ""]
    assert line_with(page, "last epoch at most 0.5")[1:] == ["−0.50 at worst", "3", "yes"]
    assert line_with(page, "a run takes at most 15")[1:] == ["12.0 at most", "3", "yes"]
    assert line_with(page, "mlnt teacher, iteration 3")[1:] == [
        "3", "91.17 ± 0.73", "90.00 to 92.50", "90.92 ± 0.58", "90.65 ± 0.09", "+0.52",
    ]  # fmt: skip
    assert line_with(page, "cross entropy")[1:3] == ["3", "85.17 ± 0.73"]
    assert "fast\n\nWrong: 45.1 % of the training labels.\n\n| model" in page
    assert line_with(page, "mlnt; CIFAR-10, symmetric 0.5, fast")[1:] == [
        "0", "45.1", "3.1", "92.6", "20,002 of 45,000", "0.988", "0.977", "33.3 → 1.2", "10.0",
        "NVIDIA H200", "0123456789",
    ]  # fmt: skip
    command = "mlnt reproduce table1 --data CIFAR10 --fast --cells mlnt/symmetric-0.5 --seeds 3\n"
    assert command in page
    counts = page.partition("## What was run")[2]
    assert line_with(counts, "mlnt")[1:] == ["0", "0", "0", "3", "0", "0"]
    assert "joint optimization" not in counts, "it was never run"
    with (results / TABLE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    assert len(rows) == 3 * 7
    assert list(rows[-1].values()) == [
        "cifar10", "symmetric:0.5", "mlnt", "teacher", "3", "2", "92.5000", "92.0000", "12.00",
        "NVIDIA H200", "0123456789abcdef0123456789abcdef01234567",
    ]  # fmt: skip
    with Image.open(results / AT_50 / "progress.png") as picture:
        assert min(picture.size) > 300
    assert f"](results/{AT_50}/progress.png)" in page


def test_short_of_the_target(tmp_path: Path) -> None:
    make_run(tmp_path / "run", 90.6, last=90.0, minutes=16)
    write_results([tmp_path / "run"], tmp_path / "results")
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert line_with(page, "CIFAR-10, symmetric 0.5")[3:] == ["90.60", "1", "−0.60", "16.0", "no"]
    assert line_with(page, "last epoch at most 0.5")[-1] == "no"
    assert line_with(page, "a run takes at most 15")[-1] == "no"


def test_minutes_beside_others_do_not_count(tmp_path: Path) -> None:
    make_run(tmp_path / "run-0", minutes=20, shared_gpu=True)
    write_results([tmp_path / "run-0"], tmp_path / "results")
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert line_with(page, "CIFAR-10, symmetric 0.5")[6] == "20.0, shared"
    assert line_with(page, "a run takes at most 15")[1:] == ["no run had", "0", ""]
    make_run(tmp_path / "run-1", minutes=14, seed=1)
    write_results([tmp_path / "run-1"], tmp_path / "results")
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert line_with(page, "CIFAR-10, symmetric 0.5")[6] == "14.0"
    assert line_with(page, "a run takes at most 15")[1:] == ["14.0 at most", "1", "yes"]
    with (tmp_path / "results" / TABLE).open(encoding="utf-8", newline="") as file:
        machines = {row["seed"]: row["machine"] for row in csv.DictReader(file)}
    assert machines == {"0": "NVIDIA H200, shared", "1": "NVIDIA H200"}


def test_settings_that_say_nothing_name_no_schedule() -> None:
    given = {"noise": "symmetric:0.5", "validation": "clean"}
    for method, expected in (("forward", ""), ("mlnt", "teacher_settles=False")):
        settings = make_settings("cifar10-fast", method=method, teacher_settles=False, **given)
        assert schedule_of("cifar10", settings) == expected
    for weights, expected in (("none", "weights=none"), ("self", "self_epochs=9")):
        settings = make_settings("cifar10-fast", weights=weights, self_epochs=9, **given)
        assert schedule_of("cifar10", settings) == expected


def test_the_same_bytes_again_and_no_folders_of_the_machine(tmp_path: Path) -> None:
    origin = {"continued": [{"machine": "other", "commit": "second+changes"}]}
    for seed in range(2):
        make_run(tmp_path / f"out/cells/mlnt/x/seed-{seed}", seed=seed, config=origin)
    make_run(tmp_path / "out/cells/mlnt/y/seed-0", noise="matrix:/home/somebody/my data/t.csv")
    first, second = tmp_path / "a/results", tmp_path / "b/results"
    write_results([tmp_path / "out"], first)
    for path in sorted((tmp_path / "out").rglob("seed-*"), reverse=True):
        write_results([path], second)
    found = contents(first.parent)
    assert found == contents(second.parent)
    write_results([], first)
    assert found == contents(first.parent), "without folders nothing changes"
    kept = {Path(name).name for name in found}
    assert kept == {
        "config.json", "summary.json", "metrics.jsonl", "progress.png", TABLE, PAGE,
    }  # fmt: skip
    for name, content in found.items():
        assert b"somebody" not in content, name
        assert str(tmp_path).encode() not in content, name
    assert b"matrix:t.csv" in found[f"results/{TABLE}"]
    assert "0123456789 and second+changes" in found[PAGE].decode()


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("/home/a/b.npz", "b.npz"),
        ("matrix:/home/a b/t.csv", "matrix:t.csv"),
        ("C:\\Users\\a\\t.csv", "t.csv"),
        ("~/t.csv", "t.csv"),
        ("see /x", "see x"),
        ("runs/a", "runs/a"),
        ("n/a", "n/a"),
        ("torchvision:resnet50", "torchvision:resnet50"),
    ],
)
def test_paths_lose_their_folders(text: str, left: str) -> None:
    assert without_folders({text: [text, 1, None]}) == {left: [left, 1, None]}


def test_schedules_have_names() -> None:
    def name(data: str, preset: str, **changed: object) -> str:
        noise = "none" if data == "cifar10n" else "symmetric:0.5"
        validation = "noisy" if data == "cifar10n" else "clean"
        usual = {"noise": noise, "validation": validation, "seed": 7, "device": "cpu"}
        return schedule_of(data, make_settings(preset, **{**usual, **changed}))

    assert name("cifar10", "cifar10-fast") == ""
    assert name("cifar10n", "cifar10-fast") == ""
    assert name("cifar10", "cifar10") == "paper"
    assert name("cifar10", "cifar10", tau=0.2) == "paper,tau=0.2"
    assert name("cifar10", "cifar10-fast", sets=2, method="forward") == "sets=2"
    assert name("cifar10", "cifar10-fast", validation="noisy") == "validation=noisy"
    assert name("digits", "digits", epochs=8) == "epochs=8"
    assert name("digits", "clothing1m").startswith("settings=")


def test_schedules_stand_beside_each_other(tmp_path: Path) -> None:
    runs = [make_run(tmp_path / "fast"), make_run(tmp_path / "full", 90.0, preset="cifar10")]
    runs.append(make_run(tmp_path / "n", labels="/home/somebody/cifar10n.npz:worse_label"))
    write_results(runs, tmp_path / "results")
    names = sorted(p.parent.relative_to(tmp_path / "results").as_posix()
                   for p in (tmp_path / "results").rglob("config.json"))  # fmt: skip
    assert names == [f"{AT_50}/paper/seed-0", f"{AT_50}/seed-0", "cifar10n/mlnt/worst/seed-0"]
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    titles = re.findall("^## (.*)", page, flags=re.MULTILINE)[1:4]
    assert titles == [
        "CIFAR-10, symmetric 0.5, fast", "CIFAR-10, symmetric 0.5, the paper's schedule",
        "CIFAR-10N, worst, fast",
    ]  # fmt: skip
    assert line_with(page, "CIFAR-10, symmetric 0.5")[3] == "91.00", "the fast one counts"
    assert line_with(page, "CIFAR-10N, worst")[3] == "91.00"
    for better in ("ELR+ 91.1", "DivideMix 92.6"):
        assert better in line_with(page, "CIFAR-10N, worst")[1]
    assert "mlnt reproduce table1 --data CIFAR10 --cells mlnt/symmetric-0.5 --seeds 1\n" in page
    assert "1 + 1" in page
    table = (tmp_path / "results" / TABLE).read_text(encoding="utf-8")
    assert "cifar10,symmetric:0.5,mlnt (paper),teacher,3,0,90.0000" in table


def test_commands_that_no_experiment_has(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", noise="symmetric:0.2", preset="cifar10", rho=0.1, flip=False),
        make_run(tmp_path / "b", noise="matrix:/home/somebody/t.csv", validation="noisy"),
        make_run(tmp_path / "c", data="shirts", preset="image", noise="none", validation="noisy"),
        make_run(tmp_path / "d", preset="clothing1m", seed=3),
        make_run(tmp_path / "e", data="shirts", preset="image", noise="none", validation="clean"),
    ]
    write_results(runs, tmp_path / "results")
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    commands = re.findall("^mlnt .*", page, flags=re.MULTILINE)
    assert commands == [
        "mlnt reproduce table1 --data CIFAR10 --cells mlnt/symmetric-0.5 --seeds 4 "
        "--set model=resnet50 --set weights=imagenet --set alpha=0.02 --set eta=0.0008 "
        "--set tau=0.3 --set epochs=3 --set batch_size=32 --set lr=0.0008 --set weight_decay=0.001 "
        f"--set fall_at=1 --set warmup={2000 / 93_750} --set crop_padding=0 "
        "--set flip=False",
        "mlnt train CIFAR10 --preset cifar10-fast --noise matrix:t.csv --validation noisy "
        "--method mlnt --seed 0",
        "mlnt train CIFAR10 --preset cifar10 --noise symmetric:0.2 --validation clean "
        "--method mlnt --seed 0 --rho 0.1 --no-flip",
        "mlnt train data --preset image --method mlnt --seed 0",
        "mlnt train data --preset image --method mlnt --seed 0 --validation clean",
    ]


def test_the_command_of_a_run_is_the_one_it_was_begun_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the names of the files; none where data or network came from Python."""
    monkeypatch.chdir(tmp_path)
    lines = [f"{i % 7},{i % 5},{'yes' if i % 2 else 'no'}" for i in range(120)]
    Path("own").mkdir()
    for name in ("train", "test", "true"):
        Path(f"own/{name}.csv").write_text("\n".join(["a,b,kind", *lines]))
    words = [
        "train",
        "own/train.csv",
        "--test-data",
        "own/test.csv",
        "--true-labels",
        "own/true.csv",
        "--label-column",
        "kind",
    ]
    quick = {"epochs": 1, "sets": 1, "iterations": 1, "batch_size": 32}
    options = [text for name, value in quick.items() for text in (f"--{name}", str(value))]
    options = [text.replace("_", "-") for text in options]
    assert cli.run([*words, *options, "--noise", "symmetric:0.2", "--out", "run"]) == 0
    write_results([Path("run")], Path("results"))
    [command] = re.findall("^mlnt (.*)", Path(PAGE).read_text(encoding="utf-8"), re.MULTILINE)
    assert command.startswith("train train.csv --true-labels true.csv --test-data test.csv ")
    monkeypatch.chdir("own")
    assert cli.run([*shlex.split(command), "--out", "../again"]) == 0
    monkeypatch.chdir("..")
    runs = [json.loads(Path(name, "config.json").read_text()) for name in ("run", "again")]
    for name in ("settings", "source"):
        assert runs[0][name] == runs[1][name], name

    rows = torch.arange(240.0).reshape(120, 2), torch.arange(120) % 2
    mlnt.train(rows, test_data=rows, out="arrays", **quick)
    write_results([Path("arrays")], Path("others/results"))
    page = Path("others", PAGE).read_text(encoding="utf-8")
    assert "Made by:" not in page


def test_what_the_noise_is_called_and_which_experiment_has_it(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path / "a", data="shirts", preset="image", noise="none", validation="noisy"),
        make_run(tmp_path / "cells/mlnt/real/seed-0", data="digits", preset="digits", noise="none"),
    ]
    write_results(runs, tmp_path / "results")
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert "## shirts, labels as they came" in page
    assert "mlnt reproduce table4 --data digits --cells mlnt/real --seeds 1" in page


def test_commands_are_those_of_today(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_results([make_run(tmp_path / "run")], tmp_path / "results")
    longer = {**PRESETS["cifar10-fast"], "epochs": PRESETS["cifar10-fast"]["epochs"] + 1}
    monkeypatch.setitem(PRESETS, "cifar10-fast", longer)
    page = to_markdown(read_recorded(tmp_path / "results"), tmp_path / "results")
    was = f"--cells mlnt/symmetric-0.5 --seeds 1 --set epochs={longer['epochs'] - 1}\n"
    assert was in page
    assert line_with(page, "CIFAR-10, symmetric 0.5")[3] == "91.00", "it still counts"


def test_a_line_stands_once_for_each_seed_in_the_table(tmp_path: Path) -> None:
    """Cross entropy lies in the runs of Forward too: 85 is MLNT's, that of seed 1 Forward's own."""
    runs = [make_run(tmp_path / "mlnt", 91.0)]
    runs += [
        make_run(tmp_path / f"forward-{seed}", 89.0 + seed, method="forward", seed=seed)
        for seed in (0, 1)
    ]
    results = tmp_path / "results"
    write_results(runs, results)
    with (results / TABLE).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    names = [(row["method"], row["model"], row["iteration"], row["seed"]) for row in rows]
    assert len(names) == len(set(names))
    baseline = {row["seed"]: row["best"] for row in rows if row["method"] == "cross_entropy"}
    assert baseline == {"0": "85.0000", "1": "84.0000"}
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert line_with(page, "cross entropy")[1:3] == ["2", "84.50 ± 0.50"], "the page's own"


def test_runs_with_other_settings_say_so_and_do_not_count(tmp_path: Path) -> None:
    """As they are where the preset has changed since they were recorded."""
    results = tmp_path / "results"
    longer = {"epochs": 60, "last_epochs": "same"}
    runs = [
        make_run(tmp_path / "mlnt", 91.0),
        make_run(tmp_path / "forward", 89.0, method="forward", seed=1, **longer),
    ]
    write_results(runs, results)
    for path in results.rglob("config.json"):
        config = json.loads(path.read_text())
        config["cell"]["schedule"] = ""  # of another day
        path.write_text(json.dumps(config))
    write_results([], results)
    page = (tmp_path / PAGE).read_text(encoding="utf-8")
    assert line_with(page, "cross entropy")[1:3] == ["1", "85.00"], "not mixed with 60 epochs"
    assert "forward; CIFAR-10, symmetric 0.5, fast, 60 epochs a stage" in page
    counts = page.partition("## What was run")[2].partition("## ")[0]
    assert line_with(counts, "mlnt")[4] == "1"
    assert "forward" not in counts
    table = (results / TABLE).read_text(encoding="utf-8")
    assert "cross_entropy,student,0,1" not in table


def test_words_of_changes() -> None:
    changes = ["led_lr=same", "epochs=60", "last_epochs=same", "weights=none"]
    assert changes_words(changes) == ["random weights", "60 epochs a stage", "led_lr=same"]
    assert changes_words(["epochs=60"]) == ["epochs=60"]
    assert untold(changes, "paper,weights=none") == changes[:3]
    assert untold(changes, "settings=0123abcd") == [], "its heading says that they are others"


def test_does_not_mix_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results = tmp_path / "results"
    write_results([make_run(tmp_path / "a"), make_run(tmp_path / "b", seed=1)], results)
    before = contents(tmp_path / "results")
    write_results([make_run(tmp_path / "again", 91.5)], results)  # made alike: takes its place
    assert contents(results) != before
    before = contents(results)

    other = make_run(tmp_path / "other", config={"data": {
        "name": "cifar10", "is_known": True, "samples": {"train": 45000},
        "fingerprint": "else"}})  # fmt: skip
    with pytest.raises(InputError, match=r"holds another run \(other fingerprint.*--replace"):
        write_results([other], results)
    with pytest.raises(InputError, match=r"are both .*seed-0; give one"):
        write_results([tmp_path / "a", tmp_path / "again"], results)
    # As if the preset had changed since: the same name, other settings.
    fast = {
        "a": make_run(tmp_path / "new-0", epochs=31),
        "b": make_run(tmp_path / "new-1", epochs=31, seed=1),
    }
    monkeypatch.setattr("mlnt.reproduce.naming.differences", lambda preset, settings: [])
    usual = make_settings("cifar10-fast").epochs
    with pytest.raises(InputError, match=rf"holds another run \(epochs={usual}, now 31"):
        write_results([fast["a"]], results)
    with pytest.raises(InputError, match="would be averaged, but differ"):
        write_results([fast["a"]], results, replace=True)
    assert contents(results) == before, "what is refused leaves nothing behind"
    write_results(list(fast.values()), results, replace=True)
    epochs = {json.loads(p.read_text())["settings"]["epochs"] for p in results.rglob("config.json")}
    assert epochs == {31}


def test_command_names_what_is_unfinished(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("out/cells/mlnt/symmetric-0.5/seed-0"))
    make_run(Path("out/cells/mlnt/symmetric-0.5/seed-1"), seed=1, finished=False)
    assert cli.run(["results", "out"]) == 0
    shown = capsys.readouterr().out
    assert "not finished, left out: out/cells/mlnt/symmetric-0.5/seed-1" in shown
    assert f"run: results/{AT_50}/seed-0" in shown
    assert len(list(Path("results").rglob("summary.json"))) == 1
    assert cli.run(["results"]) == 0
    assert cli.run(["results", "results"]) == 2
    assert cli.run(["results", "nowhere"]) == 2
    errors = capsys.readouterr().err.splitlines()
    assert "is written down already" in errors[0]
    assert "nowhere holds no run" in errors[1]
    make_run(Path("results/mine"))
    assert cli.run(["results"]) == 2
    assert "was not put there by `mlnt results`" in capsys.readouterr().err


def test_a_run_without_test_data_is_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("out/with"))
    mlnt.train(
        (torch.arange(120.0).reshape(60, 2), torch.arange(60) % 2),
        out="out/without",
        method="cross_entropy",
        epochs=1,
        batch_size=16,
    )
    assert cli.run(["results", "out"]) == 0
    shown = capsys.readouterr().out
    assert "had no test data, left out: out/without" in shown
    assert f"run: results/{AT_50}/seed-0" in shown
    assert len(list(Path("results").rglob("summary.json"))) == 1
    assert cli.run(["results", "out/without"]) == 0, "nothing to write down is no mistake"


def test_what_others_wrote_is_not_written_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    make_run(Path("out/a"))
    Path("results").mkdir()
    for name in (PAGE, f"results/{TABLE}"):
        Path(name).write_text("# Results\n\nof mine\n")
        before = contents(tmp_path)
        assert cli.run(["results", "out"]) == 2
        said = capsys.readouterr().err
        assert said.startswith(f"mlnt: {name} was not written by `mlnt results`; move it")
        assert said.count("\n") == 1
        assert contents(tmp_path) == before
        Path(name).unlink()
    assert cli.run(["results", "out"]) == 0
    assert cli.run(["results", "out"]) == 0, "what it wrote itself"


def test_nothing_recorded_is_nothing_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.run(["results", "--to", "empty"]) == 0
    assert "nothing is recorded in empty, nothing written; give" in capsys.readouterr().out
    assert not list(tmp_path.iterdir())


def test_the_goals_of_others_stand_in_no_page_of_ones_own(tmp_path: Path) -> None:
    write_results([make_run(tmp_path / "own", data="shirts", preset="image")], tmp_path / "a/kept")
    page = (tmp_path / "a" / PAGE).read_text(encoding="utf-8")
    titles = re.findall("^## (.*)", page, flags=re.MULTILINE)
    assert titles == ["shirts, symmetric 0.5", "Each run"]
    write_results([make_run(tmp_path / "run")], tmp_path / "b/kept")
    page = (tmp_path / "b" / PAGE).read_text(encoding="utf-8")
    assert "## What was to be reached" in page
    _, _, counts = page.partition("## What was run")
    assert "Table 1" in counts
    assert "Table 2" not in counts, "none of its cells was run"


@pytest.mark.parametrize("to", [".", "..", "../kept"])
def test_the_page_lies_beside_the_folder(
    to: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "kept" if to != ".." else tmp_path / "kept" / "deeper"
    here.mkdir(parents=True)
    monkeypatch.chdir(here)
    write_results([make_run(tmp_path / "run")], Path(to))
    assert (tmp_path / PAGE).is_file()
    assert (tmp_path / "kept" / "summary.csv").is_file()


def test_hostile_names_are_harmless(tmp_path: Path) -> None:
    name = "../..|<script>`x`[y](z)\n# h"
    config = {
        "data": {"name": name, "is_known": True, "samples": {}, "fingerprint": ""},
        "machine": "=cmd()|<b>",
        "commit": "\x1b[2J**x**",
    }
    make_run(tmp_path / "run", config=config)
    write_results([tmp_path / "run"], tmp_path / "to" / "results")
    page = (tmp_path / "to" / PAGE).read_text(encoding="utf-8")
    outside = re.sub(r"```\n.*?\n```", "", page, flags=re.DOTALL)
    assert "\\<script\\>\\`x\\`\\[y\\](z)\\\\n# h" in outside
    for mark in ("\x1b", "\n# h", " **x"):
        assert mark not in outside, mark
    assert not re.search(r"(?<!\\)<", outside), "no tag"
    widths = {len(re.findall(r"(?<!\\)\|", line)) for line in page.splitlines() if "cmd" in line}
    assert widths == {13}, "a bar makes no further cell"
    assert ",'=cmd()|<b>," in (tmp_path / "to/results" / TABLE).read_text(encoding="utf-8")
    places = [path.relative_to(tmp_path) for path in tmp_path.rglob("config.json")]
    assert len(places) == 2
    assert all(re.fullmatch(r"[\w.,/-]+", path.as_posix()) for path in places)


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        '{"models": []}',
        '{"models": [{"best": null}]}',
        '{"models": [{"best": null, "last": 1}], "seconds": 1}',
    ],
)
def test_damaged_runs_are_refused(tmp_path: Path, damage: str) -> None:
    run = make_run(tmp_path / "run")
    (run / "summary.json").write_text(damage)
    with pytest.raises(InputError, match="damaged"):
        write_results([run], tmp_path / "results")
    assert not (tmp_path / "results").exists()


def test_a_figure_that_cannot_be_drawn_is_not_called_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise ImportError("no matplotlib")

    run = make_run(tmp_path / "run")
    with monkeypatch.context() as patched:
        patched.setattr("mlnt.reproduce.record.draw_stages", fail)
        with pytest.raises(ImportError):
            write_results([run], tmp_path / "results")
    (run / "metrics.jsonl").write_text('{"method": "mlnt", "iteration": 1}\n')
    with pytest.raises(InputError, match="damaged"):
        write_results([run], tmp_path / "others")


@pytest.mark.parametrize("lost", ["models", "noise"])
def test_damaged_results_are_named(tmp_path: Path, lost: str) -> None:
    results = tmp_path / "results"
    write_results([make_run(tmp_path / "run")], results)
    [path] = results.rglob("summary.json")
    summary = json.loads(path.read_text())
    if lost == "models":  # a figure that only the tables want
        del summary["models"][-1]["peak"]
    else:
        del summary["noise"]
    path.write_text(json.dumps(summary))
    with pytest.raises(InputError, match="results are damaged"):
        write_results([], results)


def test_a_real_run_makes_the_round_trip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trained on the digits: what it says of itself is what the results say."""
    small = dataclasses.replace(EXPERIMENTS["table1"], methods=("mlnt",), noises=("symmetric:0.5",))
    monkeypatch.setitem(EXPERIMENTS, "table1", small)
    monkeypatch.setattr(places, "FAST_DIGITS", {"epochs": 1, "sets": 1, "batch_size": 256})
    monkeypatch.setenv("MLNT_COMMIT", "abc")
    run_experiment("table1", 1, Path("digits"), tmp_path / "out", fast=True, iterations=1)
    record = write_results([tmp_path / "out"], tmp_path / "results")
    (run,) = read_recorded(tmp_path / "results")
    folder = tmp_path / "out/cells/mlnt/symmetric-0.5/seed-0"
    assert run.summary == json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    assert (run.folder / "metrics.jsonl").read_text() == (folder / "metrics.jsonl").read_text()
    assert record.copied == (run.folder,)
    assert (run.data, run.noise, run.config["commit"]) == ("digits", "symmetric:0.5", "abc")
    assert run.schedule == "iterations=1,sets=1,epochs=1,batch_size=256"
    assert run.minutes > 0


def test_sheets_travel_and_are_small(tmp_path: Path) -> None:
    """Pictures of pure chance, which no file format makes smaller."""
    pixels = np.random.default_rng(0).integers(0, 256, (90, 32, 32, 3), dtype=np.uint8)
    data = tmp_path / "data.npz"
    np.savez(data, X=pixels, y=np.arange(90) % 10)
    experiment = dataclasses.replace(EXPERIMENTS["table1"], methods=("mlnt",))
    arguments = {"data": data, "noise": "symmetric:0.5", "validation": "clean"}
    place = Place("CIFAR-10", "cifar10-fast", ("symmetric:0.5",), lambda noise: arguments)
    (cell,) = plan(experiment, place, 1, tmp_path / "out", {})
    make_run(cell.folder)
    assert _write_sheets(experiment, place, [cell]) == [], "nothing was filtered"
    lines = ["index,given,mentor,given_probability,mentor_probability"]
    lines += [f"{index},cat,dog,0.01,0.9" for index in range(90)]
    (cell.folder / "filtered.csv").write_text("\n".join(lines) + "\n")
    (sheet,) = _write_sheets(experiment, place, [cell])
    assert sheet == cell.folder / SHEET
    assert 20_000 < sheet.stat().st_size < 300_000
    write_results([tmp_path / "out"], tmp_path / "results")
    assert (tmp_path / "results" / AT_50 / SHEET).read_bytes() == sheet.read_bytes()
    assert f"](results/{AT_50}/{SHEET})" in (tmp_path / PAGE).read_text(encoding="utf-8")


def test_figures_of_an_experiment_travel(tmp_path: Path) -> None:
    make_run(tmp_path / "out/cells/mlnt/symmetric-0.5/seed-0")
    picture = tmp_path / "out/sweep-m.png"
    picture.write_bytes(b"no picture")
    with pytest.raises(InputError, match="is no PNG"):
        write_results([tmp_path / "out"], tmp_path / "results")
    assert not (tmp_path / "results").exists()
    Image.new("L", (2, 2)).save(picture)
    write_results([tmp_path / "out"], tmp_path / "results")
    assert (tmp_path / "results/cifar10/sweep-m.png").read_bytes() == picture.read_bytes()
    assert "](results/cifar10/sweep-m.png)" in (tmp_path / PAGE).read_text(encoding="utf-8")
