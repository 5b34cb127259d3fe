"""Networks that torch.compile or DistributedDataParallel wrap, and how their passes are run."""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mlnt.distributed import Group, replicas_of
from mlnt.errors import InputError

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


class _Shortcuts:
    """What they were before the first of those that are within `as_written` came.

    They are settings of the whole process, of which several threads may train something.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.within = 0
        self.was_fast = True
        self.stance: Any = None  # gives back the one before on `__exit__`

    def unlock(self) -> None:
        """In a forked process: the thread that held the lock is not there any more."""
        self.lock = threading.Lock()


_shortcuts = _Shortcuts()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shortcuts.unlock)


@contextlib.contextmanager
def as_written() -> Iterator[None]:
    """Passes by what the network's code says, without two shortcuts of PyTorch.

    What is compiled, be it a part or a function, has no second pass back through the same values,
    and no second derivative. The fast path of attention, which only a network in evaluation mode
    takes, fails under autocast, and would make teacher and student round differently.
    """
    with _shortcuts.lock:
        try:
            # Where it is not loaded nothing was compiled, and to load it takes seconds.
            is_loaded = "torch._dynamo" in sys.modules
            stance = torch.compiler.set_stance("force_eager") if is_loaded else None
        except RuntimeError:
            raise InputError(
                "the meta update cannot be within a function that torch.compile compiles; call it "
                "outside, or by torch.compiler.disable(tolerance.meta_update)"
            ) from None
        _shortcuts.stance = _shortcuts.stance or stance
        if _shortcuts.within == 0:
            _shortcuts.was_fast = torch.backends.mha.get_fastpath_enabled()
            torch.backends.mha.set_fastpath_enabled(False)
        _shortcuts.within += 1
    try:
        yield
    finally:
        with _shortcuts.lock:
            _shortcuts.within -= 1
            if _shortcuts.within == 0:
                torch.backends.mha.set_fastpath_enabled(_shortcuts.was_fast)
                if _shortcuts.stance is not None:
                    _shortcuts.stance.__exit__(None, None, None)
                _shortcuts.stance = None
