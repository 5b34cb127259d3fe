"""A split of pictures that stay on disk, and the log of those that cannot be read.

Axes: N samples, B batch, C channels.
"""

import csv
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from mlnt.data.pictures import PathTable, PictureError, read_picture, shorter_side
from mlnt.distributed import World
from mlnt.errors import InputError, TrainingError
from mlnt.texts import harmless

CPU = torch.device("cpu")
UNREAD = -1  # in the place of the index of a picture that could not be read
SIZE, CROP = 256, 224  # the shorter side, and the middle of it: as for Clothing1M in the paper
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class FaultLog:
    """Pictures that could not be read, each once; more than `limit` of them end the run."""

    def __init__(self, limit: int, file: Path | None = None) -> None:
        self.limit = limit
        self.file = file  # where to write the list when there are too many
        self.found: dict[str, str] = {}  # path: reason

    @classmethod
    def of(cls, pictures: int) -> "FaultLog":
        """One in a hundred may be lost, or ten of a few."""
        return cls(max(10, pictures // 100))

    def record(self, faults: Iterable[tuple[str, str]]) -> None:
        """Note (path, reason); raise InputError when they have become too many."""
        for path, reason in faults:
            self.found.setdefault(path, reason)
        if len(self.found) > self.limit:
            where = "look at the whole tree with `mlnt data check`"
            if self.file is not None:
                self.write(self.file)
                where = f"those found so far are in {self.file}"
            first = ", ".join(f"{path} ({why})" for path, why in list(self.found.items())[:3])
            raise InputError(
                f"{len(self.found)} pictures cannot be read, the limit is {self.limit}; "
                f"the first: {first}; {where}"
            )

    def share(self, world: World) -> None:
        """What one process could not read is on record in all."""
        for found in world.gather_values(self.found):
            self.record(found.items())

    def write(self, path: Path) -> None:
        with path.open("w", encoding="utf-8", errors="surrogateescape", newline="") as file:
            rows = [(harmless(path), harmless(why)) for path, why in sorted(self.found.items())]
            csv.writer(file).writerows([("path", "reason"), *rows])


class Fed(NamedTuple):
    """A batch of pictures, and which samples they are."""

    indices: Tensor  # LongTensor [B]; where a picture could not be read, of the one in its place
    pixels: Tensor  # uint8 [B, C, H, W]


class Read(NamedTuple):
    """What a worker sends."""

    fed: Fed | None
    faults: list[tuple[str, str]]  # path and reason
    failure: str = ""  # what went wrong beyond a picture


@dataclass(frozen=True)
class Reader(Dataset):
    """Reads batches in a worker. Holds nothing of the GPU: it travels to other processes."""

    paths: PathTable
    size: int
    crop: int
    read: Callable[[str, int, int], np.ndarray]
    blank_C: tuple[int, ...] | None  # colour that takes the place of what cannot be read, if any
    is_part: bool = False  # of a batch that several processes read: who has all of it fills in
    channels: int = 3  # of what `read` makes

    def __getitem__(self, indices_B: np.ndarray) -> Read:
        try:
            return self._read_batch(indices_B)
        except Exception as error:  # a long traceback in this process helps nobody
            return Read(None, [], f"{type(error).__name__}: {error}")

    def _read_batch(self, indices_B: np.ndarray) -> Read:
        pixels = np.empty((len(indices_B), self.channels, self.crop, self.crop), np.uint8)
        faults, broken = [], []
        for place, index in enumerate(indices_B.tolist()):
            path = self.paths.full(index)
            try:
                pixels[place] = self.read(path, self.size, self.crop)
            except PictureError as error:
                faults.append((path, str(error)))
                broken.append(place)
        shown_B = indices_B.copy()
        for place in broken:
            if self.blank_C is not None:
                # In evaluation a row answers for its own picture, never for another.
                pixels[place] = np.array(self.blank_C)[:, None, None]
            else:
                shown_B[place] = UNREAD
        fed = Fed(torch.from_numpy(shown_B), torch.from_numpy(pixels))
        return Read(fed if self.is_part else fill_in(fed), faults)


def fill_in(fed: Fed) -> Fed | None:
    """In training another of the batch takes the place of a picture that could not be read, with
    its own label, so that the size of a batch stays. By its place alone, which no number of workers
    or processes changes. None if there is no other."""
    unread_B = fed.indices == UNREAD
    if not unread_B.any():
        return fed
    readable = (~unread_B).nonzero().squeeze(1)
    if not len(readable):
        return None
    source_B = torch.arange(len(unread_B))
    source_B[unread_B] = readable[torch.arange(int(unread_B.sum())) % len(readable)]
    return Fed(fed.indices[source_B], fed.pixels[source_B])


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """Stands for the tensor [N, C, H, W] of a split; reads pictures when they are asked for."""

    paths: PathTable
    faults: FaultLog
    size: int = SIZE
    crop: int = CROP
    mean: Sequence[float] = IMAGENET_MEAN  # of channels in [0, white]
    std: Sequence[float] = IMAGENET_STD
    white: float = 1.0
    workers: int | None = None  # processes that read; None: what the machine allows, 0: this one
    read: Callable[[str, int, int], np.ndarray] = read_picture
    device: torch.device = CPU  # where normalised batches go
    dtype: torch.dtype = torch.float32
    statistics: Tensor = field(init=False)  # mean and std [2, C, 1, 1], there already

    ndim = 4

    def __post_init__(self) -> None:
        if not 0 < self.crop <= self.size:
            raise InputError(
                f"pictures are resized to {self.size} and cropped to {self.crop} pixels; the crop "
                "must lie in 1 to the size"
            )
        values = torch.tensor([list(self.mean), list(self.std)], dtype=self.dtype)
        object.__setattr__(self, "statistics", values[:, :, None, None].to(self.device))

    def __len__(self) -> int:
        return len(self.paths)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((len(self), len(self.mean), self.crop, self.crop))

    def is_floating_point(self) -> bool:
        return True  # as its normalised batches are

    def __getitem__(self, indices: Tensor | slice) -> "ImageFiles":
        return replace(self, paths=self.paths.take(indices))

    take = __getitem__

    def to(self, device: torch.device, dtype: torch.dtype | None = None) -> "ImageFiles":
        """The same files; normalised batches go to this device in this type."""
        return replace(self, device=torch.device(device), dtype=dtype or self.dtype)

    def unreadable(self) -> list[int]:
        """Places of the pictures that could not be read, as far as was found out."""
        if not self.faults.found:
            return []
        return [i for i in range(len(self)) if self.paths.full(i) in self.faults.found]

    def usual_side(self, looked_at: int) -> int | None:
        """The median of the shorter sides of some pictures, if they are files."""
        if self.read is not read_picture:
            return None
        some = np.linspace(0, len(self) - 1, min(looked_at, len(self))).astype(int)
        sides = [side for i in some.tolist() if (side := shorter_side(self.paths.full(i)))]
        return int(np.median(sides)) if sides else None

    def read_as(self, crop: int, workers: int | None) -> "ImageFiles":
        """The same files, read in another size, by other workers; the margin stays as it is."""
        return replace(self, size=round(crop * SIZE / CROP), crop=crop, workers=workers)

    def load(self, indices_B: Tensor) -> Tensor:
        """These pictures, uint8 [B, C, H, W], read in this process; blank if unreadable."""
        return self.accept(self.reader(blank=True)[indices_B.cpu().numpy()]).pixels

    def normalise(self, pixels: Tensor) -> Tensor:
        """(white · x / 255 − mean) / std, on the device."""
        mean, std = self.statistics
        pixels = pixels.to(self.device, non_blocking=True).to(self.dtype)
        return (pixels / (255 / self.white) - mean) / std

    def reader(self, blank: bool, is_part: bool = False) -> Reader:
        bytes_C = (255 / self.white * value for value in self.mean)
        colour = tuple(round(min(max(0, value), 255)) for value in bytes_C) if blank else None
        channels = len(self.mean)
        return Reader(self.paths, self.size, self.crop, self.read, colour, is_part, channels)

    def accept(self, read: Read) -> Fed:
        """A batch from a worker, its faults on record; raises what ends the run."""
        if read.failure:
            raise TrainingError(f"a process that reads pictures failed: {read.failure}")
        self.faults.record(read.faults)
        if read.fed is None:
            path, reason = read.faults[0]
            raise InputError(
                f"none of the {len(read.faults)} pictures of a batch can be read; the first: "
                f"{path} ({reason}); look at the whole tree with `mlnt data check`"
            )
        return read.fed
