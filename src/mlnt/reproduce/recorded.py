"""Results that were written down, read back.

results/DATA/METHOD/NOISE[/SCHEDULE]/seed-0/{config.json, summary.json, metrics.jsonl}
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mlnt.config import Settings, settings_from
from mlnt.errors import InputError
from mlnt.reproduce.cells import Cell
from mlnt.reproduce.experiments import (
    ASYMMETRIC,
    EXPERIMENTS,
    FIRST_STAGES,
    METHODS,
    SYMMETRIC,
    Experiment,
    held_by,
)
from mlnt.reproduce.naming import TITLES, preset_and_changes, schedule_words, untold
from mlnt.reproduce.results import Row, collect
from mlnt.runs import CONFIG, SUMMARY, RunFolder

NOISES = (*SYMMETRIC, *ASYMMETRIC, *EXPERIMENTS["cifar10n"].noises)
# Which experiment runs a cell, by its data.
OF_DATA = {
    "cifar10": ("table1", "table2"),
    "cifar10n": ("cifar10n",),
    "digits": ("table1", "table2", "table4", "cifar10n"),
}


@dataclass(frozen=True)
class Recorded:
    """One run."""

    folder: Path
    data: str
    noise: str
    schedule: str  # "" is the fast one, see naming.py
    settings: Settings
    config: dict[str, Any]
    summary: dict[str, Any]

    @property
    def cell(self) -> Cell:
        name = self.folder.as_posix()
        method, seed = self.settings.method, self.settings.seed
        return Cell(name, self.folder, method, self.noise, "", seed, {}, self.settings)

    @property
    def minutes(self) -> float:
        return float(self.summary["seconds"]) / 60

    @property
    def shared_gpu(self) -> bool:
        """Whether others held memory of its GPU at the end of some epoch, see `is_shared`."""
        return bool(self.summary.get("shared_gpu"))

    @property
    def machine(self) -> str:
        return self.origin("machine") + (", shared" if self.shared_gpu else "")

    def origin(self, what: str) -> str:
        """The machine or the commit; several where the run went on with another."""
        pieces = [self.config, *self.config.get("continued", [])]
        return " and ".join(dict.fromkeys(str(piece.get(what, "unknown")) for piece in pieces))

    def holds(self, method: str) -> bool:
        return any(figures["method"] == method for figures in self.summary["models"])

    def changes(self, method: str) -> list[str]:
        """["epochs=60"]: what a line of the method had otherwise than runs of today have it, and
        the schedule's name does not tell; the preset may have changed since."""
        settings = self.settings
        if method in FIRST_STAGES:
            settings = replace(settings, method="cross_entropy")
        _, found = preset_and_changes(self.data, self.schedule, settings)
        if method == "contrastive" and settings.self_epochs != "same":
            found = [change for change in found if not change.startswith("epochs=")]
        return untold(found, self.schedule)

    @property
    def final(self) -> dict[str, Any]:
        """The figures of its last iteration's teacher, or of what the method has in its place."""
        return self.summary["models"][-1]


@dataclass(frozen=True)
class Group:
    """The runs of all methods and seeds under one noise, by one schedule."""

    data: str
    noise: str
    schedule: str
    runs: tuple[Recorded, ...]

    @property
    def title(self) -> str:
        words = schedule_words(self.data, self.schedule)
        parts = (TITLES.get(self.data, self.data), noise_words(self.noise), words)
        return ", ".join(part for part in parts if part)

    @property
    def experiment(self) -> str:
        """Which one runs these cells; "" if none does."""
        return next(
            (name for name in OF_DATA.get(self.data, ()) if self.noise in EXPERIMENTS[name].noises),
            "",
        )

    def of(self, method: str) -> list[Recorded]:
        return [run for run in self.runs if run.settings.method == method]

    def source(self, method: str) -> list[Recorded]:
        """The runs that the lines of a method come from: one a seed, all of the same settings."""
        holding = [run for m in held_by(method) for run in self.of(m) if run.holds(method)]
        changes = [run.changes(method) for run in holding]
        alike = [] if [] in changes else next(iter(changes), [])  # as of today, if there is one
        found: dict[int, Recorded] = {}
        for run, own in zip(holding, changes, strict=True):
            if own == alike:
                found.setdefault(run.settings.seed, run)
        return [found[seed] for seed in sorted(found)]

    def is_begun(self, method: str | None = None) -> bool:
        """Whether any run, or any that a line of the method comes from, has weights="self"."""
        runs = self.runs if method is None else self.source(method)
        return any(run.settings.weights == "self" for run in runs)

    def rows(self) -> list[Row]:
        """Every model that was trained, over its seeds, beside the paper's figure."""
        # Only CIFAR-10 is the paper's data.
        is_known = self.data == "cifar10" and self.experiment
        paper = EXPERIMENTS[self.experiment].paper if is_known else ()
        experiment = Experiment("", self.data, (self.noise,), METHODS, paper=paper)
        iterations = max(run.settings.iterations for run in self.runs)
        rows: list[Row] = []
        for line in experiment.lines(iterations, self.is_begun()):
            cells = [run.cell for run in self.source(line.method)]
            rows += collect(experiment, [line], [self.noise], cells)
        return [row for row in rows if row.n]


def noise_words(noise: str) -> str:
    return "labels as they came" if noise == "none" else noise.replace(":", " ")


def read_recorded(results: Path) -> list[Recorded]:
    """Every run that lies in the folder of results, in the order they are shown."""
    found = [_read(path.parent) for path in results.rglob(CONFIG)] if results.is_dir() else []
    return sorted(found, key=_order)


def _read(folder: Path) -> Recorded:
    run = RunFolder.open(folder)
    with run.expect_intact():
        config, summary = run.read_json(CONFIG), run.read_json(SUMMARY)
        if "cell" not in config:
            raise InputError(f"{folder} was not put there by `mlnt results`; move it elsewhere")
        data, noise, schedule = (str(config["cell"][k]) for k in ("data", "noise", "schedule"))
        check_figures(summary)
        settings = settings_from(config["settings"])
        return Recorded(folder, data, noise, schedule, settings, config, summary)


def had_test_data(summary: dict[str, Any]) -> bool:
    """Without it every figure of a run is missing; where only some are, it is damaged."""
    figures = [model[name] for model in summary["models"] for name in ("best", "last")]
    return not figures or any(figure is not None for figure in figures)


def check_figures(summary: dict[str, Any]) -> None:
    """Raise ValueError where a summary lacks what is written down of every run."""
    if not summary["models"]:
        raise ValueError("no model")
    for value in (summary["seconds"], *(m[k] for m in summary["models"] for k in ("best", "last"))):
        if not isinstance(value, int | float):
            raise ValueError(f"{value!r} where a number should be")


def _order(run: Recorded) -> tuple[Any, ...]:
    methods, method = METHODS, run.settings.method
    return (run.data, *_place(NOISES, run.noise), run.schedule, methods.index(method),
            run.settings.seed, run.folder.as_posix())  # fmt: skip


def _place(known: tuple[str, ...], name: str) -> tuple[int, str]:
    return (known.index(name) if name in known else len(known), name)


def grouped(runs: Iterable[Recorded]) -> list[Group]:
    """By data, noise and schedule."""
    found = itertools.groupby(runs, key=lambda run: (run.data, run.noise, run.schedule))
    return [Group(*key, tuple(members)) for key, members in found]
