"""`NoiseTolerance`: MLNT for one's own training loop."""

import inspect
import logging
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.arguments import as_tensor, check_generator, in_one_line
from mlnt.config import Settings, convert
from mlnt.distributed import ALL_ALONE, Rows, World
from mlnt.errors import InputError, did_you_mean
from mlnt.meta.division import added_up, divided_meta_gradient
from mlnt.meta.features import as_arguments, evaluating, penultimate
from mlnt.meta.folded import Target
from mlnt.meta.gradient import check_network, check_trainable, checked
from mlnt.meta.labels import synthetic_labels
from mlnt.meta.plain import Gradients
from mlnt.meta.tape import stream_aside
from mlnt.meta.teacher import (
    copy_buffers_,
    ema_,
    follow_,
    make_teacher,
    mixed_target,
    probabilities,
    renew_statistics,
)
from mlnt.meta.wrapped import as_written, own_name, replicas_within, unwrapped

# Meta updates after which the teacher's answers are looked at, for which a GPU is waited for; how
# many looks in a row must find one class given to so much more of the batch than any label.
LOOK_EVERY, LOOKS, ONE_SIDED = 100, 2, 0.4
FEWEST_TO_TELL = 32  # samples of a batch

log = logging.getLogger("mlnt")


class NoiseTolerance:
    """Makes any training loop noise-tolerant: a meta update before, a teacher update after.

        tolerance = mlnt.NoiseTolerance(model)
        for inputs, labels, features in batches:
            tolerance.meta_update(inputs, labels, features, eta=0.4)
            optimizer.zero_grad()
            cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            tolerance.update_teacher(gamma=0.999)

    `tolerance.teacher` is the moving average of the model, usually the better classifier once it
    has seen some multiples of 1 / (1 − γ) steps. It must be in eval mode for predictions. `mentor`
    is the best model of an earlier training, if any.

    A model in DistributedDataParallel is moved by the mean of the processes' meta-gradients. Of a
    compiled one the meta update takes what was compiled. docs/own-loop.md has more.
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
        check_network(model, "model")
        check_generator(generator)
        if mentor is not None:
            check_network(mentor, "mentor")
        self.student, self.replicas = unwrapped(model), replicas_within(model)
        if mentor is not None and _learns_with(mentor, self.student):
            raise InputError(
                "the mentor is the model itself, or has parameters that the model learns; give a "
                "copy (copy.deepcopy)"
            )
        self.teacher = make_teacher(self.student)
        self.wide: dict[str, Tensor] = {}  # its means, where it has fewer than 32 bits
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
        self._has_answered = False  # the teacher, whose statistics come of it
        self.watches = True  # what goes wrong in a loop; mlnt's own training looks itself
        self._updates = self._one_sided = 0  # meta updates; looks in a row that found it so
        for name in ("sets", "rho", "neighbours", "alpha", "order", "consistency", "engine"):
            setattr(self, name, checked(name, convert(name, getattr(self, name))))

    @as_written()
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
        check_trainable(self.student)
        follow_(self.teacher, self.student, self.wide)
        lam = checked("lam", lam)
        inputs = as_arguments(inputs)
        seen = inputs if for_teacher is None else as_arguments(for_teacher)
        device = next(self.teacher.parameters()).device
        labels = as_tensor(labels, "labels", "class numbers").to(device)
        if features is None:
            features = _own_features(self.teacher, seen)
        elif isinstance(features, int | float):
            raise InputError(f"features must be [B, D], got {features}; for a rate: eta={features}")
        features = as_tensor(features, "features").to(device)
        synthetic_MB = synthetic_labels(
            labels, features, self.sets, self.rho, self.neighbours, self.generator
        )
        target = self._target_aside(seen, lam, self.world.rows(len(labels)))
        self._has_answered = True
        loss, gradients = divided_meta_gradient(
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
        if self.replicas.size == 1:
            return loss, gradients
        return added_up(self.replicas, loss, gradients, 1 / self.replicas.size)

    def _sure_gradient(self, *arguments: Any) -> tuple[Tensor, Gradients]:
        """`meta_gradient`; all zero where it is not finite, as of a batch with a NaN in it, or in
        float16 one that overflowed: such a step would make the weights NaN for good.
        """
        loss, gradients = self.meta_gradient(*arguments)
        return loss, zero_unless_finite(gradients) if self.watches else gradients

    def _target_aside(self, inputs: Any, lam: float | Tensor, rows: Rows) -> Target:
        """The target; on a GPU computed beside the inner step, which does not need it yet."""
        device = next(self.teacher.parameters()).device
        aside = stream_aside(device)
        if aside is None:
            return mixed_target(self.teacher, self.student, self.mentor, inputs, lam, rows)
        aside.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(aside):
            target_BC = mixed_target(self.teacher, self.student, self.mentor, inputs, lam, rows)

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

        inputs       what the model takes: a tensor, or a tuple or list of its arguments
        labels       [B], as given
        features     [B, D], what the samples' nearest neighbours are searched with; best from a
                     network trained on the same data. None: the teacher's own penultimate ones.
        eta          one rate, or a rate by parameter name (others stay as they are)
        lam          weight of the teacher against the mentor, where there is one
        for_teacher  the same samples as teacher and mentor shall see them, if not as the student:
                     where its images are strongly augmented, weakly
        """
        parameters = dict(self.student.named_parameters())
        eta = _rates(eta, parameters) if isinstance(eta, Mapping) else checked("eta", eta)
        loss, gradients = self._sure_gradient(inputs, labels, features, lam, for_teacher)
        with torch.no_grad():
            if isinstance(eta, Mapping):
                for name, gradient in gradients.items():
                    parameters[name].sub_(eta.get(name, 0.0) * gradient)
            else:
                moved: list[Tensor] = [parameters[name] for name in gradients]
                steps = torch._foreach_mul(list(gradients.values()), eta)
                torch._foreach_sub_(moved, steps)
        # Autocast would go on with its copies of the weights as they were.
        torch.clear_autocast_cache()
        self._look_at_answers(inputs if for_teacher is None else for_teacher, labels)
        return loss

    def _look_at_answers(self, inputs: Any, labels: Any) -> None:
        """Warn once if most samples keep getting one class that few are labelled with: one answer
        for all agrees with itself best, and a meta step far longer than the class step leads there.
        """
        self._updates += 1
        device = next(self.teacher.parameters()).device
        is_gpu = device.type == "cuda"
        is_recorded = is_gpu and torch.cuda.is_current_stream_capturing()
        may_warn = self.watches and self._one_sided < LOOKS and not is_recorded
        if self._updates % LOOK_EVERY or not may_warn:
            return
        excess = self._excess_of_one_class(inputs, labels, [device] if is_gpu else [])
        self._one_sided = self._one_sided + 1 if excess > ONE_SIDED else 0
        if self._one_sided == LOOKS:
            log.warning(
                "after %d meta updates the teacher gives nearly all samples the same class: eta "
                "may be too large for this optimizer (docs/own-loop.md, Choosing the rates)",
                self._updates,
            )

    @as_written()
    @torch.no_grad()
    def _excess_of_one_class(
        self, inputs: Any, labels: Any, devices: Sequence[torch.device]
    ) -> float:
        """How much more of the batch gets one class, from student and teacher, than has any label;
        0 where a batch cannot tell: small ones, and two classes, of which noise hides the rare."""
        labels_B = as_tensor(labels, "labels", "class numbers")
        shares = []
        for model in (self.teacher, self.student):  # an average still holds untrained weights
            with evaluating(model), torch.random.fork_rng(devices):
                answers_BC = probabilities(model, as_arguments(inputs))
            if len(answers_BC) < FEWEST_TO_TELL or answers_BC.shape[1] == 2:
                return 0.0
            if not bool(answers_BC.isfinite().all()):
                return 0.0  # of NaN all answers are the first class
            shares.append(_largest_share(answers_BC.argmax(dim=1)))
        return min(shares) - _largest_share(labels_B)

    def add_meta_gradient(
        self,
        inputs: Any,
        labels: Tensor,
        features: Tensor | None = None,
        weight: float | Tensor = 1.0,
        lam: float | Tensor = Settings.lam,
        for_teacher: Any = None,
    ) -> Tensor:
        """Add weight · ∇L_meta(θ) to `.grad`, for one summed step, as the authors' code does.

        With a GradScaler after its `unscale_`, for that would shrink the meta-gradient too.
        """
        loss, gradients = self._sure_gradient(inputs, labels, features, lam, for_teacher)
        parameters = dict(self.student.named_parameters())
        for name, gradient in gradients.items():
            grad = parameters[name].grad
            scaled = weight * gradient
            parameters[name].grad = scaled if grad is None else grad + scaled
        return loss

    def update_teacher(self, gamma: float | Tensor = Settings.gamma) -> None:
        """θ̃ ← γ θ̃ + (1 − γ) θ; buffers that are no statistics become the model's."""
        follow_(self.teacher, self.student, self.wide)
        ema_(self.teacher, self.student, checked("gamma", gamma), self.wide)
        # While its batch norms know nothing yet, those of the student are nearer than none.
        copy_buffers_(self.teacher, self.student, with_statistics=not self._has_answered)

    @as_written()
    def renew_teacher(self, batches: Iterable[Any]) -> None:
        """Statistics of the teacher's batch norms: those of these inputs, before it is evaluated.

        Where `for_teacher` is not what the class loss sees, its own statistics do not belong to its
        weights: those of a few thousand samples as the student learns from them do. Batches are
        what the model takes, without labels.
        """
        if not self.student.training:
            raise InputError(
                "the model is in evaluation mode, which hides what batch norms of it are frozen; "
                "call model.train() before, and freeze again what is to be"
            )
        follow_(self.teacher, self.student, self.wide)
        renew_statistics(
            self.teacher, self.student, (_alone(self.teacher, inputs) for inputs in batches)
        )

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint needs beside the model and its optimizer."""
        return {
            "teacher": self.teacher.state_dict(),
            "wide": dict(self.wide),
            "has_answered": self._has_answered,
            "generator": None if self.generator is None else self.generator.get_state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if not {"teacher", "has_answered"} <= state.keys():
            keys = in_one_line(list(state))
            raise InputError(f"state must be what NoiseTolerance.state_dict() gave, it has {keys}")
        self.teacher.load_state_dict(state["teacher"])
        # Older ones have none: the means go on from the teacher's weights.
        self.wide = {name: mean.clone() for name, mean in state.get("wide", {}).items()}
        self._has_answered = state["has_answered"]
        if self.generator is not None and (numbers := state.get("generator")) is not None:
            self.generator.set_state(numbers.cpu())


def _learns_with(mentor: nn.Module, student: nn.Module) -> bool:
    """Whether it would change as the student learns. What is frozen they may share."""
    learnt = {id(p) for p in student.parameters() if p.requires_grad}
    return unwrapped(mentor) is student or any(id(p) in learnt for p in mentor.parameters())


def _largest_share(classes_B: Tensor) -> float:
    """Of the most frequent one."""
    return float(classes_B.unique(return_counts=True)[1].max() / len(classes_B))


def zero_unless_finite(gradients: Gradients) -> Gradients:
    """All of them zero if a single number is infinite or NaN; on a GPU decided there."""
    values = [gradient for gradient in gradients.values() if gradient.numel()]
    if all(g.device.type == "cpu" for g in values):
        # Norms are many times as fast as looking at each number, but of large ones infinite.
        if _are_finite(torch._foreach_norm(values)) or all(g.isfinite().all() for g in values):
            return gradients
        return {name: torch.zeros_like(g) for name, g in gradients.items()}
    is_finite = _are_finite(torch._foreach_norm(values, math.inf))
    return {name: torch.where(is_finite.to(g.device), g, 0.0) for name, g in gradients.items()}


def _are_finite(norms: Sequence[Tensor]) -> Tensor:
    return torch.stack([norm.to(norms[0].device) for norm in norms]).isfinite().all()


def _rates(eta: Mapping[str, Any], parameters: Mapping[str, Tensor]) -> dict[str, Any]:
    """By the network's own names of its parameters."""
    rates = {own_name(name, parameters): checked("eta", rate) for name, rate in eta.items()}
    if unknown := sorted(rates.keys() - parameters.keys()):
        hint = did_you_mean(unknown[0], list(parameters))
        raise InputError(f"eta: the model has no parameter {unknown[0]!r}{hint}")
    return rates


def _alone(model: nn.Module, batch: Any) -> Any:
    """The model's arguments, among which there may be no labels."""
    inputs = as_arguments(batch)
    if isinstance(inputs, tuple) and not model._forward_pre_hooks:  # which may leave some out
        try:
            inspect.signature(model.forward).bind(*inputs)
        except TypeError as error:
            raise InputError(
                f"batches must hold what the model takes, without labels; it does not take "
                f"{len(inputs)} parts ({error}): give (x for x, y in loader)"
            ) from None
    return inputs


def _own_features(teacher: nn.Module, inputs: Any) -> Tensor:
    """Its penultimate ones. If they overflowed, that is no mistake of the caller's: finite then,
    where somebody looks (see `synthetic_labels`)."""
    features = penultimate(teacher, inputs)
    return features.nan_to_num() if features.device.type == "cpu" else features
