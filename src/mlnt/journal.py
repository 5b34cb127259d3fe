"""A run folder as the journal of a training: what it reached, and how it goes on."""

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from mlnt.config import settings_from
from mlnt.errors import InputError
from mlnt.runs import CONFIG, SUMMARY, RunFolder
from mlnt.training import Journal, Stage

# Where and how fast a run is computed is no matter of what it computes.
MACHINE = ("device", "workers", "engine", "graph")


class RunJournal(Journal):
    """Writes a checkpoint and a line of metrics.jsonl after each epoch."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.rows: list[dict[str, Any]] = []  # of the stages gone through so far

    def load(self, stage: Stage) -> dict[str, Any] | None:
        found = self.run.load_checkpoint(stage.file_name)
        if found is not None:
            # Killed between the two, the last epoch would be in the checkpoint alone.
            with self.run.expect_intact():
                self.rows += found["history"]
                self.run.rewrite_metrics(self.rows)
        return found

    def save(self, stage: Stage, content: Callable[[], dict[str, Any]]) -> None:
        saved = content()
        self.run.save_checkpoint(stage.file_name, saved)
        self.rows.append(saved["history"][-1])
        self.run.append_metrics(self.rows[-1])


def begin(run: RunFolder, config: dict[str, Any], resume: bool) -> RunJournal:
    """A journal for a new run, or for one that was interrupted and was begun alike."""
    if resume and run.file(CONFIG).exists():
        if run.file(SUMMARY).exists():
            run.remove_checkpoints()  # if it was killed in its very last moment
            raise InputError(f"{run.path} has come to its end; `mlnt report {run.path}` shows it")
        with run.expect_intact():
            check_same(run.read_json(CONFIG), config, str(run.path))
        run.rewrite_metrics([])
    else:
        run.create(config)
    return RunJournal(run)


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
    for name in ("classes", "samples", "fingerprint"):
        if was["data"][name] != now["data"][name]:
            raise InputError(f"{where} was begun with other data (its {name} differ)")
