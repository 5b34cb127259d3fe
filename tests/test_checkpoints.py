"""Checkpoints and other files of a run: whole, checked, paced, and safe from a disk that fails."""

import contextlib
import errno
import os
import re
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import mlnt
from mlnt import checkpoints, journal, storage
from mlnt.checkpoints import Checkpoints
from mlnt.cli import run as command
from mlnt.config import make_settings
from mlnt.errors import InputError, Stopped, StorageError
from mlnt.journal import Pace
from mlnt.runs import LOCK, RunFolder
from mlnt.steps import Steps
from mlnt.training import Stage, Watcher
from small_runs import leave_out_reports

fcntl = pytest.importorskip("fcntl")
QUICK = {"epochs": 3, "iterations": 1, "sets": 1, "batch_size": 64, "seed": 1}


def content(number: int) -> dict[str, Any]:
    return {
        "number": number,
        "weights": torch.full((3, 2), float(number)),
        "scalar": torch.tensor(number),
        "half": torch.ones(2, dtype=torch.bfloat16),
        "empty": torch.zeros(0, 4),
    }


def number_of(found: dict[str, Any] | None) -> int | None:
    if found is None:
        return None
    assert torch.equal(found["weights"], content(found["number"])["weights"])
    return found["number"]


def test_the_newest_and_the_one_before(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "c")
    assert kept.load("x") is None
    for number in range(4):
        kept.save("x", content(number))
    assert number_of(kept.load("x")) == 3
    assert {path.name for path in kept.folder.iterdir()} == {
        "x.safetensors",
        "x.before.safetensors",
    }
    kept.newest("x").unlink()  # as if killed between the two moves
    assert number_of(kept.load("x")) == 2


@settings(max_examples=60, deadline=None)
@given(place=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7), cut=st.booleans())
def test_any_damage_is_found(
    tmp_path_factory: pytest.TempPathFactory, place: float, bit: int, cut: bool
) -> None:
    """A bit turned over, or the rest cut off, anywhere: never is anything else read."""
    kept = Checkpoints(tmp_path_factory.mktemp("damage") / "c")
    for number in range(2):
        kept.save("x", content(number))
    data = bytearray(kept.newest("x").read_bytes())
    position = int(place * len(data))
    if cut:
        del data[position:]
    else:
        data[position] ^= 1 << bit
    kept.newest("x").write_bytes(data)
    # A bit of the padding behind the header may change nothing.
    assert number_of(kept.load("x")) in ((0,) if cut else (0, 1))
    kept.save("x", content(2))
    kept.newest("x").unlink()
    assert number_of(kept.load("x")) in (0, 1), "the good one was not given up for the damaged"


def test_both_damaged_are_put_aside_each_under_its_name(tmp_path: Path) -> None:
    kept = Checkpoints(tmp_path / "c")
    for number in range(2):
        kept.save("x", content(number))
    newest, before = kept.newest("x").read_bytes()[:-1], kept.before("x").read_bytes()[:-2]
    kept.newest("x").write_bytes(newest)
    kept.before("x").write_bytes(before)
    assert kept.load("x") is None
    assert (kept.folder / "x.damaged").read_bytes() == newest
    assert (kept.folder / "x.before.damaged").read_bytes() == before


