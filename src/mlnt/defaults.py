"""What follows from the data, so that nobody has to tune: each value with its reason.

A preset holds what suits a kind of data; how much of it there is decides the rest. Whatever the
user says comes first.
"""

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from mlnt.config import Settings, make_settings
from mlnt.data.dataset import Dataset
from mlnt.data.encoding import ImageEncoder
from mlnt.data.image_files import ImageFiles
from mlnt.data.prepare import held_out_of_each

PRESETS_BY_NAME = ("digits", "cifar10", "clothing1m")  # data sets with a preset of their own
# A handful of labels, some of them wrong, cannot tell which epoch is best. Mean test accuracy of
# `MLNTClassifier` on wine, iris, breast cancer and digits with 30 % noise (sets=1, batch_size=128,
# 40 epochs): 50 rows (n=4 seeds), 61 % with a tenth held out, 71 % with ten rows, 71 % with none;
# 110 rows (n=3), 77 % with a tenth, 79 % with twenty rows, 68 % with none.
WANTED_HELD_OUT = 20
LARGEST_SHARE = 0.3  # that is held out to have so many
FEWEST_STEPS = 8  # of an epoch: with fewer there is little to average
PRESET_SAMPLES = {"image": 1200, "table": 1200, "text": 2000}  # of the data they were made with
EPOCHS = (4, 60)  # fewest and most
LARGE_SIDE = 32  # pixels; of smaller images small_conv sees enough
SHIFT = 1 / 8  # of the side, as the usual 4 of CIFAR-10's 32 pixels
LOOKED_AT = 32  # pictures, for how large they are and whether they are coloured
SMALLEST_SIDE = 16  # pixels, that pictures are enlarged to
LEAST_COLOUR = 0.02  # of how much pixels differ: a camera's grey is not quite grey
OF_PICTURES = ("crop_padding", "flip", "cutout")  # settings that other data have no use for


@dataclass(frozen=True)
class Chosen:
    settings: Settings
    reasons: Mapping[str, str]  # by the setting's name

    def for_samples(self, count: int) -> "Chosen":
        """The same, with as many samples in its reasons as there turned out to be to train on:
        repetitions are held out together, so they may be a few more or fewer than expected."""
        words = {
            "batch_size": _why_batch_size(count),
            "epochs": _why_epochs(self.settings.epochs, count),
        }
        reasons = {name: words.get(name, why) for name, why in self.reasons.items()}
        return replace(self, reasons=reasons)


def preset_for(dataset: Dataset) -> str:
    return dataset.name if _has_preset(dataset) else dataset.kind


def _has_preset(dataset: Dataset) -> bool:
    return dataset.is_known and dataset.name in PRESETS_BY_NAME


def choose_settings(
    dataset: Dataset, device: torch.device, preset: str | None, given: Mapping[str, Any]
) -> Chosen:
    """The settings of a run: the user's, else what the data asks for, else the preset's."""
    # What is meant is written down: another version may mean another network.
    given = {name: value for name, value in given.items() if (name, value) != ("model", "auto")}
    if preset is not None or _has_preset(dataset):
        return Chosen(make_settings(preset or preset_for(dataset), **given), {})
    preset = preset_for(dataset)
    found = _derived(dataset, device, make_settings(preset, **given), preset, given)
    derived = {name: value for name, value in found.items() if name not in given}
    values = {name: value for name, (value, _) in derived.items()}
    reasons = {name: reason for name, (_, reason) in derived.items()}
    settings = make_settings(preset, **{**values, **given})
    if settings.tau == "auto" and settings.method == "mlnt" and settings.iterations > 1:
        reasons["tau"] = (
            "a label is kept if it is at least half as certain as the kept ones on average"
        )
    return Chosen(settings, reasons)


