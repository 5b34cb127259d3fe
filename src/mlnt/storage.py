"""Files that appear whole or not at all, and outlast a power cut: aside, flushed, then renamed."""

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def write_bytes(path: Path, *parts: bytes | memoryview) -> None:
    """All of the parts, one behind the other, on the disk when this returns."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        for part in parts:
            left = memoryview(part)
            while left:
                written = os.write(descriptor, left)  # may take less than it is given
                if written == 0:
                    raise OSError(errno.EIO, "nothing is written any more")
                left = left[written:]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_aside(final: Path, writer: Callable[[Path], Any]) -> None:
    """Let `writer` fill a file beside `final`, then put it in place in one move."""
    aside = final.with_name(f".{final.name}.part{final.suffix}")
    aside.unlink(missing_ok=True)  # never through what lies there, such as a link
    try:
        writer(aside)
        flush(aside)
        os.replace(aside, final)
    except BaseException:
        # What is there of it takes room, perhaps the last there was.
        with contextlib.suppress(OSError):
            aside.unlink()
        raise
    flush_folder(final.parent)


def flush(path: Path) -> None:
    """What was written to the file is on the disk."""
    descriptor = os.open(path, os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def flush_folder(path: Path) -> None:
    """So are the names in a folder; where a system cannot say so (Windows), nothing happens."""
    with contextlib.suppress(PermissionError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def reason(error: OSError) -> str:
    """`No space left on device`, without number and path."""
    return error.strerror or str(error) or type(error).__name__
