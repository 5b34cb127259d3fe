"""From what the user has (pixels, numbers, words) to what a network takes, and back to JSON.

An encoder is fitted on the training data, travels in the run folder and serves prediction.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.data.columns import (
    Column,
    cells_of,
    columns_from_json,
    columns_to_json,
    names_of,
    numbers_of,
)
from mlnt.data.image_files import IMAGENET_MEAN
from mlnt.data.text_encoding import TextEncoder, longest
from mlnt.errors import InputError
from mlnt.texts import counted

MOST_CHANNELS = 4096
USUAL_CHANNELS = (1, 3, 4)
MOST_VALUES = 3 * 2048**2  # of one image
ROUNDING = 1e-14  # relative, of a few operations on float64
# Columns are bent whose standard deviation is so many times that of their middle half.
HEAVY = 2.5
MIDDLE_HALF, MAD = 1.349, 1.4826  # standard deviations in these, of a normal distribution
QUANTILES_FROM = 100_000  # rows
BINS = 64  # of as many cells each, into which a column is divided for `networks.Bins`
MOST_BINNED = 256  # columns; the networks of wider tables would be mostly bins


@dataclass(frozen=True)
class ImageEncoder:
    """Images [N, C, H, W]: zero mean and unit variance per channel."""

    shape: tuple[int, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    black_white: tuple[float, ...] = ()  # the values of both; runs from before they were kept: none
    from_files: bool = False  # pictures on disk were trained on, not arrays
    kind = "image"

    @classmethod
    def fit(cls, images: np.ndarray) -> "ImageEncoder":
        images = _channels_first(images)
        try:
            _check_shape(images.shape[1:])
        except ValueError as error:
            raise InputError(f"these images cannot be learnt from: {error}") from None
        mean, std = _by_channel(images)
        low, high = images.min((0, 2, 3)), images.max((0, 2, 3))
        std = _no_zero(std, low, high)
        black_white = pixel_range(float(low.min()), float(high.max()))
        return cls(images.shape[1:], tuple(mean.tolist()), tuple(std.tolist()), black_white)

    def encode(self, images: Any) -> Tensor:
        images = np.asarray(images)
        if images.shape[1:] != tuple(self.shape):
            images = _channels_first(images)
        if images.shape[1:] != tuple(self.shape):
            raise InputError(
                f"images must have the shape {tuple(self.shape)} (channels, height, width), "
                f"got {images.shape[1:]}"
            )
        pixels = torch.as_tensor(np.require(images, requirements=["C", "W"])).float()
        if images.dtype != np.uint8:
            check_finite(pixels, "images")
        mean, std = torch.tensor(self.mean), torch.tensor(self.std)
        return (pixels - mean[:, None, None]) / std[:, None, None]

    def decode(self, encoded: Any) -> np.ndarray:
        """The images [..., C, H, W] that encoding makes these of."""
        mean, std = (np.array(values)[:, None, None] for values in (self.mean, self.std))
        return np.asarray(encoded, np.float64) * std + mean

    def show(self, encoded: Any) -> np.ndarray:
        """As a person sees them, bytes [..., C, H, W] from 0, black, to 255, white."""
        black, white = self.black_white
        shades = (self.decode(encoded) - black) / (white - black)
        return (255 * shades).round().clip(0, 255).astype(np.uint8)


@dataclass(frozen=True)
class TableEncoder:
    """Numeric columns [N, D]: zero mean and unit variance per column.

    z = (x - mean) / std;  asinh(z) where the column is bent

    A few large values would squeeze all others of a column to nothing. Of such a column the median
    and the spread of its middle half take the place of mean and standard deviation, and it is bent.

    edges of column d: the quantiles of its z at 0, 1/64, …, 1; none of a column of two values
    """

    columns: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    bent: tuple[bool, ...] = ()  # empty where no column is
    edges: tuple[tuple[float, ...], ...] = ()  # of wide tables, and in runs from before: none
    made_of: tuple[Column, ...] = ()  # the columns of the table, if not all were numbers
    kind = "table"

    @classmethod
    def fit(
        cls, rows: np.ndarray, columns: Sequence[str] = (), made_of: tuple[Column, ...] = ()
    ) -> "TableEncoder":
        rows = np.require(rows, np.float64, "W")  # torch warns of memory that it may not write
        names = tuple(columns) or unnamed(rows.shape[1])
        if rows.shape[1] == 0:
            raise InputError("the features have no columns; nothing to learn from")
        check_finite(torch.as_tensor(rows), "features", names)
        with np.errstate(over="ignore", invalid="ignore"):
            mean, std = rows.mean(0), rows.std(0)
        if not np.isfinite(std).all():
            column = names[int((~np.isfinite(std)).argmax())]
            raise InputError(f"the values of {column!r} are too large; scale them down")
        scale = _no_zero(std, rows.min(0), rows.max(0))
        some = rows[:: len(rows) // QUANTILES_FROM + 1]
        middle, spread = _spread(some)
        # Beyond 1e308 the quotient would have no number.
        heavy = (spread > 0) & (std > HEAVY * spread) & (std * 1e-300 < spread)
        varies = scale == std
        bent = heavy & varies
        some = np.where(varies, some, mean)  # what a constant column has of rounding may be large
        mean, std = np.where(bent, (middle, spread), (mean, scale)).tolist()
        flags = tuple(bent.tolist()) if bent.any() else ()
        encoder = cls(names, tuple(mean), tuple(std), flags, made_of=made_of)
        if len(names) > MOST_BINNED:
            return encoder
        return replace(encoder, edges=_edges(encoder.encode(some).numpy()))

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.columns),)

    @property
    def table_columns(self) -> tuple[str, ...]:
        """The names that the table has for them."""
        return tuple(column.name for column in self.made_of) or self.columns

    @property
    def with_gaps(self) -> tuple[Column, ...]:
        """`made_of`, but with NaN where a cell is missing though none was in training."""
        names = () if self.columns == unnamed(len(self.columns)) else self.columns
        return tuple(
            column if column.knows_gaps else replace(column, fill=math.nan)
            for column in self.made_of or map(Column, names)
        )

    def filled(self, rows_ND: np.ndarray) -> np.ndarray:
        """The rows with the middle of their column where they hold NaN; no category is none."""
        fill_of = {column.names[0]: column.fill for column in self.made_of}
        middle = [fill_of.get(n, m) for n, m in zip(self.columns, self.mean, strict=True)]
        return np.where(np.isnan(rows_ND), middle, rows_ND)

    def encode(self, rows: Any) -> Tensor:
        """Of rows of numbers, or of a data frame as that of the training was."""
        if self.made_of and hasattr(rows, "iloc"):
            rows = numbers_of(self.made_of, cells_of(rows), "the data frame")
        rows = np.asarray(rows, dtype=np.float64)
        if rows.ndim != 2 or rows.shape[1] != len(self.columns):
            raise InputError(
                f"rows must have {counted(len(self.columns), 'column')}, got an array of shape "
                f"{rows.shape}"
            )
        scaled = (rows - np.array(self.mean)) / np.array(self.std)
        if self.bent:
            scaled = np.where(self.bent, np.arcsinh(scaled), scaled)
        encoded = torch.as_tensor(scaled).float()
        check_finite(encoded, "features", self.columns)  # also what is too large for float32
        return encoded

    def decode(self, encoded: Any) -> np.ndarray:
        """The rows [N, D] that encoding makes these of."""
        scaled = np.asarray(encoded, np.float64)
        if self.bent:
            scaled = np.where(self.bent, np.sinh(np.where(self.bent, scaled, 0)), scaled)
        return scaled * np.array(self.std) + np.array(self.mean)


Encoder = ImageEncoder | TableEncoder | TextEncoder


def encoder_to_json(encoder: Encoder) -> dict[str, Any]:
    values = {k: list(v) if isinstance(v, tuple) else v for k, v in vars(encoder).items()}
    if isinstance(encoder, TableEncoder):
        values["made_of"] = columns_to_json(encoder.made_of)
    return {"kind": encoder.kind, **values}


def encoder_from_json(values: dict[str, Any]) -> Encoder:
    """What `encoder_to_json` gave; ValueError where a stranger's file claims what cannot be.

    The sizes of the network and of its inputs follow from it.
    """
    if values.get("kind") == "image" and "from_files" not in values:
        # From before it was kept: files alone have these means.
        values = values | {"from_files": values.get("mean") == [255 * v for v in IMAGENET_MEAN]}
    if values.get("made_of"):
        values = values | {"made_of": columns_from_json(values["made_of"])}
    kinds = {"image": ImageEncoder, "table": TableEncoder, "text": TextEncoder}
    fields = {k: _as_tuple(v) for k, v in values.items() if k != "kind"}
    encoder = kinds[values["kind"]](**fields)
    if isinstance(encoder, TextEncoder):
        _check_texts(encoder.words, "words")
        _check_flags((encoder.by_character,), 1, "by_character")
        _check_flags((encoder.with_marks,), 1, "with_marks")
        _check_whole(encoder.length, longest(encoder.by_character), "length")
        if encoder.rarities != ():
            _check_numbers(encoder.rarities, len(encoder.words), "rarities")
        return encoder
    if isinstance(encoder, ImageEncoder):
        _check_shape(encoder.shape)
        if encoder.black_white != ():
            _check_numbers(encoder.black_white, 2, "black_white")
            if not encoder.black_white[0] < encoder.black_white[1]:
                raise ValueError("black_white must hold the smaller number first")
        _check_flags((encoder.from_files,), 1, "from_files")
        if encoder.from_files and encoder.shape != (3, encoder.shape[1], encoder.shape[1]):
            raise ValueError("shape must be that of square RGB pictures, which are from_files")
    else:
        _check_texts(encoder.columns, "columns")
    for name in ("mean", "std"):
        _check_numbers(getattr(encoder, name), encoder.shape[0], name)
    if 0 in encoder.std:
        raise ValueError("std holds a zero")
    if isinstance(encoder, TableEncoder) and encoder.bent:
        _check_flags(encoder.bent, encoder.shape[0], "bent")
    if isinstance(encoder, TableEncoder) and encoder.edges:
        _check_edges(encoder.edges, encoder.shape[0])
    made = encoder.made_of if isinstance(encoder, TableEncoder) else ()
    if made and names_of(made) != encoder.columns:
        raise ValueError("columns must be those that made_of makes")
    return encoder


def _check_shape(shape: Any) -> None:
    if not isinstance(shape, tuple) or len(shape) != 3:
        raise ValueError("shape must be channels, height and width")
    for length, most in zip(shape, (MOST_CHANNELS, MOST_VALUES, MOST_VALUES), strict=True):
        _check_whole(length, most, "shape")
    if math.prod(shape) > MOST_VALUES:
        raise ValueError(f"images of {math.prod(shape):,} values, the limit is {MOST_VALUES:,}")


def _check_whole(value: Any, most: int, what: str) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ValueError(f"{what} must hold whole numbers from 1 to {most:,}")


def _check_texts(values: Any, what: str) -> None:
    if not isinstance(values, tuple) or not all(isinstance(value, str) for value in values):
        raise ValueError(f"{what} must be texts")


def _check_numbers(values: Any, count: int, what: str) -> None:
    if not isinstance(values, tuple) or len(values) != count:
        raise ValueError(f"{what} must hold {count:,} numbers")
    if not all(type(value) in (int, float) and math.isfinite(value) for value in values):
        raise ValueError(f"{what} must hold finite numbers")


def _check_edges(edges: Any, columns: int) -> None:
    if len(edges) != columns or columns > MOST_BINNED:
        raise ValueError(f"edges must be of {columns:,} columns, {MOST_BINNED} at most")
    for of_column in edges:
        if of_column != ():
            _check_numbers(of_column, BINS + 1, "edges")
            if any(low > high for low, high in itertools.pairwise(of_column)):
                raise ValueError("edges must rise")


def _as_tuple(values: Any) -> Any:
    return tuple(map(_as_tuple, values)) if isinstance(values, list) else values


def _check_flags(values: Any, count: int, what: str) -> None:
    if not isinstance(values, tuple) or len(values) != count:
        raise ValueError(f"{what} must hold {count:,} flags")
    if not all(type(value) is bool for value in values):
        raise ValueError(f"{what} must hold true and false alone")


def unnamed(columns: int) -> tuple[str, ...]:
    """What columns are called that came without names."""
    return tuple(f"column {i}" for i in range(columns))


def check_finite(values: Tensor, what: str, columns: Sequence[str] = ()) -> None:
    """Raise InputError that names the first NaN or infinite value."""
    bad = ~torch.isfinite(values)
    if not bad.any():
        return
    rows_with = bad.flatten(1).any(dim=1)
    first = bad.nonzero()[0].tolist()
    where = f"index {first[0]}"
    if columns:
        where += f", {columns[first[1]]!r}"
    count = int(rows_with.sum())
    raise InputError(
        f"{what} must be finite, but {count:,} of {counted(len(values), 'sample')} "
        f"{'holds' if count == 1 else 'hold'} NaN or infinite values (first: {where}); remove or "
        "fill them"
    )


def _by_channel(images: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean, standard deviation) of each channel; of bytes from how often each value occurs."""
    if images.dtype != np.uint8:
        axes = (0, 2, 3)
        return images.mean(axes, dtype=np.float64), images.std(axes, dtype=np.float64)
    channels = torch.from_numpy(np.require(images.swapaxes(0, 1), requirements=["C", "W"])).flatten(
        1
    )
    counts = np.stack([channel.bincount(minlength=256).numpy() for channel in channels])
    values, total = np.arange(256), channels.shape[1]
    mean = counts @ values / total
    return mean, np.sqrt((counts * (values - mean[:, None]) ** 2).sum(axis=1) / total)


