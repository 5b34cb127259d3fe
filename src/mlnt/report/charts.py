"""Curves and histogram: as coordinates for the page, which draws them; curves.png for others."""

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mlnt.texts import one_line

if TYPE_CHECKING:  # slow to import, and seldom wanted
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito), told apart by line style as well.
STYLES = {
    "cross_entropy student": {"color": "#000000", "linestyle": ":"},
    "mlnt student": {"color": "#E69F00", "linestyle": "--"},
    "mlnt teacher": {"color": "#0072B2", "linestyle": "-"},
}

MOST_PANELS = 8  # of more iterations the last ones are drawn
MOST_EPOCHS = 10**9

WIDTH, HEIGHT = 360, 220  # of a panel, in units of its drawing
LEFT, RIGHT, TOP, BOTTOM = 38, 10, 12, 34  # margins


@dataclass(frozen=True)
class Line:
    """One model's accuracy by epoch."""

    name: str
    style: str  # baseline, student or teacher
    points: list[tuple[float, float]]  # (epoch, percent)


@dataclass(frozen=True)
class Curves:
    """The lines of one stage, with cross entropy for comparison."""

    iteration: int  # 0: cross entropy alone
    lines: list[Line]


@dataclass(frozen=True)
class Tick:
    at: float  # in units of the drawing
    text: str


@dataclass(frozen=True)
class Drawing:
    """Lines and ticks in units of the drawing."""

    title: str
    lines: list[tuple[Line, str]]  # with their points as SVG writes them
    x_ticks: list[Tick]
    y_ticks: list[Tick]


@dataclass(frozen=True)
class Bar:
    x: float
    y: float
    width: float
    height: float
    flagged: bool
    title: str


@dataclass(frozen=True)
class Histogram:
    bars: list[Bar]
    x_ticks: list[Tick]
    y_ticks: list[Tick]
    threshold: float  # in units of the drawing


def measured_part(rows: list[dict[str, Any]]) -> str:
    return "test" if any("test" in row.get("student", {}) for row in rows) else "validation"


def curves(rows: list[dict[str, Any]]) -> list[Curves]:
    """Test (else validation) accuracy by epoch, for each iteration beside cross entropy."""
    part = measured_part(rows)
    baseline = [row for row in rows if row["method"] == "cross_entropy"]
    found = []
    iterations = sorted({row["iteration"] for row in rows if row["iteration"] > 0}) or [0]
    for iteration in iterations[-MOST_PANELS:]:
        lines = [_line(baseline, "student", part, "cross entropy", "baseline")]
        own = [row for row in rows if row["iteration"] == iteration > 0]
        for model in ("student", "teacher") if own else ():
            name = f"{own[0]['method'].replace('_', ' ')} {model}"
            lines.append(_line(own, model, part, name, model))
        found.append(Curves(iteration, [line for line in lines if line.points]))
    return found


def _line(rows: list[dict[str, Any]], model: str, part: str, name: str, style: str) -> Line:
    with_part = [row for row in rows if row.get(model, {}).get(part) is not None]
    points = [(row["epoch"], row[model][part]) for row in with_part]
    for epoch, value in points:
        if not (0 < epoch < MOST_EPOCHS and 0 <= value <= 100):
            raise ValueError(f"an accuracy of {value} in epoch {epoch}")
    return Line(name, style, points)


def drawings(panels: list[Curves]) -> list[Drawing]:
    """All panels on the same scale."""
    points = [point for panel in panels for line in panel.lines for point in line.points]
    if not points:
        return []
    last = max(2, max(epoch for epoch, _ in points))
    values = [value for _, value in points]
    levels = nice_steps(min(*values, max(values) - 1), max(values), 5)  # a flat line has no range
    low, high = levels[0], levels[-1]

    def x(epoch: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * (epoch - 1) / (last - 1)

    def y(value: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (value - low) / (high - low)

    epochs = sorted({1.0, last, *(e for e in nice_steps(1, last, 4) if 1 < e < 0.92 * last)})
    return [
        Drawing(
            title=f"iteration {panel.iteration}" if panel.iteration else "cross entropy",
            lines=[
                (line, " ".join(f"{x(epoch):.1f},{y(value):.1f}" for epoch, value in line.points))
                for line in panel.lines
            ],
            x_ticks=[Tick(x(epoch), f"{epoch:g}") for epoch in epochs],
            y_ticks=[Tick(y(level), f"{level:g}") for level in levels],
        )
        for panel in panels
    ]


def histogram(counts: np.ndarray, threshold: float) -> Histogram:
    """Heights go by the square root: what lies between the two heaps stays visible."""
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    tops = [level**2 for level in nice_steps(0, math.sqrt(max(1, counts.max())), 3)]
    bottom, step = HEIGHT - BOTTOM, width / len(counts)

    def y(count: float) -> float:
        return bottom - height * math.sqrt(count / tops[-1])

    bars = []
    for number, count in enumerate(counts.tolist()):
        low, high = number / len(counts), (number + 1) / len(counts)
        title = f"{count:,} labels with a score of {low:.2f} to {high:.2f}"
        is_flagged = (low + high) / 2 > threshold
        x = LEFT + number * step + 0.5
        bars.append(Bar(x, y(count), step - 1, bottom - y(count), is_flagged, title))
    scores = (0.0, 0.25, 0.5, 0.75, 1.0)
    return Histogram(
        bars=bars,
        x_ticks=[Tick(LEFT + width * score, f"{score:g}") for score in scores],
        y_ticks=[Tick(y(top), f"{top:,.0f}") for top in tops],
        threshold=LEFT + width * threshold,
    )


def nice_steps(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers that enclose [low, high]."""
    raw = max(high - low, 1e-6) / count
    power = 10 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(number * step, 9) for number in range(first, max(last, first + 1) + 1)]


def _label(name: str) -> str:
    """For matplotlib, to which dollar signs are mathematics."""
    return one_line(name).replace("$", r"\$")


def draw_curves(rows: list[dict[str, Any]]) -> "Figure":
    """The same as a picture: a panel per iteration, cross entropy in each."""
    from matplotlib.figure import Figure

    panels = curves(rows)
    figure = Figure(figsize=(3.2 * len(panels) + 1.2, 3.6), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    styles = dict(zip(("baseline", "student", "teacher"), STYLES.values(), strict=True))
    for axis, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            axis.plot(
                *zip(*line.points, strict=True), label=_label(line.name), **styles[line.style]
            )
        if panel.iteration > 0:
            axis.set_title(f"iteration {panel.iteration}")
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"{measured_part(rows)} accuracy, %")
    lines, names = axes[-1].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=max(1, len(names)), frameon=False)
    return figure
