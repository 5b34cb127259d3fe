"""An interrupted run goes on where it stopped, and comes to the same end bit for bit."""

import contextlib
import dataclasses
import json
import math
import os
import shlex
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import mlnt
from mlnt import iterations as iterating
from mlnt import journal
from mlnt.cli import app
from mlnt.cli import run as command
from mlnt.config import SINGLE_STAGE, make_settings
from mlnt.data.dataset import Split
from mlnt.distributed import ProcessLost
from mlnt.errors import InputError, Stopped
from mlnt.journal import going_on
from mlnt.methods import CrossEntropy, Rates
from mlnt.networks import SmallConv
from mlnt.packing import pack, unpack
from mlnt.report import write_report
from mlnt.runs import RunFolder
from mlnt.steps import Steps
from mlnt.training import Watcher
from small_runs import few_digits, leave_out_reports, write_digits

EPOCHS, ITERATIONS = 2, 2
DATA, TEST_DATA = few_digits(0, 320), few_digits(320, 420)
TIMES = ("seconds", "step_ms")


class Killed(Exception):
    pass


class KillAfter(Watcher):
    """As if the process ended: in the middle of an epoch, or between two."""

    end: type[Exception] = Killed

    def __init__(self, epochs: int, steps: int = 0) -> None:
        self.epochs, self.steps = epochs, steps

    def step_ends(self) -> None:
        if self.epochs == 0 and self.steps > 0:
            self.steps -= 1
            if self.steps == 0:
                raise self.end

    def epoch_ends(self, row: dict[str, Any]) -> None:
        self.epochs -= 1
        if self.epochs == 0 and self.steps == 0:
            raise self.end


class StopAfter(KillAfter):
    """As if by a signal: what is there is saved first."""

    end = Stopped


@pytest.fixture(autouse=True, scope="module")
def without_reports() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        leave_out_reports(patch)
        yield


def train(folder: Path, method: str = "mlnt", **options: Any) -> mlnt.Training:
    usual = {
        "data": DATA,
        "test_data": TEST_DATA,
        "noise": "symmetric:0.4",
        "epochs": EPOCHS,
        "iterations": ITERATIONS,
        "sets": 1,
        "batch_size": 64,
        "seed": 3,
    }
    return mlnt.train(out=folder, method=method, **{**usual, **options})


def write_files(folder: Path) -> tuple[Path, Path]:
    """The same data for the command line."""
    return write_digits(folder / "d.npz", DATA), write_digits(folder / "test.npz", TEST_DATA)


def without_times(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if k not in TIMES} for row in rows]


def assert_same_end(folder: Path, other: Path) -> None:
    rows, other_rows = (RunFolder.open(path).read_metrics() for path in (folder, other))
    assert without_times(rows) == without_times(other_rows)
    for name in sorted(path.name for path in other.glob("*.safetensors")):
        found, expected = load_file(folder / name), load_file(other / name)
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[key], expected[key]) for key in expected), name
    assert (folder / "label_issues.csv").read_bytes() == (other / "label_issues.csv").read_bytes()
    assert not (folder / "checkpoints").exists()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    data, test_data = write_files(folder)
    train(folder / "run", data=data, test_data=test_data)
    return folder / "run"


def test_the_command_to_go_on_is_for_a_shell() -> None:
    assert going_on(Path("runs/x-001"), "small_conv") == "mlnt train --resume runs/x-001"
    assert shlex.split(going_on(Path("my run; ls"), "my net:f")) == [
        *("mlnt", "train", "--resume", "my run; ls", "--model", "my net:f")
    ]


def test_a_process_that_is_lost_is_told_with_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lose(*arguments: object, **options: object) -> None:
        raise ProcessLost("gone")

    monkeypatch.setattr("mlnt.api.train", lose)
    with pytest.raises(ProcessLost) as caught:
        app(["train", "x.csv", "--out", str(tmp_path / "my run")], standalone_mode=False)
    assert caught.value.advice == f"; go on with: mlnt train --resume '{tmp_path}/my run'"


