"""The paper's figures: accuracy by epoch, and accuracy against a swept setting."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mlnt.report import STYLES
from mlnt.report.charts import curves
from mlnt.reproduce.cells import Cell
from mlnt.reproduce.experiments import FIRST_STAGES, Experiment, Line, swept_value, symbol_of
from mlnt.reproduce.paper import Published, find_published
from mlnt.reproduce.results import Row, Spread
from mlnt.runs import RunFolder
from mlnt.storage import write_aside

if TYPE_CHECKING:  # slow to import, and seldom wanted
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

# One per noise; colour-blind safe (Okabe and Ito), told apart by line style and marker as well.
NOISE_STYLES: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "linestyle": "-", "marker": "o"},
    {"color": "#E69F00", "linestyle": "--", "marker": "s"},
    {"color": "#009E73", "linestyle": "-.", "marker": "^"},
    {"color": "#CC79A7", "linestyle": ":", "marker": "D"},
)
GREY = "#777777"
STAGE_STYLES = {**STYLES, "contrastive student": {"color": GREY, "linestyle": "-."}}
PROGRESS = "progress.png"
LOWEST_SHOWN = 0.05  # share of the points below the picture: first epochs, near chance


def _new_figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _sample_line(**style: Any) -> "Line2D":
    """For a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **style)


def save_figure(figure: "Figure", stem: Path) -> list[Path]:
    """STEM.svg and STEM.png, the same bytes for the same figure."""
    paths = [stem.with_name(f"{stem.name}.{form}") for form in ("svg", "png")]
    import matplotlib

    # A fixed salt: else every drawing names its parts anew.
    with matplotlib.rc_context({"svg.hashsalt": "mlnt"}):
        write_aside(paths[0], lambda aside: figure.savefig(aside, metadata={"Date": None}))
        write_aside(paths[1], lambda aside: figure.savefig(aside, dpi=150))
    return paths


def read_rows(run: RunFolder) -> list[dict[str, Any]]:
    """A run's metrics.jsonl, each line of it with the figures that are drawn here."""
    with run.expect_intact():
        rows = run.read_metrics()
        curves(rows)  # looks at the accuracies
        if not all(isinstance(row["epoch"], int) for row in rows):
            raise ValueError("an epoch without a number")
    return rows


def draw_progress(cells: Sequence[Cell], title: str) -> "Figure":
    """Left: accuracy on the noisy training labels by epoch; right: on the clean test data.

    A line is the mean over the seeds, the band around it ± one standard error.
    """
    figure = _new_figure(9.2, 3.9)
    left, right = figure.subplots(1, 2)
    runs = [read_rows(RunFolder.open(cell.folder)) for cell in cells if cell.is_finished]
    for method, model in (name.split() for name in STYLES):
        _draw_curve(left, runs, method, model, "train")
        _draw_curve(right, runs, method, model, "test")
    left.set_ylabel("accuracy on noisy training labels, %")
    right.set_ylabel("accuracy on clean test data, %")
    for axis in (left, right):
        axis.set_xlabel("epoch")
        axis.xaxis.get_major_locator().set_params(integer=True)
        _tidy(axis)
    lines, names = right.get_legend_handles_labels()
    figure.legend(lines, names, loc="outside lower center", ncols=3, frameon=False)
    figure.suptitle(title, fontsize="medium")
    return figure


