"""What a bench found: as JSON, and as tables for the terminal."""

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from mlnt.bench.floor import KernelTime
from mlnt.bench.rows import Row


@dataclass(frozen=True)
class Floor:
    """Times of the convolutions alone, and their sums over a step."""

    dtype: str
    rows: tuple[KernelTime, ...]
    mlnt_ms: float | None
    cross_entropy_ms: float | None
    error: str | None = None


@dataclass(frozen=True)
class BenchResult:
    machine: str
    commit: str
    torch: str
    date: str
    model: str
    batch_size: int
    sets: int
    rows: tuple[Row, ...]
    ratios: dict[str, float | None]
    cross_entropy_ms: dict[str, float | None]  # first and last, of the main rows
    floor: Floor
    # One iteration of the paper on CIFAR-10: the time of a step times the number of steps, without
    # evaluation. Nobody ran it.
    paper_iteration_minutes_extrapolated: float | None

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> Iterator[RenderableType]:
        yield self._step_table()
        for row in self.rows:
            if row.error is not None:
                yield f"{row.name} ({row.model}, batch {row.batch_size}, M={row.sets}): {row.error}"
        first, last = self.cross_entropy_ms["first"], self.cross_entropy_ms["last"]
        yield f"cross entropy at the beginning {_ms(first)} ms, at the end {_ms(last)} ms"
        if self.floor.error is not None:
            yield f"convolutions alone: {self.floor.error}"
        else:
            yield (
                f"convolutions alone ({self.floor.dtype}): MLNT {_ms(self.floor.mlnt_ms)} ms, "
                f"cross entropy {_ms(self.floor.cross_entropy_ms)} ms"
            )
            yield self._kernel_table()
        yield self._ratio_table()
        if self.paper_iteration_minutes_extrapolated is not None:
            yield (
                f"one iteration of the paper (120 epochs), extrapolated: "
                f"{self.paper_iteration_minutes_extrapolated:.0f} min"
            )

    def _step_table(self) -> Table:
        table = Table(title=f"{self.machine}, torch {self.torch}", title_style="")
        table.add_column("step")
        for heading in ("batch", "M", "ms", "× cross\nentropy", "peak GiB"):
            table.add_column(heading, justify="right", no_wrap=True)
        before = None
        for row in self.rows:
            if before is None or row.model != before.model:
                table.add_section()
                table.add_row(Text(row.model, style="bold"))
            elif row.batch_size != before.batch_size or (row.name == "mlnt" and before.order == 2):
                table.add_section()
            before = row
            table.add_row(
                f"{row.name} ({row.engine})" if row.name == "mlnt" else row.name,
                str(row.batch_size),
                str(row.sets or "–"),
                "failed" if row.ms is None else _ms(row.ms),
                _number(row.ratio, ".1f"),
                _number(row.peak_gib, ".2f"),
            )
        return table

    def _kernel_table(self) -> Table:
        many = self.sets
        title = f"µs: one model | {many} folded; shared: {many} weight gradients, one input"
        table = Table(title=title, title_style="")
        table.add_column("convolution")
        for heading in ("×", "forward", "input", "weight", "shared"):
            table.add_column(heading, justify="right", no_wrap=True)
        for k in self.floor.rows:
            table.add_row(
                k.name,
                str(k.count),
                _pair(k.forward, k.folded_forward),
                _pair(k.input_gradient, k.folded_input_gradient),
                _pair(k.weight_gradient, k.folded_weight_gradient),
                _number(k.shared_weight_gradient, ".0f"),
            )
        return table

    def _ratio_table(self) -> Table:
        table = Table(title="ratios", title_style="")
        table.add_column("what")
        table.add_column("times", justify="right")
        for name, value in self.ratios.items():
            if value is not None:  # --quick leaves some out
                table.add_row(name.replace("_", " "), f"{value:.2f}")
        return table


def _ms(value: float | None) -> str:
    return _number(value, ".2f")


def _pair(one: float | None, folded: float | None) -> str:
    return "–" if one is None else f"{_number(one, '.0f')} | {_number(folded, '.0f')}"


def _number(value: Any, form: str) -> str:
    return "–" if value is None else format(value, form)
