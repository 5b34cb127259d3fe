"""How a step scales with the number of processes: measured on this machine, and modelled.

launch 1, 2, … processes -> each times its steps and what it sends -> model of the cost -> compare
-> the same model, with the figures of a GPU, says what Clothing1M would take

    t(P) = 4/5 c · r(P) + (1/5 c + m · ⌈M / columns⌉) · r(rows) + sums of parameters + agreements

m is the cost of one label set, c of what does not depend on their number: class step, teacher and
the pass at θ are 3, 1 and 1 passes, and the last is the sets' own; r(P) = ⌈B / P⌉ / B.

Measured is the processor time of the busiest process, which other programs of a machine hardly
change; the time by the clock stands beside it, and on a busy machine says little.
"""

import dataclasses
import itertools
import json
import math
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import RenderableType
from rich.table import Table
from torch import nn

from mlnt.bench.rows import bench_network
from mlnt.config import PRESETS, Settings
from mlnt.device import pick_device
from mlnt.distributed import most_columns
from mlnt.errors import InputError, TrainingError
from mlnt.origin import about

MODEL, BATCH, SETS = "small_conv", 128, 4
PROCESSES = (1, 2, 4)
ROUNDS = 3  # each process count is timed so often, in turns; medians are compared
STEPS = 10
FITTED = ((1, 1), (1, SETS), (2, 1))  # processes and sets; the others are predicted
SIZES = (64, 2**12, 2**16, 2**20, 2**22)  # numbers in a message
LIMIT_S = 600
TORCHRUN = re.compile(r"[IWE]\d{4} .* torch/distributed/elastic/")  # begins what it says itself