@pytest.mark.parametrize(("epochs", "steps"), [(0, 1), (1, 0), (1, 3), (2, 0), (3, 2), (6, 0)])
def test_comes_to_the_same_end(tmp_path: Path, whole: Path, epochs: int, steps: int) -> None:
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        train(folder, watchers=[KillAfter(epochs, steps)])
    train(folder, resume=True)
    assert_same_end(folder, whole)


@pytest.mark.parametrize("iterations", [2, 3])
def test_goes_on_with_what_the_mentor_kept_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int
) -> None:
    """A GPU that is asked again may answer a little differently."""
    train(tmp_path / "whole", iterations=iterations)
    folder, filters = tmp_path / "run", []
    with pytest.raises(Stopped):
        train(folder, iterations=iterations, watchers=[StopAfter(iterations * EPOCHS, 2)])

    def fewer(*arguments: Any) -> iterating.Kept:
        kept = filter_samples(*arguments)
        filters.append(len(kept.indices))
        return dataclasses.replace(kept, indices=kept.indices[5:])

    filter_samples = iterating.filter_samples
    monkeypatch.setattr(iterating, "filter_samples", fewer)
    train(folder, iterations=iterations, resume=True)
    assert_same_end(folder, tmp_path / "whole")
    ends = [RunFolder(run).read_json("summary.json") for run in (folder, tmp_path / "whole")]
    assert ends[0]["filters"] == ends[1]["filters"]
    assert filters == [described["kept"] for described in ends[1]["filters"]]


METHODS = (
    "forward",
    "joint_optimization",
    "cnn_crf",
    *SINGLE_STAGE,
    "mean_teacher",
    "iterative",
)


@pytest.mark.parametrize("method", METHODS)
def test_other_methods_too(tmp_path: Path, method: str) -> None:
    train(tmp_path / "whole", method, cutout=2)
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        train(folder, method, cutout=2, watchers=[StopAfter(1, 2)])
    assert RunFolder(folder).read_metrics()[-1]["epoch"] == 1
    train(folder, method, cutout=2, resume=True)
    assert_same_end(folder, tmp_path / "whole")