def without_effect(dataset: Dataset, asked: Collection[str]) -> Iterator[str]:
    """What to say of settings that the user asked for and that do nothing to this data."""
    pictures = [name for name in OF_PICTURES if name in asked]
    if dataset.kind != "image" and pictures:
        names, verb = ", ".join(pictures), "has" if len(pictures) == 1 else "have"
        yield f"{names} {verb} no effect: these are no pictures"
    if "image_size" in asked and not isinstance(dataset.train.inputs, ImageFiles):
        size = " × ".join(str(side) for side in dataset.encoder.shape[-2:])
        what = f"these pictures stay {size}" if dataset.kind == "image" else "these are no pictures"
        yield f"image_size has no effect: {what}"


def _derived(
    dataset: Dataset,
    device: torch.device,
    usual: Settings,
    preset: str,
    given: Collection[str] = (),
) -> dict[str, tuple[Any, str]]:
    """{setting: (value, reason)}, where the data asks for another value than the usual one."""
    found: dict[str, tuple[Any, str]] = {}
    samples = len(dataset.train)
    if dataset.validation is None:
        wanted = min(WANTED_HELD_OUT / samples, LARGEST_SHARE)
        is_given = "validation_share" in given
        share = usual.validation_share if is_given else max(usual.validation_share, wanted)
        if share > usual.validation_share:
            why = f"so that about {share * samples:.0f} labels choose the best epoch"
            found["validation_share"] = (round(share, 3), why)
        samples -= sum(held_out_of_each(dataset, share))
    largest = max(2, samples // FEWEST_STEPS)
    if usual.batch_size > largest:
        size = 2 ** int(math.log2(largest))
        found["batch_size"] = (size, _why_batch_size(samples))
    few, many = EPOCHS
    epochs = round(usual.epochs * math.sqrt(PRESET_SAMPLES[preset] / samples))
    epochs = min(max(epochs, few), many)
    if epochs != usual.epochs:
        found["epochs"] = (epochs, _why_epochs(epochs, samples))
    side = min(dataset.encoder.shape[-2:]) if dataset.kind == "image" else 0
    if isinstance(dataset.train.inputs, ImageFiles):
        side = usual.image_size
        their_side = dataset.train.inputs.usual_side(LOOKED_AT) or 0
        if "image_size" not in given and SMALLEST_SIDE <= their_side < side:
            side = their_side
            found["image_size"] = (side, f"most pictures are {side} pixels high or wide")
    if side >= LARGE_SIDE and device.type == "cuda":
        found["model"] = ("preact_resnet32", "a GPU has time for a deep network")
    elif side >= LARGE_SIDE:
        found["model"] = ("pooled_conv", f"pictures of {side} pixels, on a CPU")
        found["sets"] = (1, "on a CPU, where more steps are worth more than more label sets")
    if side >= LARGE_SIDE:
        # Without it a network soon knows each picture by heart, and its wrong label too.
        found["crop_padding"] = (round(SHIFT * side), "a picture shifted a little keeps its class")
        if _are_coloured(dataset):
            found["flip"] = (
                True,
                "a photograph keeps its class in a mirror; --no-flip for letters, signs and such",
            )
    return found


def _are_coloured(dataset: Dataset) -> bool:
    """Whether most of some pictures are: letters, scans and drawings are often grey."""
    some = dataset.train.inputs
    some = some[torch.linspace(0, len(some) - 1, min(LOOKED_AT, len(some))).long()]
    if isinstance(some, ImageFiles):
        pixels = some.load(torch.arange(len(some))).float()
    else:
        assert isinstance(dataset.encoder, ImageEncoder)
        pixels = torch.from_numpy(dataset.encoder.decode(some))
    if pixels.shape[1] != 3:
        return False
    colour_B = (pixels - pixels.mean(1, keepdim=True)).abs().flatten(1).mean(1)
    return float((colour_B > LEAST_COLOUR * pixels.std()).float().mean()) > 0.5


def _why_batch_size(samples: int) -> str:
    return f"so that {samples:,} samples make at least {FEWEST_STEPS} steps an epoch"


def _why_epochs(epochs: int, samples: int) -> str:
    return f"so that {samples:,} samples are seen {epochs * samples:,} times in all"
