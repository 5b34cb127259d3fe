"""What several trainings are compared on: the same data on the device, the same random choices."""

from typing import Any

import torch
from torch import nn

from mlnt.config import Settings
from mlnt.data.dataset import Dataset
from mlnt.data.prepare import Seeds
from mlnt.data.streaming import first_of
from mlnt.device import weight_type
from mlnt.models import build_model, check_output
from mlnt.training import Trainer


class Ground:
    """`dataset` is a prepared one; `parts` are the splits that trainers may look at."""

    def __init__(
        self,
        dataset: Dataset,
        settings: Settings,
        device: torch.device,
        parts: tuple[str, ...] = ("train", "validation", "test"),
    ) -> None:
        self.dataset, self.device, self.seeds = dataset, device, Seeds.of(settings.seed)
        self.classes, self.dtype = len(dataset.classes), weight_type(settings)
        self.splits: dict[str, Any] = dict.fromkeys(("train", "validation", "test"))
        for name in parts:
            split = getattr(dataset, name)
            self.splits[name] = None if split is None else split.to(device, self.dtype)

    def trainer(self, settings: Settings) -> Trainer:
        """With a fresh generator: what was trained before must not matter."""
        generator = torch.Generator(self.device).manual_seed(self.seeds.training)
        return Trainer(**self.splits, settings=settings, generator=generator)

    def new_model(self, settings: Settings) -> nn.Module:
        """A freshly initialised network that fits the data."""
        model = build_model(settings.model, self.dataset.encoder, self.classes)
        model = model.to(device=self.device, dtype=self.dtype)
        check_output(model, first_of(self.splits["train"].inputs, 2), self.classes)
        return model
