"""Settings of a led iteration: by validation alone, and no row depends on another."""

import dataclasses
import json
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest

from mlnt import cli
from mlnt.bench.led import AS_IT_IS, LedResult, LedRow, run_led
from mlnt.errors import InputError
from mlnt.training import Stage, StageResult, Trainer

TRIALS = ("", "lr=0.05  eta=0.1")
NAMES = (AS_IT_IS, "lr=0.05 eta=0.1")


def run(
    done: Path | None = None, trials: tuple[str, ...] = TRIALS, seeds: int = 1, **others: Any
) -> LedResult:
    arguments = {"epochs": 4, "batch_size": 32, "sets": 1, **others}
    return run_led("digits", trials, "cpu", seeds, done=done, **arguments)


def no_training(*ignored: object) -> None:
    raise AssertionError("trained")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[Trainer, Any]]]:
    """A measurement of two seeds, and what was trained for it."""
    path, trained = tmp_path_factory.mktemp("led") / "done.json", []
    original = Trainer.run

    def spy(self: Trainer, stage: Stage, *others: Any) -> StageResult:
        result = original(self, stage, *others)
        trained.append((self, result))
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "run", spy)
        run(path, seeds=2)
    return path, trained


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_every_figure_is_there(watched: tuple[Path, list[tuple[Trainer, Any]]]) -> None:
    found = content(watched[0])
    assert list(found) == [field.name for field in dataclasses.fields(LedResult)]
    assert found["data"] == "digits"
    assert found["settings"]["validation"] == "clean"
    rows = found["rows"]
    assert [(row["trial"], row["seed"]) for row in rows] == [
        (name, seed) for seed in (0, 1) for name in NAMES
    ]
    for row in rows:
        assert set(row) == {field.name for field in dataclasses.fields(LedRow)}
        assert all(0 < row[name] <= 100 for name in ("student", "teacher", "given_back"))
        assert 0 <= row["wrong_among_kept"] < 40
        assert 0 < row["kept"] < 1215
        assert row["epochs"] == 4


def test_trials_differ_in_their_settings_alone(
    watched: tuple[Path, list[tuple[Trainer, Any]]],
) -> None:
    found, trained = content(watched[0]), watched[1]
    of_a_seed = [Stage("cross_entropy", 0), Stage("mlnt", 2), Stage("mlnt", 2)]
    assert [result.stage for _, result in trained] == 2 * of_a_seed
    assert all(trainer.test is None for trainer, _ in trained), "nothing is chosen by test data"
    for seed in (0, 1):
        mentor, *led = (result for trainer, result in trained if trainer.settings.seed == seed)
        assert found["mentors"][str(seed)] == mentor.best.validation
        assert [result.history[0]["eta"] for result in led] == [
            pytest.approx(rate) for rate in (0.2, 0.1)
        ], "not the first iteration: it does not ramp"
        assert led[0].kept.tolist() == led[1].kept.tolist()
        rows = [row for row in found["rows"] if row["seed"] == seed]
        for row, result in zip(rows, led, strict=True):
            last = [epoch["teacher"]["validation"] for epoch in result.history[-3:]]
            assert row["teacher"] == fmean(last)
            assert row["given_back"] == result.history[-1]["train"]


def test_goes_on_where_it_stopped_to_the_same_end(
    watched: tuple[Path, list[tuple[Trainer, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = content(watched[0])
    part = tmp_path / "part.json"
    part.write_text(json.dumps({**whole, "rows": whole["rows"][:1]}), encoding="utf-8")
    run(part)  # the second trial of the first seed, with nothing trained before it
    again = content(part)["rows"]
    same = [
        {name: value for name, value in row.items() if name not in ("step_ms", "seconds")}
        for row in (again[1], whole["rows"][1])
    ]
    assert same[0] == same[1]
    assert again[0] == whole["rows"][0]
    monkeypatch.setattr(Trainer, "run", no_training)
    assert json.loads(run(watched[0], seeds=2).to_json())["rows"] == whole["rows"]
    with pytest.raises(InputError, match=r"rho was 0.5 in .*, now it is 0.1; choose another file"):
        run(watched[0], rho=0.1)
    with pytest.raises(InputError, match=r"noise was 'asymmetric:0.4'"):
        run(watched[0], noise="symmetric:0.4")


@pytest.mark.parametrize(
    ("trial", "message"),
    [
        ("lr", "a trial takes NAME=VALUE, got 'lr'"),
        ("lrr=0.1", "unknown setting 'lrr'; did you mean 'lr'"),
        ("lr=-1", r"lr must lie in \[0"),
        ("seed=3", "a trial cannot change seed"),
        ("weights=self", "a trial cannot change weights"),
    ],
)
def test_mistakes_are_told_before_anything_is_trained(
    trial: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", no_training)
    with pytest.raises(InputError, match=message):
        run(trials=("", trial))


@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_a_trial_without_effect_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "run", no_training)
    with pytest.raises(InputError, match=f"{name} has no effect where led_{name} is set"):
        run(trials=(f"{name}=0.1",), **{f"led_{name}": 0.01})


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "led.json"
    command = ["bench", "--led", "", "--led", "tau=0.95", "--data", "digits", "--epochs", "2"]
    command += ["--device", "cpu", "--noise", "symmetric:0.2", "--json", str(file)]
    assert cli.run(command) == 0
    said = capsys.readouterr().out
    assert AS_IT_IS in said
    assert "led by cross entropy" in said
    usual, strict = content(file)["rows"]
    assert strict["kept"] < usual["kept"], "each trial has the filter of its own settings"
    assert content(file)["settings"]["noise"] == "symmetric:0.2"
    assert cli.run(["bench", "--led", "", "--noise", "none", "--noise", "symmetric:0.2"]) == 2
    assert "one --noise" in capsys.readouterr().err
