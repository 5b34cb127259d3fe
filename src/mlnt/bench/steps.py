"""The bench: which steps are timed, in which order, and which ratios follow from them."""

import dataclasses
import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch

from mlnt.bench.floor import convolution_floor, floor_of_cross_entropy, floor_of_mlnt
from mlnt.bench.result import BenchResult, Floor
from mlnt.bench.rows import SHAPES, Case, Row, bench_network, time_case
from mlnt.device import pick_device
from mlnt.errors import InputError, did_you_mean, kind_and_reason
from mlnt.origin import about

RESNET50 = "torchvision:resnet50"
PAPER_STEPS = 120 * 351  # epochs · batches of 128 in 45,000 training samples, of one iteration


@dataclass(frozen=True)
class Sizes:
    """What is timed where nobody says otherwise."""

    model: str
    batch_size: int
    sets: int
    steps: int
    sweep: tuple[int, ...]  # values of M


SIZES = {
    "cuda": Sizes("preact_resnet32", 128, 10, 50, (1, 2, 5, 10, 20)),
    "cpu": Sizes("small_conv", 32, 5, 10, (1, 2, 5)),
}


def run_bench(
    device: str = "auto",
    model: str | None = None,
    batch_size: int | None = None,
    sets: int | None = None,
    steps: int | None = None,
    quick: bool = False,
    tell: Callable[[str], None] = lambda text: None,
) -> BenchResult:
    """Time all steps one after another; None: what suits the device. `tell` hears what is next.

    quick  the main rows alone: no other M or batch size, no ResNet-50
    """
    place = pick_device(device)
    usual = SIZES["cuda" if place.type == "cuda" else "cpu"]
    model = usual.model if model is None else model
    if model not in SHAPES:
        known = ", ".join(SHAPES)
        raise InputError(f"bench knows {known}, got {model!r}{did_you_mean(model, SHAPES)}")
    batch_size = usual.batch_size if batch_size is None else batch_size
    sets = usual.sets if sets is None else sets
    bench = _Bench(place, usual.steps if steps is None else steps, tell)

    main = bench.time_main(model, batch_size, sets)
    engine = faster_engine(main)
    sweep = () if quick else usual.sweep
    again = bench.time_sets(model, batch_size, sweep, engine)
    first, last, rows = bench.with_ratios([*main, *again])
    if not quick:
        rows += bench.time_batch(model, 4 * batch_size, sweep, engine)
        rows += bench.time_resnet50() if place.type == "cuda" else []
    tell("convolutions alone")
    return BenchResult(
        **about(place),
        model=model,
        batch_size=batch_size,
        sets=sets,
        rows=tuple(rows),
        ratios=ratios(rows, len(main)),
        cross_entropy_ms={"first": first, "last": last},
        floor=_floor(model, batch_size, sets, place),
        paper_iteration_minutes_extrapolated=_paper_minutes(rows[: len(main)]),
    )