def draw_stages(
    runs: Sequence[list[dict[str, Any]]], title: str, published: Published | None = None
) -> "Figure":
    """Test accuracy of student and teacher by epoch, one stage behind the other.

    `runs` are the metrics.jsonl of the seeds; a line is their mean, the band ± one standard error.
    """
    figure = _new_figure(9.2, 3.7)
    axis = figure.subplots()
    # What is learnt without labels has no accuracy until it is over.
    rows = [row for run in runs for row in run if "student" in row]
    shown, begin = [], 0
    for method, iteration in dict.fromkeys((row["method"], row["iteration"]) for row in rows):
        stage = [row for row in rows if (row["method"], row["iteration"]) == (method, iteration)]
        for model in ("student", "teacher"):
            if style := STAGE_STYLES.get(f"{method} {model}"):
                shown += _draw_stage(axis, stage, model, begin, style)
        epochs = max(row["epoch"] for row in stage)
        name = f"iteration {iteration}" if iteration else FIRST_STAGES[method]
        axis.annotate(name, (begin + epochs / 2, 1), (0, 3), ("data", "axes fraction"),
                      "offset points", ha="center", fontsize="small")  # fmt: skip
        begin += epochs
        axis.axvline(begin + 0.5, color=GREY, linewidth=0.6)
    if published is not None:
        dots = (0, (1, 3))
        text = f"the paper's last teacher, {published.value:.2f}"
        axis.axhline(published.value, color=GREY, linestyle=dots, label=text)
    if shown:
        low, high = np.quantile(shown, LOWEST_SHOWN), max(shown)
        axis.set_ylim(low - 0.05 * (high - low) - 0.5, high + 0.05 * (high - low) + 0.5)
    axis.set_xlim(0.5, begin + 0.5)
    axis.set_xlabel("epoch")
    axis.set_ylabel("accuracy on clean test data, %")
    _tidy(axis)
    lines = dict(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
    figure.legend(lines.values(), lines, loc="outside lower center", ncols=4, frameon=False)
    figure.suptitle(f"{title} (n = {len(runs)})", fontsize="medium")
    return figure


def _draw_stage(
    axis: Any, rows: Sequence[dict[str, Any]], model: str, begin: int, style: dict[str, Any]
) -> list[float]:
    """Returns the means that were drawn."""
    by_epoch: dict[int, list[float]] = {}
    for row in rows:
        if (value := _accuracy(row, model, "test")) is not None:
            by_epoch.setdefault(begin + row["epoch"], []).append(value)
    spreads = [Spread(tuple(values)) for values in by_epoch.values()]
    means = [spread.mean for spread in spreads]
    name = model if rows[0]["iteration"] else FIRST_STAGES[rows[0]["method"]]
    axis.plot(list(by_epoch), means, label=name, **style)
    errors = [0.0 if len(spread.values) < 2 else spread.error for spread in spreads]
    if any(errors):
        low, high = ([m + sign * e for m, e in zip(means, errors, strict=True)] for sign in (-1, 1))
        axis.fill_between(list(by_epoch), low, high, color=style["color"], alpha=0.15, linewidth=0)
    return means


def _draw_curve(
    axis: Any, runs: Sequence[list[dict[str, Any]]], method: str, model: str, part: str
) -> None:
    by_epoch: dict[int, list[float]] = {}
    for row in (row for run in runs for row in run):
        value = _accuracy(row, model, part)
        if row["method"] == method and row["iteration"] <= 1 and value is not None:
            by_epoch.setdefault(row["epoch"], []).append(value)
    if not by_epoch:
        return
    spreads = [Spread(tuple(values)) for values in by_epoch.values()]
    style = STYLES[f"{method} {model}"]
    name = method.replace("_", " ") if method == "cross_entropy" else f"{method} {model}"
    axis.plot(list(by_epoch), [spread.mean for spread in spreads], label=name, **style)
    if len(runs) > 1:
        low, high = ([s.mean + sign * s.error for s in spreads] for sign in (-1, 1))
        axis.fill_between(list(by_epoch), low, high, color=style["color"], alpha=0.15, linewidth=0)


def _accuracy(row: dict[str, Any], model: str, part: str) -> float | None:
    """On training labels the student's own, over the batches of the epoch as in the paper."""
    if part == "train" and model == "student" and "train" in row:
        return row["train"]
    return row.get(model, {}).get(part)


def draw_sweep(
    experiment: Experiment, rows: Sequence[Row], title: str, with_paper: bool = True
) -> "Figure":
    """Test accuracy of the student (best epoch by validation) against what is swept."""
    figure = _new_figure(6.6, 4.2)
    axis = figure.subplots()
    students = [row for row in rows if row.model == "student"]
    noises = list(dict.fromkeys(row.noise for row in students))
    shown, papers = {}, []
    for noise, style in zip(noises, NOISE_STYLES, strict=False):
        own = [row for row in students if row.noise == noise]
        points = [row for row in own if row.n]
        _draw_line(axis, points, style)
        paper = _draw_paper(axis, experiment, own, style) if with_paper else []
        papers += paper
        if points or paper:
            shown[noise.replace(":", " ")] = _sample_line(**style)
    axis.set_xlabel(symbol_of(experiment.swept))
    axis.set_xticks(sorted({_place(row) for row in students}))
    axis.set_ylabel("test accuracy of the student at its chosen epoch, %")
    _tidy(axis)
    figure.legend(
        [*shown.values(), *papers[:1]],
        [*shown, *["the paper"] * bool(papers)],
        loc="outside lower center",
        ncols=5,
        frameon=False,
        fontsize="small",
        columnspacing=1.2,
    )
    figure.suptitle(title, fontsize="medium")
    return figure


def _draw_line(axis: Any, rows: Sequence[Row], style: dict[str, Any]) -> None:
    if rows:
        errors = [0.0 if row.n < 2 else row.best.error for row in rows]
        places, means = [_place(row) for row in rows], [row.best.mean for row in rows]
        axis.errorbar(places, means, errors, capsize=3, **style)


def _draw_paper(
    axis: Any, experiment: Experiment, rows: Sequence[Row], style: dict[str, Any]
) -> "list[Line2D]":
    """Hollow points; a dotted line where the paper does not say for which value a figure is.

    Returns how the legend shows them.
    """
    points = [(_place(row), row.paper.value) for row in rows if row.paper is not None]
    if points:
        hollow: dict[str, Any] = {"linestyle": "", "markersize": 9, "markerfacecolor": "none"}
        axis.plot(*zip(*points, strict=True), **{**style, **hollow})
        return [_sample_line(color=GREY, marker="o", **hollow)]
    line = Line("mlnt", "student", rows[0].iteration)
    published = find_published(experiment, line, rows[0].noise)
    if published is None:
        return []
    dots = (0, (1, 3))
    axis.axhline(published.value, color=style["color"], linestyle=dots)
    return [_sample_line(color=GREY, linestyle=dots)]


def _place(row: Row) -> float:
    """Cross entropy is MLNT with M = 0."""
    return swept_value(row.setting)[1] if row.setting else 0.0


def _tidy(axis: Any) -> None:
    axis.grid(alpha=0.3)
    axis.spines[["top", "right"]].set_visible(False)
