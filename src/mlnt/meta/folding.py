"""A network traced with torch.fx, run for M sets of weights at once.

A folded value is [B, M·C, ...]: the channels of model 0, then those of model 1, and so on. How
each kind of node is evaluated and differentiated is in `layer_rules` and `value_rules`; a network
with a node that has no rule raises `CannotFold`. So does one that computes something else than its
trace does (see `tracing` and `comparison`).

Axes: M models, B batch, C classes.
"""

import weakref
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn

from mlnt.distributed import Rows
from mlnt.errors import first_line
from mlnt.meta.comparison import check_agrees
from mlnt.meta.tape import CannotFold, Folded, Fusions, Options, Run, Tape, Weights
from mlnt.meta.tracing import oddity_of, trace
from mlnt.meta.value_rules import (
    ADDITIONS,
    apply_function,
    apply_method,
    apply_module,
    overwritten_by,
)

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class FoldedNetwork:
    """A traced network."""

    def __init__(self, model: nn.Module) -> None:
        self.kind = type(model).__name__
        # Weak: the network is cached under its model, and must not keep it alive.
        self.model = weakref.ref(model)
        for name, module in model.named_modules():
            if oddity := oddity_of(module):
                raise CannotFold(f"{name or self.kind} has {oddity}")
        self.graph = trace(model)
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
        def by_rules(weights: Weights, some: Any) -> Run:
            return self._run(weights, some, Options(1, shared=True, rows=rows))

        check_agrees(self._model(), by_rules, inputs, rows)

    def _model(self) -> nn.Module:
        model = self.model()
        assert model is not None
        return model

    def _width(self, run: Run, options: Options) -> int:
        return run.logits.shape[1] * (options.models if options.shared else 1)

    def _run(self, weights: Weights, inputs: Any, options: Options) -> Run:
        tape = _Evaluation(self._model(), self.graph, self.names, self.fusions, weights, options)
        with tape.own_terms():
            result = tape.run(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        if not isinstance(result, Folded) or result.value.ndim != 2:
            raise CannotFold(f"{self.kind} does not end in logits [B, C]")
        return Run(result.value, tape.pull_back)


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
