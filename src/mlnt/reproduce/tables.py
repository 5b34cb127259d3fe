"""Results as tables: for the terminal and as Markdown in the paper's layout, and as CSV."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from mlnt.config import SINGLE_STAGE
from mlnt.reproduce.experiments import Line, symbol_of
from mlnt.reproduce.results import Row
from mlnt.schedule import ITERATED
from mlnt.texts import harmless, markdown_cell, visible

LEGEND = (
    "Test accuracy in %, mean ± standard error over n seeds. best: at the epoch chosen by "
    "validation; last: after the last epoch; highest: the best epoch by hindsight."
)
WIDE_LEGEND = "Test accuracy in %, mean ± standard error. Best epoch: the one chosen by validation."
PAPER_LEGEND = "Below: the paper's figure and our difference from it."
METHOD_LEGEND = "In brackets: the iteration. MT: mean teacher."
COLUMNS = (
    "method", "model", "iteration", "noise", "n", "best_mean", "best_error", "last_mean",
    "last_error", "paper", "difference", "paper_error", "setting", "data", "wrong_mean",
    "peak_mean", "peak_error",
)  # fmt: skip
NAMES = {
    "contrastive": "contrastive features, linear layer",
    "forward": "forward (estimated)",
    "forward_true": "forward (given)",
    "cnn_crf": "CNN-CRF",
    "mean_teacher": "mean-teacher",
    **SINGLE_STAGE,
}
SHORT_NAMES = {**NAMES, "contrastive": "contrastive", "mean_teacher": "MT"}


@dataclass
class Grid:
    """Headings and lines of texts, whatever they are printed on."""

    title: str
    headings: list[str]
    lines: list[tuple[str, ...]] = field(default_factory=list)
    sections: set[int] = field(default_factory=set)  # lines after which a new part begins
    asides: set[int] = field(default_factory=set)  # lines that only accompany the one above

    def to_rich(self) -> Table:
        table = Table(box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
        for place, heading in enumerate(self.headings):
            side = "left" if place == 0 else "right"
            table.add_column(heading.replace(" ", "\n"), justify=side, no_wrap=True)  # type: ignore[arg-type]
        for number, line in enumerate(self.lines):
            style = "dim" if number in self.asides else None
            table.add_row(*map(Text, line), style=style, end_section=number in self.sections)
        return table

    def to_markdown(self) -> str:
        """Padded, so that it can be read as it is."""
        rows = [tuple(self.headings), *self.lines]
        widths = [max(3, *map(len, column)) for column in zip(*rows, strict=True)]
        texts = [
            f"| {' | '.join(cell.ljust(w) for cell, w in zip(row, widths, strict=True))} |"
            for row in rows
        ]
        rule = f"| {' | '.join('-' * width for width in widths)} |"
        return "\n".join([markdown_cell(self.title), "", texts[0], rule, *texts[1:]]) + "\n"


@dataclass(frozen=True)
class ResultTable:
    title: str
    data: str  # its name
    rows: tuple[Row, ...]
    note: str = ""  # what has to be known to read it

    @property
    def noises(self) -> list[str]:
        return list(dict.fromkeys(row.noise for row in self.rows))

    def to_rich(self) -> RenderableType:
        parts: list[RenderableType] = []
        for grid in self._grids():
            parts += [Text(visible(grid.title), style="bold"), grid.to_rich(), ""]
        return Group(*parts, Text(self._legend(), style="dim"))

    def to_markdown(self) -> str:
        return "\n".join([*(grid.to_markdown() for grid in self._grids()), self._legend()]) + "\n"

    def to_csv(self) -> str:
        file = io.StringIO()
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        for row in self.rows:
            ours = (row.best.mean, row.best.error, row.last.mean, row.last.error)
            value, error = ("", "") if row.paper is None else (row.paper.value, row.paper.error)
            names = (harmless(row.setting), harmless(self.data))
            rest = (row.wrong.mean, row.peak.mean, row.peak.error)
            writer.writerow(
                [row.method, row.model, row.iteration, row.noise, row.n, *map(_exact, ours), value,
                 _exact(row.difference), error, *names, *map(_exact, rest)]
            )  # fmt: skip
        return file.getvalue()

    def _grids(self) -> Iterator[Grid]:
        if len(self.noises) == 1:
            yield self._long()
            return
        yield self._wide("best", [row.best.short for row in self.rows], with_paper=True)
        last = self._wide("last", [row.last.short for row in self.rows], with_paper=False)
        if last.lines:
            yield last

    def _long(self) -> Grid:
        """One noise: everything about a model in one line."""
        wrong = next((row.wrong.mean for row in self.rows if row.wrong.values), None)
        really = "" if wrong is None else f" ({wrong:.1f} % of the training labels wrong)"
        grid = Grid(self.title + really, ["model", "n", "best", "last", "highest"])
        has_paper = any(row.paper is not None for row in self.rows)
        if has_paper:
            grid.headings += ["paper", "difference"]
        for row in self.rows:
            cells = [label(row.line, short=False), str(row.n), row.best, row.last, row.peak]
            if has_paper:
                cells += ["" if row.paper is None else row.paper, signed(row.difference)]
            grid.lines.append(tuple(map(str, cells)))
        return grid

    def _wide(self, which: str, texts: Sequence[str], with_paper: bool) -> Grid:
        """Models down, noise across; each with the paper's figures in the line below."""
        grid = Grid(f"{self.title}: {which} epoch", ["model", *_headings(self.noises)])
        width = len(self.noises)
        if with_paper:
            grid.lines.append(("labels wrong, %", *self._wrong()))
            grid.asides.add(0)
            grid.sections.add(0)
        before = None
        for start in range(0, len(self.rows), width):
            rows = self.rows[start : start + width]
            line, own = rows[0].line, texts[start : start + width]
            published = [_beside(row) for row in rows] if with_paper else []
            if not any(own) and not with_paper:
                continue
            if before is not None and _part(before) != _part(line):
                grid.sections.add(len(grid.lines) - 1)
            before = line
            grid.lines.append((label(line, short=True), *own))
            if any(published):
                grid.asides.add(len(grid.lines))
                grid.lines.append(("  paper", *published))
        return grid

    def _wrong(self) -> list[str]:
        """The noise that was really there."""
        wrong = {row.noise: f"{row.wrong.mean:.1f}" for row in self.rows if row.wrong.values}
        return [wrong.get(noise, "") for noise in self.noises]

    def _legend(self) -> str:
        if len(self.noises) == 1:
            return f"{LEGEND} {self.note}".strip()
        parts = [WIDE_LEGEND]
        if any(row.paper is not None for row in self.rows):
            parts.append(PAPER_LEGEND)
        if any(row.method == "mean_teacher" for row in self.rows):
            parts.append(METHOD_LEGEND)
        counts = sorted({row.n for row in self.rows if row.n}) or [0]
        some = f" to {counts[-1]}, each in table.csv" if len(counts) > 1 else ""
        return " ".join([*parts, f"n = {counts[0]}{some}.", self.note]).strip()


