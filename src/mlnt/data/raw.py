"""What reading data gives, before encoding; files that may be absent, or larger than they ought."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from mlnt.errors import InputError

Source = str | Path | tuple[Any, Any]


@dataclass(frozen=True)
class Raw:
    """Samples as they were found: before encoding, labels still names."""

    kind: str  # image, table or text
    samples: Any
    labels: list[str] | None
    columns: tuple[str, ...] = ()

    @property
    def texts(self) -> list[str] | None:
        return list(self.samples) if self.kind == "text" else None


@dataclass(frozen=True)
class Known:
    """A data set that mlnt knows: its parts, its classes and what is often confused in it."""

    name: str
    classes: tuple[str, ...]
    train: Raw
    test: Raw
    usual_confusions: Mapping[int, int]
    labels_are_true: bool = True  # as published; of a stranger's files nobody knows


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False


def read_file(path: Path, most: int) -> bytes:
    """All of a file, or InputError where it cannot be read or holds more than `most` bytes."""
    try:
        with path.open("rb") as file:
            return read_at_most(file, most, str(path))
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from None


def read_at_most(stream: Readable, most: int, what: str) -> bytes:
    """All of a stream, or InputError where it holds more than `most` bytes.

    Piece by piece: a small compressed file may unpack to more than the memory holds.
    """
    pieces, size = [], 0
    while piece := stream.read(2**20):
        pieces.append(piece)
        size += len(piece)
        if size > most:
            raise InputError(f"{what} holds more than {most:,} bytes; that is not what it should")
    return b"".join(pieces)
