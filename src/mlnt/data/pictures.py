"""Pictures on disk: where they lie, and one of them read as the network wants it."""

import contextlib
import logging
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, overload

import numpy as np
from PIL import ExifTags, Image, UnidentifiedImageError
from torch import Tensor

from mlnt.files import open_file

# Of a broken picture Pillow would say more on the terminal than the reason that we give.
logging.getLogger("PIL").addHandler(logging.NullHandler())

NO_LABEL = -1  # where a label is not known, or is no class of the training data
# No others: Pillow would hand some of them, such as EPS, to further programs.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM", "TIFF")
EXTENSIONS = (
    ".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".ppm", ".pgm", ".tif", ".tiff",
)  # fmt: skip
# By the EXIF orientation: what puts the picture upright.
UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
NEARLY_ALL = 0.9  # of the cells of a column: one may be empty or misspelt


class PictureError(ValueError):
    """A picture that cannot be read, and in a few words why."""


class PathTable(Sequence[str]):
    """Relative paths below one folder, a million of them in some 50 MB.

    One string of bytes instead of a million objects: processes forked from this one share it, as
    counting references does not write into it.
    """

    def __init__(self, root: str, names: bytes, ends: np.ndarray, rows: np.ndarray) -> None:
        self.root, self.names, self.ends, self.rows = root, names, ends, rows

    @classmethod
    def of(cls, root: str | os.PathLike[str], paths: Sequence[str | bytes]) -> "PathTable":
        names = [os.fsencode(path) for path in paths]
        ends = np.cumsum([0, *map(len, names)], dtype=np.int64)
        return cls(os.fspath(root), b"".join(names), ends, np.arange(len(names)))

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> "PathTable": ...
    def __getitem__(self, index: int | slice) -> "str | PathTable":
        if isinstance(index, slice):
            return self.take(index)
        row = self.rows[index]
        return os.fsdecode(self.names[self.ends[row] : self.ends[row + 1]])

    def __iter__(self) -> Iterator[str]:
        ends = self.ends.tolist()  # to take single numbers out of an array is slow
        for row in self.rows.tolist():
            yield os.fsdecode(self.names[ends[row] : ends[row + 1]])

    def full(self, index: int) -> str:
        return os.path.join(self.root, self[index])

    def take(self, indices: Tensor | np.ndarray | slice) -> "PathTable":
        """Some of the paths; the text stays shared."""
        if isinstance(indices, Tensor):
            indices = indices.cpu().numpy()
        return PathTable(self.root, self.names, self.ends, self.rows[indices])


def printable(text: str) -> str:
    """A file name may hold bytes that are no text; a file of text cannot."""
    try:
        return text.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
    except UnicodeEncodeError:  # halves of characters, from arrays
        return text.encode("utf-8", "backslashreplace").decode("utf-8")


def are_picture_paths(texts: Sequence[str]) -> bool:
    """Whether nearly all end as the names of pictures do."""
    return sum(map(is_picture_path, texts)) >= NEARLY_ALL * len(texts)


def is_picture_path(text: str) -> bool:
    return text.strip().lower().endswith(EXTENSIONS)


@dataclass(frozen=True)
class Part:
    """The pictures of train, validation or test."""

    paths: PathTable
    labels: Tensor  # LongTensor [N]; NO_LABEL where none is known


@dataclass(frozen=True)
class Parts:
    """A tree of pictures: its parts, its classes, and what the user should know of it."""

    name: str
    classes: tuple[str, ...]
    train: Part
    validation: Part | None = None
    test: Part | None = None
    notes: tuple[str, ...] = ()
    # Of a path, size and crop makes the pixels; None: the paths are those of files.
    read: Callable[[str, int, int], np.ndarray] | None = None
    is_known: bool = False  # as in Dataset
    labelled: np.ndarray | None = None  # of a table, as in Raw


def read_picture(
    path: str | os.PathLike[str] | BinaryIO, size: int = 256, crop: int = 224
) -> np.ndarray:
    """The middle crop × crop pixels, uint8 [3, crop, crop], once the shorter side is `size` long.

    Upright by its EXIF orientation; what is transparent lies on white. The paper says that it
    resizes to 256 × 256; its authors' code keeps the proportions, as we do.
    """
    try:
        with warnings.catch_warnings():  # of each broken picture, in every process and epoch
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            given = open_file(path) if isinstance(path, str | os.PathLike) else path
            with (
                contextlib.nullcontext(path) if given is path else given as file,
                Image.open(file, formats=FORMATS) as picture,
            ):
                return _middle(picture, size, crop)
    except PictureError:
        raise
    except Exception as error:  # on broken files Pillow's decoders raise nearly anything
        raise PictureError(_reason(path, error)) from None


def shorter_side(path: str | os.PathLike[str]) -> int | None:
    """In pixels, by the head of the file alone; None where it cannot be read."""
    try:
        with open_file(path) as file, Image.open(file, formats=FORMATS) as picture:
            return min(picture.size)
    except Exception:  # as in `read_picture`, which says why when it comes to this one
        return None


@dataclass(frozen=True)
class InGrey:
    """Reads pictures as `read` does, then uint8 [1, crop, crop] of how light they are."""

    read: Callable[[str, int, int], np.ndarray]

    def __call__(self, path: str, size: int, crop: int) -> np.ndarray:
        pixels = self.read(path, size, crop).transpose(1, 2, 0)
        return np.asarray(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))[None]


def _middle(picture: Image.Image, size: int, crop: int) -> np.ndarray:
    if picture.format in ("JPEG", "MPO"):
        # JPEG decodes to a half, a quarter or an eighth at less cost: never to less than `size`.
        short = min(picture.size)
        width, height = (math.ceil(side * size / short) for side in picture.size)
        picture.draft(None, (width, height))
    picture.load()
    orientation = picture.getexif().get(ExifTags.Base.Orientation, 1)
    picture = to_rgb(picture)
    # Only the middle is resampled; it is exactly central, so it may be turned afterwards.
    half = crop / size * min(picture.size) / 2
    x, y = picture.width / 2, picture.height / 2
    box = (x - half, y - half, x + half, y + half)
    picture = picture.resize((crop, crop), Image.Resampling.BILINEAR, box=box)
    if orientation in UPRIGHT:
        picture = picture.transpose(UPRIGHT[orientation])
    return np.ascontiguousarray(np.asarray(picture).transpose(2, 0, 1))


def to_rgb(picture: Image.Image) -> Image.Image:
    """Any mode as RGB: 16 bits scaled to 8, transparency on white."""
    if picture.mode == "F":
        raise PictureError("floating-point pixels, of which nobody knows the range")
    if picture.mode.startswith("I"):  # Pillow itself would clip at 255
        values = np.asarray(picture).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise PictureError("grey values beyond 16 bits")
        picture = Image.fromarray(((values + 128) // 257).astype(np.uint8))
    elif picture.has_transparency_data:
        picture = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, picture)
    return picture if picture.mode == "RGB" else picture.convert("RGB")


def _reason(path: str | os.PathLike[str] | BinaryIO, error: Exception) -> str:
    message = str(error).split("\n", 1)[0]
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "missing"
    if isinstance(error, UnidentifiedImageError):
        with contextlib.suppress(OSError):
            if isinstance(path, str | os.PathLike) and os.path.getsize(path) == 0:
                return "empty file"
        return "no picture of a known format"
    if isinstance(error, Image.DecompressionBombError | Image.DecompressionBombWarning):
        return f"more than {Image.MAX_IMAGE_PIXELS:,} pixels"
    if "truncated" in message.lower():
        return "truncated"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return f"{type(error).__name__}: {message[:80]}"
