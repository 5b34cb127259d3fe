"""Files that may be a stranger's: ordinary files alone, read up to a limit, JSON of any depth.

What else opens a file is given a stream from here. Nothing here waits: a pipe that nobody writes
into is refused like a folder.
"""

import errno
import io
import json
import os
import stat
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

from mlnt.errors import InputError

MOST_JSON = 2**25  # bytes of a file that is read as one value; as objects it takes many times that


class Readable(Protocol):
    def read(self, size: int, /) -> bytes: ...


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """The file at a path; OSError where there is none, or a folder, a pipe or a device."""
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115 (it is given back open)
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no ordinary file", os.fspath(path))
    return file


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))


def open_text(path: Path, encoding: str = "utf-8") -> TextIO:
    """The same as text, ends of lines as they are."""
    return io.TextIOWrapper(open_file(path), encoding=encoding, newline="")


def read_file(path: Path, most: int) -> bytes:
    """All of a file, or InputError where it cannot be read or holds more than `most` bytes."""
    try:
        with open_file(path) as file:
            return read_at_most(file, most, str(path))
    except (OSError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


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


def parse_json(text: str | bytes) -> Any:
    """As json.loads, which raises more than ValueError where brackets are nested by thousands."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def most_unpacked(packed: int) -> int:
    """How much a compressed file of so many bytes may hold: a bomb holds a thousand times that."""
    return max(2**28, 20 * packed)


def exists(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name too long, or with a NUL in it
        return False
