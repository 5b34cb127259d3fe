"""Files that appear whole or not at all, and outlast a power cut: aside, flushed, then renamed."""

import contextlib
import errno
import os
import platform
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
    """Let `writer` fill a file beside `final`, then put it in place in one move.

    The file beside it is this process's own: others may write the same at the same time.
    """
    _clear_leftovers(final)
    aside = _beside(final, os.getpid())
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


def _beside(final: Path, process: int | str) -> Path:
    """Named by machine and process; a folder may be shared by several of both."""
    machine = "".join(c for c in platform.node() if c.isascii() and c.isalnum())
    return final.with_name(f".{final.name}.{machine}-{process}.part{final.suffix}")


def _clear_leftovers(final: Path) -> None:
    """Of processes of this machine that were killed as they wrote the same file."""
    begin, end = _beside(final, "|").name.split("|")
    for name in os.listdir(final.parent):
        if name.startswith(begin) and name.endswith(end):
            process = name[len(begin) : -len(end)]
            if not is_running(process):
                with contextlib.suppress(OSError):
                    final.with_name(name).unlink()


def is_running(process: str) -> bool:
    """Whether the process of this number is there; of what is no number nobody knows."""
    if not process.isdecimal() or os.name == "nt":  # Windows would end it to find out
        return True
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


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
