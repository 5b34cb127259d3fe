"""Batches from data held on the device; augmentation as a batch operation there.

Axes: N samples, B batch.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from mlnt.config import Settings


@dataclass(frozen=True)
class Batch:
    indices: Tensor  # [B], into the training set
    inputs: Tensor  # [B, ...], augmented
    labels: Tensor  # [B]
    unblanked: Tensor | None = None  # the same before squares were blanked; None: no different

    @property
    def for_teacher(self) -> Tensor:
        """What a target is computed from: of whole images it is the better answer."""
        return self.inputs if self.unblanked is None else self.unblanked


class Shuffled:
    """An endless stream of batches of indices: every pass a new order, no sample twice in one.

    What does not fill a batch at the end of a pass is left out of that pass. `advance` is done by
    the host before each batch; `take` happens on the device alone, so that it can be recorded.
    """

    def __init__(self, indices_N: Tensor, batch_size: int, generator: torch.Generator) -> None:
        self.indices_N = indices_N
        self.batch_size = min(batch_size, len(indices_N))
        self.generator = generator
        self.order_N = indices_N.clone()
        self.position = len(indices_N)  # what the host knows of the place in this pass
        self.place_B = torch.arange(self.batch_size, device=indices_N.device)

    def advance(self) -> None:
        """Begin a new pass where the next batch would not fit into this one."""
        if self.position + self.batch_size > len(self.indices_N):
            order = torch.randperm(
                len(self.indices_N), generator=self.generator, device=self.generator.device
            )
            self.order_N.copy_(self.indices_N[order])
            self.place_B.copy_(torch.arange(self.batch_size, device=self.place_B.device))
            self.position = 0
        self.position += self.batch_size

    def take(self) -> Tensor:
        """The next batch, [B]."""
        chosen_B = self.order_N[self.place_B]
        self.place_B += self.batch_size
        return chosen_B

    def state(self) -> dict[str, Tensor | int]:
        return {"order": self.order_N, "place": self.place_B, "position": self.position}

    def load_state(self, state: dict[str, Any]) -> None:
        # With the indices: a mentor who is asked again on a GPU may have kept a few others.
        self.order_N = state["order"].to(self.order_N.device, copy=True)
        self.indices_N = self.order_N.sort().values
        self.place_B.copy_(state["place"])
        self.position = state["position"]


@dataclass(frozen=True)
class Augmentation:
    """Random crops after padding, flips and blanked squares, of images [B, C, H, W]."""

    crop_padding: int = 0
    flip: bool = False
    cutout: int = 0

    @classmethod
    def of(cls, settings: Settings, inputs: Any) -> "Augmentation":
        """What the settings ask for, where the inputs are images."""
        if inputs.ndim != 4:
            return cls()
        return cls(settings.crop_padding, settings.flip, settings.cutout)

    def __call__(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return self.blank(self.move(images, generator), generator)

    def move(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Crop and flip."""
        if self.crop_padding:
            images = random_crop(images, self.crop_padding, generator)
        if self.flip:
            images = random_flip(images, generator)
        return images

    def blank(self, images: Tensor, generator: torch.Generator) -> Tensor:
        return random_cutout(images, self.cutout, generator) if self.cutout else images


def random_crop(images: Tensor, padding: int, generator: torch.Generator) -> Tensor:
    """Shift each image by up to `padding` pixels each way; zeros (the mean pixel) come in."""
    batch, _, height, width = images.shape
    device = images.device
    padded = F.pad(images, (padding,) * 4)
    top, left = torch.randint(2 * padding + 1, (2, batch), generator=generator, device=device)
    rows = top[:, None] + torch.arange(height, device=device)
    columns = left[:, None] + torch.arange(width, device=device)
    sample = torch.arange(batch, device=device)[:, None, None]
    # Indexing puts the channels last: [B, H, W, C].
    return padded[sample, :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Flip each image left to right with probability one half."""
    flipped = torch.rand(len(images), generator=generator, device=images.device) < 0.5
    return torch.where(flipped[:, None, None, None], images.flip(3), images)


def random_cutout(images: Tensor, side: int, generator: torch.Generator) -> Tensor:
    """Blank a square of each image with zeros (the mean pixel).

    Its centre may be any pixel, so that all are blanked about equally often; what lies outside of
    the image is cut off.
    """
    batch, _, height, width = images.shape
    device = images.device

    def blanked(length: int) -> Tensor:
        """[B, length] bool: the rows, or the columns, of each image's square."""
        centre_B1 = torch.randint(length, (batch, 1), generator=generator, device=device)
        offset_BL = torch.arange(length, device=device) - centre_B1 + side // 2
        return (offset_BL >= 0) & (offset_BL < side)

    rows_BH, columns_BW = blanked(height), blanked(width)
    square_BHW = rows_BH[:, :, None] & columns_BW[:, None, :]
    return images.masked_fill(square_BHW[:, None], 0.0)
