"""A network traced with torch.fx, run for M sets of weights at once.

A folded value is [B, M·C, ...]: the channels of model 0, then those of model 1, and so on. How
each kind of node is evaluated and differentiated is in `layer_rules` and `value_rules`; a network
with a node that has no rule raises `CannotFold`. So does one that computes something else than its
trace does: what a trace may miss is many things, so the two are compared once.

Axes: M models, B batch, C classes.
"""

import contextlib
import math
import operator
import random
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn
from torch.overrides import TorchFunctionMode

from mlnt.distributed import Rows
from mlnt.errors import first_line
from mlnt.meta.features import forward
from mlnt.meta.plain import Gradients, gradient
from mlnt.meta.synchronised import synchronised
from mlnt.meta.tape import (
    CannotFold,
    Folded,
    Fusions,
    Options,
    Tape,
    Weights,
)
from mlnt.meta.value_rules import (
    ADDITIONS,
    DROPOUTS,
    apply_function,
    apply_method,
    apply_module,
    overwritten_by,
)

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)
# How far logits and gradients may be from those of the network itself, relative to their norms: in
# float64, and in other types, where rounding alone may come to much in a deep network.
NEAR, GROSSLY_NEAR = 1e-6, 0.3
SETTINGS = (bool, int, float, str, types.NoneType)
FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType)


@dataclass
class Run:
    """The result of a forward pass."""

    logits: Tensor  # [B, M·C], or [B, C] if shared
    pull_back: Callable[[Tensor], Gradients]  # gradients at the logits [B, M·C] -> of the weights


