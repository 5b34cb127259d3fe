"""Every setting once: its default, its symbol in the paper, its meaning and its valid range.

The command line, `mlnt.train`, `mlnt.NoiseTolerance` and the report read defaults from here.
The defaults are the paper's for CIFAR-10; `PRESETS` says what differs for other data.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mlnt.errors import InputError, did_you_mean
from mlnt.values import check_setting, converted, setting

# Methods of one stage that differ from cross entropy by their loss alone: the class in the file
# methods/NAME.py, by which tables call it too.
SINGLE_STAGE = {"gce": "GCE", "elr": "ELR"}


@dataclass(frozen=True)
class Settings:
    """All that decides a run besides the data."""

    method: str = setting(
        "mlnt",
        "how to train; mlnt, its ablations and forward train cross_entropy first",
        group="Method",
        choices=(
            "mlnt",
            "cross_entropy",
            "forward",
            "forward_true",
            "joint_optimization",
            "cnn_crf",
            *SINGLE_STAGE,
            "mean_teacher",
            "iterative",
        ),
    )
    model: str = setting(
        "auto",
        "network: auto, small_conv, pooled_conv, preact_resnet32, resnet18, resnet50, mlp, "
        "bins8, bins64, bag, gru, torchvision:NAME or timm:NAME",
        group="Method",
    )
    weights: str = setting(
        "none",
        "weights to start from: none, self (learnt from the pictures without labels, in batches "
        "four times as large), imagenet (of torchvision or timm) or a file",
        group="Method",
    )
    iterations: int = setting(
        3, "training iterations, each after the first led by a mentor", group="Method", low=1
    )
    sets: int = setting(
        10, "sets of synthetic labels per batch", group="Meta update", symbol="M", low=1
    )
    rho: float = setting(
        0.5,
        "share of the batch whose labels are replaced in each set",
        group="Meta update",
        symbol="ρ",
        low=0,
        high=1,
    )
    neighbours: int = setting(
        10, "nearest others in the batch a label may come from", group="Meta update", low=1
    )
    alpha: float = setting(
        0.2, "step size of the inner step", group="Meta update", symbol="α", low=0
    )
    eta: float = setting(
        0.4, "meta-learning rate, after its ramp", group="Meta update", symbol="η", low=0
    )
    order: int = setting(
        1, "1: first-order approximation, 2: full gradient", group="Meta update", low=1, high=2
    )
    consistency: str = setting(
        "kl",
        "consistency loss: kl divergence or mean squared error",
        group="Meta update",
        choices=("kl", "mse"),
    )
    update: str = setting(
        "separate",
        "separate: meta step, then class step; summed: one step on both gradients",
        group="Meta update",
        choices=("separate", "summed"),
    )
    engine: str = setting(
        "auto",
        "how the meta-gradient is computed, with the same result",
        group="Meta update",
        choices=("auto", "plain", "folded"),
    )
    tau: float | str = setting(
        "auto",
        "mentor probability of the given label at or below which a sample leaves the class loss; "
        "auto: by the noise model, otsu: by Otsu's threshold",
        group="Mentor",
        symbol="τ",
        low=0,
        high=1,
        words=("auto", "otsu"),
    )
    lam: float = setting(
        0.5,
        "weight of the teacher against the mentor at the end of its ramp",
        group="Mentor",
        symbol="λ",
        low=0,
        high=1,
    )
    led_lr: float | str = setting(
        "same",
        "learning rate of the class update where a mentor has filtered the labels; same: as "
        "elsewhere",
        group="Mentor",
        low=0,
        words=("same",),
    )
    led_weight_decay: float | str = setting(
        "same",
        "weight decay where a mentor has filtered the labels; same: as elsewhere",
        group="Mentor",
        low=0,
        words=("same",),
    )
    prove_filter: bool = setting(
        False,
        "filter only where labels left out are agreed with no less by networks that learn what the "
        "mentor keeps than by others that learn all; with tau auto, of 300 samples or more",
        group="Mentor",
    )
    teacher_settles: bool = setting(
        False,
        "where a mentor has filtered the labels and rates fall to zero, the teacher remembers no "
        "more steps than are left",
        group="Mentor",
    )
    keep_per_class: float = setting(
        0.05,
        "smallest share of each class that the filter keeps",
        group="Mentor",
        low=0,
        high=1,
    )
    epochs: int = setting(120, "epochs of each iteration", group="Schedule", low=1)
    last_epochs: int | str = setting(
        "same",
        "epochs of what a method ends with: the last of several iterations, or all that comes "
        "after cross entropy; same: as many as elsewhere",
        group="Schedule",
        low=1,
        words=("same",),
    )
    self_epochs: int | str = setting(
        "same",
        "epochs without labels, of weights=self; same: as many as an iteration has",
        group="Schedule",
        low=1,
        words=("same",),
    )
    batch_size: int = setting(128, "samples per batch", group="Schedule", symbol="k", low=2)
    lr: float = setting(
        0.2, "learning rate of the class update", group="Schedule", symbol="β", low=0
    )
    momentum: float = setting(
        0.9, "momentum of the class update", group="Schedule", low=0, high=0.9999
    )
    weight_decay: float = setting(1e-4, "weight decay of the class update", group="Schedule", low=0)
    fall: str = setting(
        "step",
        "how rates fall: step (lr to a tenth) or linear (lr and eta to zero)",
        group="Schedule",
        choices=("step", "linear"),
    )
    fall_at: float = setting(
        2 / 3, "share of the epochs after which rates fall", group="Schedule", low=0, high=1
    )
    warmup: float = setting(
        1 / 6,
        "share of the epochs with eta ramping and gamma_early",
        group="Schedule",
        low=0,
        high=1,
    )
    gamma_early: float = setting(
        0.99, "teacher decay during warmup", group="Schedule", symbol="γ", low=0, high=1
    )
    gamma: float = setting(
        0.999, "teacher decay after warmup", group="Schedule", symbol="γ", low=0, high=1
    )
    noise: str = setting(
        "none",
        "label noise to inject, for experiments: symmetric:0.5, asymmetric:0.4, matrix:FILE",
        group="Data",
    )
    validation: str = setting(
        "noisy",
        "whether injected noise also hits the validation labels",
        group="Data",
        choices=("noisy", "clean"),
    )
    validation_share: float = setting(
        0.1, "share of the training data held out for validation", group="Data", low=0.01, high=0.5
    )
    image_size: int = setting(
        224,
        "side of the crop of pictures read from disk, in pixels",
        group="Data",
        low=8,
        high=2048,
    )
    crop_padding: int = setting(
        0, "pixels of padding for random crops of images", group="Data", low=0, high=64
    )
    flip: bool = setting(False, "flip images left to right at random", group="Data")
    cutout: int = setting(
        0,
        "side of a square at a random place of each image that is blanked, in pixels; teacher and "
        "mentor see the whole image",
        group="Data",
        low=0,
        high=2048,
    )
    seed: int = setting(0, "seed of every random choice", group="Machine", low=0, high=2**31 - 1)
    device: str = setting("auto", "auto, cpu, cuda, cuda:1", group="Machine")
    workers: int | str = setting(
        "auto",
        "processes that read pictures from disk",
        group="Machine",
        low=0,
        high=256,
        words=("auto",),
    )
    precision: str = setting(
        "auto",
        "what to compute in; auto: bfloat16 on a GPU (weights stay float32), else float32",
        group="Machine",
        choices=("auto", "bfloat16", "float32", "float64"),
    )
    graph: bool = setting(True, "run each step as one CUDA graph, on a GPU", group="Machine")
    deterministic: bool = setting(
        False,
        "the same bits in every run on a GPU too: slower, no CUDA graph; a CPU gives them anyway",
        group="Machine",
    )
    checkpoint_minutes: float = setting(
        5.0,
        "minutes between checkpoints within an epoch; the end of an epoch has its own",
        group="Machine",
        low=0,
    )

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            check_setting(field, getattr(self, field.name))
        for name in ("lr", "led_lr"):
            if self.update == "summed" and getattr(self, name) == 0:
                raise InputError(
                    f"update='summed' weighs the meta-gradient by eta / lr; {name} must not be 0"
                )


# Small data has few steps: the teacher needs a shorter memory, and rates that fall to zero let
# it settle. Few label sets keep a run short on a CPU. From a random search on the digits
# (symmetric 70 %), the last two settings compared by validation accuracy on four new seeds.
_SMALL: dict[str, Any] = {
    "sets": 3,
    "eta": 0.2,
    "gamma_early": 0.9,
    "gamma": 0.99,
    "fall": "linear",
    "fall_at": 0.5,
}

# What differs from the paper's CIFAR-10 values, by kind of data.
PRESETS: dict[str, dict[str, Any]] = {
    "cifar10": {"model": "preact_resnet32", "crop_padding": 4, "flip": True},
    # A short schedule. M=1 because M is a sample count and steps are worth more: after four minutes
    # each (`mlnt bench --accuracy`, benchmarks/h200-accuracy.json) the teacher validated at 87.5,
    # 87.5, 86.2 and 86.0 % with M = 1, 2, 5 and 10. What only prepares is short, for mentors of 30
    # epochs filter as well as those of 60; the last iteration has the time (docs/trials.md).
    "cifar10-fast": {
        "model": "preact_resnet32",
        "crop_padding": 4,
        "flip": True,
        "sets": 1,
        "weights": "self",
        "self_epochs": 96,
        "epochs": 30,
        "last_epochs": 60,
        "lr": 0.2,
        "weight_decay": 2e-4,
        "led_lr": 0.1,
        "led_weight_decay": 5e-4,
        "teacher_settles": True,
        "fall": "linear",
        "fall_at": 0.0,
        "cutout": 16,
    },
    "clothing1m": {
        "model": "resnet50",
        "weights": "imagenet",
        "epochs": 3,
        "batch_size": 32,
        "lr": 0.0008,
        "weight_decay": 1e-3,
        "alpha": 0.02,
        "eta": 0.0008,
        "tau": 0.3,
        "warmup": 2000 / 93_750,  # 2,000 of the batches of three epochs over a million images
        "fall_at": 1.0,
    },
    "digits": {**_SMALL, "model": "small_conv", "epochs": 40},
    "image": {**_SMALL, "model": "small_conv", "image_size": 64, "epochs": 40},
    "table": {
        **_SMALL,
        "model": "mlp",
        "epochs": 40,
        "lr": 0.05,
        "weight_decay": 1e-2,
        "prove_filter": True,
    },
    "text": {
        **_SMALL,
        "model": "bag",
        "epochs": 16,
        "batch_size": 64,
        "lr": 0.5,
        "weight_decay": 1e-3,
        "alpha": 0.5,
        "gamma": 0.98,
        "fall_at": 2 / 3,
    },
}


def convert(name: str, value: Any) -> Any:
    """`value` as the type of the setting `name`; strings such as "0.5" become numbers."""
    return converted(name, kinds_of(fields_by_name()[name]), value)


def kinds_of(field: dataclasses.Field) -> tuple[type, ...]:
    """(float, str) for a field annotated `float | str`."""
    hint = _hints()[field.name]
    return typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)


@functools.cache
def _hints() -> dict[str, Any]:
    return typing.get_type_hints(Settings)


def fields_by_name() -> dict[str, dataclasses.Field]:
    return {field.name: field for field in dataclasses.fields(Settings)}


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Settings read from a file: every name known, every value of its type."""
    known_names = fields_by_name()
    for name in values:
        if name not in known_names:
            hint = did_you_mean(name, known_names) or "; `mlnt train --help` lists all settings"
            raise InputError(f"unknown setting {name!r}{hint}")
    return Settings(**{name: convert(name, value) for name, value in values.items()})


def named_values(texts: Sequence[str], option: str) -> dict[str, str]:
    """{"model": "resnet18"} from ["model=resnet18"]: settings that an option names."""
    for text in texts:
        if "=" not in text:
            raise InputError(f"{option} takes NAME=VALUE, got {text!r}")
    values: dict[str, str] = {}
    for name, value in (text.split("=", 1) for text in texts):
        if values.setdefault(name, value) != value:
            raise InputError(f"{option} says {name}={values[name]} and {name}={value}; give one")
    settings_from(values)  # names of settings alone, and values that these may have
    return values


def make_settings(preset: str = "cifar10", **overrides: Any) -> Settings:
    """The settings of a preset with some changed by name."""
    if preset not in PRESETS:
        known = ", ".join(PRESETS)
        raise InputError(
            f"unknown preset {preset!r}{did_you_mean(preset, PRESETS)} (known: {known})"
        )
    return settings_from({**PRESETS[preset], **overrides})
