"""How far a stage of training has come: what its models reached, its epochs, its seconds."""

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from statistics import fmean
from typing import Any

from torch import Tensor, nn

EPOCHS_TOGETHER = 3


class Choice(Enum):
    """Which epoch counts as a stage's best."""

    BEST = "best"  # the first of those that validate best
    BEST_TOGETHER = "best_together"  # each together with the two before it; of equal ones the last
    LAST = "last"


State = dict[str, Tensor]


@dataclass
class ModelResult:
    """What one model (student or teacher) reached in one stage, by validation."""

    best_epoch: int = 0
    validation: float = -math.inf  # by which it was chosen, see `note`
    best: float | None = None  # test accuracy at the best epoch by validation
    last: float | None = None  # test accuracy after the last epoch
    peak: float | None = None  # highest test accuracy of any epoch: for curves, never for choice
    recent: list[float] = field(default_factory=list)  # validation of the epochs that count now
    state: State = field(default_factory=dict)
    answers: Tensor | None = None  # [H], its classes of the H validation samples, at the best epoch

    def note(
        self,
        epoch: int,
        figures: Mapping[str, float],
        model: nn.Module,
        choice: Choice,
        answers: Tensor | None = None,
    ) -> None:
        """An epoch's validation and test accuracy; keeps weights and answers of the best epoch.

        Of epochs that validate alike, as few samples often make them, the first: later ones have
        learnt more of the noise. Where a mentor has filtered it out, an epoch's neighbours are
        much like it: it counts together with the two before it, against chance. Where no label
        is learnt, the last one has learnt most.
        """
        test = figures.get("test")
        together = EPOCHS_TOGETHER if choice is Choice.BEST_TOGETHER else 1
        is_early = len(self.recent) < together  # a mean of fewer is no match for one of all
        self.recent = [*self.recent, figures["validation"]][-together:]
        validation = round(fmean(self.recent), 9)  # equal where only the order of summing differs
        is_equal = choice is Choice.BEST_TOGETHER and validation == self.validation
        if is_early or is_equal or validation > self.validation or choice is Choice.LAST:
            self.best_epoch, self.validation, self.best = epoch, validation, test
            self.state = {k: v.detach().clone() for k, v in model.state_dict().items()}
            self.answers = answers
        self.last = test
        self.peak = test if test is None else max(test, self.peak or 0.0)


@dataclass
class Progress:
    """How far a stage has come: with the state of its steps all that a checkpoint holds."""

    results: dict[str, ModelResult]
    history: list[dict[str, Any]] = field(default_factory=list)  # a row for each epoch
    seconds: float = 0.0  # spent on the stage
    epoch_seconds: float = 0.0  # of them on the steps of the epoch under way

    def state(self) -> dict[str, Any]:
        return {**vars(self), "results": {name: vars(r) for name, r in self.results.items()}}

    def load_state(self, state: dict[str, Any]) -> None:
        results = {}
        for name, fields in state["results"].items():
            # Checkpoints from before epochs counted together have no `recent`.
            latest = [row[name] for row in state["history"][-EPOCHS_TOGETHER:] if name in row]
            recent = [figures["validation"] for figures in latest]
            results[name] = ModelResult(**{"recent": recent, **fields})
        vars(self).update({**state, "results": results})


class Clock:
    """Seconds of a stage and of its epoch under way, those of an earlier process with them."""

    def __init__(self, progress: Progress) -> None:
        now = time.perf_counter()
        self.began, self.epoch_began = now - progress.seconds, now - progress.epoch_seconds
        self.steps_ended = now

    def begin_epoch(self) -> None:
        self.epoch_began = time.perf_counter()

    def end_steps(self) -> float:
        """The seconds that the epoch's steps took."""
        self.steps_ended = time.perf_counter()
        return self.steps_ended - self.epoch_began

    def read(self, progress: Progress) -> None:
        now = time.perf_counter()
        progress.seconds, progress.epoch_seconds = now - self.began, now - self.epoch_began
