"""What the finished cells found, gathered over seeds beside the paper's figures."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mlnt.reproduce.cells import Cell
from mlnt.reproduce.experiments import FIRST_STAGES, Experiment, Line, held_by
from mlnt.reproduce.paper import Published, find_published


@dataclass(frozen=True)
class Spread:
    """n figures as mean ± standard error."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """NaN of no figures."""
        return statistics.fmean(self.values) if self.values else math.nan

    @property
    def error(self) -> float:
        """s / √n; NaN of fewer than two figures."""
        if len(self.values) < 2:
            return math.nan
        return statistics.stdev(self.values) / math.sqrt(len(self.values))

    def __str__(self) -> str:
        if not self.values:
            return ""
        error = "" if math.isnan(self.error) else f" ± {self.error:.2f}"
        return f"{self.mean:.2f}{error}"

    @property
    def short(self) -> str:
        return str(self).replace(" ", "")


@dataclass(frozen=True)
class Row:
    """One line of a table under one noise; empty spreads where nothing has been run."""

    method: str
    model: str
    iteration: int
    noise: str
    setting: str  # what is swept over: sets=5
    wrong: Spread  # the noise that was really there
    best: Spread  # test accuracy at the best epoch by validation
    last: Spread  # test accuracy after the last epoch
    peak: Spread  # highest test accuracy of any epoch
    paper: Published | None = None

    @property
    def line(self) -> Line:
        return Line(self.method, self.model, self.iteration, self.setting)

    @property
    def n(self) -> int:
        return len(self.best.values)

    @property
    def difference(self) -> float:
        """Ours less the paper's; NaN where either is missing."""
        return math.nan if self.paper is None else self.best.mean - self.paper.value


def collect(
    experiment: Experiment, lines: Sequence[Line], noises: Sequence[str], cells: Sequence[Cell]
) -> list[Row]:
    """Every line under every noise, over the seeds whose cells are finished."""
    summaries = [(cell, cell.summary()) for cell in cells if cell.is_finished]
    rows = []
    for line in lines:
        for noise in noises:
            found = [
                (summary, figures)
                for summary in _one_per_seed(line, noise, summaries)
                if (figures := _find(summary, line)) is not None
            ]
            wrong = [summary["noise"].get("wrong_in_train") for summary, _ in found]
            best, last, peak = (
                Spread(tuple(figures[name] for _, figures in found))
                for name in ("best", "last", "peak")
            )
            rows.append(
                Row(
                    line.method,
                    line.model,
                    line.iteration,
                    noise,
                    line.setting,
                    Spread(tuple(share for share in wrong if share is not None)),
                    best,
                    last,
                    peak,
                    find_published(experiment, line, noise),
                )
            )
    return rows


def _one_per_seed(
    line: Line, noise: str, summaries: Sequence[tuple[Cell, dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The runs that hold a line, one a seed."""
    by_seed: dict[int, dict[str, Any]] = {}
    for method in held_by(line.method):
        for cell, summary in summaries:
            fits = line.method in FIRST_STAGES or cell.setting == line.setting
            asked = cell.method == method and cell.noise == noise and fits
            if asked and _find(summary, line) is not None:
                by_seed.setdefault(cell.seed, summary)
    return [by_seed[seed] for seed in sorted(by_seed)]


def _find(summary: dict[str, Any], line: Line) -> dict[str, Any] | None:
    """The figures of a line's model in summary.json."""
    wanted = (line.method, line.model, line.iteration)
    for figures in summary["models"]:
        if (figures["method"], figures["model"], figures["iteration"]) == wanted:
            return figures
    return None