@contextlib.contextmanager
def few_open_files(more: int) -> Iterator[None]:
    """Inside, this process may open so many more at a time."""
    free = os.dup(0)
    os.close(free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("more", [0, 1])
def test_what_cannot_be_opened_now_is_not_damaged(tmp_path: Path, more: int) -> None:
    """One that is good stays where it is, for a time when it can be read."""
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    kept = run.checkpoints
    for number in range(2):
        kept.save("1-mlnt", content(number))
    before = {path.name: path.read_bytes() for path in kept.folder.iterdir()}
    going_on = journal.RunJournal(run, make_settings("table"))
    with few_open_files(more), pytest.raises(StorageError) as caught:
        going_on.load(Stage("mlnt", 1))
    assert re.search(r"cannot read \S+1-mlnt.safetensors: .*Too many open files", str(caught.value))
    assert "no checkpoint yet" not in going_on.last_good
    assert {path.name: path.read_bytes() for path in kept.folder.iterdir()} == before
    assert number_of(kept.load("1-mlnt")) == 1


class Failing:
    """The module os for those who write, with one call that fails from its `after`th time on."""

    def __init__(self, name: str, fault: Callable[..., Any], after: int = 1) -> None:
        self.name, self.fault, self.left = name, fault, after

    def __getattr__(self, name: str) -> Any:
        call = getattr(os, name)
        if name != self.name:
            return call

        def failing(*arguments: Any) -> Any:
            self.left -= 1
            return self.fault(call, *arguments) if self.left <= 0 else call(*arguments)

        return failing


def refuse(number: int) -> Callable[..., Any]:
    def fault(call: Callable[..., Any], *arguments: Any) -> Any:
        raise OSError(number, os.strerror(number))

    return fault


def refuse_the_rest(call: Callable[..., Any], *arguments: Any) -> int:
    """A disk with room for a little: takes some of it, then nothing."""
    descriptor, data = arguments
    if len(data) < 100:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return call(descriptor, data[: len(data) // 2])


def take_half(call: Callable[..., Any], descriptor: int, data: memoryview) -> int:
    return call(descriptor, data[: (len(data) + 1) // 2])


def take_none(call: Callable[..., Any], *arguments: Any) -> int:
    return 0


def garble(call: Callable[..., Any], descriptor: int, data: memoryview) -> int:
    return call(descriptor, bytes(data)[:-1] + bytes([data[-1] ^ 1]))


FAULTS: dict[str, tuple[str, Callable[..., Any], str]] = {
    "disk full": ("write", refuse(errno.ENOSPC), "No space left on device"),
    "disk full halfway": ("write", refuse_the_rest, "No space left on device"),
    "device fails": ("write", refuse(errno.EIO), "Input/output error"),
    "nothing is written": ("write", take_none, "nothing is written any more"),
    "written wrongly": ("write", garble, "what was written reads back damaged"),
    "flush fails": ("fsync", refuse(errno.EIO), "Input/output error"),
    "quota": ("fsync", refuse(errno.EDQUOT), "Disk quota exceeded"),
    "rename fails": ("replace", refuse(errno.EIO), "Input/output error"),
    "read-only": ("open", refuse(errno.EROFS), "Read-only file system"),
}


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("after", [1, 2])
def test_a_fault_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, after: int
) -> None:
    """Wherever the writing of a checkpoint fails, one of those before it is still there."""
    kept = Checkpoints(tmp_path / "c")
    kept.save("x", content(0))
    kept.save("x", content(1))
    call, fault, message = FAULTS[name]
    with monkeypatch.context() as patched:
        for module in (storage, checkpoints):
            patched.setattr(module, "os", Failing(call, fault, after))
        fault_told = ""
        try:
            kept.save("x", content(2))
        except OSError as error:
            fault_told = storage.reason(error)
    if fault_told or after == 1:
        assert message in fault_told
        assert number_of(kept.load("x")) in (1, 2)
    else:  # this call came but once
        assert number_of(kept.load("x")) == 2
    kept.save("x", content(3))  # the disk has recovered
    assert number_of(kept.load("x")) == 3
    assert not list(kept.folder.glob(".*")), "nothing half written takes room"


def test_a_short_write_is_gone_on_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage, "os", Failing("write", take_half))
    kept = Checkpoints(tmp_path / "c")
    kept.save("x", content(7))
    assert number_of(kept.load("x")) == 7


def test_two_processes_may_write_one_file(tmp_path: Path) -> None:
    """Each beside the other: whoever is last has its way, and none fails."""
    final = tmp_path / "table.csv"

    def write(path: Path) -> None:
        path.write_text("of this process")
        code = (
            "import sys; from pathlib import Path; from mlnt.storage import write_aside;"
            "write_aside(Path(sys.argv[1]), lambda path: path.write_text('of another'))"
        )
        subprocess.run([sys.executable, "-c", code, str(final)], check=True)
        assert final.read_text() == "of another"

    storage.write_aside(final, write)
    assert final.read_text() == "of this process"
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv"]


def test_what_the_dead_left_is_cleared_away(tmp_path: Path) -> None:
    final = tmp_path / "x.csv"
    code = "import os, sys; from pathlib import Path; from mlnt.storage import write_aside;"
    code += "write_aside(Path(sys.argv[1]), lambda path: (path.touch(), os._exit(0)))"
    subprocess.run([sys.executable, "-c", code, str(final)], check=True)
    [left] = tmp_path.iterdir()
    of_others = [
        left.with_name(re.sub(r"\d+\.part", f"{os.getppid()}.part", left.name)),  # it lives
        left.with_name(re.sub(r"[^.]+\.part", "elsewhere-1.part", left.name)),
        left.with_name(left.name.replace("x.csv", "y.csv")),  # another file
    ]
    for path in of_others:
        path.touch()
    storage.write_aside(final, lambda path: path.write_text("new"))
    assert sorted(tmp_path.iterdir()) == sorted([final, *of_others])


def blobs() -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.arange(300) % 3
    noise = torch.randn(300, 2, generator=torch.Generator().manual_seed(0))
    return torch.tensor([[3.0, 0], [0, 3], [-3, -3]])[labels] + noise, labels


class Then(Watcher):
    """Does something after so many epochs."""

    def __init__(self, epochs: int, action: Callable[[], object]) -> None:
        self.epochs, self.action = epochs, action

    def epoch_ends(self, row: dict[str, Any]) -> None:
        self.epochs -= 1
        if self.epochs == 0:
            self.action()


@pytest.fixture(scope="module")
def whole() -> mlnt.Training:
    return mlnt.train(blobs(), **QUICK)


@pytest.mark.parametrize("name", [*FAULTS, "folder removed"])
def test_a_training_ends_with_one_line_and_goes_on_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: mlnt.Training, name: str
) -> None:
    run, patches = tmp_path / "run", pytest.MonkeyPatch()
    monkeypatch.setattr(journal, "SHARE", 1e9)  # a checkpoint after each epoch
    leave_out_reports(monkeypatch)

    def begin() -> None:
        if name == "folder removed":
            run.rename(tmp_path / "elsewhere")
            return
        call, fault, _ = FAULTS[name]
        for module in (storage, checkpoints):
            patches.setattr(module, "os", Failing(call, fault))

    try:
        with pytest.raises(StorageError) as caught:
            mlnt.train(blobs(), out=run, watchers=[Then(4, begin)], **QUICK)
    finally:
        patches.undo()
    message = str(caught.value)
    expected = "No such file or directory" if name == "folder removed" else FAULTS[name][2]
    assert message.startswith(f"cannot write to {run}: ")
    assert expected in message
    assert "\n" not in message
    assert "(epoch 1 of mlnt iteration 1); once that is mended, go on with: mlnt train" in message
    named = re.findall(r"last good checkpoint: (\S+)", message)
    assert [Path(path).is_file() for path in named] == [True] * (name != "folder removed")
    if name == "folder removed":
        assert "its last checkpoint is gone too" in message
        (tmp_path / "elsewhere").rename(run)
    again = mlnt.train(blobs(), out=run, resume=True, **QUICK)
    assert [row["class_loss"] for row in again.history] == [
        row["class_loss"] for row in whole.history
    ]
    assert len(RunFolder(run).read_metrics()) == len(whole.history), "no gap, no repeat"


def test_a_full_disk_on_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{i % 7},{i % 2 * 4 + i % 3},{'yes' if i % 2 else 'no'}" for i in range(100)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    options = [
        "--epochs",
        "1",
        "--iterations",
        "1",
        "--sets",
        "1",
        "--out",
        str(tmp_path / "my run"),
    ]
    monkeypatch.setattr(storage, "os", Failing("write", refuse(errno.ENOSPC)))
    assert command(["train", str(tmp_path / "t.csv"), *options]) == 1
    said = capsys.readouterr().err
    assert said.startswith("mlnt: training stopped: cannot write to")
    assert "No space left on device; no checkpoint yet; once that is mended" in said
    assert said.endswith(f"go on with: mlnt train --resume '{tmp_path}/my run'\n")
    assert said.count("\n") == 1


def test_a_full_disk_ends_an_experiment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    begun = []

    def full(*arguments: object, **options: Any) -> None:
        begun.append(options["out"])
        raise StorageError("cannot write: No space left on device")

    monkeypatch.setattr("mlnt.api.train", full)
    assert command(["reproduce", "digits", "--seeds", "3", "--out", str(tmp_path / "x")]) == 1
    assert len(begun) == 1, "the other cells would fare no better"
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("cost", [0.001, 0.2, 30.0])
@pytest.mark.parametrize("epoch", [0.5, 5.0, 600.0])
def test_writing_stays_below_a_hundredth(cost: float, epoch: float) -> None:
    """Four stages, of epochs and checkpoints of any length."""
    now = [0.0]
    pace = Pace(5, clock=lambda: now[0])
    lost, ends = 0.0, 20_000.0
    while now[0] < ends:
        now[0] += min(epoch, 10)
        at_end_of_epoch = epoch <= 10 or now[0] % epoch < 10
        at_end_of_stage = now[0] // (ends / 4) != (now[0] - min(epoch, 10)) // (ends / 4)
        share = journal.END_SHARE if at_end_of_stage else journal.SHARE
        if pace.allows(share) if at_end_of_epoch or at_end_of_stage else pace.is_due():
            with pace.measured():
                now[0] += cost
        lost = max(lost, now[0] - pace.last)
    assert pace.written >= 4
    assert pace.seconds < 0.01 * now[0]
    assert lost <= max(300, epoch, 2 * cost / journal.SHARE) + 10 + cost


class StopAt(Watcher):
    """Stops at the beginning of a stage, or after its first step."""

    def __init__(self, iteration: int, steps: int) -> None:
        self.iteration, self.steps = iteration, steps

    def stage_begins(self, stage: Stage, epochs: int, steps: int, done: int) -> None:
        self.is_there = stage.iteration == self.iteration
        if self.is_there and self.steps == 0:
            raise Stopped

    def step_ends(self) -> None:
        if self.is_there:
            raise Stopped


@pytest.mark.parametrize("steps", [0, 1])
def test_a_stop_writes_the_ends_that_were_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """Two stages ended without a checkpoint of their end; the third is stopped."""
    monkeypatch.setattr(journal, "SHARE", 0.0)
    monkeypatch.setattr(journal, "END_SHARE", 0.0)
    leave_out_reports(monkeypatch)
    options = {**QUICK, "iterations": 2}
    whole, run = mlnt.train(blobs(), **options), tmp_path / "run"
    with pytest.raises(Stopped):
        mlnt.train(blobs(), out=run, watchers=[StopAt(2, steps)], **options)
    kept = RunFolder(run).checkpoints
    for name, epochs in (("0-cross_entropy", 3), ("1-mlnt", 3), ("2-mlnt", 0)):
        saved = kept.load(name)
        assert saved is not None
        assert len(saved["progress"]["history"]) == epochs, name
    begun: list[int] = []
    monkeypatch.setattr(Steps, "run", counting(Steps.run, begun))
    again = mlnt.train(blobs(), out=run, resume=True, **options)
    assert len(begun) == 3, "only the epochs of the third stage are trained"
    assert again.history[:6] == RunFolder(run).read_metrics()[:6]
    expected = whole.model.state_dict()
    assert all(torch.equal(v, expected[k]) for k, v in again.model.state_dict().items())


def counting(function: Callable[..., Any], calls: list[int]) -> Callable[..., Any]:
    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return function(*arguments)

    return counted


def test_an_end_left_out_is_written_when_there_is_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it was when its stage ended, and before anything of the next stage."""
    (tmp_path / "run").mkdir()
    kept = journal.RunJournal(RunFolder(tmp_path / "run"), make_settings("table"))
    first, second, may_write = Stage("cross_entropy", 0), Stage("mlnt", 1), []
    monkeypatch.setattr(Pace, "allows", lambda self, share: bool(may_write and may_write.pop()))
    weights = torch.zeros(3)

    def state() -> dict[str, Any]:
        return {"progress": {"history": [{}]}, "steps": {"epoch": {"done": 0}, "w": weights}}

    kept.save(first, state, end=True)
    weights += 1
    kept.save(second, state)
    assert not kept.run.checkpoints.folder.exists(), "no time yet"
    may_write += [True]
    kept.save(second, state)
    saved = kept.run.checkpoints.load("0-cross_entropy")
    assert saved is not None
    assert torch.equal(saved["steps"]["w"], torch.zeros(3))
    assert kept.run.checkpoints.load("1-mlnt") is None
    assert not kept.left_out, "its memory is free"


def test_what_writing_took_is_said(tmp_path: Path) -> None:
    summary = mlnt.train(blobs(), out=tmp_path / "run", **QUICK).summary
    assert summary["checkpoints"]["written"] >= 1, "the first at least"
    assert 0 < summary["checkpoints"]["seconds"] < 10
    assert (
        RunFolder(tmp_path / "run").read_json("summary.json")["checkpoints"]
        == (summary["checkpoints"])
    )


def test_a_torn_last_line_of_figures_is_passed_over(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.append_metrics({"epoch": 1})
    run.append_metrics({"epoch": 2, "name": "ä"})
    whole = run.file("metrics.jsonl").read_bytes()
    for length in range(len(whole)):
        run.file("metrics.jsonl").write_bytes(whole[:length])
        assert run.read_metrics() == [{"epoch": 1}] * (length >= len(b'{"epoch": 1}\n'))
    run.file("metrics.jsonl").write_bytes(b'{"epoch"\n' + whole)
    with pytest.raises(InputError, match="cannot be read"):
        run.read_metrics()


HOLDER = """
import fcntl, os, sys
file = open(sys.argv[1], "a+")
fcntl.flock(file, fcntl.LOCK_EX)
file.write(sys.argv[2] or str(os.getpid()))
file.flush()
print("locked", flush=True)
sys.stdin.read()
"""


def hold(run: RunFolder, says: str = "") -> subprocess.Popen[str]:
    """Another process that holds the lock, and says that a process of this number does."""
    run.path.mkdir()
    arguments = [sys.executable, "-c", HOLDER, str(run.file(LOCK)), says]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    holder = subprocess.Popen(arguments, text=True, **pipes)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "locked\n"
    return holder


def test_a_lock_of_another_is_respected_and_one_of_the_dead_is_not(tmp_path: Path) -> None:
    run = RunFolder(tmp_path / "run")
    with hold(run) as holder:
        refused = pytest.raises(InputError, match=rf"another process \({holder.pid}\) is training")
        with refused, run.locked():
            pass
        holder.kill()
    assert run.file(LOCK).exists(), "it could not tidy up"
    with run.locked():
        assert run.file(LOCK).read_text() == str(os.getpid())
    assert not run.file(LOCK).exists()


def test_the_helpers_of_the_dead_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were forked with the lock and end a moment after the process that is gone."""
    run = RunFolder(tmp_path / "run")
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    with hold(run, says=str(gone.pid)) as helper:
        monkeypatch.setattr("mlnt.runs.time.sleep", lambda seconds: helper.communicate())
        with run.locked():
            assert helper.returncode == 0


def test_a_lock_that_was_just_given_up_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opened while its holder had it, locked after its holder had removed it."""
    run, original, waits = RunFolder(tmp_path / "run"), fcntl.flock, [True]

    def removed_before(descriptor: int, operation: int) -> None:
        if waits:
            waits.pop()
            run.file(LOCK).unlink()
        original(descriptor, operation)

    monkeypatch.setattr("mlnt.runs.fcntl.flock", removed_before)
    with run.locked():
        assert run.file(LOCK).exists()
        with pytest.raises(InputError, match="another process"), run.locked():
            pass
