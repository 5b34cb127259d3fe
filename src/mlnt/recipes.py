"""The stages of each method, from fresh networks to a Result.

    weights="self"       features without labels, which all networks then begin with
    cross_entropy        cross entropy
    mlnt                 cross entropy -> features -> iterations led by mentors
    mean_teacher, iterative   the same without the meta step
    forward              cross entropy -> transition matrix -> corrected loss
    joint_optimization   network and labels together -> a fresh network on the labels found
    cnn_crf              one training beside a field over clean and noisy labels
    gce, elr, …          one training by a loss of their own (config.SINGLE_STAGE)

Axes: N samples, C classes, D features.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import SINGLE_STAGE, Settings
from mlnt.data.dataset import Split
from mlnt.data.image_files import ImageFiles
from mlnt.data.streaming import first_of
from mlnt.errors import InputError
from mlnt.evaluation import (
    extract_features,
    found_errors,
    memorised_noise,
    predict_probabilities,
    readable,
)
from mlnt.iterations import Kept, Led, best_model, choose_stage, filtered_by, run_iterations
from mlnt.judging import Judge
from mlnt.left_out import Proof, proof_of
from mlnt.linear import can_be_fitted, fit_last_layer_, some_of
from mlnt.meta.features import split_at_features
from mlnt.methods import (
    CNNCRF,
    MLNT,
    Clean,
    Contrastive,
    CrossEntropy,
    Forward,
    Iterative,
    JointOptimization,
    MeanTeacher,
    Method,
    SoftCrossEntropy,
    estimate_transition,
    single_stage,
    true_transition,
)
from mlnt.methods.contrastive import contrastive_settings
from mlnt.methods.forward import ANCHOR_QUANTILE
from mlnt.noise_model import Judgement
from mlnt.progress import Choice
from mlnt.training import Stage, StageResult, Trainer

# Joint Optimization (Tanaka et al. 2018) by the kind of noise: the constant rate while labels are
# corrected (0.08 and 0.03, of the 0.2 of ordinary training), the weights of the prior and of the
# entropy. From a reimplementation for CIFAR-10 (YU1ut), whose figures are the publication's. Its
# first stage has 200 epochs and begins at the 70th; here `last_epochs`, in proportion.
JOINT = {"symmetric": (0.4, 1.2, 0.8), "asymmetric": (0.15, 0.8, 0.4)}
# Standard errors: of all stages, cross entropy among them, one has luck with the held-out labels
# more easily than of two.
SURELY = 2.0
CLEAN_SHARE = 0.1  # of the training samples, whose true labels CNN-CRF is told


@dataclass
class Result:
    """All that a training produced."""

    stages: list[StageResult]
    chosen: StageResult  # that the deployed model comes from
    model: nn.Module  # its best model
    probabilities: Tensor  # [N, C], what that model says of the training samples
    judgement: Judgement  # of the training labels by that model, then of the held-out ones
    kept: Kept | None  # what the last filter left
    filters: list[dict[str, Any]]


@dataclass(frozen=True)
class Recipe:
    """All that the stages of a method need."""

    trainer: Trainer
    new_model: Callable[[], nn.Module]  # a network to begin with
    classes: Sequence[str]
    unlabelled: StageResult | None = None  # whose weights the networks begin with

    def begun(self) -> "Recipe":
        """With networks that begin with features learnt without labels, if weights="self"."""
        if self.trainer.settings.weights != "self":
            return self
        settings = contrastive_settings(self.trainer.settings, len(self.trainer.train))
        trainer = replace(self.trainer, settings=settings)
        some_inputs = first_of(trainer.train.inputs, 2)
        method = Contrastive(self.new_model(), settings, some_inputs, trainer.generator)
        stage = trainer.run(Stage("contrastive", 0), method)
        model, may_learn = stage.models["student"], can_be_fitted(method.last)
        if may_learn:
            # No gradient reaches the features through zeros: the first steps do not spoil them.
            for parameter in method.last.parameters():
                nn.init.zeros_(parameter)
        weights = {name: value.clone() for name, value in model.state_dict().items()}
        if may_learn:
            _learn_labels(trainer, model, method.last)
        trainer.evaluate(stage.models, stage.results, len(stage.history), Choice.LAST)

        def begun_model() -> nn.Module:
            model = self.new_model()
            model.load_state_dict(weights)
            return model

        return replace(self, new_model=begun_model, unlabelled=stage)

    def led_by(self, method: str) -> Led:
        """Train the stages of a method."""
        if method in SINGLE_STAGE:
            return self.single_stage(method)
        if method not in RECIPES:
            raise InputError(f"no stages are written down for {method!r} (RECIPES in recipes.py)")
        return RECIPES[method](self)

    def stages_of(self, led: "Led") -> list[StageResult]:
        """All of them, what the networks began with first."""
        return [stage for stage in (self.unlabelled, *led.stages) if stage is not None]

    def cross_entropy(self) -> Led:
        method = CrossEntropy(self.new_model(), self.trainer.settings)
        return Led([self.trainer.run(Stage("cross_entropy", 0), method)])

    def mlnt(self) -> Led:
        trainer = self.trainer

        def method(mentor: nn.Module | None, settings: Settings, judge: Judge) -> MLNT:
            assert judge.describer is not None
            features_ND = judge.features(judge.describer)[: len(trainer.train)]
            return MLNT(self.new_model(), settings, features_ND, mentor, trainer.generator)

        return self._after_cross_entropy("mlnt", method)

    def mean_teacher(self) -> Led:
        return self._after_cross_entropy(
            "mean_teacher", lambda _, settings, __: MeanTeacher(self.new_model(), settings)
        )

    def iterative(self) -> Led:
        return self._after_cross_entropy(
            "iterative", lambda _, settings, __: Iterative(self.new_model(), settings)
        )

    def _after_cross_entropy(
        self, name: str, make_method: Callable[[nn.Module | None, Settings, Judge], Method]
    ) -> Led:
        """Iterations of MLNT, or of what is left of it: led alike, by mentors that judge alike.

        `make_method` gets the mentor, the settings for it and the judge.
        """
        trainer, first = self.trainer, self.cross_entropy()
        leader = self._leader(first.stages[0])
        describer = best_model(leader or first.stages[0])
        judge = Judge(trainer.train, trainer.validation, trainer.world, describer)

        def method(mentor: nn.Module | None, settings: Settings) -> Method:
            return make_method(mentor, settings, judge)

        prove = self._proof if _must_prove(trainer) else None
        led = run_iterations(trainer, name, method, judge, self.classes, leader, prove)
        return replace(led, stages=first.stages + led.stages)

    def _proof(self) -> Proof | None:
        """Whether what a mentor keeps is worth more than all labels: by mentors like the first."""
        trainer = self.trainer

        def keep(mentor: nn.Module, train: Split) -> tuple[Tensor, Tensor | None]:
            judge = Judge(train, trainer.validation, describer=mentor)
            kept = filtered_by(mentor, False, train, trainer.settings, judge)
            return kept.indices, kept.class_weights

        settings, world = trainer.settings, trainer.world
        proof = proof_of(self.new_model, trainer.train, settings, settings.seed, keep)
        found = world.share(None if proof is None else proof.to_json())  # GPUs may differ a little
        return None if found is None else Proof(**found)

    def _leader(self, labelled: StageResult) -> StageResult | None:
        """Who leads the first iteration: the network whose features never saw a label, unless
        labels did them more good than harm, for all that can be told; then nobody."""
        if self.unlabelled is None:
            return None
        stages, trainer = [labelled, self.unlabelled], self.trainer
        better = choose_stage(stages, trainer.validation, world=trainer.world)
        return self.unlabelled if better is self.unlabelled else None

    def forward(self) -> Led:
        first = self.cross_entropy()
        trainer = self.trainer
        noisy_NC = predict_probabilities(
            best_model(first.stages[0]), trainer.train.inputs, trainer.world
        )
        shares_C = torch.bincount(self.trainer.train.labels, minlength=len(self.classes)).double()
        shares_C = shares_C / shares_C.sum()
        # The sample at the quantile must be of its class, however small that is.
        is_safe = float(shares_C.min()) > 2 * (1 - ANCHOR_QUANTILE)
        quantile = ANCHOR_QUANTILE if is_safe else 1.0
        second = self._forward("forward", estimate_transition(noisy_NC, quantile))
        return Led([*first.stages, second])

    def forward_true(self) -> Led:
        train = self.trainer.train
        assert train.true_labels is not None  # see check_method
        matrix = true_transition(train.labels, train.true_labels, len(self.classes))
        return Led([self._forward("forward_true", matrix)])

    def _forward(self, name: str, transition_CC: Tensor) -> StageResult:
        trainer = self.trainer.at_last()
        method = Forward(self.new_model(), trainer.settings, transition_CC)
        return trainer.run(Stage(name, 1), method)

    def joint_optimization(self) -> Led:
        trainer = self.trainer.at_last()
        usual = trainer.settings
        kind = "asymmetric" if usual.noise.startswith("asymmetric") else "symmetric"
        lr_share, alpha, beta = JOINT[kind]
        # The rate stays high while labels are corrected: a falling one would fit them as they are.
        settings = replace(usual, fall="step", fall_at=1.0, lr=usual.lr * lr_share)
        train, count = trainer.train, len(self.classes)
        labels_N, true_N = train.labels, train.true_labels
        # The method asks for the shares of the true classes. Where nobody knows them, those of the
        # given labels are the best guess there is.
        known_N = labels_N if true_N is None else true_N
        prior_C = torch.bincount(known_N, minlength=count).double() / len(known_N)
        joint = JointOptimization(
            self.new_model(), settings, labels_N, count, prior_C, alpha=alpha, beta=beta
        )
        first = replace(trainer, settings=settings).run(Stage("joint_optimization", 1), joint)
        method = SoftCrossEntropy(self.new_model(), usual, joint.soft_labels_NC)
        return Led([first, trainer.run(Stage("joint_optimization", 2), method)])

    def single_stage(self, name: str) -> Led:
        trainer = self.trainer.at_last()
        sizes = (len(trainer.train), len(self.classes))
        method = single_stage(name)(self.new_model(), trainer.settings, *sizes)
        return Led([trainer.run(Stage(name, 1), method)])

    def cnn_crf(self) -> Led:
        trainer, train = self.trainer.at_last(), self.trainer.train
        assert train.true_labels is not None  # see check_method
        assert isinstance(train.inputs, Tensor)
        # Not the validation data, which has to choose the epoch.
        order = torch.randperm(
            len(train), generator=trainer.generator, device=trainer.generator.device
        )
        known = order[: max(1, round(CLEAN_SHARE * len(train)))]
        clean = Clean(train.inputs[known], train.true_labels[known], train.labels[known])
        method = CNNCRF(
            self.new_model(), trainer.settings, clean, len(self.classes), trainer.generator
        )
        return Led([trainer.run(Stage("cnn_crf", 1), method)])


RECIPES: dict[str, Callable[[Recipe], Led]] = {
    "cross_entropy": Recipe.cross_entropy,
    "mlnt": Recipe.mlnt,
    "mean_teacher": Recipe.mean_teacher,
    "iterative": Recipe.iterative,
    "forward": Recipe.forward,
    "forward_true": Recipe.forward_true,
    "joint_optimization": Recipe.joint_optimization,
    "cnn_crf": Recipe.cnn_crf,
}


def _learn_labels(trainer: Trainer, model: nn.Module, last: nn.Linear) -> None:
    """Fit the last layer of a network that learnt its features without labels.

    Not a part of its training: what came of that serves for other labels as well.
    """
    inputs, labels_N = trainer.train.inputs, trainer.train.labels
    chosen = some_of(len(labels_N), last)
    if chosen is not None:
        chosen = chosen.to(labels_N.device)
        inputs, labels_N = inputs[chosen], labels_N[chosen]
    features_ND = extract_features(model, inputs, trainer.world)
    rows = readable(inputs)
    fit_last_layer_(last, features_ND[rows], labels_N[rows])
    trainer.world.match_({"student": model})


def _must_prove(trainer: Trainer) -> bool:
    settings = trainer.settings
    return settings.prove_filter and settings.tau == "auto"


def check_method(settings: Settings, train: Split) -> None:
    """Raise InputError if the data lacks what the method needs."""
    method = settings.method
    if method in ("forward_true", "cnn_crf") and train.true_labels is None:
        raise InputError(f"{method} is told true labels, and none are known; try another method")
    if settings.weights == "self" and train.inputs.ndim != 4:
        raise InputError("weights='self' are learnt from pictures, and these data are none")
    if method == "cnn_crf" and isinstance(train.inputs, ImageFiles):
        raise InputError("cnn_crf keeps its clean samples in memory, not pictures on disk")


def check_network(settings: Settings, train: Split, model: nn.Module) -> None:
    """Raise InputError if the network lacks what the method needs."""
    if settings.weights == "self":
        try:
            split_at_features(model, first_of(train.inputs, 2))
        except InputError as error:
            raise InputError(f"{error}; weights='none' can be used with it") from None


def run_recipe(
    trainer: Trainer, new_model: Callable[[], nn.Module], classes: Sequence[str]
) -> Result:
    """Train by the settings' method; `new_model` gives a freshly initialised network."""
    method = trainer.settings.method
    recipe = Recipe(trainer, new_model, classes).begun()
    led = recipe.led_by(method)
    stages = recipe.stages_of(led)
    chosen = choose_stage(stages, trainer.validation, led.kept, trainer.world, SURELY)
    model = best_model(chosen)
    probabilities_NC = predict_probabilities(model, trainer.train.inputs, trainer.world)
    judge = led.judge or Judge(trainer.train, trainer.validation, trainer.world)
    return Result(
        stages=stages,
        chosen=chosen,
        model=model,
        kept=led.kept,
        probabilities=probabilities_NC,
        judgement=judge(model, probabilities_NC, chosen.is_led),
        filters=led.filters,
    )


