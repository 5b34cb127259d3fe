"""Kills a training at random moments, goes on with it, and compares its end: python kills.py N.

Each time a process is forked from this one, which has loaded everything and trained nothing. It is
killed (SIGKILL) at a random moment by the clock, or by itself at a random place within the writing
of a file; a second process goes on to the end. All that it wrote must be, bit for bit, what a run
that nobody disturbed has written.
"""

import hashlib
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import sklearn.metrics
import torch
import torch._dynamo
from torch import nn

import mlnt
from mlnt import checkpoints, journal, outcome, storage
from mlnt.runs import RunFolder

TIMES = ("seconds", "step_ms")
# Training loads them when it needs them: seconds of every process to come.
LOADED = (sklearn.metrics, torch._dynamo)
CALLS = ("write", "fsync", "replace")  # of the system, by which a file comes to be
RESUMED_IN = 120  # seconds that a run of about one second may take on a busy machine


@dataclass(frozen=True)
class Place:
    """Within the writing of a file: before or after one of its calls, or halfway through it."""

    call: str
    number: int
    when: str  # before, halfway, after


def network() -> nn.Module:
    """Draws random numbers in its forward pass and keeps statistics."""
    hidden = 16
    return nn.Sequential(
        nn.Linear(2, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Dropout(0.2),
        nn.Linear(hidden, 3),
    )  # fmt: skip


def train(folder: Path, eager: bool) -> None:
    """About fifty steps in three stages; `eager` writes a checkpoint after each."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(240) % 3
    rows = torch.tensor([[3.0, 0], [0, 3], [-3, -3]])[labels]
    rows = rows + torch.randn(240, 2, generator=generator)
    if eager:
        journal.SHARE = journal.END_SHARE = 1e9
    # Drawn from what was written before; a second of matplotlib.
    outcome.write_report = lambda run: None
    mlnt.train(
        (rows, labels), out=folder, resume=True, model=network, noise="symmetric:0.3", epochs=3,
        iterations=2, sets=2, batch_size=32, seed=5, checkpoint_minutes=0 if eager else 5,
    )  # fmt: skip


def digest(folder: Path) -> str:
    """Of all weights, all labels judged, and all figures but the times."""
    found = hashlib.sha256()
    for name in ("best.safetensors", "student.safetensors", "teacher.safetensors"):
        found.update((folder / name).read_bytes())
    found.update((folder / "label_issues.csv").read_bytes())
    for row in RunFolder.open(folder).read_metrics():
        found.update(repr([(k, v) for k, v in row.items() if k not in TIMES]).encode())
    return found.hexdigest()


class Watched(SimpleNamespace):
    """The module os, for those who write: counts their calls, and dies at a place."""

    def __init__(self, place: Place | None) -> None:
        super().__init__(**vars(os))
        self.place, self.counts = place, Counter[str]()
        for name in CALLS:
            setattr(self, name, self._watch(name, getattr(os, name)))

    def _watch(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def watched(*arguments: Any) -> Any:
            self.counts[name] += 1
            if self.place is None or (name, self.counts[name]) != (
                self.place.call, self.place.number
            ):  # fmt: skip
                return call(*arguments)
            if self.place.when == "halfway" and name == "write":
                call(arguments[0], arguments[1][: len(arguments[1]) // 2])
            elif self.place.when != "before":
                call(*arguments)
            return os.kill(os.getpid(), signal.SIGKILL)

        return watched


def in_a_process(
    folder: Path, eager: bool, place: Place | None = None, seconds: float = RESUMED_IN
) -> dict[str, int] | None:
    """Train in a process of its own, killed after `seconds`; the calls that it made, None if it was
    killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(reading)
            watched = Watched(place)
            storage.os = checkpoints.os = watched
            train(folder, eager)
            with open(writing, "w") as answer:
                json.dump(watched.counts, answer)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    os.close(writing)
    with open(reading, "rb") as answer:
        ended, _, _ = select.select([answer], [], [], seconds)
        if not ended:
            os.kill(child, signal.SIGKILL)
        text = answer.read()
        _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) != 0:
        raise AssertionError("a training failed; what it said stands above")
    return json.loads(text) if status == 0 else None


def kills(count: int, folder: Path, seed: int) -> Iterator[dict[str, Any]]:
    """Half of them by the clock, half within writing; half of each with checkpoints all along."""
    chance = random.Random(seed)
    whole, calls = {}, {}
    for eager in (False, True):
        began = time.monotonic()
        ended = in_a_process(folder / f"whole-{eager}", eager)
        assert ended is not None, "even undisturbed it took too long"
        whole[eager], calls[eager] = time.monotonic() - began, ended
    expected = digest(folder / "whole-False")
    assert digest(folder / "whole-True") == expected, "how often it writes changes nothing"
    number = 0
    while number < count:
        eager, by_clock = number % 2 == 1, number // 2 % 2 == 0
        run = folder / f"run-{number}"
        place, seconds = None, RESUMED_IN
        if by_clock:
            seconds = chance.uniform(0, whole[eager])
        else:
            call = chance.choice(CALLS)
            when = chance.choice(("before", "halfway", "after"))
            place = Place(call, chance.randint(1, calls[eager][call]), when)
        if (
            in_a_process(run, eager, place, seconds) is not None
        ):  # it was faster this time than the moment it should be killed at
            shutil.rmtree(run)
            continue
        number += 1
        lines = len(RunFolder(run).read_metrics())
        if not (run / "summary.json").exists():  # else it was killed after its last figure
            assert in_a_process(run, eager) is not None, "resumed it took too long"
        yield {
            "kill": number,
            "at": f"{seconds:.3f} s" if by_clock else f"{when} {call} {place.number}",
            "checkpoints": "each step" if eager else "usual",
            "epochs_before": lines,
            "equal": digest(run) == expected,
        }
        shutil.rmtree(run)


def main() -> None:
    torch.set_num_threads(1)
    count, seed = int(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        for row in kills(count, Path(folder), seed):
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
