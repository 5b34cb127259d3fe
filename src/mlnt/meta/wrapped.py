"""Networks that torch.compile or DistributedDataParallel wrap, and how their passes are run."""

import contextlib
import sys
from collections.abc import Iterator, Mapping

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlnt.distributed import Group, replicas_of

COMPILED, COPIED = "_orig_mod", "module"  # what the wrappers call the network in them


def unwrapped(model: nn.Module) -> nn.Module:
    """The network itself, out of what compiled it or copies it to several processes."""
    return list(_layers(model))[-1]


def replicas_within(model: nn.Module) -> Group:
    """`replicas_of` the DistributedDataParallel in it, which may have been compiled."""
    copies = (layer for layer in _layers(model) if isinstance(layer, DistributedDataParallel))
    return replicas_of(next(copies, model))


def _layers(model: nn.Module) -> Iterator[nn.Module]:
    """The wrappers, the outermost first, then the network."""
    yield model
    if isinstance(model, DistributedDataParallel):
        yield from _layers(model.module)
    elif isinstance(inner := getattr(model, COMPILED, None), nn.Module):
        yield from _layers(inner)


def own_name(name: str, parameters: Mapping[str, object]) -> str:
    """`0.bias` of the network's parameters where a wrapper says `_orig_mod.0.bias`."""
    if name in parameters:
        return name
    first, _, rest = name.partition(".")
    return own_name(rest, parameters) if first in (COMPILED, COPIED) else name


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Passes by what the network's code says, without two shortcuts of PyTorch.

    What is compiled, be it a part or a function, has no second pass back through the same values,
    and no second derivative. The fast path of attention, which only a network in evaluation mode
    takes, fails under autocast, and would make teacher and student round differently.
    """
    was_fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        # Where it is not loaded nothing was compiled, and to load it takes seconds.
        is_loaded = "torch._dynamo" in sys.modules
        with torch.compiler.set_stance("force_eager") if is_loaded else contextlib.nullcontext():
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was_fast)
