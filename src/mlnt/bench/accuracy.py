"""Which number of label sets M buys most accuracy per minute.

M is a Monte-Carlo sample count: more sets make a better meta-gradient, and fewer steps fit into
the same time. Every M gets the first MLNT iteration in the same minutes:

    data, noise, cross entropy, initial weights: once, for all
    for each M: time a step and an evaluation -> epochs that fit -> train -> a row
"""

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.console import RenderableType
from rich.table import Table

from mlnt.bench.clock import durations_ms
from mlnt.bench.ground import Ground
from mlnt.bench.ledger import Ledger
from mlnt.bench.rows import RATES, free
from mlnt.config import Settings, make_settings
from mlnt.data.dataset import Dataset
from mlnt.data.prepare import Seeds, prepare
from mlnt.data.sources import open_dataset
from mlnt.device import computing, drawing_from, pick_device
from mlnt.errors import InputError
from mlnt.evaluation import extract_features
from mlnt.iterations import best_model
from mlnt.methods import MLNT, CrossEntropy
from mlnt.models import copy_model
from mlnt.origin import commit, machine_name
from mlnt.progress import ModelResult
from mlnt.steps import Steps
from mlnt.training import Stage, Trainer

SETS = (1, 2, 5, 10)
WARM_UP_STEPS, TIMED_STEPS = 12, 20  # while warming up, a GPU records its CUDA graph
TOLERANCE = 1.05  # of the minutes
CAPTION = (
    "Accuracy in %, one seed. val.: validation; best: test, at the best epoch by validation; last: "
    "test, after the last epoch. M is chosen by the teacher's validation accuracy, never by test "
    "accuracy. !: more than 5 % over its minutes."
)
Figures = dict[str, Any]  # in percent: validation, best, last; best_epoch


@dataclass(frozen=True)
class AccuracyRow:
    """One M: `step_ms` and `evaluation_s` were measured first, `seconds` is what training took."""

    sets: int
    epochs: int
    step_ms: float
    evaluation_s: float  # student and teacher, validation and test
    seconds: float
    within_time: bool  # at most 5 % more than the minutes given
    teacher: Figures
    student: Figures
    commit: str  # the pieces of a measurement may come from several


@dataclass(frozen=True)
class AccuracyResult:
    """`commit` and `date` are those of the last piece."""

    machine: str
    commit: str
    torch: str
    date: str
    data: str
    noise: str
    minutes: float  # for each M
    preset: str
    settings: dict[str, Any]  # all but sets and device; epochs are those of cross entropy
    cross_entropy: Figures | None = None  # and its epochs and seconds
    rows: tuple[AccuracyRow, ...] = ()

    @property
    def best_sets(self) -> int:
        """The M whose teacher validates best (on a tie the smaller), never chosen by test."""
        return -max((row.teacher["validation"], -row.sets) for row in self.rows)[1]

    def to_json(self) -> str:
        content = {**asdict(self), "best_sets": self.best_sets}
        return json.dumps(content, indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> Iterator[RenderableType]:
        yield f"{self.machine}, torch {self.torch}; {self.data}, noise {self.noise}, {self.preset}"
        table = Table(
            title=f"{self.minutes:g} minutes for each M", title_style="", caption=CAPTION,
            box=SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0),
        )  # fmt: skip
        models = ("teacher\nval.", "\nbest", "\nlast", "student\nval.", "\nbest", "\nlast")
        for heading in ("M", "epochs", "ms/step", "min", *models):
            table.add_column(heading, justify="right", no_wrap=True)
        if (base := self.cross_entropy) is not None:
            spent = (str(base["epochs"]), "", f"{base['seconds'] / 60:.2f}")
            table.add_row("CE", *spent, "", "", "", *_cells(base), end_section=True)
        for row in self.rows:
            minutes = f"{row.seconds / 60:.2f}{'' if row.within_time else '!'}"
            spent = (str(row.epochs), f"{row.step_ms:.2f}", minutes)
            table.add_row(str(row.sets), *spent, *_cells(row.teacher), *_cells(row.student))
        yield table
        yield f"highest validation accuracy of the teacher: M={self.best_sets}"


