"""Checkpoints: each one safetensors file with a checksum, the newest and the one before.

    NAME.safetensors          the newest
    NAME.before.safetensors   the one before, until the newest has one before it
    NAME.damaged              the newest, NAME.before.damaged the one before, found damaged when a
                              run went on

A new one is written aside, flushed and read back; only then the newest becomes the one before and
the new one the newest. Whenever that is cut short, one that reads back is there.
"""

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from mlnt.errors import StorageError, first_line
from mlnt.files import open_file, parse_json
from mlnt.packing import Tensors, pack, unpack
from mlnt.storage import flush_folder, reason, write_aside, write_bytes

# As safetensors calls them.
DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

log = logging.getLogger("mlnt")


class Checkpoints:
    """The checkpoints in one folder, by name."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def newest(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def before(self, name: str) -> Path:
        return self.folder / f"{name}.before.safetensors"

    def find(self, name: str) -> Path | None:
        """The newest there is, which has its old name where writing the next was cut short."""
        return next((p for p in (self.newest(name), self.before(name)) if os.path.exists(p)), None)

    def save(self, name: str, content: dict[str, Any]) -> None:
        """Anything nested of tensors and plain values; OSError if it cannot be kept."""
        tensors: Tensors = {}
        text = json.dumps(pack(content, tensors))
        tensors = _in_order(tensors)
        header = _header(tensors, {"content": text, "sha256": checksum_of(text, tensors)})
        if not self.folder.is_dir():
            self.folder.mkdir(exist_ok=True)
            flush_folder(self.folder.parent)

        def write_and_read_back(aside: Path) -> None:
            # From where they lie: a copy of everything would take longer than the checksum.
            write_bytes(aside, header, *(_bytes(tensor) for tensor in tensors.values()))
            try:
                _read(aside)
            except DamagedError as error:
                raise OSError(errno.EIO, f"what was written reads back damaged: {error}") from None
            with contextlib.suppress(FileNotFoundError):
                os.replace(self.newest(name), self.before(name))

        write_aside(self.newest(name), write_and_read_back)

    def load(self, name: str) -> dict[str, Any] | None:
        """What was saved last and is whole; None if there is nothing of that name.

        StorageError where the system does not let it be read: it may be whole all the same.
        """
        there = [path for path in (self.newest(name), self.before(name)) if path.exists()]
        for path in there:
            try:
                return _read(path)
            except DamagedError as error:
                instead = "it is begun anew" if path == there[-1] else "the one before is taken"
                log.warning("%s is damaged (%s); %s", path, error, instead)
                # Out of the way: else it would take the place of a good one at the next `save`.
                os.replace(path, path.with_suffix(".damaged"))
            except OSError as error:
                raise StorageError(f"cannot read {path}: {reason(error)}") from None
        return None

    def remove(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


class DamagedError(Exception):
    """A checkpoint that is not what was written."""


def checksum_of(text: str, tensors: Tensors) -> str:
    """SHA-256 of all that a checkpoint holds."""
    digest = hashlib.sha256(text.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"\n{name} {tensor.dtype} {list(tensor.shape)}\n".encode())
        digest.update(_bytes(tensor))
    return digest.hexdigest()


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _in_order(tensors: Tensors) -> Tensors:
    """Those of long numbers first: readers want each where its length divides its place."""
    return dict(sorted(tensors.items(), key=lambda item: -item[1].element_size()))


def _header(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    """What stands before the bytes of the tensors in a safetensors file."""
    entries: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in tensors.items():
        begin, end = end, end + tensor.nbytes
        entries[name] = {
            "dtype": DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [begin, end],
        }
    text = json.dumps(entries).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _read(path: Path) -> dict[str, Any]:
    """DamagedError if it is not what was written; OSError if it cannot be looked at."""
    open_file(path).close()  # whatever the reason, safetensors says "no such file"
    try:
        metadata, tensors = _open(path)
        if checksum_of(metadata["content"], tensors) != metadata["sha256"]:
            raise DamagedError("its checksum differs")
        return unpack(parse_json(metadata["content"]), tensors)
    except (SafetensorError, LookupError, TypeError, ValueError, RecursionError) as error:
        raise DamagedError(first_line(error)) from None


def _open(path: Path) -> tuple[dict[str, str], Tensors]:
    try:
        with safe_open(path, framework="pt") as file:
            return file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except RuntimeError as error:  # of torch, which opens the file once more
        raise OSError(errno.EIO, first_line(error)) from None