def summarise(result: Result, trainer: Trainer) -> dict[str, Any]:
    """The final figures of every model and iteration, as they go into summary.json."""
    train = trainer.train
    rows = [
        {
            "method": stage.stage.method,
            "iteration": stage.stage.iteration,
            "model": name,
            "best_epoch": figures.best_epoch,
            "validation": figures.validation,
            "best": figures.best,
            "last": figures.last,
            "peak": figures.peak,
            "seconds": stage.seconds,
        }
        for stage in result.stages
        for name, figures in stage.results.items()
    ]
    summary: dict[str, Any] = {
        "models": rows,
        "chosen": {
            "method": result.chosen.stage.method,
            "iteration": result.chosen.stage.iteration,
            "model": result.chosen.best_name,
            "best": result.chosen.best.best,
        },
        "filters": result.filters,
    }
    if any(row.get("shared_gpu") for stage in result.stages for row in stage.history):
        summary["shared_gpu"] = True
    if train.true_labels is not None:
        counted = readable(train.inputs)
        labels_N, true_N = train.labels[counted], train.true_labels[counted]
        wrong_N = labels_N != true_N
        summary["found_errors"] = found_errors(
            result.judgement.wrong[: len(train)][counted], wrong_N
        )
        if wrong_N.any():
            summary["memorised_noise"] = {
                f"{stage.stage.name} {name}": memorised_noise(
                    predict_probabilities(model, train.inputs, trainer.world)[counted],
                    labels_N,
                    true_N,
                )
                for stage in result.stages
                for name, model in stage.models.items()
            }
    return summary
