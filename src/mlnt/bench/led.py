"""Settings of a led iteration side by side, by validation alone: what to tune with.

    for each seed: features without labels (where asked for), cross entropy: once, for all
        for each trial: cross entropy filters as mentor -> a led iteration -> a row

Test data is not even brought to the device, so that nothing can be chosen by it.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from rich.console import RenderableType
from rich.table import Table

from mlnt.bench.ground import Ground
from mlnt.bench.ledger import Ledger
from mlnt.bench.rows import free
from mlnt.config import Settings, named_values, settings_from
from mlnt.data.dataset import Dataset
from mlnt.data.prepare import prepare
from mlnt.data.sources import open_dataset
from mlnt.defaults import choose_settings
from mlnt.device import computing, drawing_from, pick_device
from mlnt.errors import InputError
from mlnt.iterations import best_model, describe_filter, filtered_by
from mlnt.judging import Judge
from mlnt.methods import MLNT
from mlnt.models import copy_model
from mlnt.origin import commit, machine_name
from mlnt.progress import EPOCHS_TOGETHER
from mlnt.recipes import Recipe
from mlnt.reproduce.results import Spread
from mlnt.schedule import LED
from mlnt.training import Stage, StageResult

# What a trial cannot change: all trials of a seed have it in common, or it says nothing of one
# iteration.
COMMON = {
    "method", "model", "weights", "iterations", "self_epochs", "last_epochs", "noise", "validation",
    "validation_share", "image_size", "seed", "device", "workers", "precision", "deterministic",
    "checkpoint_minutes",
}  # fmt: skip
AS_IT_IS = "as it is"  # the name of a trial that changes nothing
CAPTION = (
    "Accuracy in % by the {validation} labels of held-out data, mean of the last three epochs ± "
    "standard error over n seeds; no test data. given back: of the kept labels, in the last epoch."
)


@dataclass(frozen=True)
class LedRow:
    """One trial with one seed; accuracies and shares in percent."""

    trial: str  # "batch_size=512 lr=0.4"
    seed: int
    student: float
    teacher: float
    given_back: float
    kept: int
    wrong_among_kept: float | None  # None: nobody knows
    epochs: int
    step_ms: float
    seconds: float
    commit: str  # the pieces of a measurement may come from several


@dataclass(frozen=True)
class LedResult:
    """`commit` and `date` are those of the last piece."""

    machine: str
    commit: str
    torch: str
    date: str
    data: str
    settings: dict[str, Any]  # where a trial changes nothing, and of what comes before
    mentors: dict[str, float]  # by seed: validation accuracy of the cross entropy that leads
    rows: tuple[LedRow, ...] = ()

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    def to_rich(self) -> Iterator[RenderableType]:
        yield f"{self.machine}, torch {self.torch}; {self.data}, noise {self.settings['noise']}"
        caption = CAPTION.format(validation=self.settings["validation"])
        table = Table(title="a led iteration", title_style="", caption=caption)
        table.add_column("trial", overflow="fold")
        for heading in ("n", "student", "teacher", "given\nback", "wrong\nkept", "ms/step", "s"):
            table.add_column(heading, justify="right", no_wrap=True)
        for trial in dict.fromkeys(row.trial for row in self.rows):
            table.add_row(trial, *_cells([row for row in self.rows if row.trial == trial]))
        yield table
        found = ", ".join(f"{value:.2f}" for value in self.mentors.values())
        yield f"led by cross entropy, which validates at {found}"


def run_led(
    data: str | Path,
    trials: Sequence[str],
    device: str = "auto",
    seeds: int = 1,
    preset: str | None = None,
    done: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    noise: str = "asymmetric:0.4",
    **settings: Any,
) -> LedResult:
    """Train a led iteration with the settings of each trial; `tell` hears what is next.

    trials    "batch_size=512 lr=0.4" each; an empty one changes nothing
    done      JSON, rewritten after each row. What it holds of an earlier run with the same
              arguments is kept and not trained again; cross entropy is, with the same seed.
    settings  of `mlnt.config.Settings`, for all trials and what comes before them
    """
    changes = {" ".join(trial.split()) or AS_IT_IS: changes_of(trial) for trial in trials}
    place, dataset = pick_device(device), open_dataset(str(data))
    given = {"validation": "clean", **settings, "noise": noise, "device": device}
    usual = choose_settings(dataset, place, preset, given).settings
    for change in changes.values():
        _refuse_without_effect(change, usual)
    plans = {name: settings_from({**asdict(usual), **change}) for name, change in changes.items()}
    result = LedResult(
        machine=machine_name(place),
        commit=commit(),
        torch=torch.__version__,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        data=Path(data).name,  # not where it lies on this machine
        settings={k: v for k, v in asdict(usual).items() if k not in ("seed", "device")},
        mentors={},
    )
    ledger = Ledger(done)
    kept = ledger.read(result, LedRow, ("machine", "torch", "data"), ("mentors",))
    result = replace(result, **kept)
    for seed in range(seeds):
        there = {row.trial for row in result.rows if row.seed == seed}
        missing = {n: replace(plan, seed=seed) for n, plan in plans.items() if n not in there}
        if not missing:
            continue
        tell(f"seed {seed}: cross entropy, {usual.epochs} epochs")
        bench = _Bench(dataset, replace(usual, seed=seed), place)
        result = replace(result, mentors={**result.mentors, str(seed): bench.validation})
        for name, plan in missing.items():
            tell(f"seed {seed}: {name}, {plan.epochs} epochs")
            result = replace(result, rows=(*result.rows, bench.train(name, plan)))
            ledger.write(result)
    return result


def changes_of(trial: str) -> dict[str, str]:
    """{"batch_size": "512", "lr": "0.4"} from "batch_size=512 lr=0.4"."""
    changes = named_values(trial.split(), "a trial")
    for name in changes:
        if name in COMMON:
            raise InputError(
                f"a trial cannot change {name}: what comes before it is the same for all"
            )
    return changes


def _refuse_without_effect(change: dict[str, str], usual: Settings) -> None:
    for name, led in LED.items():
        if name in change and led not in change and not isinstance(getattr(usual, led), str):
            raise InputError(f"a trial's {name} has no effect where {led} is set; change {led}")


class _Bench:
    """What all trials of a seed share: data, weights to begin with, the mentor and its eyes."""

    def __init__(self, dataset: Dataset, settings: Settings, device: torch.device) -> None:
        prepared, _ = prepare(dataset, settings)
        self.device, self.classes = device, prepared.classes
        self.ground = Ground(prepared, settings, device, ("train", "validation"))
        with self._at_work(settings):
            trainer = self.ground.trainer(settings)
            recipe = Recipe(trainer, lambda: self.ground.new_model(settings), prepared.classes)
            recipe = recipe.begun()
            (stage,) = recipe.cross_entropy().stages
            self.initial, self.mentor = recipe.new_model(), best_model(stage)
            self.judge = Judge(trainer.train, trainer.validation, trainer.world, self.mentor)
            self.features_ND = self.judge.features(self.mentor)[: len(trainer.train)]
        self.validation = stage.best.validation

    def train(self, name: str, settings: Settings) -> LedRow:
        free(self.device)
        with self._at_work(settings):
            trainer = self.ground.trainer(settings).where_led()
            kept = filtered_by(self.mentor, False, trainer.train, trainer.settings, self.judge)
            method = MLNT(
                copy_model(self.initial),
                trainer.settings,
                self.features_ND,
                self.mentor,
                trainer.generator,
            )
            method.class_weights = kept.class_weights
            stage = trainer.run(Stage("mlnt", 2), method, kept.indices)  # η ramps in the first
            report = describe_filter(kept, trainer, self.classes, 1)
        return LedRow(
            trial=name,
            seed=settings.seed,
            student=_at_the_end(stage, "student"),
            teacher=_at_the_end(stage, "teacher"),
            given_back=stage.history[-1]["train"],
            kept=report["kept"],
            wrong_among_kept=report.get("wrong_among_kept"),
            epochs=settings.epochs,
            step_ms=stage.history[-1]["step_ms"],
            seconds=stage.seconds,
            commit=commit(),
        )

    @contextlib.contextmanager
    def _at_work(self, settings: Settings) -> Iterator[None]:
        seed = self.ground.seeds.weights
        with drawing_from(seed, self.device), computing(settings, self.device):
            yield


def _at_the_end(stage: StageResult, model: str) -> float:
    return fmean(row[model]["validation"] for row in stage.history[-EPOCHS_TOGETHER:])


def _cells(rows: Sequence[LedRow]) -> list[str]:
    wrong = [row.wrong_among_kept for row in rows if row.wrong_among_kept is not None]
    return [
        str(len(rows)),
        Spread(tuple(row.student for row in rows)).short,
        Spread(tuple(row.teacher for row in rows)).short,
        f"{fmean(row.given_back for row in rows):.1f}",
        f"{fmean(wrong):.1f}" if wrong else "–",
        f"{fmean(row.step_ms for row in rows):.1f}",
        f"{fmean(row.seconds for row in rows):.0f}",
    ]