def _headings(noises: Sequence[str]) -> list[str]:
    """`r=0.1` where all are of one kind, as in the paper; else `symmetric 0.1`."""
    kinds = {noise.partition(":")[0] for noise in noises}
    if len(kinds) == 1:
        return [f"r={noise.partition(':')[2]}" for noise in noises]
    return [noise.replace(":", " ") for noise in noises]


def label(line: Line, short: bool) -> str:
    """`mlnt teacher (3)`, or at length `mlnt teacher, iteration 3`; `mlnt student, M=5`."""
    names = SHORT_NAMES if short else NAMES
    name = names.get(line.method, line.method.replace("_", " "))
    if line.method not in ITERATED:
        return name
    name += f" {line.model}"
    if line.setting:
        setting, _, value = line.setting.partition("=")
        return f"{name}, {symbol_of(setting)}={value}"
    return f"{name} ({line.iteration})" if short else f"{name}, iteration {line.iteration}"


def _part(line: Line) -> tuple[object, ...]:
    """The paper draws a rule between the baselines and each iteration of MLNT."""
    if line.method == "mlnt":
        return (line.method, line.iteration, line.setting)
    return (line.method in ITERATED and line.method,)


def _beside(row: Row) -> str:
    if row.paper is None:
        return ""
    return f"{row.paper.value:.2f} {signed(row.difference)}".strip()


def signed(value: float) -> str:
    """In at most five characters, so that six of them fit across a terminal."""
    if math.isnan(value):
        return ""
    return f"{value:+.{2 if abs(value) < 9.995 else 1}f}".replace("-", "−")


def _exact(value: float) -> str:
    return "" if math.isnan(value) else f"{value:.4f}"
