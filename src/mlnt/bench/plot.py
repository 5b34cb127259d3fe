"""The bench as a picture: a bar per step, and step time against M."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mlnt.bench.result import BenchResult
from mlnt.bench.rows import Row

if TYPE_CHECKING:  # only a bench with --plot loads it
    from matplotlib.figure import Figure

# Colour-blind safe (Okabe and Ito).
GREY, BLUE, ORANGE = "#777777", "#0072B2", "#E69F00"


def write_plot(result: BenchResult, path: Path) -> None:
    draw_bench(result).savefig(path, format="png", dpi=150)


def draw_bench(result: BenchResult) -> "Figure":
    from matplotlib.figure import Figure

    main = [
        row
        for row in result.rows
        if row.name != "mlnt" and (row.model, row.batch_size) == (result.model, result.batch_size)
    ]
    swept = [row for row in result.rows if row.name == "mlnt" and row.ms is not None]
    height = 1.4 + 0.42 * len(main)
    if swept:
        figure = Figure(figsize=(10.5, height), layout="constrained")
        bars, lines = figure.subplots(1, 2, width_ratios=(1.7, 1))
        _draw_sets(lines, result, swept)
    else:
        figure = Figure(figsize=(7.2, height), layout="constrained")
        bars = figure.subplots()
    _draw_bars(bars, main)
    figure.suptitle(
        f"{result.model}, batch {result.batch_size}, M={result.sets}; {result.machine}",
        fontsize="medium",
    )
    return figure


def _draw_bars(axis: Any, rows: list[Row]) -> None:
    axis.set_xscale("log")
    times = [row.ms for row in rows if row.ms is not None] or [1.0]
    left = min(times) / 2
    # Room for the ratio behind the longest bar, the same share of the axis whatever the range.
    axis.set_xlim(left, left * (max(times) / left) ** 1.45)
    for place, row in enumerate(rows):
        if row.ms is None:
            axis.text(left * 1.05, place, "failed", va="center", style="italic")
            continue
        colour = GREY if row.sets == 0 else BLUE if row.engine else ORANGE
        axis.barh(place, row.ms - left, left=left, color=colour, height=0.65)
        ratio = "" if row.ratio is None else f"  ({row.ratio:.1f}×)"
        axis.annotate(
            f"{row.ms:,.0f} ms{ratio}" if row.ms >= 100 else f"{row.ms:.3g} ms{ratio}",
            (row.ms, place),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
        )
    axis.set_yticks(range(len(rows)), [row.name for row in rows])
    axis.xaxis.set_major_formatter("{x:g}")
    axis.invert_yaxis()
    axis.set_xlabel("ms per step, logarithmic (× cross entropy)")
    axis.spines[["top", "right"]].set_visible(False)


def _draw_sets(axis: Any, result: BenchResult, swept: list[Row]) -> None:
    for batch_size, colour, marker in zip(
        sorted({row.batch_size for row in swept}), (BLUE, ORANGE), ("o", "s"), strict=False
    ):
        own = [row for row in swept if row.batch_size == batch_size]
        label = f"mlnt, batch {batch_size}"
        axis.plot(
            [r.sets for r in own], [r.ms for r in own], color=colour, marker=marker, label=label
        )
        for row in result.rows:
            same = (row.model, row.batch_size) == (result.model, batch_size)
            if same and row.name == "cross entropy" and row.ms is not None:
                label = f"cross entropy, batch {batch_size}"
                axis.axhline(row.ms, color=colour, linestyle=":", label=label)
    axis.set_xlabel("M")
    axis.set_ylabel("ms per step")
    axis.set_xticks(sorted({row.sets for row in swept}))
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize="small")
    axis.spines[["top", "right"]].set_visible(False)
