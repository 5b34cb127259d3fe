"""The paper's tables and figures, and experiments of our own, run again by one command.

experiments (data) -> places -> cells, run one after another -> results -> tables, figures, sheet
finished cells -> record: their small files -> recorded -> page: RESULTS.md, summary.csv
"""

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mlnt.errors import InputError, did_you_mean
from mlnt.reproduce.cells import (
    Cell,
    Show,
    Tell,
    check_claim,
    check_finished,
    choose,
    claim,
    clear_shelf,
    plan,
    run_cells,
    seeds_in,
)
from mlnt.reproduce.experiments import EXPERIMENTS, Experiment
from mlnt.reproduce.figures import draw_progress, draw_sweep, save_figure
from mlnt.reproduce.places import Place, find_place, is_injected
from mlnt.reproduce.record import Record, write_results
from mlnt.reproduce.recorded import noise_words
from mlnt.reproduce.results import Row, Spread, collect
from mlnt.reproduce.sheet import draw_filtered, write_sheet
from mlnt.reproduce.tables import ResultTable
from mlnt.runs import RunFolder
from mlnt.training import Watcher

__all__ = [
    "EXPERIMENTS",
    "Outcome",
    "Record",
    "ResultTable",
    "Row",
    "Spread",
    "run_experiment",
    "write_results",
]


@dataclass(frozen=True)
class Outcome:
    """What `run_experiment` gives back."""

    table: ResultTable
    files: tuple[Path, ...]
    finished: int  # of the cells that were asked for
    asked: int
    failed: dict[str, str]  # why, by the cell's name

    @property
    def rows(self) -> tuple[Row, ...]:
        return self.table.rows


def run_experiment(
    what: str,
    seeds: int,
    data: Path | None,
    out: Path,
    device: str = "auto",
    watchers: Sequence[Watcher] = (),
    *,
    download: bool = False,
    fast: bool = False,
    cells: str | Sequence[str] | None = None,
    minutes: float | None = None,
    show: Show | None = None,
    tell: Tell | None = None,
    **settings: Any,
) -> Outcome:
    """Run the cells of an experiment with seeds 0, 1, …, and write its table and figure into `out`.

    A cell that is finished already is not run again, so that the same call goes on where an
    earlier one stopped.

    data      folder of the data, `cifar10`, or `digits` for the miniature
    download  `cifar10` may be fetched where it is not on this machine
    fast      a short schedule
    cells     a pattern that the names of the cells to run match, or several
    minutes   stops after so many, in the middle of an epoch too
    show      makes what shows the progress of one run; tell is given the name of each
    """
    if what not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise InputError(
            f"cannot reproduce {what!r}{did_you_mean(what, EXPERIMENTS)} (known: {known})"
        )
    patterns = [cells] if isinstance(cells, str) else cells
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    experiment = EXPERIMENTS[what]
    place = find_place(what, experiment, data, fast, download)
    check_claim(out, what)
    every = plan(experiment, place, seeds, out, settings)
    with RunFolder(out).expect_intact():
        _finished(experiment, place, seeds, out, settings)
        chosen = choose(every, patterns)
    claim(out, what)
    failed = run_cells(chosen, device, deadline, watchers, show, tell)
    with RunFolder(out).expect_intact():
        # What those that failed would have held is trained on its own.
        names = {cell.name for cell in chosen}
        others = [cell for cell in choose(every, patterns, failed) if cell.name not in names]
    failed |= run_cells(others, device, deadline, watchers, show, tell)
    chosen += others
    clear_shelf(choose(every, None))
    usual = every[0].settings
    lines = list(experiment.lines(usual.iterations, usual.weights == "self"))
    with RunFolder(out).expect_intact():
        there = _finished(experiment, place, seeds, out, settings)
        rows = collect(experiment, lines, place.noises, there)
        table = ResultTable(
            _title(experiment, place, fast), place.name, tuple(rows), _note(place, rows)
        )
    files = _write_table(table, out)
    files += _draw(what, experiment, place, table, there, out)
    files += _write_sheets(experiment, place, there)
    finished = sum(cell.is_finished for cell in chosen)
    return Outcome(table, tuple(files), finished, len(chosen), failed)


def _finished(
    experiment: Experiment, place: Place, seeds: int, out: Path, settings: Mapping[str, Any]
) -> list[Cell]:
    """All that the table shows, of more seeds than are asked for now where there are more; refused
    if it was not made alike. Other processes may have finished some while this one ran."""
    every = plan(experiment, place, sorted({*range(seeds), *seeds_in(out)}), out, settings)
    check_finished(every)
    return [cell for cell in every if cell.is_finished]


def _title(experiment: Experiment, place: Place, fast: bool) -> str:
    name = "" if experiment.flat else f"; {place.name}"
    return f"{experiment.title}{name}{', fast' if fast else ''}"


def _note(place: Place, rows: Sequence[Row]) -> str:
    if not place.miniature:
        return ""
    note = "This is a miniature on the digits"
    if not all(is_injected(noise) for noise in place.noises):
        note += ", whose labels here come from made-up annotators"
    if any(row.paper is not None for row in rows):
        note += ": the paper's figures, made with other data, only show where they will stand"
    return f"{note}."


def _write_table(table: ResultTable, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    texts = {"table.md": table.to_markdown(), "table.csv": table.to_csv()}
    for name, text in texts.items():
        RunFolder(out).write_text(name, text)
    return [out / name for name in texts]


def _draw(
    what: str,
    experiment: Experiment,
    place: Place,
    table: ResultTable,
    cells: Sequence[Cell],
    out: Path,
) -> list[Path]:
    """The experiment's figure, from the cells that are finished."""
    finished = [cell for cell in cells if cell.is_finished and cell.method == "mlnt"]
    if not experiment.figure or not finished:
        return []
    if experiment.figure == "progress":
        figure = draw_progress(finished, table.title)
    elif experiment.figure == "sweep":
        figure = draw_sweep(experiment, table.rows, table.title, not place.miniature)
    else:
        figure = draw_filtered(finished[0], table.title)
    return save_figure(figure, out / what)


def _write_sheets(experiment: Experiment, place: Place, cells: Sequence[Cell]) -> list[Path]:
    """Of CIFAR-10, what the mentor filtered out: of one cell for each noise, in its folder."""
    if place.miniature or experiment.figure or experiment.data not in ("cifar10", "cifar10n"):
        return []
    finished = [cell for cell in cells if cell.is_finished and cell.method == "mlnt"]
    first = {(cell.noise, cell.setting): cell for cell in reversed(finished)}
    made = [
        write_sheet(cell, f"{place.name}, {noise_words(cell.noise)}") for cell in first.values()
    ]
    return [path for path in made if path is not None]
