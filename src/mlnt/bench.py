"""Times a step of each method side by side in one process; a claim is a ratio from one table."""

import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch
from rich.table import Table

from mlnt.config import make_settings
from mlnt.data.batches import Batch
from mlnt.data.encoding import ImageEncoder
from mlnt.device import pick_device
from mlnt.errors import InputError
from mlnt.methods import MLNT, CrossEntropy, Rates
from mlnt.models import build_model

CLASSES = 10
SHAPES = {"small_conv": (1, 8, 8), "preact_resnet32": (3, 32, 32)}


@dataclass(frozen=True)
class BenchRow:
    name: str
    ms: float  # median
    ratio: float  # to the cross-entropy step


@dataclass(frozen=True)
class BenchResult:
    machine: str
    torch: str
    model: str
    batch_size: int
    sets: int
    rows: tuple[BenchRow, ...]

    def to_rich(self) -> Table:
        table = Table(
            title=f"{self.model}, batch {self.batch_size}, M={self.sets}, {self.machine}, "
            f"torch {self.torch}"
        )
        table.add_column("step")
        table.add_column("ms (median)", justify="right")
        table.add_column("times cross entropy", justify="right")
        for row in self.rows:
            table.add_row(row.name, f"{row.ms:.2f}", f"{row.ratio:.1f}")
        return table

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def run_bench(device: str, sets: int, batch_size: int, model: str, steps: int) -> BenchResult:
    if model not in SHAPES:
        raise InputError(f"bench knows {', '.join(SHAPES)}, got {model!r}")
    place = pick_device(device)
    shape = SHAPES[model]
    generator = torch.Generator(place).manual_seed(0)
    inputs = torch.randn(batch_size, *shape, device=place, generator=generator)
    labels = torch.randint(CLASSES, (batch_size,), device=place, generator=generator)
    features = torch.randn(batch_size, 64, device=place, generator=generator)
    batch = Batch(torch.arange(batch_size, device=place), inputs, labels)
    encoder = ImageEncoder(shape, (0.0,) * shape[0], (1.0,) * shape[0])
    rates = Rates(lr=0.01, eta=0.01, gamma=0.99, lam=0.5)

    def step_of(name: str) -> Callable[[], object]:
        network = build_model(model, encoder, CLASSES).to(place)
        order = 2 if name.endswith("second order") else 1
        engine = "folded" if "folded" in name else "plain"
        settings = make_settings(sets=sets, order=order, engine=engine)
        if name == "cross entropy":
            plain = CrossEntropy(network, settings)
            return lambda: plain.step(batch, batch, rates)
        method = MLNT(network, settings, features, generator=generator)
        return lambda: method.step(batch, batch, rates)

    names = (
        "cross entropy",
        "mlnt plain",
        "mlnt folded",
        "mlnt plain, second order",
        "mlnt folded, second order",
    )
    timed = _interleaved({name: step_of(name) for name in names}, steps, place)
    base = timed["cross entropy"]
    rows = tuple(BenchRow(name, ms, ms / base) for name, ms in timed.items())
    machine = torch.cuda.get_device_name(place) if place.type == "cuda" else platform.machine()
    return BenchResult(machine, torch.__version__, model, batch_size, sets, rows)


def _interleaved(
    steps_by_name: dict[str, Callable[[], object]], count: int, device: torch.device
) -> dict[str, float]:
    """Median milliseconds of each, taken in turns so that a slow moment hits all alike."""
    times: dict[str, list[float]] = {name: [] for name in steps_by_name}
    for _ in range(3):
        for step in steps_by_name.values():
            step()
    for _ in range(count):
        for name, step in steps_by_name.items():
            _wait(device)
            began = time.perf_counter()
            step()
            _wait(device)
            times[name].append(1000 * (time.perf_counter() - began))
    return {name: statistics.median(values) for name, values in times.items()}


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
