"""Epochs: schedules, steps, and a look at every model after each epoch.

for each epoch: steps -> losses finite? -> the teacher's batch norms
                -> evaluate student and teacher -> remember the best

A journal keeps what it takes to go on, after an epoch or in the middle of it; with one, a stage
that was interrupted goes on where it stopped, and one that was finished is not trained again.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.dataset import Dataset, Split
from mlnt.device import is_shared
from mlnt.distributed import ALL_ALONE, World
from mlnt.errors import InputError, Stopped, TrainingError
from mlnt.evaluation import accuracy, predict_probabilities, readable
from mlnt.methods.base import Method, Rates
from mlnt.progress import Choice, Clock, ModelResult, Progress
from mlnt.schedule import last_settings, led_settings, rates_at
from mlnt.steps import Steps

# Steps after which several processes ask each other whether to stop; and after an epoch's last.
AGREE_EVERY = 8


@dataclass(frozen=True)
class Stage:
    """One training from a fresh network to its last epoch."""

    method: str
    iteration: int  # 0 for what comes before the first, such as cross entropy, then 1, 2, 3

    @property
    def name(self) -> str:
        return self.method if self.iteration == 0 else f"{self.method} iteration {self.iteration}"

    @property
    def file_name(self) -> str:
        return f"{self.iteration}-{self.method}"

    @property
    def learns_labels(self) -> bool:
        return self.method != "contrastive"


def model_name(method: str, model: str, iteration: int) -> str:
    """`cross entropy`, `mlnt teacher, iteration 2`."""
    if method == "contrastive":
        return "contrastive features"
    if iteration == 0:
        return method.replace("_", " ")
    return f"{method} {model}, iteration {iteration}"


class Watcher:
    """Is told what happens: the run folder writes it down, the terminal shows it."""

    everywhere = False  # in all of several processes, else in the first

    def run_begins(self, dataset: Dataset, settings: Settings, reasons: Mapping[str, str]) -> None:
        """The data is ready: validation held out, noise injected; why some settings are so."""

    def stage_begins(self, stage: Stage, epochs: int, steps: int, done: int) -> None:
        """A network is about to be trained for so many epochs of so many steps; some are done."""

    def step_ends(self) -> None:
        """No figures yet: looking at them would wait for the GPU. May raise `Stopped`."""

    def epoch_ends(self, row: dict[str, Any]) -> None:
        """`row` goes into metrics.jsonl."""

    def filtered(self, report: dict[str, Any]) -> None:
        """A mentor chose what the next iteration may learn from."""


class Journal:
    """Keeps what a stage needs to go on; this one keeps nothing."""

    def load(self, stage: Stage) -> dict[str, Any] | None:
        """What was saved last of this stage."""
        return None

    def note(self, row: dict[str, Any]) -> None:
        """An epoch has ended; `row` goes into metrics.jsonl."""

    def is_due(self) -> bool:
        """Asked after each step: is it time to save, in the middle of an epoch?"""
        return False

    def save(
        self,
        stage: Stage,
        content: Callable[[], dict[str, Any]],
        end: bool = False,
        must: bool = False,
    ) -> None:
        """Called after each epoch, when due, and when training stops (`must`); else only if it is
        worth its time, rather so at the `end` of a stage. `content()` is made of tensors and plain
        values."""


@dataclass
class StageResult:
    stage: Stage
    models: dict[str, nn.Module]  # as they are after the last epoch
    results: dict[str, ModelResult]
    history: list[dict[str, Any]]
    seconds: float
    earlier: float = 0.0  # of them in processes before this one
    kept: Tensor | None = None  # the samples that the class loss drew from, if not all

    @property
    def is_led(self) -> bool:
        """By a mentor, who filtered the labels."""
        return self.kept is not None

    @property
    def best_name(self) -> str:
        """The model that did best by validation; on a tie the later named, the teacher."""
        return max(reversed(list(self.results)), key=lambda name: self.results[name].validation)

    @property
    def best(self) -> ModelResult:
        return self.results[self.best_name]


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
    deadline: float = math.inf  # by time.monotonic
    world: World = ALL_ALONE  # the processes that divide the work
    closing_seconds: float = 0.0  # from an epoch's last step to its end, the last time

    def __post_init__(self) -> None:
        if len(self.train) < self.settings.batch_size:
            raise InputError(
                f"{len(self.train)} training samples are fewer than a batch of "
                f"{self.settings.batch_size}; use a batch size of {len(self.train)} or less"
            )

    def at_last(self) -> "Trainer":
        """For what a method ends with."""
        return replace(self, settings=last_settings(self.settings))

    def where_led(self) -> "Trainer":
        """For an iteration whose labels a mentor has filtered."""
        return replace(self, settings=led_settings(self.settings))

    @property
    def steps_per_epoch(self) -> int:
        return len(self.train) // self.settings.batch_size

    def run(self, stage: Stage, method: Method, kept: Tensor | None = None) -> StageResult:
        """Train for all epochs. `kept` are the samples the class loss may draw from, if not all."""
        settings = self.settings
        runner = Steps(self.train, method, settings, self.generator, kept, self.world)
        try:
            return self._run(stage, method, runner)
        finally:
            runner.close()

    def _run(self, stage: Stage, method: Method, runner: Steps) -> StageResult:
        settings, steps = self.settings, self.steps_per_epoch
        progress = Progress({name: ModelResult() for name in method.models})
        found = self.journal.load(stage)
        if found is not None:
            _take_up(found, stage, runner, progress)
        history, earlier = progress.history, progress.seconds
        clock = Clock(progress)

        def save(end: bool = False, must: bool = False) -> None:
            if runner.done:
                # What is damaged already must not take the place of what is not.
                epoch = len(history) + 1
                self._mean_losses(runner.losses(), stage, epoch)
                self._check_weights(method.models, stage, epoch, runner.done)
            clock.read(progress)
            self.journal.save(
                stage, lambda: {"steps": runner.state(), "progress": progress.state()}, end, must
            )

        def look_up() -> None:
            for watcher in self.watchers:
                watcher.step_ends()
            self._check_time()

        def step_ends() -> None:
            at_once = runner.done % AGREE_EVERY == 0 or runner.done == steps
            self._stop_together(look_up, at_once)
            if self.journal.is_due():
                save()

        def begin() -> None:
            for watcher in self.watchers:
                watcher.stage_begins(stage, settings.epochs, steps, len(history))

        try:
            self._stop_together(begin, at_once=True)
            for epoch in range(len(history) + 1, settings.epochs + 1):
                self._stop_together(self._check_time, at_once=True)
                row = self._epoch(stage, method, runner, progress, clock, step_ends)
                history.append(row)
                clock.begin_epoch()
                self.journal.note(row)
                save(end=epoch == settings.epochs)
                self.closing_seconds = time.perf_counter() - clock.steps_ended
                for watcher in self.watchers:
                    watcher.epoch_ends(row)
        except Stopped:
            save(must=True)
            raise
        seconds = _seconds(history)
        models, results = dict(method.models), progress.results
        return StageResult(stage, models, results, history, seconds, earlier, runner.kept)

    def _epoch(
        self,
        stage: Stage,
        method: Method,
        runner: Steps,
        progress: Progress,
        clock: Clock,
        step_ends: Callable[[], None],
    ) -> dict[str, Any]:
        """The steps of the next epoch, and what came of them."""
        epoch, steps = len(progress.history) + 1, self.steps_per_epoch
        done, is_led = (epoch - 1) * steps, runner.kept is not None
        rates = [self._rates(done + step, stage, is_led) for step in range(steps)]
        losses = runner.run(rates, step_ends)
        means = self._mean_losses(losses, stage, epoch)  # the epoch's wait for the GPU
        step_ms, waiting = 1000 * clock.end_steps() / steps, runner.waiting()
        self._check_weights(method.models, stage, epoch, steps)
        method.epoch_ends(epoch)
        runner.renew_teacher()
        self.world.match_(method.models)
        runner.share_faults()
        return {
            "method": stage.method,
            "iteration": stage.iteration,
            "epoch": epoch,
            **means,
            **(self._accuracies(method, runner, progress, epoch) if stage.learns_labels else {}),
            "lr": rates[-1].lr,
            "eta": rates[-1].eta,
            "gamma": rates[-1].gamma,
            "lam": rates[-1].lam,
            "step_ms": step_ms,
            **({"shared_gpu": True} if is_shared(self.train.labels.device) else {}),
            **waiting,
            "seconds": time.perf_counter() - clock.began,
        }

    def _accuracies(
        self, method: Method, runner: Steps, progress: Progress, epoch: int
    ) -> dict[str, dict[str, float]]:
        choice = Choice.BEST if runner.kept is None else Choice.BEST_TOGETHER
        return self.evaluate(method.models, progress.results, epoch, choice)

    def _check_time(self) -> None:
        if time.monotonic() + self.closing_seconds > self.deadline:
            raise Stopped("the time is up")

    def _stop_together(self, check: Callable[[], None], at_once: bool) -> None:
        """What `check` raises; of several processes the leader's, heard now or a few steps on."""
        if self.world.size == 1:
            check()
            return
        reason = None
        try:
            check()
        except Stopped as stop:
            reason = str(stop)
        if at_once and (agreed := self.world.share(reason)) is not None:
            raise Stopped(agreed)

    def _rates(self, step: int, stage: Stage, is_led: bool = False) -> Rates:
        steps = self.settings.epochs * self.steps_per_epoch
        return rates_at(step, steps, self.settings, stage.iteration, is_led)

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

    def _check_weights(
        self, models: dict[str, nn.Module], stage: Stage, epoch: int, done: int
    ) -> None:
        """The last step's damage shows in no loss, only in the weights."""
        for name, model in models.items():
            finite = [
                torch.isfinite(v).all()
                for v in model.state_dict().values()
                if v.is_floating_point()
            ]
            if finite and not torch.stack(finite).all():
                step = (epoch - 1) * self.steps_per_epoch + done - 1
                raise TrainingError(
                    f"weights of the {name} became NaN or infinite by step {step + 1} "
                    f"(epoch {epoch}) of {stage.name} with {self._describe_rates(step, stage)}"
                )

    def _describe_rates(self, step: int, stage: Stage) -> str:
        rates = self._rates(step, stage)
        if stage.iteration == 0:
            return f"lr={rates.lr:g}; lower it"
        return f"lr={rates.lr:g}, eta={rates.eta:g}, alpha={self.settings.alpha:g}; lower them"

    def evaluate(
        self,
        models: dict[str, nn.Module],
        results: dict[str, ModelResult],
        epoch: int,
        choice: Choice = Choice.BEST,
    ) -> dict[str, dict[str, float]]:
        """Validation and test accuracy of every model; `results` keep those of the best epoch."""
        row = {}
        for name, model in models.items():
            figures, answers_H = {}, None
            for part, split in (("validation", self.validation), ("test", self.test)):
                if split is not None:
                    probabilities = predict_probabilities(model, split.inputs, self.world)
                    rows = readable(split.inputs)
                    figures[part] = float(accuracy(probabilities[rows], split.labels[rows]))
                    if split is self.validation:
                        answers_H = probabilities.argmax(dim=1).cpu()
            row[name] = figures
            results[name].note(epoch, figures, model, choice, answers_H)
        return row


def _take_up(found: dict[str, Any], stage: Stage, runner: Steps, progress: Progress) -> None:
    """Go on from a checkpoint; InputError if it is another run's."""
    try:
        runner.load_state(found["steps"])
        progress.load_state(found["progress"])
    except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"the checkpoint of {stage.name} does not fit this run "
            f"({type(error).__name__}: {error})"
        ) from None


def _seconds(history: list[dict[str, Any]]) -> float:
    return history[-1]["seconds"] if history else 0.0
