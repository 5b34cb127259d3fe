"""Ctrl-C, SIGTERM and a terminal that is closed; a loss that is not finite after a checkpoint."""

import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlnt
from mlnt import journal
from mlnt.cli import run as command
from mlnt.interruption import SIGNALS
from mlnt.runs import RunFolder
from mlnt.steps import Steps

OPTIONS = ["--epochs", "2", "--iterations", "1", "--sets", "1", "--batch-size", "32"]


@pytest.fixture(autouse=True)
def nothing_is_ignored() -> Iterator[None]:
    """Though the tests themselves may run under nohup, or behind a shell's &."""
    usual = {signal.SIGINT: signal.default_int_handler}
    before = {
        number: signal.signal(number, usual.get(number, signal.SIG_DFL)) for number in SIGNALS
    }
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rows = [f"{i % 7},{i % 2 * 4 + i % 3},{'yes' if i % 2 else 'no'}" for i in range(200)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *rows]) + "\n")
    return tmp_path / "t.csv"


@pytest.fixture
def at_step(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Callable[[], None]], None]:
    """Do something in the middle of a step."""

    def patch(number: int, action: Callable[[], None]) -> None:
        original, left = Steps._step, [number]

        def step(self: Steps, *arguments: Any) -> dict[str, Tensor]:
            left[0] -= 1
            if left[0] == 0:
                action()
            return original(self, *arguments)

        monkeypatch.setattr(Steps, "_step", step)

    return patch


def send(number: int, times: int = 1) -> None:
    for _ in range(times):
        os.kill(os.getpid(), number)


def handlers() -> list[Any]:
    return [signal.getsignal(number) for number in SIGNALS]