class FoldedNetwork:
    """A traced network."""

    def __init__(self, model: nn.Module) -> None:
        self.kind = type(model).__name__
        # Weak: the network is cached under its model, and must not keep it alive.
        self.model = weakref.ref(model)
        for name, module in model.named_modules():
            if oddity := oddity_of(module):
                raise CannotFold(f"{name or self.kind} has {oddity}")
        self.graph = _trace(model)
        self.code = str(self.graph)
        _refuse_overwritten(self.graph, model)
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.fusions = _find_fusions(self.graph, model)
        self.proven: set[Options] = set()  # the kinds of run for which every node had a rule

    def run(self, weights: Weights, inputs: Any, options: Options) -> Run:
        """Evaluate the network. What is run so for the first time is tried before: where there is
        no rule, nothing must have happened that the plain loop will do again."""
        trial = replace(options, track=False, differentiable=False)
        if trial not in self.proven:
            self._try(weights, inputs, trial)
            self.proven.add(trial)
        return self._run(weights, inputs, options)

    def _try(self, weights: Weights, inputs: Any, options: Options) -> None:
        device = next(iter(weights.values())).device
        is_gpu = device.type == "cuda"
        if is_gpu and not self.proven and torch.cuda.is_current_stream_capturing():
            raise CannotFold(f"{self.kind} is recorded before it was run once")
        try:
            with torch.random.fork_rng([device] if is_gpu else []):
                run = self._run(weights, inputs, options)
                run.pull_back(run.logits.new_zeros(len(run.logits), self._width(run, options)))
            if not self.proven:
                self._compare(inputs, options.rows)
        except (CannotFold, torch.OutOfMemoryError):
            raise
        except Exception as error:  # a use of some function that no rule foresaw
            raise CannotFold(f"{self.kind}: {first_line(error)}") from None

    def _compare(self, inputs: Any, rows: Rows) -> None:
        """Raise CannotFold unless the network itself has the same logits and gradients."""
        model = self.model()
        assert model is not None
        pairs, limit = None, NEAR
        # Not in what autocast or TensorFloat-32 leave of a number: a deep network makes of their
        # rounding gradients that have little in common.
        with contextlib.suppress(RuntimeError):  # it names types itself, or there is no room
            pairs = self._both(model, inputs, rows, torch.float64)
        if pairs is None:
            pairs = self._both(model, inputs, rows, next(model.parameters()).dtype)
            limit = GROSSLY_NEAR
        for found, expected in pairs:
            squares = [x.double().square().sum() for x in (found - expected, expected)]
            # Processes that divide a batch must all come to the same conclusion.
            error, norm = rows.group.sum(torch.stack(squares)).sqrt().tolist()
            if math.isfinite(norm) and not error <= limit * norm:
                raise CannotFold(f"{self.kind} computes something else than its trace")

    def _both(
        self, model: nn.Module, inputs: Any, rows: Rows, dtype: torch.dtype
    ) -> list[tuple[Tensor, Tensor]]:
        """(folded, by autograd) of the logits and of all gradients, each one vector.

        Near these weights and inputs: there nothing is zero, which would hide what comes before
        it, and no two things are equal, of which rounding would choose one. All weights are free.
        """
        device = next(model.parameters()).device
        devices = [device] if device.type == "cuda" else []
        named = dict(model.named_parameters())
        weights, inputs = {name: _near(p, dtype) for name, p in named.items()}, _near(inputs, dtype)
        leaves = {name: weight.clone().requires_grad_() for name, weight in weights.items()}
        free = {id(p): leaves[name] for name, p in named.items()}
        with left_as_it_was(model), torch.autocast(device.type, enabled=False), _Undropped():
            _replace_(model, "_buffers", lambda buffer: _in_type(buffer.clone(), dtype))
            with torch.random.fork_rng(devices):
                run = self._run(weights, inputs, Options(1, shared=True, rows=rows))
                found = run.pull_back(_drawn(run.logits))
            _replace_(model, "_parameters", lambda p: free[id(p)])
            with torch.random.fork_rng(devices), torch.enable_grad(), synchronised(rows):
                logits = forward(model, inputs)
                expected = gradient((logits * _drawn(logits)).sum(), leaves)
        gradients = [(found.get(name, torch.zeros_like(g)), g) for name, g in expected.items()]
        vectors = [torch.cat([g.flatten() for g in side]) for side in zip(*gradients, strict=True)]
        return [(run.logits, logits.detach()), (vectors[0], vectors[1])]

    def _width(self, run: Run, options: Options) -> int:
        return run.logits.shape[1] * (options.models if options.shared else 1)

    def _run(self, weights: Weights, inputs: Any, options: Options) -> Run:
        model = self.model()
        assert model is not None
        tape = _Evaluation(model, self.graph, self.names, self.fusions, weights, options)
        with tape.own_terms():
            result = tape.run(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        if not isinstance(result, Folded) or result.value.ndim != 2:
            raise CannotFold(f"{self.kind} does not end in logits [B, C]")
        return Run(result.value, tape.pull_back)


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


def _trace(model: nn.Module) -> fx.Graph:
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
    if kept != settings:
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


class _Undropped(TorchFunctionMode):
    """Dropout does nothing: which values it drops depends on how they lie in memory."""

    def __torch_function__(
        self, function: Callable, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return args[0] if function in DROPOUTS.values() else function(*args, **(kwargs or {}))


def _replace_(model: nn.Module, kind: str, change: Callable[[Tensor], Tensor]) -> None:
    """All its `_parameters` or `_buffers`."""
    for module in model.modules():
        tensors = getattr(module, kind)
        for name in tensors:
            tensors[name] = None if tensors[name] is None else change(tensors[name])


def _in_type(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


def _near(value: Any, dtype: torch.dtype) -> Any:
    """The same but for a hundredth of noise; of a tuple, each."""
    if isinstance(value, tuple):
        return tuple(_near(part, dtype) for part in value)
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return value
    x = value.detach().to(dtype)
    return x + 0.01 * _drawn(x)


def _drawn(like: Tensor) -> Tensor:
    """Normally distributed, always the same."""
    generator = torch.Generator(like.device).manual_seed(0)
    return torch.randn(like.shape, generator=generator, dtype=like.dtype, device=like.device)


def _random_states() -> tuple[Any, ...]:
    of_numpy: Any = np.random.get_state(legacy=False)  # noqa: NPY002 (a network may use it)
    drawn = (of_numpy["state"]["key"].tobytes(), of_numpy["state"]["pos"])
    return random.getstate(), torch.get_rng_state().tolist(), drawn


def _refuse_overwritten(graph: fx.Graph, model: nn.Module) -> None:
    """The rules keep values that the network overwrites in place: nobody may read them later."""
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        source = overwritten_by(node, model)
        while isinstance(source, fx.Node):
            if any(place[user] > place[node] for user in source.users):
                raise CannotFold(f"{source.name} is overwritten in place and read again")
            is_view = source.op == "call_method" or source.target in (torch.flatten, getattr)
            source = source.args[0] if is_view or overwritten_by(source, model) else None


class _Evaluation(Tape):
    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        raise CannotFold(f"{target} is a parameter or buffer used outside of a layer")

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        return apply_module(self, target, args, kwargs)

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        return apply_function(self, target, args, kwargs)

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        return apply_method(self, target, args, kwargs)


def _find_fusions(graph: fx.Graph, model: nn.Module) -> Fusions:
    """Additions that a batch norm can do on its way, and ReLUs that it can."""
    relu_of, sum_of = {}, {}
    place = {node: number for number, node in enumerate(graph.nodes)}
    for node in graph.nodes:
        if node.op != "call_module" or type(model.get_submodule(node.target)) not in NORMS:
            continue
        users = list(node.users)
        if len(users) == 1 and _is_relu(users[0], model):
            relu_of[node] = users[0]
        source = node.args[0] if node.args else None
        if isinstance(source, fx.Node) and _is_sum(source):
            first = min(source.users, key=lambda user: place[user])
            if first is node:
                sum_of[node] = source
    return Fusions(relu_of, sum_of)


def _is_relu(node: fx.Node, model: nn.Module) -> bool:
    if node.op == "call_module":
        return type(model.get_submodule(str(node.target))) is nn.ReLU
    return node.target in (F.relu, torch.relu, "relu") and len(node.args) == 1


def _is_sum(node: fx.Node) -> bool:
    return (
        node.op == "call_function"
        and node.target in ADDITIONS
        and len(node.args) == 2
        and not node.kwargs
        and all(isinstance(argument, fx.Node) for argument in node.args)
    )