class StopEvery(Watcher):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step_ends(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise Stopped


def test_stopped_again_and_again(tmp_path: Path, whole: Path) -> None:
    """An epoch has four steps: stopped after each of them, and at its end."""
    folder, stops = tmp_path / "run", 0
    while not (folder / "summary.json").exists():
        try:
            train(folder, resume=True, watchers=[StopEvery(5)])
        except Stopped:
            stops += 1
    assert stops == 4 * EPOCHS * (ITERATIONS + 1) // 5
    assert_same_end(folder, whole)


def test_goes_on_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With other commits: config.json names each once."""
    folder = tmp_path / "run"
    monkeypatch.setenv("MLNT_COMMIT", "first")
    with pytest.raises(Stopped):
        train(folder, watchers=[StopAfter(3, 2)])
    for name in ("second", "second", "first"):
        monkeypatch.setenv("MLNT_COMMIT", name)
        with pytest.raises(Stopped):
            train(folder, resume=True, watchers=[StopEvery(1)])
    train(folder, resume=True)
    config = RunFolder(folder).read_json("config.json")
    assert config["machine"]
    assert config["commit"] == "first"
    assert config["continued"] == [{"machine": config["machine"], "commit": "second"}]


def test_the_time_of_all_processes_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Watcher):
        def epoch_ends(self, row: dict[str, Any]) -> None:
            hours.append(3600)

    hours: list[float] = []
    real = time.perf_counter
    monkeypatch.setattr(time, "perf_counter", lambda: real() + sum(hours))
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        train(folder, watchers=[Slow(), StopAfter(1, 2)])
    hours.clear()
    assert 3600 <= train(folder, resume=True).summary["seconds"] < 7200


def test_the_end_of_a_stage_may_be_left_out(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is a checkpoint of the second stage, but of the first only that of its first epoch."""
    monkeypatch.setattr(journal, "SHARE", 0.0)
    monkeypatch.setattr(journal, "END_SHARE", 0.0)
    folder = tmp_path / "run"
    with pytest.raises(Stopped):
        train(folder, watchers=[StopAfter(2, 2)])
    RunFolder(folder).checkpoints.newest("0-cross_entropy").unlink()  # written when it stopped
    first = RunFolder(folder).checkpoints.load("0-cross_entropy")
    assert first is not None
    assert len(first["progress"]["history"]) == 1
    assert RunFolder(folder).checkpoints.load("1-mlnt") is not None
    train(folder, resume=True)
    assert_same_end(folder, whole)


def test_checkpoints_by_the_clock(
    tmp_path: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each step, if it may cost what it will; killed in the middle of an epoch."""
    monkeypatch.setattr(journal, "SHARE", 1e9)
    folder = tmp_path / "run"
    with pytest.raises(Killed):
        train(folder, checkpoint_minutes=0, watchers=[KillAfter(1, 3)])
    saved = RunFolder(folder).checkpoints.load("0-cross_entropy")
    assert saved is not None
    assert saved["steps"]["epoch"]["done"] == 2, "killed before the third was written"
    assert len(saved["progress"]["history"]) == 1
    train(folder, resume=True)
    assert_same_end(folder, whole)


def test_dropout_and_the_order_of_rows_go_on(tmp_path: Path) -> None:
    """A network that draws numbers in its forward pass, and a run stopped before every epoch."""
    torch.manual_seed(1)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 10)
    )
    train(tmp_path / "whole", model=net)
    folder, stops = tmp_path / "run", 0
    while not (folder / "summary.json").exists():
        try:
            train(folder, model=net, resume=True, watchers=[KillAfter(1)])
        except Killed:
            stops += 1
    assert stops == EPOCHS * (ITERATIONS + 1)
    assert_same_end(folder, tmp_path / "whole")


def test_stops_in_time_and_says_how_to_go_on(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    data, test_data = write_files(tmp_path)
    with pytest.raises(Stopped):
        train(folder, data=data, test_data=test_data, deadline=-math.inf)
    assert (folder / "metrics.jsonl").read_text() == ""
    options = "--method mlnt --noise symmetric:0.4 --epochs 2 --iterations 2 --sets 1 --seed 3"
    assert command(
        ["train", str(data), "--test-data", str(test_data), *options.split(), "--batch-size", "64",
         "--minutes", "0", "--out", str(tmp_path / "other")]
    ) == 0  # fmt: skip
    assert f"mlnt train --resume {tmp_path / 'other'}" in capsys.readouterr().out
    for path in (folder, tmp_path / "other"):
        assert command(["train", "--resume", str(path)]) == 0
        assert_same_end(path, whole)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"seed": 4}, "was begun with seed=3, now it would be 4"),
        ({"labels": [i % 10 for i in range(len(DATA[1]))]}, "was begun with other data"),
    ],
)
def test_refuses_another_run(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(Stopped):
        train(tmp_path / "run", deadline=-math.inf)
    with pytest.raises(InputError, match=message):
        train(tmp_path / "run", resume=True, **changed)


def test_refuses_data_of_which_two_samples_have_changed_places(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    rows, labels = generator.normal(size=(400, 3)), np.arange(400) % 2
    options = {"out": tmp_path / "run", "epochs": 1, "iterations": 1, "sets": 1}
    with pytest.raises(Stopped):
        mlnt.train((rows, labels), deadline=-math.inf, **options)
    swapped = rows.copy()
    swapped[[7, 9]] = rows[[9, 7]]
    with pytest.raises(InputError, match="was begun with other data"):
        mlnt.train((swapped, labels), resume=True, **options)
    mlnt.train((rows, labels), resume=True, **options)


@pytest.mark.parametrize("name", ["validation", "test"])
def test_refuses_other_labels_to_choose_and_measure_by(tmp_path: Path, name: str) -> None:
    few = few_digits(420, 500)
    others = few[0], (few[1] + 1) % 10
    options = {"method": "cross_entropy", "validation_data": few, "test_data": few}
    with pytest.raises(Stopped):
        train(tmp_path / "run", deadline=-math.inf, **options)
    with pytest.raises(InputError, match=f"was begun with other {name} data"):
        train(tmp_path / "run", resume=True, **{**options, f"{name}_data": others})
    run = RunFolder(tmp_path / "run")
    config = run.read_json("config.json")
    del config["data"]["other_fingerprints"]  # as of a run that was begun before there were any
    run.write_json("config.json", config)
    train(tmp_path / "run", resume=True, **options)


def test_refuses_what_has_ended_or_never_began(
    tmp_path: Path, whole: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments, message in [
        (["--resume", str(whole)], "has come to its end"),
        (["--resume", str(tmp_path)], "is not a run folder"),
        ([], "give DATA to train on, or --resume RUN"),
        (["digits", "--resume", str(whole), "--epochs", "2"], "give no others"),
    ]:
        assert command(["train", *arguments]) == 2
        assert message in capsys.readouterr().err


def test_a_damaged_checkpoint_is_named_and_passed_over(
    tmp_path: Path, whole: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Stopped):
        train(tmp_path / "run", watchers=[StopAfter(1, 2)])
    newest = tmp_path / "run" / "checkpoints" / "0-cross_entropy.safetensors"
    content = bytearray(newest.read_bytes())
    content[-5] ^= 4  # one bit of a tensor: only the checksum knows
    newest.write_bytes(content)
    with pytest.raises(Stopped):
        train(tmp_path / "run", resume=True, watchers=[StopAfter(0, 1)])
    assert f"{newest} is damaged (its checksum differs); the one before is taken" in caplog.text
    for path in newest.parent.glob("0-*.safetensors"):
        path.write_bytes(path.read_bytes()[:1000])
    train(tmp_path / "run", resume=True)
    assert "it is begun anew" in caplog.text
    assert_same_end(tmp_path / "run", whole)


def test_what_is_packed_comes_back() -> None:
    value = {"a": [torch.arange(3), {1: None, 2: (True, 0.5)}], "tensor": {"pairs": "x"}}
    tensors: dict[str, torch.Tensor] = {}
    text = json.dumps(pack(value, tensors))
    found = unpack(json.loads(text), tensors)
    assert torch.equal(found["a"][0], torch.arange(3))
    assert found["a"][1] == {1: None, 2: [True, 0.5]}
    assert found["tensor"] == {"pairs": "x"}
    with pytest.raises(TypeError, match="cannot write down a set"):
        pack({"a": {1}}, {})


def test_data_given_beside_goes_on_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Test and validation data by relative paths; gone on with from another folder."""
    generator = torch.Generator().manual_seed(0)
    for name, count in (("train", 80), ("validation", 20), ("test", 20)):
        rows = torch.randn(count, 2, generator=generator)
        lines = [f"{a:.3f},{b:.3f},{'yes' if a > b else 'no'}" for a, b in rows.tolist()]
        (tmp_path / f"{name}.csv").write_text("a,b,label\n" + "\n".join(lines))
    monkeypatch.chdir(tmp_path)
    options = ["--validation-data", "validation.csv", "--test-data", "test.csv", "--epochs", "1"]
    command(["train", "train.csv", *options, "--minutes", "0", "--out", "run"])
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert command(["train", "--resume", "../run", "--labels", "x.csv"]) == 2
    assert "give no others" in capsys.readouterr().err
    assert command(["train", "--resume", "../run", "--workers", "0"]) == 0
    summary = RunFolder.open(tmp_path / "run").read_json("summary.json")
    assert summary["chosen"]["best"] is not None


def test_data_that_have_moved_are_named_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("train.csv", "test.csv"):
        lines = [f"{i % 7},{i % 5},{'yes' if i % 2 else 'no'}" for i in range(80)]
        Path(name).write_text("\n".join(["a,b,label", *lines]))
    options = ["--test-data", "test.csv", "--epochs", "1", "--iterations", "1"]
    command(["train", "train.csv", *options, "--minutes", "0", "--out", "run"])
    Path("train.csv").rename("moved.csv")
    assert command(["train", "--resume", "run"]) == 2
    gone = f"run was begun with data={tmp_path / 'train.csv'}, which is no longer there; say where"
    assert f"{gone} it is: mlnt train DATA --resume run\n" in capsys.readouterr().err
    Path("test.csv").rename("moved-test.csv")
    assert command(["train", "moved.csv", "--resume", "run"]) == 2
    assert "mlnt train DATA --test-data PLACE --resume run\n" in capsys.readouterr().err

    text = Path("moved.csv").read_text()
    swapped = text.replace("0,0,no", "0,0,yes", 1).replace("1,1,yes", "1,1,no", 1)
    Path("changed.csv").write_text(swapped)
    places = ["--test-data", "moved-test.csv", "--resume", "run"]
    assert command(["train", "changed.csv", *places]) == 2
    assert "samples, labels or their order have changed since" in capsys.readouterr().err
    assert command(["train", "moved.csv", *places, "--true-labels", "moved.csv"]) == 2
    assert "run was begun without true_labels" in capsys.readouterr().err
    assert command(["train", "moved.csv", *places, "--minutes", "0"]) == 0
    capsys.readouterr()
    assert command(["train", "--resume", "run"]) == 0, "the new places are remembered"
    shown = capsys.readouterr().out
    assert f"data={tmp_path / 'moved.csv'}, test_data={tmp_path / 'moved-test.csv'}" in shown
    assert command(["train", "moved.csv", "--resume", "run", "--epochs", "2"]) == 2
    assert "give no others" in capsys.readouterr().err


def test_labels_under_a_key_of_a_file_are_found_again(tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", X=np.arange(160.0).reshape(80, 2), y=np.arange(80) % 2)
    np.savez(tmp_path / "labels.npz", mine=np.arange(80) % 2)
    words = ["--labels", f"{tmp_path / 'labels.npz'}:mine", "--epochs", "1", "--iterations", "1"]
    run = str(tmp_path / "run")
    assert command(["train", str(tmp_path / "x.npz"), *words, "--minutes", "0", "--out", run]) == 0
    assert command(["train", "--resume", run]) == 0


def test_two_processes_do_not_train_into_one_folder(tmp_path: Path) -> None:
    refused = pytest.raises(InputError, match=rf"another process \({os.getpid()}\) is training")
    with RunFolder(tmp_path / "run").locked(), refused:
        train(tmp_path / "run")
    train(tmp_path / "run", "cross_entropy")  # the lock is gone with its holder
    assert not (tmp_path / "run" / ".lock").exists()


def test_a_run_that_another_began_meanwhile_is_never_written_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the folder was found empty, before it is locked."""
    folder = tmp_path / "run"

    def of_another(*arguments: Any) -> None:
        folder.mkdir()
        (folder / "config.json").write_text("{}")

    monkeypatch.setattr("mlnt.ready.check_output", of_another)
    with pytest.raises(InputError, match="already holds a run"):
        train(folder, "cross_entropy")
    assert {path.name: path.read_text() for path in folder.iterdir()} == {"config.json": "{}"}


def test_each_gets_a_folder_of_its_own(tmp_path: Path) -> None:
    """Several that were started at once."""
    runs = tmp_path / "runs"
    with contextlib.ExitStack() as stack:
        taken = [stack.enter_context(RunFolder.next_free(runs, "x")) for _ in range(3)]
        assert [path.name for path in taken] == ["x-001", "x-002", "x-003"]
        RunFolder.reserve(taken[0]).create({})
    assert [path.name for path in runs.iterdir()] == ["x-001"], "the others began nothing"
    with RunFolder.next_free(runs, "x") as path:
        assert path.name == "x-002"
    (tmp_path / "file").touch()
    refused = pytest.raises(InputError, match="cannot write to")
    with refused, RunFolder.next_free(tmp_path / "file", "x"):
        pass


def test_a_training_that_is_refused_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path)
    quick = ["--method", "cross_entropy", "--epochs", "1"]
    assert command(["train", "d.npz", "--rho", "50"]) == 2
    assert command(["train", "d.npz", *quick, "--batch-size", "5000"]) == 2
    assert not (tmp_path / "runs").exists()
    for number in (1, 2):
        assert command(["train", "d.npz", *quick]) == 0
        assert (tmp_path / "runs" / f"d-00{number}" / "summary.json").is_file()


def test_killed_before_its_first_file(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".config.json.part.json").touch()
    train(tmp_path / "run", "cross_entropy", resume=True)


def test_killed_while_the_report_is_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run has come to its end; the report is made from what it holds."""

    def kill(run: RunFolder) -> None:
        raise KeyboardInterrupt

    folder = tmp_path / "run"
    monkeypatch.setattr("mlnt.outcome.write_report", kill)
    with pytest.raises(KeyboardInterrupt):
        train(folder, "cross_entropy")
    assert not (folder / "checkpoints").exists()
    with pytest.raises(InputError, match="has come to its end; `mlnt report"):
        train(folder, "cross_entropy", resume=True)
    assert command(["report", str(folder)]) == 0
    assert (folder / "report.html").is_file()


@pytest.mark.parametrize("error", [ImportError("no matplotlib"), OSError(28, "No space left")])
def test_a_report_that_fails_takes_nothing_from_the_run(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    folder = tmp_path / "run"

    def fail(rows: list[dict[str, Any]]) -> None:
        raise error

    monkeypatch.setattr("mlnt.outcome.write_report", write_report)
    monkeypatch.setattr("mlnt.report.draw_curves", fail)
    summary = train(folder, "cross_entropy").summary
    assert RunFolder(folder).read_json("summary.json")["seconds"] == summary["seconds"]
    assert f"the report could not be made ({type(error).__name__}: " in caplog.text
    assert f"`mlnt report {folder}` makes it again" in caplog.text
    with pytest.raises(type(error)):  # not called damage
        write_report(RunFolder(folder))
    monkeypatch.undo()
    assert command(["report", str(folder)]) == 0


def test_momentum_keeps_the_layout_of_its_weights(tmp_path: Path) -> None:
    """Files keep no memory layout; fused SGD on a GPU wants that of the weights."""
    split = Split(torch.randn(8, 3, 8, 8), torch.arange(8) % 2)
    settings = make_settings("digits", batch_size=4)

    def steps() -> Steps:
        model = SmallConv(3, 2).to(memory_format=torch.channels_last)
        return Steps(split, CrossEntropy(model, settings), settings, torch.Generator())

    first, second = steps(), steps()
    first.run([Rates(0.1, 0.1, 0.9, 0.0)])
    checkpoints = RunFolder(tmp_path).checkpoints
    checkpoints.save("x", first.state())
    saved = checkpoints.load("x")
    assert saved is not None
    second.load_state(saved)
    for parameter, state in second.method.optimizer.state.items():
        assert state["momentum_buffer"].stride() == parameter.stride()
    saved["device"] = "cuda"
    with pytest.raises(InputError, match="begun on cuda, not cpu; give --device cuda"):
        second.load_state(saved)
