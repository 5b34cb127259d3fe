"""Weights that torch.save wrote, in either of its formats; nothing in them is executed.

Not by torch.load: even with weights_only the file may call what takes the memory it is told to. As
in `array_pickle`, a machine that knows no more than tensors need carries out the pickle. A tensor
is a view of bytes in the file, and takes no more of them than the file has.
"""

import io
import math
import struct
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlnt.data.array_pickle import (
    Known,
    Machine,
    Refused,
    load_pickle,
    pass_legacy_header,
    run_pickle,
)
from mlnt.errors import InputError
from mlnt.files import most_unpacked, open_file, read_at_most, read_file

MOST_PICKLE = 2**26  # bytes: names and shapes, no values
MOST_LEGACY = 2**33

TYPES = {
    "FloatStorage": torch.float32, "DoubleStorage": torch.float64, "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16, "LongStorage": torch.int64, "IntStorage": torch.int32,
    "ShortStorage": torch.int16, "CharStorage": torch.int8, "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}  # fmt: skip

Content = Callable[[str, int], bytes]  # of a storage, by its key and size in bytes


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name: of the dictionary saved, or of its `state_dict` or `model`."""
    with open_file(path) as file:
        is_zip = zipfile.is_zipfile(file)
    return _read_zip(path) if is_zip else _read_legacy(path)


def _read_zip(path: Path) -> dict[str, Tensor]:
    with open_file(path) as file, zipfile.ZipFile(file) as archive:
        members = {info.filename: info for info in archive.infolist()}
        size, most = sum(m.file_size for m in members.values()), most_unpacked(path.stat().st_size)
        pickles = [name for name in members if name.endswith("/data.pkl")]
        if len(pickles) != 1 or size > most:
            raise InputError("it was not written by torch.save")
        root = pickles[0].removesuffix("data.pkl")
        if f"{root}byteorder" in members and archive.read(f"{root}byteorder") != b"little":
            raise InputError("its bytes are in another order than this machine's")
        with archive.open(pickles[0]) as member:
            pickled = io.BytesIO(read_at_most(member, MOST_PICKLE, pickles[0]))

        def content(key: str, size: int) -> bytes:
            info = members[f"{root}data/{key}"]
            if info.file_size != size:
                raise ValueError(f"storage {key!r} holds {info.file_size:,} bytes, not {size:,}")
            return archive.read(info)

        return _made(_saved(_TensorMachine(pickled), pickled), content)


def _read_legacy(path: Path) -> dict[str, Tensor]:
    """Magic number, version, machine, the pickle, the keys of storages, and their contents."""
    stream, what = io.BytesIO(read_file(path, MOST_LEGACY)), "it"
    pass_legacy_header(stream, what)
    machine = _TensorMachine(stream)
    saved = _saved(machine, stream)
    contents: dict[str, bytes] = {}
    for key in load_pickle(stream, what):
        (count,) = struct.unpack("<Q", stream.read(8))
        contents[key] = stream.read(min(count, MOST_LEGACY) * machine.types[key].itemsize)

    def content(key: str, size: int) -> bytes:
        if len(contents[key]) != size:
            raise ValueError(f"storage {key!r} holds {len(contents[key]):,} bytes, not {size:,}")
        return contents[key]

    return _made(saved, content)


@dataclass(frozen=True)
class _Storage:
    key: str
    type: torch.dtype
    count: int


@dataclass(frozen=True)
class _Part:
    """A tensor before its storage has been read."""

    key: str
    type: torch.dtype
    count: int  # values of the storage
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    def make(self, values: Tensor) -> Tensor:
        return values.as_strided(self.shape, self.strides, self.start)


class _TensorMachine(Machine):
    made = "tensor"

    def __init__(self, stream: io.BytesIO) -> None:
        super().__init__(most_bytes=stream.getbuffer().nbytes)
        self.known = _KNOWN
        self.types: dict[str, torch.dtype] = {}  # of storages, by their keys

    def refer(self) -> None:
        """('storage', type, key, device, number of values), and of a legacy file what it views."""
        kind, storage_type, key, _device, count, *views = self.last(1)[0]
        is_storage = kind == "storage" and isinstance(storage_type, torch.dtype)
        if not is_storage or any(view is not None for view in views):
            raise Refused("it refers to what is no storage")
        if not isinstance(key, str) or type(count) is not int or count < 0:
            raise Refused("a storage without a key and a size")
        self.types[key] = storage_type
        self.stack.append(_Storage(key, storage_type, count))

    def fill(self) -> None:
        """What a state_dict says of versions is passed over."""
        if isinstance(self.stack[-2], dict):
            self.last(1)
            return
        super().fill()


def _tensor(
    machine: Machine, storage: Any, start: Any, shape: Any, strides: Any, *_rest: Any
) -> _Part:
    if not isinstance(storage, _Storage) or not isinstance(shape, tuple):
        raise Refused("a tensor without a storage")
    numbers = (start, *shape, *strides)
    if len(shape) != len(strides) or any(type(n) is not int or n < 0 for n in numbers):
        raise Refused("a tensor without a shape")
    last = start + sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    # A step of no length would repeat a value without end.
    if math.prod(shape) > storage.count or (math.prod(shape) and last >= storage.count):
        raise Refused(f"a tensor {list(shape)} in a storage of {storage.count:,} values")
    return _Part(storage.key, storage.type, storage.count, start, shape, strides)


_KNOWN: Mapping[str, Any] = {
    "collections OrderedDict": Known(lambda machine: {}),
    "torch._utils _rebuild_tensor_v2": Known(_tensor),
    "torch._utils _rebuild_parameter": Known(lambda machine, part, *_: part),
    **{f"torch {name}": dtype for name, dtype in TYPES.items()},
}


def _saved(machine: _TensorMachine, stream: io.BytesIO) -> dict[Any, Any]:
    """The dictionary of weights in a pickle, its storages not yet read."""
    value = run_pickle(machine, stream, "it")
    for key in ("state_dict", "model"):
        if isinstance(value, dict) and isinstance(value.get(key), dict):
            value = value[key]
    if not isinstance(value, dict) or not all(isinstance(v, _Part) for v in value.values()):
        raise InputError("it must hold tensors by name, as model.state_dict() gives them")
    return value


def _made(saved: dict[Any, Any], content: Content) -> dict[str, Tensor]:
    storages: dict[tuple[str, torch.dtype], Tensor] = {}
    tensors = {}
    for name, part in saved.items():
        place = part.key, part.type
        if place not in storages:
            raw = bytearray(content(part.key, part.count * part.type.itemsize))
            empty = torch.empty(0, dtype=part.type)
            storages[place] = torch.frombuffer(raw, dtype=part.type) if raw else empty
        if len(storages[place]) != part.count:
            raise ValueError(f"storage {part.key!r} has two sizes")
        tensors[str(name)] = part.make(storages[place])
    return tensors
