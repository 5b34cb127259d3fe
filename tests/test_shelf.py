"""Stages that several runs have in common: trained once, to the same end as if by each."""

import dataclasses
import json
import logging
import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

import mlnt
from mlnt import shelf
from mlnt.checkpoints import Checkpoints
from mlnt.config import make_settings
from mlnt.errors import Stopped, StorageError
from mlnt.reproduce import EXPERIMENTS, cells, places, run_experiment
from mlnt.shelf import Shelf, digest_of_beginning
from mlnt.training import Stage, Trainer
from small_runs import few_digits, leave_out_reports, shorten_digits
from test_resume import StopAfter, assert_same_end

QUICK = {"epochs": 2, "sets": 1, "batch_size": 64, "weights": "self", "iterations": 2}


@pytest.fixture
def epochs_trained(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How many epochs of each stage have been trained, whoever asked for them."""
    counted: Counter[str] = Counter()
    original = Trainer._epoch

    def counting(self: Trainer, stage: Stage, *others: Any) -> dict[str, Any]:
        counted[stage.name] += 1
        return original(self, stage, *others)

    monkeypatch.setattr(Trainer, "_epoch", counting)
    return counted


@pytest.fixture
def small_table(monkeypatch: pytest.MonkeyPatch) -> tuple[str, ...]:
    """Table 1 with three methods beside cross entropy and one rate on 400 digits; the methods."""
    shorten_digits(monkeypatch, 400)
    leave_out_reports(monkeypatch)
    methods = ("mlnt", "iterative", "forward")
    small = dataclasses.replace(
        EXPERIMENTS["table1"], methods=("cross_entropy", *methods), noises=("symmetric:0.5",)
    )
    monkeypatch.setitem(EXPERIMENTS, "table1", small)
    monkeypatch.setattr(places, "FAST_DIGITS", QUICK)
    return methods


def table1(out: Path, cells: str | None = None, **settings: Any) -> None:
    run_experiment("table1", 1, Path("digits"), out, fast=True, cells=cells, **settings)


def test_first_stages_are_trained_once_and_every_method_ends_as_if_alone(
    tmp_path: Path, small_table: tuple[str, ...], epochs_trained: Counter[str]
) -> None:
    table1(tmp_path / "together")
    assert epochs_trained == {
        "contrastive": 2,
        "cross_entropy": 2,
        "mlnt iteration 1": 2,
        "mlnt iteration 2": 2,
        "iterative iteration 1": 2,
        "iterative iteration 2": 2,
        "forward iteration 1": 2,
    }
    assert not (tmp_path / "together" / cells.SHELF).exists(), "all are finished"
    for method in small_table:
        table1(tmp_path / method, method)
        name = f"cells/{method}/symmetric-0.5/seed-0"
        assert_same_end(tmp_path / "together" / name, tmp_path / method / name)
    assert epochs_trained["contrastive"] == 2 * 4
    assert (tmp_path / "mlnt" / cells.SHELF).is_dir(), "other cells may still come"


def test_features_without_labels_are_trained_once_whatever_the_labels(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    small_table: tuple[str, ...],
    epochs_trained: Counter[str],
) -> None:
    noises = ("symmetric:0.5", "symmetric:0.2")
    two_rates = dataclasses.replace(EXPERIMENTS["table1"], noises=noises)
    monkeypatch.setitem(EXPERIMENTS, "table1", two_rates)
    table1(tmp_path / "together", "mlnt")
    assert epochs_trained["contrastive"] == 2
    assert epochs_trained["cross_entropy"] == 2 * len(noises)
    for noise in ("symmetric-0.5", "symmetric-0.2"):
        table1(tmp_path / noise, f"mlnt/{noise}")
        name = f"cells/mlnt/{noise}/seed-0"
        assert_same_end(tmp_path / "together" / name, tmp_path / noise / name)


def test_the_seconds_of_a_stage_count_for_everyone_who_has_it(
    tmp_path: Path, small_table: tuple[str, ...]
) -> None:
    table1(tmp_path)
    spent = {}
    for method in small_table:
        run = tmp_path / f"cells/{method}/symmetric-0.5/seed-0"
        summary = json.loads((run / "summary.json").read_text())
        stages = {row["method"]: row["seconds"] for row in summary["models"]}
        spent[method] = stages["contrastive"]
        assert summary["seconds"] > sum(
            {(m["method"], m["iteration"]): m["seconds"] for m in summary["models"]}.values()
        )
    assert len(set(spent.values())) == 1


def test_a_stage_taken_over_is_kept_beside_the_run_that_took_it(
    tmp_path: Path, small_table: tuple[str, ...], epochs_trained: Counter[str]
) -> None:
    """Interrupted, and the shelf gone, a run goes on with the very stage it began with."""
    table1(tmp_path / "whole", "iterative")
    table1(tmp_path / "parts", "mlnt")
    run = tmp_path / "parts" / "cells/iterative/symmetric-0.5/seed-0"
    epochs_trained.clear()
    experiment = EXPERIMENTS["table1"]
    place = places.find_place("table1", experiment, Path("digits"), True)
    planned = cells.plan(experiment, place, 1, tmp_path / "parts", {})
    cell = next(cell for cell in planned if cell.method == "iterative")
    with pytest.raises(Stopped):
        cells.run_cell(cell, "auto", math.inf, [StopAfter(3)])
    assert (run / "checkpoints" / "0-contrastive.safetensors").is_file()
    for file in (tmp_path / "parts" / cells.SHELF).iterdir():
        file.unlink()
    table1(tmp_path / "parts", "iterative")
    assert epochs_trained["contrastive"] == 0
    assert_same_end(run, tmp_path / "whole" / "cells/iterative/symmetric-0.5/seed-0")


def test_one_that_is_damaged_is_trained_anew(
    tmp_path: Path,
    small_table: tuple[str, ...],
    epochs_trained: Counter[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    table1(tmp_path, "mlnt")
    for file in (tmp_path / cells.SHELF).glob("*contrastive*"):
        file.write_bytes(file.read_bytes()[:-100])
    with caplog.at_level(logging.WARNING):
        table1(tmp_path, "iterative")
    assert "contrastive.safetensors is damaged" in caplog.text
    assert epochs_trained["contrastive"] == 4


@pytest.mark.parametrize("trouble", ["no folder", "unreadable"])
def test_a_shelf_only_saves_time(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    leave_out_reports(monkeypatch)
    folder = tmp_path / "shelf"
    folder.write_text("no folder")
    if trouble == "unreadable":

        def refuse(self: Checkpoints, name: str) -> None:
            if self.folder == folder:
                raise StorageError("cannot read it")

        monkeypatch.setattr(Checkpoints, "load", refuse)
    train_digits(tmp_path / "alone")
    with caplog.at_level(logging.WARNING):
        train_digits(tmp_path / "run", shelf=str(folder))
    assert f"{folder} is of no use" in caplog.text
    assert_same_end(tmp_path / "run", tmp_path / "alone")


def test_networks_of_ones_own_are_not_taken_for_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave_out_reports(monkeypatch)
    for seed in (0, 1):
        torch.manual_seed(seed)
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
        train_digits(tmp_path / f"{seed}", shelf=tmp_path / "shelf", model=model)
    assert not (tmp_path / "shelf").exists()


@pytest.mark.parametrize("differs", [True, False])
def test_who_was_slower_keeps_to_its_own_beginning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_trained: Counter[str], differs: bool
) -> None:
    """Cross entropy on the shelf came of another's features: on a GPU those may differ."""
    leave_out_reports(monkeypatch)
    folder = tmp_path / "shelf"
    train_digits(tmp_path / "first", shelf=folder, weights="self")
    hidden = {path: path.rename(path.with_suffix(".hidden")) for path in folder.iterdir()}
    original = Shelf.lacks

    def put_back(self: Shelf, stage: Stage) -> bool:
        for path, aside in hidden.items():
            if aside.exists():
                aside.rename(path)
        return original(self, stage)

    monkeypatch.setattr(Shelf, "lacks", put_back)
    if differs:
        follow = Shelf.follow

        def a_little_different(self: Shelf, content: dict[str, Any]) -> None:
            content["steps"]["models"]["student"]["0.weight"] += 1e-7
            follow(self, content)

        monkeypatch.setattr(Shelf, "follow", a_little_different)
    epochs_trained.clear()
    train_digits(tmp_path / "second", shelf=folder, weights="self")
    assert epochs_trained["contrastive"] == 1
    assert epochs_trained["cross_entropy"] == int(differs)
    assert len(list(folder.iterdir())) == (3 if differs else 2)


def train_digits(out: Path, **options: Any) -> None:
    inputs, labels = few_digits(0, 100)
    quick = {"epochs": 1, "sets": 1, "iterations": 1, "batch_size": 32}
    mlnt.train(inputs, labels=labels, out=out, **quick, **options)


class TestWhatFirstStagesDependOn:
    def config(self, **settings: Any) -> dict[str, Any]:
        chosen = dataclasses.asdict(make_settings("digits", **settings))
        data = {"name": "digits", "fingerprint": "of labels and pictures", "classes": ["0", "1"]}
        data |= {"encoder": "of images"}
        names = ("torch", "python", "noise", "machine", "commit")
        return {"settings": chosen, "data": data, **dict.fromkeys(names, "the same")}

    @pytest.mark.parametrize(
        "change",
        [
            {"method": "iterative"},
            {"iterations": 1},
            {"last_epochs": 7},
            {"sets": 7},
            {"alpha": 0.3},
            {"tau": 0.2},
            {"led_weight_decay": 1e-3},
            {"checkpoint_minutes": 1.0},
        ],
    )
    def test_not_on_what_comes_later(self, change: dict[str, Any]) -> None:
        assert digest_of_beginning(self.config(**change)) == digest_of_beginning(self.config())

    @pytest.mark.parametrize(
        "change",
        [
            {"seed": 1},
            {"epochs": 3},
            {"lr": 0.1},
            {"weights": "self"},
            {"self_epochs": 9},
            {"model": "mlp"},
            {"noise": "symmetric:0.1"},
            {"validation": "clean"},
            {"precision": "float64"},
            {"cutout": 2},
            {"deterministic": True},
            {"eta": 0.3},
        ],
    )
    def test_on_other_settings(self, change: dict[str, Any]) -> None:
        assert digest_of_beginning(self.config(**change)) != digest_of_beginning(self.config())

    def test_on_data_code_and_machine(self, monkeypatch: pytest.MonkeyPatch) -> None:
        first = digest_of_beginning(self.config())
        for name in ("data", "noise", "machine", "torch", "python"):
            assert digest_of_beginning({**self.config(), name: "another"}) != first
        monkeypatch.setattr(shelf, "_digest_of_code", lambda: "of changed files")
        assert digest_of_beginning(self.config()) != first

    def test_without_labels_on_the_samples_alone(self) -> None:
        first = digest_of_beginning(self.config(), "of pictures")
        other = self.config(noise="symmetric:0.1", validation="clean")
        other["data"] |= {"fingerprint": "of other labels"}
        other["noise"] = "another"
        assert digest_of_beginning(other, "of pictures") == first
        assert digest_of_beginning(other, "of others") != first
        assert digest_of_beginning(self.config(self_epochs=9), "of pictures") != first
        for change in ({"classes": ["0", "1", "2"]}, {"name": "another"}, {"encoder": "another"}):
            changed = {**other, "data": {**other["data"], **change}}
            assert digest_of_beginning(changed, "of pictures") != first
        assert digest_of_beginning(self.config()) != first