def pixel_range(low: float, high: float) -> tuple[float, float]:
    """What is black and what is white: [0, 1] or [0, 255] where it may be that, else what occurs.

    A range hardly used is none: digits in [0, 16] would be black in [0, 255].
    """
    slack = 0.01 * (high - low)  # what was scaled or enlarged may lie a little beyond
    for white in (1.0, 255.0):
        if low >= -slack and white / 4 < high <= white + slack:
            return 0.0, white
    return low, high if high > low else low + max(1.0, math.ulp(low))


def _channels_first(images: np.ndarray) -> np.ndarray:
    """Images [N, H, W] or [N, H, W, C] as [N, C, H, W], which may be what they are already."""
    if images.ndim == 3:
        images = images[:, None]
    if images.ndim != 4:
        raise InputError(f"images must have 3 or 4 axes, got an array of shape {images.shape}")
    return images.transpose(0, 3, 1, 2) if _has_channels_last(images.shape) else images


def _has_channels_last(shape: tuple[int, ...]) -> bool:
    """By usual numbers of channels; where neither axis has one, images are rather square."""
    first, height, last = shape[1:]
    if first in USUAL_CHANNELS or last in USUAL_CHANNELS:
        return first not in USUAL_CHANNELS
    return first == height != last


def _spread(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(median, robust standard deviation) [D]; 0 where all cells are the same.

    By the middle half of the cells. Where these are all the same, as in a column mostly of zeros,
    by the distance from them of the others.
    """
    low, middle, high = np.quantile(rows, (0.25, 0.5, 0.75), axis=0)
    spread = (high - low) / MIDDLE_HALF
    for i in (spread == 0).nonzero()[0]:
        distance = np.abs(rows[:, i] - middle[i])
        others = distance[distance > 0]
        spread[i] = MAD * np.median(others) if len(others) else 0
    return middle, spread


def _edges(encoded_ND: np.ndarray) -> tuple[tuple[float, ...], ...]:
    """Of each column that has more than two values; float32, as the cells that they divide."""
    quantiles = np.quantile(encoded_ND, np.linspace(0, 1, BINS + 1), axis=0, method="lower")
    return tuple(
        tuple(edges.astype(np.float32).tolist()) if len(np.unique(edges)) > 2 else ()
        for edges in quantiles.T
    )


def _no_zero(std: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """A constant column or channel stays at zero instead of being divided by zero.

    Constant is what varies by no more than rounding, whatever its unit: metres or parsecs.
    """
    low, high = low.astype(np.float64), high.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        varies = high - low > ROUNDING * np.maximum(np.abs(low), np.abs(high))
    return np.where(varies & (std > 0), std, 1.0)
