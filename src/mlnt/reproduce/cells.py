"""Cells: a method, a noise and a seed each, run one after another; stopped and gone on with.

Several processes may run the cells of one folder: each takes the next that nobody is at. Stages
that cells have in common are trained once and lie on a shelf beside them.

plan -> choose -> run_cells -> summaries of the finished ones
"""

import contextlib
import fnmatch
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlnt import api
from mlnt.config import Settings, fields_by_name, make_settings, settings_from
from mlnt.errors import Busy, InputError, Stopped, StorageError, TrainingError
from mlnt.reproduce.experiments import Experiment, swept_value
from mlnt.reproduce.naming import what_counts
from mlnt.reproduce.places import Place
from mlnt.runs import CONFIG, SUMMARY, RunFolder
from mlnt.shelf import clear
from mlnt.training import Watcher

SHELF = "first-stages"
Show = Callable[[], AbstractContextManager[Watcher]]
Tell = Callable[[str], object]


@dataclass(frozen=True)
class Cell:
    """One run folder, and what `mlnt.train` has to be told to make it."""

    name: str  # mlnt/symmetric-0.5/seed-0
    folder: Path
    method: str
    noise: str
    setting: str  # what is swept over: sets=5
    seed: int
    data: Mapping[str, Any]  # the arguments that name the data
    settings: Settings
    shelf: Path | None = None  # of stages that it has in common with other cells

    @property
    def is_finished(self) -> bool:
        return (self.folder / SUMMARY).is_file()

    def summary(self) -> dict[str, Any]:
        return RunFolder.open(self.folder).read_json(SUMMARY)


def plan(
    experiment: Experiment, place: Place, seeds: int, out: Path, changed: Mapping[str, Any]
) -> list[Cell]:
    """Every cell of an experiment, in the order they run: MLNT first, seed by seed.

    `changed` are settings that differ from those of the experiment.
    """
    for name in ("method", "noise", "seed", experiment.swept):
        if name in changed:
            raise InputError(f"the cells differ in their {name}, which cannot be set for all")
    cells = []
    shelf = out / SHELF if _have_stages_in_common(experiment) else None
    for seed, method, noise, setting in _combinations(experiment, place, seeds):
        data, settings = _split(place.arguments(noise))
        settings |= {**place.fast, **experiment.settings, "method": method, "seed": seed, **changed}
        if setting:
            swept, value = swept_value(setting)
            settings[swept] = value
        parts = (method, noise.replace(":", "-"), setting.replace("=", "-"), f"seed-{seed}")
        name = "/".join(part for part in parts if part)
        folder = out / f"seed-{seed}" if experiment.flat else out / "cells" / name
        chosen = make_settings(place.preset, **settings)
        cells.append(Cell(name, folder, method, noise, setting, seed, data, chosen, shelf))
    return cells


def _have_stages_in_common(experiment: Experiment) -> bool:
    """Whether several cells have the same labels; cross entropy seldom is one of its own."""
    others = [method for method in experiment.methods if method != "cross_entropy"]
    return not experiment.flat and sum(len(experiment.settings_of(m)) for m in others) > 1


def _combinations(
    experiment: Experiment, place: Place, seeds: int
) -> Iterator[tuple[int, str, str, str]]:
    # Without MLNT's figures a table says little, and its cells hold those of cross entropy too.
    methods = sorted(experiment.methods, key=lambda method: method != "mlnt")
    if experiment.flat:
        methods = methods[:1]
    for seed in range(seeds):
        for method in methods:
            for noise in place.noises:
                for setting in experiment.settings_of(method):
                    yield seed, method, noise, setting


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What names the data, and what is a setting."""
    data = {name: value for name, value in arguments.items() if name not in fields_by_name()}
    return data, {name: value for name, value in arguments.items() if name not in data}


def choose(cells: Sequence[Cell], pattern: str | None) -> list[Cell]:
    """The cells to run, or finished: those that match, less what MLNT's give for nothing."""
    if pattern is not None:
        patterns = (pattern, f"{pattern}/*")
        matching = [c for c in cells if any(fnmatch.fnmatchcase(c.name, p) for p in patterns)]
        if not matching:
            raise InputError(f"no cell matches {pattern!r}; there are {_listed(cells)}")
    else:
        matching = list(cells)
    covered = {(c.noise, c.seed) for c in matching if c.method == "mlnt"}
    covered |= {(c.noise, c.seed) for c in cells if c.method == "mlnt" and c.is_finished}
    return [
        cell
        for cell in matching
        if cell.method != "cross_entropy"
        or (cell.noise, cell.seed) not in covered
        or cell.is_finished
    ]


