"""Arrays as numpy saves them, .npy and .npz; nothing in them is executed.

Not by numpy.load: it takes the memory that the header of a file claims before it looks whether the
file holds that much, and unpacks whatever an archive has been filled with.
"""

import math
import os
import zipfile
from pathlib import Path
from typing import IO, Any

import numpy as np

from mlnt.errors import InputError
from mlnt.files import most_unpacked, open_file

HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_npy(path: Path) -> np.ndarray:
    """The array of an .npy; pickled objects are refused."""
    try:
        with open_file(path) as file:
            return _read_array(file, os.fstat(file.fileno()).st_size)
    except Exception as error:
        raise InputError(f"{path} is not a readable .npy of a plain array: {error}") from None


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """All arrays of an .npz by name; pickled objects are refused."""
    try:
        with open_file(path) as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            size, most = sum(m.file_size for m in members), most_unpacked(path.stat().st_size)
            if size > most:
                raise InputError(
                    f"it unpacks to {size:,} bytes, the limit is {most:,}; save it without "
                    "compression, by numpy.savez"
                )
            arrays = {}
            for member in members:
                with archive.open(member) as stream:
                    name = member.filename.removesuffix(".npy")
                    arrays[name] = _read_array(stream, member.file_size, name)
            return arrays
    except Exception as error:
        raise InputError(f"{path} is not a readable .npz of plain arrays: {error}") from None


def _read_array(stream: IO[bytes], size: int, name: str = "array") -> np.ndarray:
    """An array that takes the `size` bytes of the stream, less its header."""
    version: Any = np.lib.format.read_magic(stream)
    if version not in HEADERS:
        raise ValueError(f"version {version} of the format is not read")
    shape, is_fortran, dtype = HEADERS[version](stream)
    if dtype.hasobject:
        raise ValueError(
            f"it holds pickled objects, which are not read; save names as {name}.astype(str), "
            f"numbers as {name}.astype(float)"
        )
    left = size - stream.tell()
    # Compared before an array is made. What takes no byte at all could be claimed without end.
    if dtype.itemsize == 0 or min(shape, default=0) < 0:
        raise ValueError(f"an array of {dtype} with the shape {shape}")
    if math.prod(shape) * dtype.itemsize != left:
        raise ValueError(f"its header claims {shape} of {dtype}, it holds {left:,} bytes")
    content = stream.read(left)
    return np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran else "C").copy()
