"""A network traced with torch.fx: what it computes as a graph, and what a trace would miss.

A network of which it can be seen that its trace is another function raises `CannotFold`; what
cannot be seen here is found by `comparison`.
"""

import contextlib
import operator
import random
import types
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from mlnt.errors import first_line
from mlnt.meta.tape import CannotFold

SETTINGS = (bool, int, float, str, types.NoneType)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


def trace(model: nn.Module) -> fx.Graph:
    """Its graph; the network is left as it was."""
    kind = type(model).__name__
    before, settings = _random_states(), [settings_of(module) for module in model.modules()]
    try:
        with left_as_it_was(model), torch.enable_grad(), _without_own_functions():
            graph = _Tracer().trace(model)
            kept = [settings_of(module) for module in model.modules()]
    except Exception as error:
        raise CannotFold(f"{kind} cannot be traced: {first_line(error)}") from None
    if _random_states() != before:
        # A trace would keep for ever what was drawn once, as in stochastic depth.
        raise CannotFold(f"{kind} draws random numbers outside of its layers")
    if any(_changed(before, after) for before, after in zip(settings, kept, strict=True)):
        raise CannotFold(f"{kind} changes its own attributes")
    return graph


@contextlib.contextmanager
def _without_own_functions() -> Iterator[None]:
    """Within, a function with a backward of its own raises: its forward alone would be traced."""
    apply = vars(torch.autograd.Function)["apply"]

    def refuse(function: type, *args: Any, **kwargs: Any) -> None:
        raise CannotFold(f"{function.__name__} has a backward of its own")

    torch.autograd.Function.apply = classmethod(refuse)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = apply  # type: ignore[method-assign]


@contextlib.contextmanager
def left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Afterwards its modules have the attributes they had, lists and the like their contents:
    code of the network that runs within may count its calls or keep what it computes."""
    spaces: list[Any] = [vars(module) for module in model.modules()]
    held = [value for space in spaces for value in space.values()]
    spaces += [value for value in held if isinstance(value, dict | list | set | deque)]
    before = [(space, space.copy()) for space in spaces]
    try:
        yield
    finally:
        for space, contents in before:
            space.clear()
            (space.update if hasattr(space, "update") else space.extend)(contents)


def oddity_of(module: nn.Module) -> str:
    """What the rules would pass over, if there is any."""
    if (
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or any(p is not None and p._backward_hooks for p in module._parameters.values())
    ):
        return "hooks"
    return "a forward of its own" if "forward" in vars(module) else ""


def settings_of(module: nn.Module) -> tuple[tuple[str, Any], ...]:
    """Attributes that a forward pass may ask: numbers, words and functions, and lists of them."""
    found: list[tuple[str, Any]] = []
    for name, value in vars(module).items():
        if isinstance(value, SETTINGS):
            found.append((name, value))
        elif isinstance(value, FUNCTIONS):
            found.append((name, id(value)))  # itself it might keep the network alive
        elif isinstance(value, tuple | list) and all(isinstance(part, SETTINGS) for part in value):
            found.append((name, tuple(value)))
    return tuple(found)


def _changed(before: tuple[tuple[str, Any], ...], after: tuple[tuple[str, Any], ...]) -> bool:
    """Whether there are other settings now. What has become a value of the trace, as where None
    awaited an activation to keep, is a setting no more."""
    were, are = dict(before), dict(after)
    return any(name not in were or were[name] != value for name, value in are.items())


def _random_states() -> tuple[Any, ...]:
    of_numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (a network may use it)
    drawn = (of_numpy["state"]["key"].tobytes(), of_numpy["state"]["pos"])
    return random.getstate(), torch.get_rng_state().tolist(), drawn


class _Proxy(fx.Proxy):
    """Tells `y += x` from `y + x`, which torch.fx does not."""

    def _in_place(self, function: Callable, other: Any) -> Any:
        return self.tracer.create_proxy("call_function", function, (self, other), {})

    def __iadd__(self, other: Any) -> Any:
        return self._in_place(operator.iadd, other)

    def __isub__(self, other: Any) -> Any:
        return self._in_place(operator.isub, other)

    def __imul__(self, other: Any) -> Any:
        return self._in_place(operator.imul, other)

    def __itruediv__(self, other: Any) -> Any:
        return self._in_place(operator.itruediv, other)


class _Tracer(fx.Tracer):
    # A buffer that is read is part of the trace too, not what it holds at the moment.
    proxy_buffer_attributes = True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _Proxy(node, self)

    def create_proxy(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            raise CannotFold("part of it runs without gradients")
        return super().create_proxy(*args, **kwargs)
