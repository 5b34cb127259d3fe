"""Accuracy per minute: every M has its row, in its time, and a measurement can be continued."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from mlnt import bench, cli
from mlnt.bench import accuracy
from mlnt.bench.accuracy import AccuracyResult, AccuracyRow, epochs_within, run_accuracy
from mlnt.errors import InputError
from mlnt.training import Stage, Trainer

MINUTES = 0.03


def run(done: Path | None = None, sets: tuple[int, ...] = (1, 2), **others: Any) -> AccuracyResult:
    """Cross entropy is kept short."""
    arguments = {"minutes": MINUTES, "preset": "digits", "epochs": 2, "batch_size": 32, **others}
    return run_accuracy("digits", "cpu", sets=sets, done=done, **arguments)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a measurement in two pieces."""
    path = tmp_path_factory.mktemp("accuracy") / "done.json"
    run(path, sets=(1,))
    run(path)
    return path


def content(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def no_training(*ignored: object) -> None:
    raise AssertionError("trained")


def test_every_figure_is_there(file: Path) -> None:
    found = content(file)
    assert list(found) == [
        *(field.name for field in dataclasses.fields(AccuracyResult)),
        "best_sets",
    ]
    assert found["data"] == found["preset"] == "digits"
    assert found["settings"]["validation"] == "clean"
    figures = {"validation", "best", "last", "best_epoch"}
    assert set(found["cross_entropy"]) == {"epochs", "seconds", *figures}
    assert found["cross_entropy"]["epochs"] == 2
    assert [row["sets"] for row in found["rows"]] == [1, 2]
    for row in found["rows"]:
        assert set(row) == {field.name for field in dataclasses.fields(AccuracyRow)}
        for model in ("teacher", "student"):
            assert set(row[model]) == figures
            assert all(0 < row[model][name] <= 100 for name in figures)
            assert row[model]["best_epoch"] <= row["epochs"]
    best = max(found["rows"], key=lambda row: row["teacher"]["validation"])
    assert found["best_sets"] == best["sets"]


def test_time_is_respected(file: Path) -> None:
    steps = 1215 // 32
    for row in content(file)["rows"]:
        fitting = epochs_within(MINUTES, steps, row["step_ms"] / 1000, row["evaluation_s"])
        assert row["epochs"] == fitting >= 1
        assert row["within_time"] == (row["seconds"] <= 1.05 * 60 * MINUTES)
        # Loosely: other programs run beside the tests.
        assert row["seconds"] < 3 * 60 * MINUTES


def test_data_may_be_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a path `digits` would be a file that is not there."""
    asked = []

    def refuse(data: object, *_: object, **__: object) -> None:
        asked.append(data)
        raise InputError("enough")

    monkeypatch.setattr(bench, "run_accuracy", refuse)
    assert cli.run(["bench", "--accuracy", "--data", "digits"]) == 2
    assert asked == ["digits"]


def test_epochs_by_hand() -> None:
    # 100 steps of 0.05 s and 1 s of evaluation: 6 s an epoch, 20 in two minutes
    assert epochs_within(2.0, 100, 0.05, 1.0) == 20
    assert epochs_within(1.99, 100, 0.05, 1.0) == 19
    assert epochs_within(0.01, 100, 0.05, 1.0) == 1


def test_continuing_trains_only_what_is_missing(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(file)
    monkeypatch.setattr(Trainer, "run", no_training)
    assert json.loads(run(file).to_json()) == whole

    half = tmp_path / "half.json"
    half.write_text(json.dumps({**whole, "rows": whole["rows"][:1]}), encoding="utf-8")
    monkeypatch.undo()
    trained: list[tuple[Stage, int]] = []
    original = Trainer.run

    def counted(self: Trainer, stage: Stage, *others: Any) -> Any:
        trained.append((stage, self.settings.sets))
        return original(self, stage, *others)

    monkeypatch.setattr(Trainer, "run", counted)
    # As many epochs as before, whatever the time: a row depends on nothing trained before it.
    monkeypatch.setattr(accuracy, "epochs_within", lambda *ignored: whole["rows"][1]["epochs"])
    result = run(half)
    assert trained[0][0] == Stage("cross_entropy", 0)
    assert trained[1:] == [(Stage("mlnt", 1), 2)]
    assert content(half) == json.loads(result.to_json())
    assert content(half)["rows"][0] == whole["rows"][0]
    for model in ("teacher", "student"):
        assert content(half)["rows"][1][model] == whole["rows"][1][model]
    assert [path.name for path in tmp_path.iterdir()] == ["half.json"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"minutes": 1.0}, "minutes was 0.03 in .*, now it is 1.0; choose another file"),
        ({"noise": "symmetric:0.3"}, "noise was 'symmetric:0.5'"),
        ({"seed": 1}, "seed was 0"),
        ({"preset": "image"}, "preset was 'digits'"),
        ({"alpha": 0.1}, "alpha was 0.2"),
    ],
)
def test_changed_arguments_are_refused(
    file: Path, changed: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", no_training)
    with pytest.raises(InputError, match=message):
        run(file, **changed)


def test_mistakes_are_told_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Trainer, "run", no_training)
    other = tmp_path / "other.json"
    other.write_text('{"rows": []}', encoding="utf-8")
    with pytest.raises(InputError, match=r"other.json holds no such bench"):
        run(other)
    with pytest.raises(InputError, match="minutes above 0"):
        run(minutes=0)
    with pytest.raises(InputError, match="some sets"):
        run(sets=())
    with pytest.raises(InputError, match=r"sets must lie in \[1"):
        run(sets=(1, 0))


def test_best_is_chosen_by_validation_and_late_rows_are_marked(file: Path) -> None:
    def row(sets: int, validation: float, test: float, late: bool = False) -> AccuracyRow:
        teacher = {"validation": validation, "best": test, "last": None, "best_epoch": 1}
        return AccuracyRow(sets, 3, 1.5, 0.1, 66.0, not late, teacher, teacher, "unknown")

    result = dataclasses.replace(
        run(file), rows=(row(5, 80.0, 70.0), row(2, 80.0, 60.0, late=True), row(1, 70.0, 90.0))
    )
    assert result.best_sets == 2
    _, table, best = result.to_rich()
    assert best == "highest validation accuracy of the teacher: M=2"
    cells = {column.header: list(column.cells) for column in table.columns}  # type: ignore[union-attr]
    assert cells["M"] == ["CE", "5", "2", "1"]
    assert cells["min"][1:] == ["1.10", "1.10!", "1.10"]
    assert cells["\nlast"][1:] == ["–", "–", "–"]
    assert "never by test" in str(table.caption)  # type: ignore[union-attr]
