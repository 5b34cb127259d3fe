"""Cells: a method, a noise and a seed each, run one after another; stopped and gone on with.

Several processes may run the cells of one folder: each takes the next that nobody is at. Stages
that cells have in common are trained once and lie on a shelf beside them.

plan -> choose -> run_cells -> summaries of the finished ones
"""

import contextlib
import fnmatch
import math
import re
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mlnt import api
from mlnt.config import Settings, fields_by_name, make_settings, settings_from
from mlnt.errors import (
    Busy,
    InputError,
    Stopped,
    StorageError,
    TrainingError,
    did_you_mean,
)
from mlnt.models import check_name
from mlnt.reproduce.experiments import Experiment, held_by, swept_value
from mlnt.reproduce.naming import what_counts
from mlnt.reproduce.places import Place
from mlnt.runs import CONFIG, SUMMARY, RunFolder
from mlnt.shelf import clear
from mlnt.training import Watcher

SHELF = "first-stages"
WHAT = "experiment.json"
HELD = "cross_entropy"
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

    def may_hold(self, method: str) -> bool:
        """Whether its run holds the figures of a method, or will once it is finished."""
        if not self.is_finished:
            return self.method in held_by(method)
        return any(figures["method"] == method for figures in self.summary()["models"])

    def summary(self) -> dict[str, Any]:
        return RunFolder.open(self.folder).read_json(SUMMARY)


def plan(
    experiment: Experiment,
    place: Place,
    seeds: int | Iterable[int],
    out: Path,
    changed: Mapping[str, Any],
) -> list[Cell]:
    """Every cell of an experiment, in the order they run: MLNT first, seed by seed.

    `seeds` are these, or so many from 0.
    `changed` are settings that differ from those of the experiment.
    """
    for name in ("method", "noise", "seed", experiment.swept):
        if name in changed:
            raise InputError(f"the cells differ in their {name}, which cannot be set for all")
    check_name(str(changed.get("model", "auto")))
    cells = []
    shelf = out / SHELF if _have_stages_in_common(experiment) else None
    numbers = range(seeds) if isinstance(seeds, int) else seeds
    for seed, method, noise, setting in _combinations(experiment, place, numbers):
        data, settings = _split(place.arguments(noise))
        settings |= {**place.fast, **experiment.settings, "method": method, "seed": seed, **changed}
        if setting:
            swept, value = swept_value(setting)
            settings[swept] = value
        parts = (method, as_name(noise), as_name(setting), f"seed-{seed}")
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
    experiment: Experiment, place: Place, seeds: Iterable[int]
) -> Iterator[tuple[int, str, str, str]]:
    # Without MLNT's figures a table says little, and its cells hold those of cross entropy too.
    methods = sorted(experiment.methods, key=lambda method: method != "mlnt")
    if experiment.flat:
        methods = methods[:1]
    for seed in seeds:
        for method in methods:
            for noise in place.noises:
                for setting in experiment.settings_of(method):
                    yield seed, method, noise, setting


def _split(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What names the data, and what is a setting."""
    data = {name: value for name, value in arguments.items() if name not in fields_by_name()}
    return data, {name: value for name, value in arguments.items() if name not in data}


def choose(
    cells: Sequence[Cell], patterns: Sequence[str] | None, failed: Collection[str] = ()
) -> list[Cell]:
    """The cells to run, or finished: those that match, less what others give for nothing.

    Runs that begin with cross entropy hold it, unless they `failed`.
    """
    wanted = list(cells) if patterns is None else _matching(cells, patterns)
    holders = [cell for cell in wanted if cell.name not in failed]
    holders += [cell for cell in cells if cell.is_finished]
    held = {(c.noise, c.seed) for c in holders if c.method != HELD and c.may_hold(HELD)}
    return [
        cell
        for cell in wanted
        if cell.method != HELD or (cell.noise, cell.seed) not in held or cell.is_finished
    ]


def _matching(cells: Sequence[Cell], patterns: Sequence[str]) -> list[Cell]:
    """Those that any pattern matches; several may stand in one, between commas."""
    names: set[str] = set()
    for pattern in (part for text in patterns for part in text.split(",")):
        found = [cell.name for cell in cells if _matches(cell.name, pattern)]
        if not found:
            hint = _did_you_mean(pattern, cells) or f"; there are {_listed(cells)}"
            raise InputError(f"no cell matches {pattern!r}{hint}")
        names.update(found)
    return [cell for cell in cells if cell.name in names]


def _matches(name: str, pattern: str) -> bool:
    """Whether the pattern is of the whole name, or of parts that follow each other."""
    pattern = as_name(pattern.strip().strip("/"))
    around = (pattern, f"{pattern}/*", f"*/{pattern}", f"*/{pattern}/*")
    return any(fnmatch.fnmatchcase(name, each) for each in around)


def as_name(text: str) -> str:
    """symmetric:0.5 and sets=5 as they stand in names and folders."""
    return text.replace(":", "-").replace("=", "-")


def _did_you_mean(pattern: str, cells: Sequence[Cell]) -> str:
    """A pattern that matches, with one word of this one exchanged."""
    words = as_name(pattern).split("/")
    known = dict.fromkeys(part for cell in cells for part in cell.name.split("/"))
    others = ["/".join([*words[:place], part, *words[place + 1 :]])
              for place in range(len(words)) for part in known]  # fmt: skip
    return did_you_mean(
        pattern, [each for each in others if any(_matches(cell.name, each) for cell in cells)]
    )


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
            check_finished([cell])  # by another process, meanwhile
            continue
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
            check_finished([cell])
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


def check_claim(out: Path, what: str) -> None:
    """Raise InputError where another experiment has its table."""
    if (out / WHAT).is_file():
        with RunFolder(out).expect_intact():
            was = str(RunFolder(out).read_json(WHAT)["what"])
        if was != what:
            raise InputError(f"{out} holds {was}, not {what}; choose another folder with --out")


def claim(out: Path, what: str) -> None:
    """Write down which experiment has its table there."""
    out.mkdir(parents=True, exist_ok=True)
    RunFolder(out).write_json(WHAT, {"what": what})


def seeds_in(out: Path) -> set[int]:
    """Those of finished runs."""
    names = (path.parent.name for path in out.rglob(f"seed-*/{SUMMARY}"))
    numbers = (name.removeprefix("seed-") for name in names)
    return {int(number) for number in numbers if re.fullmatch("0|[1-9][0-9]{0,8}", number)}


def clear_shelf(cells: Sequence[Cell]) -> None:
    """Once every cell is finished, nobody needs what they had in common."""
    if all(cell.is_finished for cell in cells):
        for shelf in {cell.shelf for cell in cells if cell.shelf is not None}:
            clear(shelf)