@dataclass(frozen=True)
class Cost:
    """What a step costs on one machine, in milliseconds."""

    class_ms: float  # class step, teacher and the pass at θ, of the whole batch
    set_ms: float  # each label set
    latency_ms: float  # a message between two, however short; among P it takes log₂ P as long
    ms_per_mb: float  # and its length
    parameters_mb: float
    norms: int  # batch norms of the network
    norm_ms: float = 0.0  # what a batch norm over several processes costs beside its message
    load_ms: float = 0.0  # reading a batch; beside the step, so that the longer of both counts

    def step_ms(self, processes: int, sets: int, batch: int, divides_class: bool = True) -> float:
        """The step of the busiest process."""
        if processes == 1:
            return max(self.class_ms + sets * self.set_ms, self.load_ms)
        columns = processes if processes <= sets else most_columns(processes, sets, batch)
        rows = processes // columns
        own = -(-sets // columns)
        work = (own * self.set_ms + self.class_ms / 5) * -(-batch // rows) / batch
        work += self.class_ms * 4 / 5 * (-(-batch // processes) / batch if divides_class else 1)
        whole = self.latency_ms * math.log2(processes) + self.parameters_mb * self.ms_per_mb
        sums = 2 * whole  # the class gradient and the meta-gradient
        # Class step: forward and back; teacher: forward; then logits of both.
        agreements = (3 * self.norms + 2 if divides_class else 0) * self._agreement(processes)
        if rows > 1:
            # Forward and back at θ and at each θ′; the inner gradients of own sets.
            agreements += 2 * self.norms * (1 + own) * self._agreement(rows)
            sums += own * whole
        return max(work + sums + agreements, self.load_ms)

    def _agreement(self, processes: int) -> float:
        return self.latency_ms * math.log2(processes) + self.norm_ms


@dataclass(frozen=True)
class Point:
    processes: int
    sets: int
    ms: float  # processor time of the busiest process, median of the rounds
    rounds_ms: tuple[float, ...]
    wall_ms: float  # by the clock, likewise
    predicted_ms: float | None = None  # None: the model was fitted to it


@dataclass(frozen=True)
class Expected:
    """Hours of the Clothing1M recipe, steps alone."""

    gpus: int
    columns: int
    step_ms: float
    hours: float


@dataclass(frozen=True)
class ScalingResult:
    machine: str
    commit: str
    torch: str
    date: str
    model: str
    batch_size: int
    cores: int
    cost: Cost
    points: tuple[Point, ...]
    clothing1m: tuple[Expected, ...]
    clothing1m_cost: Cost

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> Iterator[RenderableType]:
        title = f"{self.machine}, torch {self.torch}: {self.model}, batch {self.batch_size}"
        table = Table(title=title, title_style="")
        for heading in ("processes", "M", "processor ms", "model", "speed-up", "by the clock"):
            table.add_column(heading, justify="right")
        alone = {point.sets: point.ms for point in self.points if point.processes == 1}
        for point in self.points:
            model = "fitted" if point.predicted_ms is None else f"{point.predicted_ms:.1f}"
            ratio = f"{alone[point.sets] / point.ms:.2f}"
            table.add_row(
                str(point.processes),
                str(point.sets),
                f"{point.ms:.1f}",
                model,
                ratio,
                f"{point.wall_ms:.1f}",
            )
        yield table
        cost = self.cost
        yield (
            f"without sets {cost.class_ms:.1f} ms, a label set {cost.set_ms:.1f} ms; "
            f"a message {cost.latency_ms:.2f} ms and {cost.ms_per_mb:.2f} ms per MB, a batch norm "
            f"over processes {cost.norm_ms:.2f} ms more"
        )
        hours = Table(title="Clothing1M, expected (assumptions: docs/scaling.md)", title_style="")
        for heading in ("GPUs", "columns", "ms per step", "hours"):
            hours.add_column(heading, justify="right")
        for row in self.clothing1m:
            hours.add_row(str(row.gpus), str(row.columns), f"{row.step_ms:.1f}", f"{row.hours:.1f}")
        yield hours


def run_scaling(
    processes: Sequence[int] = PROCESSES,
    rounds: int = ROUNDS,
    steps: int = STEPS,
    tell: Callable[[str], None] = lambda text: None,
) -> ScalingResult:
    """Time steps of 1, 2, … processes of this machine's CPUs, in turns; fit, predict, expect."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if len(cores) < 2:
        raise InputError("--scaling pins processes to cores, and needs two at least")
    found: dict[tuple[int, int], list[float]] = {}
    by_clock: dict[tuple[int, int], list[float]] = {}
    messages: list[dict[str, float]] = []
    for number in range(rounds):
        for count in processes:
            tell(f"{count} processes, round {number + 1} of {rounds}")
            timed = _launch(count, steps)
            for sets, ms in timed["steps"].items():
                found.setdefault((count, int(sets)), []).append(ms[0])
                by_clock.setdefault((count, int(sets)), []).append(ms[1])
            if count == 2:
                messages.append(timed["messages"])
    medians = {key: statistics.median(times) for key, times in found.items()}
    cost = fit(medians, messages)
    points = tuple(
        Point(
            count,
            sets,
            ms,
            tuple(found[count, sets]),
            statistics.median(by_clock[count, sets]),
            None if (count, sets) in FITTED else cost.step_ms(count, sets, BATCH),
        )
        for (count, sets), ms in sorted(medians.items())
    )
    return ScalingResult(
        **about(pick_device("cpu")),
        model=MODEL,
        batch_size=BATCH,
        cores=len(cores),
        cost=cost,
        points=points,
        clothing1m=clothing1m(H200),
        clothing1m_cost=H200,
    )


def fit(medians: dict[tuple[int, int], float], messages: Sequence[dict[str, float]]) -> Cost:
    """From the steps of one process with one and with all sets, from messages between two, and from
    the steps of two that divide the rows of one set."""
    one, many = medians[1, 1], medians[1, SETS]
    set_ms = (many - one) / (SETS - 1)
    times = {size: statistics.median(m[str(size)] for m in messages) for size in SIZES}
    latency = min(times[size] for size in SIZES[:2])
    network = bench_network(MODEL, pick_device("cpu"))
    cost = Cost(
        class_ms=one - set_ms,
        set_ms=set_ms,
        latency_ms=latency,
        ms_per_mb=max(0.0, times[SIZES[-1]] - latency) / (4 * SIZES[-1] / 1e6),
        parameters_mb=sum(p.numel() for p in network.parameters()) * 4 / 1e6,
        norms=sum(isinstance(m, nn.BatchNorm2d) for m in network.modules()),
    )
    agreements = 3 * cost.norms + 2 + 4 * cost.norms
    missing = max(0.0, medians[2, 1] - cost.step_ms(2, 1, BATCH))
    return dataclasses.replace(cost, norm_ms=missing / agreements)


# One H200 from benchmarks/h200.json (ResNet-50, 224 × 224, batch 32, M=10): cross entropy 7.49 ms,
# MLNT folded 98.9 ms. The teacher's pass and the one at θ are a third of a cross-entropy step each
# (a pass forward of three); what is left is the sets'. Messages: NCCL between 8 GPUs of a machine
# and, at 64, between machines: not measured here, see docs/scaling.md.
_CROSS_ENTROPY_MS, _MLNT_MS, _CLOTHING_SETS = 7.49, 98.91, 10
_SHARED_MS = _CROSS_ENTROPY_MS * 5 / 3
H200 = Cost(
    class_ms=_SHARED_MS,
    set_ms=(_MLNT_MS - _SHARED_MS) / _CLOTHING_SETS,
    latency_ms=0.03,
    ms_per_mb=0.008,
    parameters_mb=23.5 * 4,
    norms=53,
)
CLOTHING1M_IMAGES = 1_000_000


def clothing1m(cost: Cost, gpus: Sequence[int] = (1, 8, 64)) -> tuple[Expected, ...]:
    """Cross entropy, then three iterations, of three epochs each; steps alone.

    The class step counts whole, as it is computed where dividing 32 samples over GPUs does not
    pay (`meta/division.py` measures it).
    """
    preset = PRESETS["clothing1m"]
    batch, epochs = preset["batch_size"], preset["epochs"]
    sets, iterations = Settings.sets, Settings.iterations
    steps = epochs * (CLOTHING1M_IMAGES // batch)
    rows = []
    for count in gpus:
        columns = min(count, sets) if count <= sets else most_columns(count, sets, batch)
        step = cost.step_ms(count, sets, batch, divides_class=False)
        total = steps * (_CROSS_ENTROPY_MS + iterations * step)
        rows.append(Expected(count, columns, step, total / 3_600_000))
    return tuple(rows)


def _launch(processes: int, steps: int) -> dict:
    """What the first of so many processes has timed."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "times.json"
        source = str(Path(__file__).resolve().parents[2])
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        worker = ["-m", "mlnt.bench.scaling_worker", str(target), str(steps)]
        done = subprocess.run(
            [*torchrun, "--nproc-per-node", str(processes), *worker],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source},
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            check=False,
        )
        if done.returncode != 0:
            words = last_words(done.stderr) or f"torchrun ended with status {done.returncode}"
            raise TrainingError(f"{processes} processes could not be timed: {words}")
        return json.loads(target.read_text(encoding="utf-8"))


def last_words(stderr: str) -> str:
    """What a process said last before torchrun noticed its end, or by what it was ended."""
    said = itertools.takewhile(lambda line: not TORCHRUN.match(line), stderr.splitlines())
    lines = [line.strip() for line in said if line.strip()]
    ends = re.findall(r"exitcode *: (-?\d+)", stderr)  # the first to end comes last
    return lines[-1] if lines else f"a process ended with status {ends[-1]}" if ends else ""
