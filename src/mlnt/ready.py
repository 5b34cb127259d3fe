"""What a training begins with: data, settings, device, and how its networks begin.

data -> settings that follow from it -> validation held out, noise injected -> Ready
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from mlnt.config import Settings, convert
from mlnt.data.dataset import Dataset, Split
from mlnt.data.fingerprint import fingerprint, other_fingerprints
from mlnt.data.picture_sets import as_read
from mlnt.data.prepare import Seeds, prepare
from mlnt.data.streaming import first_of
from mlnt.defaults import choose_settings
from mlnt.device import may_be_cuda, pick_device, prepare_deterministic, weight_type
from mlnt.distributed import World
from mlnt.errors import InputError
from mlnt.left_out import network_for_table
from mlnt.models import OwnModel, build_model, check_output, new_of
from mlnt.recipes import check_method, check_network
from mlnt.training import Trainer, Watcher

ModelSource = str | OwnModel


@dataclass(frozen=True)
class Ready:
    """What a training begins with."""

    dataset: Dataset  # validation held out, noise injected
    noise: dict[str, Any]  # as it came out
    settings: Settings
    reasons: Mapping[str, str]  # why some settings are as they are
    device: torch.device
    new_network: Callable[[], nn.Module]
    own_model: OwnModel | None  # a network of the caller's

    @property
    def seeds(self) -> Seeds:
        return Seeds.of(self.settings.seed)

    def new_model(self) -> nn.Module:
        return self.new_network().to(device=self.device, dtype=weight_type(self.settings))

    def trainer(self, watchers: Sequence[Watcher], deadline: float, world: World) -> Trainer:
        dtype, data = weight_type(self.settings), self.dataset
        train, validation, test = (
            None if split is None else split.to(self.device, dtype)
            for split in (data.train, data.validation, data.test)
        )
        assert train is not None
        assert validation is not None
        generator = torch.Generator(self.device).manual_seed(self.seeds.training)
        return Trainer(
            train, validation, test, self.settings, generator, watchers,
            deadline=deadline, world=world,
        )  # fmt: skip

    def check(self, train: Split) -> None:
        """Raise InputError if method, data and network do not go together."""
        check_method(self.settings, train)
        network = self.new_model()
        check_output(network, first_of(train.inputs, 2), len(self.dataset.classes))
        check_network(self.settings, train, network)


def make_ready(
    dataset: Dataset,
    model: ModelSource | None,
    preset: str | None,
    given: dict[str, Any],
    download: bool,
    world: World,
) -> Ready:
    # Which device is asked for decides before CUDA is used, as picking one does.
    is_deterministic = convert("deterministic", given.get("deterministic", False))
    wanted = str(given.get("device", Settings.device))
    if is_deterministic and may_be_cuda(wanted):
        prepare_deterministic()
    device = world.device_of(pick_device(wanted))
    by_data = choose_settings(dataset, device, preset, given)
    settings = by_data.settings
    prepared, noise = prepare(as_read(dataset, settings.image_size, settings.workers), settings)
    _check_same_everywhere(prepared, world)
    own_model = None if model is None or isinstance(model, str) else model
    reasons = dict(by_data.for_samples(len(prepared.train)).reasons)
    if own_model is None and _may_choose_network(prepared, settings, preset, given):
        chosen = network_for_table(prepared, settings, Seeds.of(settings.seed).weights)
        if chosen := world.share(chosen):  # two GPUs may see two differently
            settings = replace(settings, model=chosen[0])
            reasons["model"] = chosen[1]
    encoder, classes, may_import = prepared.encoder, len(prepared.classes), isinstance(model, str)

    def new_network() -> nn.Module:
        if own_model is not None:
            return new_of(own_model)
        names = (settings.model, encoder, classes, settings.weights)
        return build_model(*names, may_import, download)

    return Ready(prepared, noise, settings, reasons, device, new_network, own_model)


def _may_choose_network(
    dataset: Dataset, settings: Settings, preset: str | None, given: Mapping[str, Any]
) -> bool:
    """Whether nobody said which network a table gets."""
    named = given.get("model", "auto") != "auto" or settings.weights != "none" or preset is not None
    return dataset.kind == "table" and not named


def _check_same_everywhere(dataset: Dataset, world: World) -> None:
    """Several processes compute what one would, of the same data."""
    if world.size == 1:
        return
    found = [fingerprint(dataset.train), *other_fingerprints(dataset).values()]
    if len(set(world.gather_values(" ".join(found)))) > 1:
        raise InputError(
            "the processes have different data; give all of them the same samples in the same order"
        )