class _Bench:
    """Times rows of one device. Cross entropy comes first and last among those of a batch size."""

    def __init__(self, device: torch.device, steps: int, tell: Callable[[str], None]) -> None:
        self.device = device
        self.steps = steps
        self.tell = tell

    def time(self, case: Case) -> Row:
        self.tell(f"{case.name} ({case.model}, batch {case.batch_size}, M={case.sets})")
        return time_case(case, self.steps, self.device)

    def time_main(
        self, model: str, batch: int, sets: int, orders: Sequence[int] = (1, 2)
    ) -> list[Row]:
        rows = [self.time(Case("cross entropy", "cross_entropy", model, batch))]
        words = {1: "", 2: ", second order"}
        for order in orders:
            for engine in ("plain", "folded"):
                name = f"mlnt {engine}{words[order]}"
                rows.append(self.time(Case(name, "mlnt", model, batch, sets, order, engine)))
        for order in orders:
            name = f"authors' way{words[order]}"
            rows.append(self.time(Case(name, "authors", model, batch, sets, order)))
        return rows

    def time_sets(self, model: str, batch: int, sweep: Iterable[int], engine: str) -> list[Row]:
        return [
            self.time(Case("mlnt", "mlnt", model, batch, sets, engine=engine)) for sets in sweep
        ]

    def time_batch(self, model: str, batch: int, sweep: Iterable[int], engine: str) -> list[Row]:
        base = self.time(Case("cross entropy", "cross_entropy", model, batch))
        return self.with_ratios([base, *self.time_sets(model, batch, sweep, engine)])[2]

    def time_resnet50(self) -> list[Row]:
        """First order at the size of Clothing1M; one row with the reason without torchvision."""
        try:
            # Built for another torch it raises RuntimeError, not ImportError.
            importlib.import_module("torchvision.models")
        except Exception as failure:
            missing = Row("cross entropy", RESNET50, 32, 0, 1, None, error=kind_and_reason(failure))
            return [missing]
        return self.with_ratios(self.time_main(RESNET50, 32, 10, orders=(1,)))[2]

    def with_ratios(self, rows: list[Row]) -> tuple[float | None, float | None, list[Row]]:
        """Time cross entropy, the first row, again: the base is the mean of both, and how far
        they lie apart shows how steady the machine was."""
        first, others = rows[0], rows[1:]
        last = self.time(Case(first.name, "cross_entropy", first.model, first.batch_size))
        both = [row for row in (first, last) if row.ms is not None]
        if not both:
            return None, None, rows
        base = sum(row.ms or 0.0 for row in both) / len(both)
        chunks = first.chunks_ms + last.chunks_ms
        first = dataclasses.replace(both[0], ms=base, chunks_ms=chunks, error=None)
        return (
            rows[0].ms,
            last.ms,
            [
                row if row.ms is None else dataclasses.replace(row, ratio=row.ms / base)
                for row in (first, *others)
            ],
        )


def faster_engine(rows: Iterable[Row]) -> str:
    """The engine of the faster first-order row of ours; auto if none ran."""
    ran = [row for row in rows if row.engine and row.order == 1 and row.ms is not None]
    return min(ran, key=lambda row: row.ms or 0.0).engine or "auto" if ran else "auto"


def ratios(rows: list[Row], main: int) -> dict[str, float | None]:
    """What the bench is run for; None where a row is missing. The first `main` rows are those of
    the main table, ours is the faster of plain and folded."""
    mlnt = _ours(rows[:main], 1)
    resnet50 = [row for row in rows[main:] if row.model == RESNET50]
    batch_size = rows[0].batch_size
    swept = {
        row.sets: row.ms
        for row in rows[main:]
        if row.name == "mlnt" and row.batch_size == batch_size
    }
    return {
        "mlnt_to_cross_entropy": _ratio(mlnt, _named(rows[:main], "cross entropy")),
        "authors_to_ours": _ratio(_named(rows[:main], "authors' way"), mlnt),
        "second_to_first_order": _ratio(_ours(rows[:main], 2), mlnt),
        "resnet50_authors_to_ours": _ratio(_named(resnet50, "authors' way"), _ours(resnet50, 1)),
        "m20_to_m10": _ratio(swept.get(20), swept.get(10)),
    }


def _ours(rows: Iterable[Row], order: int) -> float | None:
    times = [row.ms for row in rows if row.engine and row.order == order and row.ms is not None]
    return min(times, default=None)


def _named(rows: Iterable[Row], name: str) -> float | None:
    return next((row.ms for row in rows if row.name == name), None)


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _paper_minutes(main: list[Row]) -> float | None:
    """Minutes of one iteration of the paper on CIFAR-10, its steps alone, from our step time."""
    ms, last = _ours(main, 1), main[-1]
    if ms is None or (last.model, last.batch_size, last.sets) != ("preact_resnet32", 128, 10):
        return None
    return PAPER_STEPS * ms / 60_000


def _floor(model: str, batch_size: int, sets: int, device: torch.device) -> Floor:
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    kind = str(dtype).removeprefix("torch.")
    try:
        inputs = torch.randn(batch_size, *SHAPES[model], device=device)
        kernels = convolution_floor(bench_network(model, device), inputs, sets, dtype)
    except Exception as failure:
        return Floor(kind, (), None, None, kind_and_reason(failure))
    return Floor(
        kind, tuple(kernels), floor_of_mlnt(kernels, sets), floor_of_cross_entropy(kernels)
    )
