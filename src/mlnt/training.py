"""Epochs: schedules, steps, and a look at every model after each epoch.

for each epoch: steps -> losses finite? -> evaluate student and teacher -> remember the best

A journal keeps what it takes to go on after each epoch; with one, a stage that was interrupted
goes on where it stopped, and one that was finished is not trained again.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.sources import Dataset, Split
from mlnt.errors import InputError, Stopped, TrainingError
from mlnt.evaluation import accuracy, predict_probabilities
from mlnt.methods.base import Method, Rates
from mlnt.steps import Steps

State = dict[str, Tensor]


@dataclass(frozen=True)
class Stage:
    """One training from a fresh network to its last epoch."""

    method: str
    iteration: int  # 0 for the cross-entropy network, then 1, 2, 3

    @property
    def name(self) -> str:
        return self.method if self.iteration == 0 else f"{self.method} iteration {self.iteration}"

    @property
    def file_name(self) -> str:
        return f"{self.iteration}-{self.method}"


def model_name(method: str, model: str, iteration: int) -> str:
    """`cross entropy`, `mlnt teacher, iteration 2`."""
    if iteration == 0:
        return method.replace("_", " ")
    return f"{method} {model}, iteration {iteration}"


class Watcher:
    """Is told what happens: the run folder writes it down, the terminal shows it."""

    def run_begins(self, dataset: Dataset, settings: Settings, reasons: Mapping[str, str]) -> None:
        """The data is ready: validation held out, noise injected; why some settings are so."""

    def stage_begins(self, stage: Stage, epochs: int, steps: int, done: int) -> None:
        """A network is about to be trained for so many epochs of so many steps; some are done."""

    def step_ends(self) -> None:
        """No figures yet: looking at them would wait for the GPU."""

    def epoch_ends(self, row: dict[str, Any]) -> None:
        """`row` goes into metrics.jsonl."""

    def filtered(self, report: dict[str, Any]) -> None:
        """A mentor chose what the next iteration may learn from."""


class Journal:
    """Keeps what a stage needs to go on; this one keeps nothing."""

    def load(self, stage: Stage) -> dict[str, Any] | None:
        """What was saved last of this stage."""
        return None

    def save(self, stage: Stage, content: Callable[[], dict[str, Any]]) -> None:
        """Called after each epoch; `content()` is made of tensors and plain values."""


@dataclass
class ModelResult:
    """What one model (student or teacher) reached in one stage, by validation."""

    best_epoch: int = 0
    validation: float = -math.inf
    best: float | None = None  # test accuracy at the best epoch by validation
    last: float | None = None  # test accuracy after the last epoch
    peak: float | None = None  # highest test accuracy of any epoch: for curves, never for choice
    state: State = field(default_factory=dict)


@dataclass
class StageResult:
    stage: Stage
    models: dict[str, nn.Module]  # as they are after the last epoch
    results: dict[str, ModelResult]
    history: list[dict[str, Any]]
    seconds: float

    @property
    def best_name(self) -> str:
        """The model that did best by validation; on a tie the later named, the teacher."""
        return max(reversed(list(self.results)), key=lambda name: self.results[name].validation)

    @property
    def best(self) -> ModelResult:
        return self.results[self.best_name]


def rates_at(progress: float, settings: Settings, iteration: int) -> Rates:
    """The rates at a share of an iteration's steps in [0, 1).

    lr and eta fall at `fall_at`: lr to a tenth (step), or both linearly to zero (linear).
    eta ramps up linearly during `warmup` of the first iteration alone. gamma is `gamma_early`
    during warmup. lam rises linearly from 0 over the whole iteration.
    """
    in_warmup = progress < settings.warmup
    ramp = progress / settings.warmup if in_warmup and iteration <= 1 else 1.0
    fallen = progress >= settings.fall_at
    lr_share, eta_share = 1.0, ramp
    if settings.fall == "step" and fallen:
        lr_share = 0.1
    elif settings.fall == "linear" and fallen:
        lr_share = (1 - progress) / (1 - settings.fall_at)
        eta_share = ramp * lr_share
    return Rates(
        lr=settings.lr * lr_share,
        eta=settings.eta * eta_share,
        gamma=settings.gamma_early if in_warmup else settings.gamma,
        lam=settings.lam * progress,
    )


@dataclass
class Trainer:
    """The parts that do not change from stage to stage: data on its device, settings, watchers."""

    train: Split
    validation: Split
    test: Split | None
    settings: Settings
    generator: torch.Generator
    watchers: Sequence[Watcher] = ()
    journal: Journal = field(default_factory=Journal)
    deadline: float = math.inf  # by time.monotonic; no epoch begins that would not end before
    epoch_seconds: float = 0.0  # what the last epoch took, of whichever stage

    def __post_init__(self) -> None:
        if len(self.train) < self.settings.batch_size:
            raise InputError(
                f"{len(self.train)} training samples are fewer than a batch of "
                f"{self.settings.batch_size}; use a batch size of {len(self.train)} or less"
            )

    @property
    def steps_per_epoch(self) -> int:
        return len(self.train) // self.settings.batch_size

    def run(self, stage: Stage, method: Method, kept: Tensor | None = None) -> StageResult:
        """Train for all epochs. `kept` are the samples the class loss may draw from, if not all."""
        settings = self.settings
        runner = Steps(self.train, method, settings, self.generator, kept)
        try:
            return self._run(stage, method, runner)
        finally:
            runner.close()

    def _run(self, stage: Stage, method: Method, runner: Steps) -> StageResult:
        settings, steps = self.settings, self.steps_per_epoch
        results = {name: ModelResult() for name in method.models}
        history: list[dict[str, Any]] = []
        before = self._go_on(stage, runner, results, history)
        began = time.perf_counter() - before
        for watcher in self.watchers:
            watcher.stage_begins(stage, settings.epochs, steps, len(history))
        for epoch in range(len(history) + 1, settings.epochs + 1):
            self._check_time()
            epoch_began = time.perf_counter()
            rates = [self._rates((epoch - 1) * steps + step, stage) for step in range(steps)]
            losses = runner.run(rates, self._step_ends)
            means = self._mean_losses(losses, stage, epoch)  # the epoch's wait for the GPU
            self._check_weights(method.models, stage, epoch)
            method.epoch_ends(epoch)
            train_seconds = time.perf_counter() - epoch_began
            row = {
                "method": stage.method,
                "iteration": stage.iteration,
                "epoch": epoch,
                **means,
                **self.evaluate(method.models, results, epoch),
                "lr": rates[-1].lr,
                "eta": rates[-1].eta,
                "gamma": rates[-1].gamma,
                "lam": rates[-1].lam,
                "step_ms": 1000 * train_seconds / steps,
                **runner.waiting(),
                "seconds": time.perf_counter() - began,
            }
            history.append(row)
            self.journal.save(stage, lambda: _content(runner, results, history))
            for watcher in self.watchers:
                watcher.epoch_ends(row)
            self.epoch_seconds = time.perf_counter() - epoch_began
        return StageResult(stage, dict(method.models), results, history, _seconds(history))

    def _go_on(
        self,
        stage: Stage,
        runner: Steps,
        results: dict[str, ModelResult],
        history: list[dict[str, Any]],
    ) -> float:
        """Put everything where the journal left it; the seconds spent so far."""
        found = self.journal.load(stage)
        if found is None:
            return 0.0
        try:
            runner.load_state(found["steps"])
            for name, fields in found["results"].items():
                results[name] = ModelResult(**fields)
            history += found["history"]
            self.epoch_seconds = _seconds(history) / max(1, len(history))
            return _seconds(history)
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise InputError(
                f"the checkpoint of {stage.name} does not fit this run "
                f"({type(error).__name__}: {error})"
            ) from None

    def _check_time(self) -> None:
        if time.monotonic() + self.epoch_seconds > self.deadline:
            raise Stopped

    def _rates(self, step: int, stage: Stage) -> Rates:
        progress = step / (self.settings.epochs * self.steps_per_epoch)
        return rates_at(progress, self.settings, stage.iteration)

    def _step_ends(self) -> None:
        for watcher in self.watchers:
            watcher.step_ends()

    def _mean_losses(self, losses: dict[str, Tensor], stage: Stage, epoch: int) -> dict[str, float]:
        """Mean of each loss over the epoch; a loss that is not finite ends the run."""
        values = {name: found.double().cpu() for name, found in losses.items()}
        first_bad = {
            name: int((~torch.isfinite(row)).int().argmax())
            for name, row in values.items()
            if not torch.isfinite(row).all()
        }
        if first_bad:
            name = min(first_bad, key=lambda name: first_bad[name])
            step = (epoch - 1) * self.steps_per_epoch + first_bad[name]
            raise TrainingError(
                f"{name} became {values[name][first_bad[name]].item()} in step {step + 1} "
                f"(epoch {epoch}) of {stage.name} with {self._describe_rates(step, stage)}"
            )
        return {name: float(row.mean()) for name, row in values.items()}

    def _check_weights(self, models: dict[str, nn.Module], stage: Stage, epoch: int) -> None:
        """The last step's damage shows in no loss, only in the weights."""
        for name, model in models.items():
            finite = [
                torch.isfinite(v).all()
                for v in model.state_dict().values()
                if v.is_floating_point()
            ]
            if finite and not torch.stack(finite).all():
                step = epoch * self.steps_per_epoch - 1
                raise TrainingError(
                    f"weights of the {name} became NaN or infinite by step {step + 1} "
                    f"(epoch {epoch}) of {stage.name} with {self._describe_rates(step, stage)}"
                )

    def _describe_rates(self, step: int, stage: Stage) -> str:
        rates = self._rates(step, stage)
        if stage.method == "cross_entropy":
            return f"lr={rates.lr:g}; lower it"
        return f"lr={rates.lr:g}, eta={rates.eta:g}, alpha={self.settings.alpha:g}; lower them"

    def evaluate(
        self, models: dict[str, nn.Module], results: dict[str, ModelResult], epoch: int
    ) -> dict[str, dict[str, float]]:
        """Validation and test accuracy of every model; keeps the weights of the best epoch."""
        row = {}
        for name, model in models.items():
            figures = {}
            for part, split in (("validation", self.validation), ("test", self.test)):
                if split is not None:
                    probabilities = predict_probabilities(model, split.inputs)
                    figures[part] = float(accuracy(probabilities, split.labels))
            row[name] = figures
            result, test = results[name], figures.get("test")
            if figures["validation"] > result.validation:
                result.best_epoch = epoch
                result.validation, result.best = figures["validation"], test
                result.state = {k: v.detach().clone() for k, v in model.state_dict().items()}
            result.last = test
            result.peak = test if test is None else max(test, result.peak or 0.0)
        return row


def _content(
    runner: Steps, results: dict[str, ModelResult], history: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "steps": runner.state(),
        "results": {name: vars(result) for name, result in results.items()},
        "history": history,
    }


def _seconds(history: list[dict[str, Any]]) -> float:
    return history[-1]["seconds"] if history else 0.0
