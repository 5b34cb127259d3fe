"""A run folder as the journal of a training: what it reached, and how it goes on."""

import contextlib
import shlex
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from safetensors.torch import load, save

from mlnt.config import Settings, settings_from
from mlnt.distributed import World
from mlnt.errors import InputError
from mlnt.models import is_imported
from mlnt.packing import Tensors, copied, pack, unpack
from mlnt.runs import CONFIG, SUMMARY, RunFolder, holds_a_run
from mlnt.shelf import Shelf
from mlnt.training import Journal, Stage

# Where and how fast a run is computed is no matter of what it computes.
MACHINE = ("device", "workers", "engine", "graph", "deterministic", "checkpoint_minutes")
# What must be the same of the data of a run that goes on, and what to say where it is not.
DATA_CHANGED = {
    "classes": "the classes are others now, or this version of mlnt reads them otherwise",
    "samples": "there are more samples now, or fewer",
    "fingerprint": "samples, labels or their order have changed since, or this version "
    "of mlnt reads them otherwise",
}
SHARE, END_SHARE = 0.005, 0.009  # of the time for checkpoints; for those at the end of a stage


class Pace:
    """When the next checkpoint is worth its time: training may take long or a blink."""

    def __init__(self, minutes: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.minutes, self.clock = minutes, clock
        self.began = self.last = clock()
        self.written, self.seconds, self.cost = 0, 0.0, 0.0  # cost: of the last one

    def allows(self, share: float) -> bool:
        """With one more, all would not take more of the time than that; the first always may."""
        return self.seconds + self.cost <= share * (self.clock() - self.began)

    def is_due(self) -> bool:
        """It would be, within an epoch: `minutes` have passed since the last."""
        return self.clock() - self.last >= 60 * self.minutes and self.allows(SHARE)

    @contextlib.contextmanager
    def measured(self) -> Iterator[None]:
        """Inside, one is written."""
        began = self.clock()
        yield
        self.last = self.clock()
        self.cost = self.last - began
        self.seconds += self.cost
        self.written += 1


class RunJournal(Journal):
    """Writes a line of metrics.jsonl after each epoch, and checkpoints.

    `shelf` holds stages that other runs may have trained already.
    """

    def __init__(self, run: RunFolder, settings: Settings, shelf: Shelf | None = None) -> None:
        self.run, self.shelf = run, shelf
        self.pace = Pace(settings.checkpoint_minutes)
        self.rows: list[dict[str, Any]] = []  # of the stages gone through so far
        # Ends of stages that were not worth their time: what they would have held, on the CPU.
        self.left_out: dict[Stage, dict[str, Any]] = {}
        self.reached: tuple[Stage, str] | None = None  # by the last checkpoint

    def load(self, stage: Stage) -> dict[str, Any] | None:
        with self.run.writing(), self.run.expect_intact():
            found = self.run.checkpoints.load(stage.file_name)
            if found is not None:
                self._remember(stage, found)
                self.shelf = None  # the stage may still be under way
            elif self.shelf is not None:
                found = self.shelf.take(stage)
                if found is not None:
                    self.left_out[stage] = found  # to go on from, whatever becomes of the shelf
                    self.shelf.follow(found)
            if found is not None:
                self.rows += found["progress"]["history"]
            # Lines of epochs that came after the checkpoint will be written again.
            self.run.rewrite_metrics(self.rows)
        return found

    def note(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        with self.run.writing():
            self.run.append_metrics(row)

    def is_due(self) -> bool:
        return self.pace.is_due()

    def save(
        self,
        stage: Stage,
        content: Callable[[], dict[str, Any]],
        end: bool = False,
        must: bool = False,
    ) -> None:
        self.left_out.pop(stage, None)
        # First the ends of earlier stages: without them those would be trained again.
        for earlier in list(self.left_out):
            if must or self.pace.allows(END_SHARE):
                self._write(earlier, partial(self.left_out.pop, earlier))
        if must or self.pace.allows(END_SHARE if end else SHARE):
            self._write(stage, content)
        elif end:
            self.left_out[stage] = copied(content())
        if end:
            self._share(stage, content)

    def _share(self, stage: Stage, content: Callable[[], dict[str, Any]]) -> None:
        """Put a finished stage on the shelf."""
        if self.shelf is None or not self.shelf.takes(stage):
            return
        with self.pace.measured():
            saved = content()
            if self.shelf.lacks(stage):
                self.shelf.put(stage, saved)
            self.shelf.follow(saved)

    def _write(self, stage: Stage, content: Callable[[], dict[str, Any]]) -> None:
        with self.run.writing(), self.pace.measured():
            saved = content()
            self.run.checkpoints.save(stage.file_name, saved)
        self._remember(stage, saved)

    def cost(self) -> dict[str, Any]:
        """What writing took in this process, for summary.json."""
        elapsed = self.pace.clock() - self.pace.began
        share = 100 * self.pace.seconds / elapsed if elapsed > 0 else 0.0
        return {"written": self.pace.written, "seconds": self.pace.seconds, "percent": share}

    def _remember(self, stage: Stage, content: dict[str, Any]) -> None:
        epochs, steps = len(content["progress"]["history"]), content["steps"]["epoch"]["done"]
        reached = f"epoch {epochs}" + (f" and {steps} steps" if steps else "")
        self.reached = stage, f"{reached} of {stage.name}"

    @property
    def last_good(self) -> str:
        """The last checkpoint, for a message; somebody may have removed it."""
        if self.reached is None:
            has_some = any(self.run.checkpoints.folder.glob("*.safetensors"))
            return "its checkpoints are as they were" if has_some else "no checkpoint yet"
        stage, reached = self.reached
        path = self.run.checkpoints.find(stage.file_name)
        if path is None:
            return f"its last checkpoint is gone too ({reached})"
        return f"last good checkpoint: {path} ({reached})"


class SharedJournal(Journal):
    """The leader's journal in all processes: it alone reads and writes, the others are told."""

    def __init__(self, world: World, own: Journal) -> None:
        self.world, self.own = world, own

    def load(self, stage: Stage) -> dict[str, Any] | None:
        found = self.own.load(stage) if self.world.leads else None
        tensors: Tensors = {}
        packed = self.world.share(pack(found, tensors))
        content = self.world.share_bytes(save(tensors))
        return found if self.world.leads else unpack(packed, load(content))

    def note(self, row: dict[str, Any]) -> None:
        self.own.note(row)

    def is_due(self) -> bool:
        return self.own.is_due()

    def save(
        self,
        stage: Stage,
        content: Callable[[], dict[str, Any]],
        end: bool = False,
        must: bool = False,
    ) -> None:
        self.own.save(stage, content, end, must)


def going_on(folder: Path, model: str) -> str:
    """The command that goes on with a run, for a shell."""
    words = ["mlnt", "train", "--resume", str(folder)]
    # A run folder must not say what to import.
    return shlex.join([*words, "--model", model] if is_imported(model) else words)


def begin(
    run: RunFolder,
    config: dict[str, Any],
    settings: Settings,
    resume: bool,
    shelf: Shelf | None = None,
) -> RunJournal:
    """A journal for a new run, or for one that was interrupted and was begun alike."""
    if run.file(CONFIG).exists():
        if not resume:  # since it was looked at first another process has begun it, perhaps ended
            raise InputError(holds_a_run(run.path))
        if run.file(SUMMARY).exists():
            run.checkpoints.remove()  # if it was killed in its very last moment
            command = shlex.join(["mlnt", "report", str(run.path)])
            raise InputError(f"{run.path} has come to its end; `{command}` shows it")
        with run.expect_intact():
            was = run.read_json(CONFIG)
            check_same(was, config, str(run.path))
            _note_origin(run, was, config)
    else:
        run.create(config)
    return RunJournal(run, settings, shelf)


def _note_origin(run: RunFolder, was: dict[str, Any], now: dict[str, Any]) -> None:
    """Where a run goes on on another machine or with another commit, config.json says so; and
    where its data lie now, if they have moved."""
    if now["source"]["data"] is not None and now["source"] != was.get("source"):
        was = {**was, "source": now["source"]}
        with run.writing():
            run.write_json(CONFIG, was)
    names = ("machine", "commit")
    known = [was, *was.get("continued", [])]
    here = {name: now[name] for name in names}
    if all(any(place.get(name) != here[name] for name in names) for place in known):
        with run.writing():
            run.write_json(CONFIG, {**was, "continued": [*known[1:], here]})


def check_same(was: dict[str, Any], now: dict[str, Any], where: str) -> None:
    """Raise InputError if a run was begun with other settings or other data."""
    before_now = asdict(settings_from(was["settings"]))  # what came later has its default
    for name, value in now["settings"].items():
        before = before_now[name]
        if name not in MACHINE and before != value:
            raise InputError(
                f"{where} was begun with {name}={before}, now it would be {value}; give the same, "
                "or choose another folder with --out"
            )
    for name, words in DATA_CHANGED.items():
        if was["data"][name] != now["data"][name]:
            raise InputError(
                f"{where} was begun with other data: {words}; give the data as they were, or "
                "begin a run of its own"
            )
    # Runs begun earlier have none.
    others = was["data"].get("other_fingerprints", {})
    for name, value in now["data"]["other_fingerprints"].items():
        if others.get(name, value) != value:
            raise InputError(f"{where} was begun with other {name} data")
