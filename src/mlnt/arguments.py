"""What callers of the library hand over: rows of numbers of many kinds, generators."""

import operator
import reprlib
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mlnt.errors import InputError


def as_tensor(values: Any, name: str, wanted: str = "numbers") -> Tensor:
    """A tensor, without its gradient; of an array, a list or a Series by position, a copy."""
    is_sparse = isinstance(values, Tensor) and values.layout != torch.strided
    if is_sparse or hasattr(values, "toarray"):
        dense = "to_dense" if isinstance(values, Tensor) else "toarray"
        raise InputError(
            f"{name} must be dense, got {type(values).__name__}; give .{dense}() of it"
        )
    if isinstance(values, Tensor):
        return values.detach()
    try:
        array = np.asarray(values)
        if array.dtype == object:
            array = np.array(array.tolist())
        # A copy that torch takes: in one piece, in this machine's byte order, of its types.
        kind = np.float64 if array.dtype == np.longdouble else array.dtype.newbyteorder("=")
        return torch.from_numpy(np.array(array, dtype=kind, order="C"))
    except (TypeError, ValueError):  # texts, or rows of different lengths
        raise InputError(f"{name} must be {wanted}, got {in_one_line(values)}") from None


def in_one_line(value: Any) -> str:
    """A short form of it: an array takes several lines."""
    return " ".join(reprlib.repr(value).split())


def is_count(value: Any) -> bool:
    """Whether it is a whole number from 1 on: an int, or a scalar of NumPy or torch."""
    try:
        return not isinstance(value, bool) and operator.index(value) >= 1
    except TypeError:
        return False


def check_generator(generator: Any) -> None:
    """Raise InputError unless it is None or a torch.Generator: a seed is none."""
    if generator is None or isinstance(generator, torch.Generator):
        return
    is_seed = isinstance(generator, int)
    seed = f"; for a seed: torch.Generator().manual_seed({generator})" if is_seed else ""
    raise InputError(f"generator must be a torch.Generator, got {in_one_line(generator)}{seed}")