def _listed(cells: Sequence[Cell]) -> str:
    """{mlnt, forward}/{symmetric-0, symmetric-0.1}/{seed-0, seed-1}."""
    levels: dict[tuple[int, int], dict[str, None]] = {}
    for cell in cells:
        parts = cell.name.split("/")
        for level, part in enumerate(parts):
            levels.setdefault((len(parts), level), {})[part] = None
    depths = sorted({depth for depth, _ in levels})
    texts = []
    for depth in depths:
        words = [", ".join(levels[depth, level]) for level in range(depth)]
        texts.append("/".join(f"{{{text}}}" if "," in text else text for text in words))
    return " and ".join(texts)


def check_finished(cells: Sequence[Cell]) -> None:
    """Raise InputError if a run that lies there was made with other settings than asked for now."""
    for cell in cells:
        if not cell.is_finished:
            continue
        found = settings_from(RunFolder.open(cell.folder).read_json(CONFIG).get("settings", {}))
        was, now = asdict(found), asdict(cell.settings)
        for name in (*what_counts(cell.settings), "method", "noise", "seed"):
            if was[name] != now[name]:
                raise InputError(
                    f"{cell.folder} was run with {name}={was[name]}, now it would be {now[name]}; "
                    "choose another folder with --out"
                )


def run_cells(
    cells: Sequence[Cell],
    device: str,
    deadline: float = math.inf,
    watchers: Sequence[Watcher] = (),
    show: Show | None = None,
    tell: Tell | None = None,
) -> dict[str, str]:
    """Run what is not finished, until the deadline; returns why cells failed, by name.

    One whose training went wrong does not keep the others from running, nor does one that
    another process is at.
    """
    failed = {}
    waiting = [cell for cell in cells if not cell.is_finished]
    for number, cell in enumerate(waiting, len(cells) - len(waiting) + 1):
        if time.monotonic() >= deadline:
            break
        if cell.is_finished:
            continue  # by another process, meanwhile
        if tell is not None:
            tell(f"{cell.name} ({number} of {len(cells)})")
        try:
            with contextlib.nullcontext(Watcher()) if show is None else show() as watcher:
                run_cell(cell, device, deadline, (*watchers, watcher))
        except Stopped:
            break
        except Busy:
            if tell is not None:
                tell("  another process is at it")
        except InputError:
            if not cell.is_finished:  # while its data were read
                raise
        except StorageError:
            raise  # the others would fare no better
        except TrainingError as error:
            failed[cell.name] = str(error)
    return failed


def run_cell(cell: Cell, device: str, deadline: float, watchers: Sequence[Watcher]) -> None:
    """Train one cell into its folder, from where an earlier run of it was interrupted."""
    settings = {**asdict(cell.settings), "device": device}
    api.train(
        **cell.data,
        out=cell.folder,
        resume=True,
        deadline=deadline,
        watchers=watchers,
        shelf=cell.shelf,
        **settings,
    )


def clear_shelf(cells: Sequence[Cell]) -> None:
    """Once every cell is finished, nobody needs what they had in common."""
    if all(cell.is_finished for cell in cells):
        for shelf in {cell.shelf for cell in cells if cell.shelf is not None}:
            clear(shelf)
