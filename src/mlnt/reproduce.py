"""Experiments over several seeds, as tables of mean ± standard error."""

import csv
import io
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from mlnt import api
from mlnt.errors import InputError, did_you_mean
from mlnt.runs import SUMMARY, RunFolder
from mlnt.training import Watcher, model_name

LEGEND = (
    "Test accuracy in %, mean ± standard error over n seeds. best: at the epoch chosen by "
    "validation; last: after the last epoch; highest: the best epoch by hindsight."
)


@dataclass(frozen=True)
class Spread:
    """n figures as mean ± standard error."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return statistics.fmean(self.values)

    @property
    def error(self) -> float:
        """s / √n; NaN for a single figure."""
        if len(self.values) < 2:
            return math.nan
        return statistics.stdev(self.values) / math.sqrt(len(self.values))

    def __str__(self) -> str:
        if not self.values:
            return ""
        error = "" if math.isnan(self.error) else f" ± {self.error:.2f}"
        return f"{self.mean:.2f}{error}"


@dataclass(frozen=True)
class Row:
    method: str
    model: str
    iteration: int
    noise: str
    wrong: Spread  # the noise that was really there
    best: Spread  # test accuracy at the best epoch by validation
    last: Spread  # test accuracy after the last epoch
    peak: Spread  # highest test accuracy of any epoch


@dataclass(frozen=True)
class ResultTable:
    title: str
    rows: tuple[Row, ...]

    @property
    def heading(self) -> str:
        """The title and the noise that was really there."""
        return f"{self.title} ({self.rows[0].wrong.mean:.1f} % of the training labels wrong)"

    def to_rich(self) -> Table:
        table = Table(title=self.heading, caption=LEGEND)
        for heading in self._headings():
            table.add_column(heading, no_wrap=True)
        for row in self.rows:
            table.add_row(*self._cells(row))
        return table

    def to_markdown(self) -> str:
        lines = [self.heading, "", _line(self._headings()), _line(["---"] * len(self._headings()))]
        rows = [_line(self._cells(row)) for row in self.rows]
        return "\n".join([*lines, *rows, "", LEGEND]) + "\n"

    def to_csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(
            ["method", "model", "iteration", "noise", "n", "wrong_mean",
             "best_mean", "best_error", "last_mean", "last_error", "peak_mean"]
        )  # fmt: skip
        for row in self.rows:
            figures = [row.wrong.mean, row.best.mean, row.best.error, row.last.mean,
                       row.last.error, row.peak.mean]  # fmt: skip
            texts = ["" if math.isnan(value) else f"{value:.4f}" for value in figures]
            writer.writerow(
                [row.method, row.model, row.iteration, row.noise, len(row.best.values), *texts]
            )
        return file.getvalue()

    @staticmethod
    def _headings() -> list[str]:
        return ["model", "n", "best", "last", "highest"]

    @staticmethod
    def _cells(row: Row) -> list[str]:
        name = model_name(row.method, row.model, row.iteration)
        return [name, str(len(row.best.values)), str(row.best), str(row.last), str(row.peak)]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


@dataclass(frozen=True)
class Experiment:
    title: str
    noise: str
    needs_data: bool
    arguments: Callable[[Path | None], dict[str, Any]]  # what `mlnt.train` gets


def _digits(data: Path | None) -> dict[str, Any]:
    return {"data": "digits", "noise": "symmetric:0.7", "validation": "clean"}


def _hausa_news(data: Path | None) -> dict[str, Any]:
    assert data is not None
    return {
        "data": data / "train_clean_noisy_labels.tsv",
        "true_labels": data / "train_clean.tsv",
        "validation_data": data / "dev.tsv",
        "test_data": data / "test.tsv",
    }


EXPERIMENTS = {
    "digits": Experiment(
        "digits, symmetric 70 %, clean validation", "symmetric:0.7", False, _digits
    ),
    "hausa-news": Experiment(
        "Hausa news headlines, labels by distant supervision", "real", True, _hausa_news
    ),
}


def run_experiment(
    what: str,
    seeds: int,
    data: Path | None,
    out: Path,
    device: str = "auto",
    watchers: Sequence[Watcher] = (),
    **settings: Any,
) -> ResultTable:
    """Train with seeds 0, 1, …; a run that is finished already is not run again."""
    if what not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise InputError(
            f"cannot reproduce {what!r}{did_you_mean(what, EXPERIMENTS)} (known: {known})"
        )
    experiment = EXPERIMENTS[what]
    if experiment.needs_data and data is None:
        raise InputError(f"{what} needs the folder of its data: --data FOLDER")
    summaries = []
    for seed in range(seeds):
        folder = out / f"seed-{seed}"
        if not (folder / SUMMARY).is_file():
            api.train(
                **experiment.arguments(data),
                out=_fresh(folder),
                seed=seed,
                device=device,
                watchers=watchers,
                **settings,
            )
        summaries.append(RunFolder.open(folder).read_json(SUMMARY))
    table = ResultTable(experiment.title, tuple(collect(summaries, experiment.noise)))
    (out / "table.md").write_text(table.to_markdown(), encoding="utf-8")
    (out / "table.csv").write_text(table.to_csv(), encoding="utf-8")
    return table


def collect(summaries: Sequence[dict[str, Any]], noise: str) -> list[Row]:
    """One row per method, iteration and model, over all seeds."""
    wrong = Spread(tuple(summary["noise"]["wrong_in_train"] for summary in summaries))
    rows = []
    for place in summaries[0]["models"]:
        key = (place["method"], place["iteration"], place["model"])
        same = [
            row
            for summary in summaries
            for row in summary["models"]
            if (row["method"], row["iteration"], row["model"]) == key
        ]
        best, last, peak = (
            Spread(tuple(row[name] for row in same)) for name in ("best", "last", "peak")
        )
        rows.append(Row(key[0], key[2], key[1], noise, wrong, best, last, peak))
    return rows


def _fresh(folder: Path) -> Path:
    """The folder, free: an interrupted run that lies there is moved aside."""
    if folder.exists():
        folder.rename(RunFolder.next_free(folder.parent, f"{folder.name}-interrupted"))
    return folder
