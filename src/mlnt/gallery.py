"""What the most suspicious samples look like, left in the run folder for the report.

gallery.jsonl holds one object for each of them, most suspicious first:

    index     into the labels as they were given
    picture   a data URI, PNG where the picture is small, else JPEG
    text      the text; of a picture on disk its path
    row       [[column, value], ...] of a table; `more`: how many columns are left out

Bounded in number and in bytes: all of it goes into one page.
"""

import base64
import io
import json
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import ImageEncoder, TableEncoder
from mlnt.data.image_files import ImageFiles
from mlnt.data.pictures import PictureError
from mlnt.errors import InputError
from mlnt.files import parse_json, read_file

GALLERY = "gallery.jsonl"
MOST_SAMPLES = 1000
MOST_BYTES = 8 * 2**20
SIDE = 128  # pixels, of the longer side
SMALL = 64  # pixels; up to here PNG keeps every one of them, and takes no more than JPEG
MOST_CHARACTERS = 600
MOST_COLUMNS = 16
MOST_DIGITS, ROUNDING = 12, 2.0**-23  # of numbers in a table; what float32 loses of them

_PICTURE = re.compile(r"data:image/(png|jpeg);base64,[A-Za-z0-9+/]+={0,2}")


def write_gallery(path: Path, dataset: Dataset, positions: Tensor) -> None:
    """Describe the samples at these positions, until there are enough of them."""
    size = 0
    with path.open("w", encoding="ascii") as file:
        for entry in describe(dataset, positions[:MOST_SAMPLES]):
            line = json.dumps(entry) + "\n"
            size += len(line)
            if size > MOST_BYTES:
                return
            file.write(line)


def read_gallery(path: Path) -> dict[int, dict[str, Any]]:
    """The entries by index; none where a run left no gallery."""
    try:
        if not path.exists():
            return {}
        lines = read_file(path, 2 * MOST_BYTES).decode("ascii").splitlines()
        entries = [_checked(parse_json(line)) for line in lines]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} cannot be read: {error}") from None
    return {entry["index"]: entry for entry in entries}


def describe(dataset: Dataset, positions: Tensor) -> Iterator[dict[str, Any]]:
    """An entry of the gallery for each position in the labels as they were given."""
    show = _picture_of(dataset) if isinstance(dataset.encoder, ImageEncoder) else None
    for position, split, row in _places(dataset, positions):
        entry: dict[str, Any] = {"index": position}
        if show is not None and (picture := show(split, row)) is not None:
            entry["picture"] = data_uri(picture)
        if split.texts is not None:
            entry["text"] = shortened(split.texts[row])
        if isinstance(dataset.encoder, TableEncoder):
            assert isinstance(split.inputs, Tensor)
            cells = table_cells(dataset.encoder, split.inputs[row])
            entry["row"], entry["more"] = cells[:MOST_COLUMNS], max(0, len(cells) - MOST_COLUMNS)
        yield entry


def _places(dataset: Dataset, positions: Tensor) -> Iterator[tuple[int, Split, int]]:
    """Where each sample went: into training, or among those held out for validation."""
    train, held_out = dataset.train, dataset.held_out
    came_N, order = dataset.rows.sort()
    rows = order[torch.searchsorted(came_N, positions)]
    for position, row in zip(positions.tolist(), rows.tolist(), strict=True):
        if row < len(train):
            yield position, train, row
        else:
            assert held_out is not None
            yield position, held_out, row - len(train)


def _picture_of(dataset: Dataset) -> Callable[[Split, int], Image.Image | None]:
    """How to make a picture of a sample again."""
    encoder = dataset.encoder
    assert isinstance(encoder, ImageEncoder)
    if isinstance(dataset.train.inputs, ImageFiles):
        return _read_small

    def decoded(split: Split, row: int) -> Image.Image:
        assert isinstance(split.inputs, Tensor)
        return as_picture(encoder.show(split.inputs[row]))

    return decoded


def _read_small(split: Split, row: int) -> Image.Image | None:
    """From disk; None if it cannot be read: by now the training is done, and must not fail."""
    assert isinstance(split.inputs, ImageFiles)
    try:
        return as_picture(split.inputs.read(split.inputs.paths.full(row), SIDE, SIDE))
    except PictureError:
        return None


def as_picture(pixels_CHW: np.ndarray) -> Image.Image:
    """Grey or RGB; of any other number of channels the first ones."""
    if len(pixels_CHW) < 3:
        return Image.fromarray(pixels_CHW[0])
    return Image.fromarray(np.ascontiguousarray(pixels_CHW[:3].transpose(1, 2, 0)))


def data_uri(picture: Image.Image) -> str:
    is_small = max(picture.size) <= SMALL
    picture.thumbnail((SIDE, SIDE))
    file = io.BytesIO()
    if is_small:
        picture.save(file, "PNG", optimize=True)
    else:
        picture.save(file, "JPEG", quality=75, optimize=True)
    kind = "png" if is_small else "jpeg"
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode('ascii')}"


def shortened(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 1] + "…"


def table_cells(encoder: TableEncoder, row_D: Tensor) -> list[list[str]]:
    """[[column, value], ...] as the table held them, but for what float32 has lost."""
    bent = encoder.bent or (False,) * len(encoder.columns)
    columns = zip(encoder.columns, row_D.tolist(), encoder.mean, encoder.std, bent, strict=True)
    return [[name, decoded_number(*rest)] for name, *rest in columns]


def decoded_number(value: float, mean: float, std: float, bent: bool = False) -> str:
    """value · std + mean, by the fewest digits that float32 does not tell apart once encoded."""
    number = exact = (math.sinh(value) if bent else value) * std + mean
    for digits in range(1, MOST_DIGITS + 1):
        number = float(f"{exact:.{digits}g}")
        scaled = (number - mean) / std
        if abs((math.asinh(scaled) if bent else scaled) - value) <= abs(value) * ROUNDING:
            break
    return f"{number:.{MOST_DIGITS}g}"


def _checked(entry: dict[str, Any]) -> dict[str, Any]:
    """A run folder may come from elsewhere; what is not as it should be is not shown."""
    if not isinstance(entry["index"], int):
        raise ValueError(f"index {entry['index']!r} is no whole number")
    if not _PICTURE.fullmatch(entry.get("picture", "data:image/png;base64,0")):
        raise ValueError(f"the picture of {entry['index']} is no data URI")
    if not isinstance(entry.get("text", ""), str) or not isinstance(entry.get("more", 0), int):
        raise ValueError(f"the text of {entry['index']} is none")
    for column, value in entry.get("row", []):
        if not isinstance(column, str) or not isinstance(value, str):
            raise ValueError(f"the row of {entry['index']} holds no texts")
    return entry