@pytest.mark.parametrize(
    ("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_the_first_finishes_the_step_and_says_how_to_go_on(
    tmp_path: Path,
    table: Path,
    at_step: Callable[[int, Callable[[], None]], None],
    capfd: pytest.CaptureFixture[str],
    number: signal.Signals,
    status: int,
) -> None:
    run, before = tmp_path / "my run", handlers()
    at_step(8, lambda: send(number))  # the third of the second epoch
    assert command(["train", str(table), *OPTIONS, "--out", str(run)]) == status
    said = capfd.readouterr()
    assert f"stopped by {number.name}; go on with: mlnt train --resume '{run}'" in said.out
    assert "stopping after this step; once more ends at once" in said.err
    assert handlers() == before
    saved = RunFolder(run).checkpoints.load("0-cross_entropy")
    assert saved is not None
    assert (len(saved["progress"]["history"]), saved["steps"]["epoch"]["done"]) == (1, 3)
    assert command(["train", "--resume", str(run)]) == 0
    assert command(["train", str(table), *OPTIONS, "--out", str(tmp_path / "whole")]) == 0
    for name in ("best", "student", "teacher"):
        found, expected = (RunFolder(p).load_state(name) for p in (run, tmp_path / "whole"))
        assert all(torch.equal(found[key], expected[key]) for key in expected)


def test_the_second_ends_at_once(
    tmp_path: Path, table: Path, at_step: Callable[[int, Callable[[], None]], None]
) -> None:
    before = handlers()
    at_step(3, lambda: send(signal.SIGTERM, times=2))
    with pytest.raises(SystemExit) as caught:
        command(["train", str(table), *OPTIONS, "--out", str(tmp_path / "run")])
    assert caught.value.code == 143
    assert handlers() == before
    assert not (tmp_path / "run" / "checkpoints").exists(), "nothing more was done"
    assert not (tmp_path / "run" / ".lock").exists()


@pytest.mark.parametrize("first", [signal.SIGHUP, signal.SIGTERM])
def test_a_hangup_is_no_second_wish(
    tmp_path: Path,
    table: Path,
    at_step: Callable[[int, Callable[[], None]], None],
    first: signal.Signals,
) -> None:
    at_step(3, lambda: (send(first), send(signal.SIGHUP)))
    run = tmp_path / "run"
    assert command(["train", str(table), *OPTIONS, "--out", str(run)]) == 128 + first
    assert RunFolder(run).checkpoints.load("0-cross_entropy") is not None


def test_a_signal_that_is_ignored_stays_so(
    tmp_path: Path,
    table: Path,
    at_step: Callable[[int, Callable[[], None]], None],
) -> None:
    """As under nohup."""
    usual = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        at_step(3, lambda: send(signal.SIGHUP))
        assert command(["train", str(table), *OPTIONS, "--out", str(tmp_path / "run")]) == 0
    finally:
        signal.signal(signal.SIGHUP, usual)


def test_a_terminal_that_is_closed_stops_it_and_nothing_is_lost(
    tmp_path: Path, table: Path
) -> None:
    run = tmp_path / "run"
    process, terminal = pty.fork()
    if process == 0:
        os.environ["PYTHONPATH"] = str(Path(mlnt.__file__).parent.parent)
        # More epochs than it can do in its time: it must be the signal that ends it.
        options = [*OPTIONS, "--epochs", "100000", "--minutes", "4", "--out", str(run)]
        os.execv(sys.executable, [sys.executable, "-m", "mlnt", "train", str(table), *options])
    metrics = run / "metrics.jsonl"
    while not (metrics.exists() and metrics.stat().st_size):  # an epoch is done
        os.read(terminal, 1024)
    os.close(terminal)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == 129
    assert RunFolder(run).checkpoints.load("0-cross_entropy") is not None


def test_training_goes_on_when_nobody_reads(tmp_path: Path, table: Path) -> None:
    """As in `mlnt train … | head -1`, but gone from the beginning."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "mlnt", "train", str(table), *OPTIONS, "--out", "run"]
    environment = {**os.environ, "PYTHONPATH": str(Path(mlnt.__file__).parent.parent)}
    done = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment,
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=240,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (0, b"")
    assert (tmp_path / "run" / "summary.json").is_file()


def test_a_signal_stops_when_nobody_reads(
    tmp_path: Path,
    table: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_step: Callable[[int, Callable[[], None]], None],
) -> None:
    class Unread:
        def __getattr__(self, name: str) -> Any:
            return getattr(os, name)

        def write(self, descriptor: int, content: bytes) -> int:
            raise BrokenPipeError

    monkeypatch.setattr("mlnt.interruption.os", Unread())
    at_step(8, lambda: send(signal.SIGTERM))
    assert command(["train", str(table), *OPTIONS, "--out", str(tmp_path / "run")]) == 143
    assert RunFolder(tmp_path / "run").checkpoints.load("0-cross_entropy") is not None


def test_an_experiment_stops_too(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_step: Callable[[int, Callable[[], None]], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    arguments = ["reproduce", "digits", "--seeds", "1", "--out", str(tmp_path / "x"), "--set",
                 "epochs=1", "--set", "iterations=1", "--set", "batch_size=512"]  # fmt: skip
    at_step(2, lambda: send(signal.SIGINT))
    assert command(arguments) == 130
    assert "0 of 1 runs are finished; the same command goes on" in capsys.readouterr().out
    assert (tmp_path / "x" / "seed-0" / "checkpoints").exists()
    assert command(arguments) == 0


class Fragile(nn.Module):
    """Gives infinities from its tenth training step on: the fourth of the second epoch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(2, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
        return self.head(x) * torch.where(self.calls > 9, float("inf"), 1.0)


def test_what_is_not_finite_never_becomes_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With one after each step the last good one is that of the step before; all stops there."""
    monkeypatch.setattr(journal, "SHARE", 1e9)
    rows = torch.randn(192, 2, generator=torch.Generator().manual_seed(0))
    data = (rows, torch.arange(192) % 3)
    options = {"validation_data": data, "epochs": 3, "batch_size": 32, "checkpoint_minutes": 0}
    with pytest.raises(mlnt.TrainingError) as caught:
        mlnt.train(data, model=Fragile, out=tmp_path / "run", method="cross_entropy", **options)
    message = str(caught.value)
    assert "became nan in step 10 (epoch 2) of cross_entropy" in message
    assert message.endswith("(epoch 1 and 3 steps of cross_entropy)")
    saved = RunFolder(tmp_path / "run").checkpoints.load("0-cross_entropy")
    assert saved is not None
    assert torch.isfinite(saved["steps"]["models"]["student"]["head.weight"]).all()
    assert len(RunFolder(tmp_path / "run").read_metrics()) == 1