def run_accuracy(
    data: str | Path = "cifar10",
    device: str = "auto",
    minutes: float = 4.0,
    sets: Sequence[int] = SETS,
    seed: int = 0,
    noise: str = "symmetric:0.5",
    preset: str = "cifar10-fast",
    done: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    **settings: Any,
) -> AccuracyResult:
    """Train with each number of label sets for so many minutes; `tell` hears what is next.

    done      JSON, rewritten after each M. What it holds of an earlier run with the same arguments
              (of any M) is kept and not trained again; cross entropy is, with the same seed.
    settings  of `mlnt.config.Settings`; `epochs` counts for cross entropy alone
    """
    if not sets or not 0 < minutes < math.inf:
        raise InputError(f"needs minutes above 0 and some sets, got {minutes:g} and {sets}")
    if settings.get("weights", "none") != "none":
        raise InputError("this comparison begins with random weights; leave weights as they are")
    given = {
        "validation": "clean",
        **settings,
        "weights": "none",
        "noise": noise,
        "seed": seed,
        "device": device,
    }
    plans = [make_settings(preset, **given, sets=each) for each in dict.fromkeys(sets)]
    place = pick_device(device)
    fresh = AccuracyResult(
        machine=machine_name(place),
        commit=commit(),
        torch=torch.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        data=Path(data).name,  # not where it lies on this machine
        noise=noise,
        minutes=float(minutes),
        preset=preset,
        settings={k: v for k, v in asdict(plans[0]).items() if k not in ("sets", "device")},
    )
    ledger, same = Ledger(done), ("machine", "torch", "data", "minutes", "preset")
    kept = ledger.read(fresh, AccuracyRow, same, ("commit", "date", "cross_entropy"))
    earlier = replace(fresh, **kept)
    missing = [plan for plan in plans if plan.sets not in {row.sets for row in earlier.rows}]
    if not missing:
        return earlier
    dataset, _ = prepare(open_dataset(data), plans[0])
    with drawing_from(Seeds.of(plans[0].seed).weights, place), computing(plans[0], place):
        tell(f"cross entropy, {plans[0].epochs} epochs")
        bench = _Bench(dataset, plans[0], place)
        result = replace(fresh, cross_entropy=bench.cross_entropy, rows=earlier.rows)
        for plan in missing:
            tell(f"M={plan.sets}, {minutes:g} min")
            result = replace(result, rows=(*result.rows, bench.train(plan, minutes)))
            ledger.write(result)
    return result


class _Bench:
    """What all M share: data on the device, initial weights, features of cross entropy."""

    def __init__(self, dataset: Dataset, settings: Settings, device: torch.device) -> None:
        self.device, self.ground = device, Ground(dataset, settings, device)
        trainer = self.ground.trainer(settings)
        baseline, self.initial = (self.ground.new_model(settings) for _ in range(2))
        stage = trainer.run(Stage("cross_entropy", 0), CrossEntropy(baseline, settings))
        self.features_ND = extract_features(best_model(stage), trainer.train.inputs)
        spent = {"epochs": settings.epochs, "seconds": stage.seconds}
        self.cross_entropy = spent | _figures(stage.best)

    def train(self, settings: Settings, minutes: float) -> AccuracyRow:
        """The first iteration of MLNT with as many epochs as fit into the minutes."""
        step, evaluation = self._measure(settings)
        free(self.device)
        trainer = self.ground.trainer(settings)
        epochs = epochs_within(minutes, trainer.steps_per_epoch, step, evaluation)
        trainer.settings = replace(settings, epochs=epochs)
        stage = trainer.run(Stage("mlnt", 1), self._method(trainer))
        return AccuracyRow(
            sets=settings.sets,
            epochs=epochs,
            step_ms=1000 * step,
            evaluation_s=evaluation,
            seconds=stage.seconds,
            within_time=stage.seconds <= TOLERANCE * 60 * minutes,
            teacher=_figures(stage.results["teacher"]),
            student=_figures(stage.results["student"]),
            commit=commit(),
        )

    def _measure(self, settings: Settings) -> tuple[float, float]:
        """Seconds of a step and of an evaluation as in training, on weights thrown away."""
        trainer = self.ground.trainer(settings)
        method = self._method(trainer)
        runner = Steps(trainer.train, method, settings, trainer.generator)
        runner.run([RATES] * WARM_UP_STEPS)
        (steps_ms,) = durations_ms([lambda: runner.run([RATES] * TIMED_STEPS)], self.device)
        results = {name: ModelResult() for name in method.models}
        twice = [lambda: trainer.evaluate(method.models, results, 1)] * 2
        _, evaluation_ms = durations_ms(twice, self.device)  # the first only warms up
        return steps_ms / 1000 / TIMED_STEPS, evaluation_ms / 1000

    def _method(self, trainer: Trainer) -> MLNT:
        torch.manual_seed(self.ground.seeds.weights)  # for dropout; the weights are there already
        start = copy_model(self.initial)
        return MLNT(start, trainer.settings, self.features_ND, generator=trainer.generator)


def epochs_within(minutes: float, steps: int, step: float, evaluation: float) -> int:
    """max(1, ⌊60 minutes / (steps · step + evaluation)⌋), both in seconds."""
    return max(1, math.floor(60 * minutes / (steps * step + evaluation)))


def _figures(found: ModelResult) -> Figures:
    return {name: getattr(found, name) for name in ("validation", "best", "last", "best_epoch")}


def _cells(figures: Figures) -> list[str]:
    values = map(figures.get, ("validation", "best", "last"))
    return ["–" if value is None else f"{value:.2f}" for value in values]
