"""Nested dictionaries and lists as tensors by name and plain JSON, and back: no pickle anywhere.

{"a": [tensor, 2]} -> {"a": [{"tensor": "0"}, 2]} written as JSON, {"0": tensor}
"""

from typing import Any

from torch import Tensor

Tensors = dict[str, Tensor]


def pack(value: Any, tensors: Tensors) -> Any:
    """`value` as what JSON can hold; its tensors go into `tensors`, under numbers."""
    if isinstance(value, Tensor):
        name = str(len(tensors))
        # Where it lies there already, no copy: it is about to be written.
        tensors[name] = value.detach().cpu().contiguous()
        return {"tensor": name}
    if isinstance(value, dict):
        # As pairs: an optimizer counts its parameters by numbers, which JSON's names are not.
        return {"pairs": [[key, pack(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return [pack(item, tensors) for item in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot write down a {type(value).__name__}")


def unpack(packed: Any, tensors: Tensors) -> Any:
    """What `pack` was given, tuples as lists; LookupError, TypeError or ValueError if damaged."""
    if isinstance(packed, list):
        return [unpack(item, tensors) for item in packed]
    if not isinstance(packed, dict):
        return packed
    if "tensor" in packed:
        return tensors[packed["tensor"]]
    return {key: unpack(item, tensors) for key, item in packed["pairs"]}


def copied(value: Any) -> Any:
    """The same in memory of its own, tensors on the CPU; tuples as lists."""
    tensors: Tensors = {}
    packed = pack(value, tensors)
    return unpack(packed, {name: tensor.clone() for name, tensor in tensors.items()})
