"""`NoiseTolerance`: MLNT for one's own training loop."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings, check_setting, convert, fields_by_name
from mlnt.distributed import ALL_ALONE, Rows, World
from mlnt.errors import InputError, did_you_mean
from mlnt.meta.division import divided_meta_gradient
from mlnt.meta.features import penultimate
from mlnt.meta.folded import Target
from mlnt.meta.labels import synthetic_labels
from mlnt.meta.plain import Gradients
from mlnt.meta.tape import stream_aside
from mlnt.meta.teacher import ema_, make_teacher, mixed_target


class NoiseTolerance:
    """Makes any training loop noise-tolerant: a meta update before, a teacher update after.

        tolerance = mlnt.NoiseTolerance(model)
        for inputs, labels, features in batches:
            tolerance.meta_update(inputs, labels, features, eta=0.4)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            tolerance.update_teacher(gamma=0.999)

    `tolerance.teacher` is the moving average of the model, usually the better classifier. It must
    be in eval mode for predictions. `mentor` is the best model of an earlier training, if any.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        sets: int = Settings.sets,
        rho: float = Settings.rho,
        neighbours: int = Settings.neighbours,
        alpha: float = Settings.alpha,
        order: int = Settings.order,
        consistency: str = Settings.consistency,
        engine: str = "auto",
        mentor: nn.Module | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        self.student = model
        self.teacher = make_teacher(model)
        self.mentor = mentor
        self.sets = sets
        self.rho = rho
        self.neighbours = neighbours
        self.alpha = alpha
        self.order = order
        self.consistency = consistency
        self.engine = engine
        self.generator = generator
        self.world: World = ALL_ALONE  # the processes that divide the work
        rules = fields_by_name()
        for name in ("sets", "rho", "neighbours", "alpha", "order", "consistency", "engine"):
            setattr(self, name, convert(name, getattr(self, name)))
            check_setting(rules[name], getattr(self, name))

    def meta_gradient(
        self,
        inputs: Any,
        labels: Tensor,
        features: Tensor | None = None,
        lam: float | Tensor = Settings.lam,
        for_teacher: Any = None,
    ) -> tuple[Tensor, Gradients]:
        """L_meta on this batch and its gradient, by parameter name; changes only the teacher's
        batch-norm statistics."""
        if not any(parameter.requires_grad for parameter in self.student.parameters()):
            raise InputError("the model has nothing to learn: all its parameters are frozen")
        seen = inputs if for_teacher is None else for_teacher
        if features is None:
            features = penultimate(self.teacher, seen)
        synthetic_MB = synthetic_labels(
            labels, features, self.sets, self.rho, self.neighbours, self.generator
        )
        target = self._target_aside(seen, lam, self.world.rows(len(labels)))
        return divided_meta_gradient(
            self.world,
            self.student,
            inputs,
            synthetic_MB,
            target,
            self.alpha,
            self.order,
            self.engine,
            self.consistency,
        )

    def _target_aside(self, inputs: Any, lam: float | Tensor, rows: Rows) -> Target:
        """The target; on a GPU computed beside the inner step, which does not need it yet."""
        device = next(self.teacher.parameters()).device
        aside = stream_aside(device)
        if aside is None:
            return mixed_target(self.teacher, self.mentor, inputs, lam, rows)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            target_BC = mixed_target(self.teacher, self.mentor, inputs, lam, rows)

        def when_needed() -> Tensor:
            torch.cuda.current_stream(device).wait_stream(aside)
            return target_BC

        return when_needed

    def meta_update(
        self,
        inputs: Any,
        labels: Tensor,
        features: Tensor | None = None,
        eta: float | Tensor | Mapping[str, float] = Settings.eta,
        lam: float | Tensor = Settings.lam,
        for_teacher: Any = None,
    ) -> Tensor:
        """θ ← θ − η ∇L_meta(θ), in place and without momentum; returns L_meta.

        features     [B, D], what the samples' nearest neighbours are searched with; best from a
                     network trained on the same data. None: the teacher's own penultimate ones.
        eta          one rate, or a rate by parameter name (others stay as they are)
        lam          weight of the teacher against the mentor, where there is one
        for_teacher  the same samples as teacher and mentor shall see them, if not as the student:
                     where its images are strongly augmented, weakly
        """
        parameters = dict(self.student.named_parameters())
        if isinstance(eta, Mapping) and (unknown := sorted(eta.keys() - parameters.keys())):
            hint = did_you_mean(unknown[0], list(parameters))
            raise InputError(f"eta: the model has no parameter {unknown[0]!r}{hint}")
        loss, gradients = self.meta_gradient(inputs, labels, features, lam, for_teacher)
        with torch.no_grad():
            if isinstance(eta, Mapping):
                for name, gradient in gradients.items():
                    parameters[name].sub_(eta.get(name, 0.0) * gradient)
            else:
                moved: list[Tensor] = [parameters[name] for name in gradients]
                steps = torch._foreach_mul(list(gradients.values()), eta)
                torch._foreach_sub_(moved, steps)
        return loss

    def add_meta_gradient(
        self,
        inputs: Any,
        labels: Tensor,
        features: Tensor | None = None,
        weight: float | Tensor = 1.0,
        lam: float | Tensor = Settings.lam,
        for_teacher: Any = None,
    ) -> Tensor:
        """Add weight · ∇L_meta(θ) to `.grad`, for one summed step, as the authors' code does."""
        loss, gradients = self.meta_gradient(inputs, labels, features, lam, for_teacher)
        parameters = dict(self.student.named_parameters())
        for name, gradient in gradients.items():
            grad = parameters[name].grad
            scaled = weight * gradient
            parameters[name].grad = scaled if grad is None else grad + scaled
        return loss

    def update_teacher(self, gamma: float | Tensor = Settings.gamma) -> None:
        """θ̃ ← γ θ̃ + (1 − γ) θ."""
        ema_(self.teacher, self.student, gamma)
