"""A network traced with torch.fx, run for M sets of weights at once.

A folded value is [B, M·C, ...]: the channels of model 0, then those of model 1, and so on. How
each kind of node is evaluated and differentiated is in `layer_rules` and `value_rules`; a network
with a node that has no rule raises `CannotFold`.

Axes: M models, B batch, C classes.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mlnt.meta.tape import CannotFold, Folded, Fusions, Gradients, Options, Tape, Weights
from mlnt.meta.value_rules import ADDITIONS, apply_function, apply_method, apply_module

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


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
        try:
            self.graph = fx.Tracer().trace(model)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotFold(f"{self.kind} cannot be traced: {reason}") from None
        for name, module in model.named_modules():
            if module._forward_hooks or module._forward_pre_hooks or module._backward_hooks:
                raise CannotFold(f"{name or self.kind} has hooks")
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}
        self.fusions = _find_fusions(self.graph, model)
        self.proven = False  # whether every node had a rule

    def run(self, weights: Weights, inputs: Any, options: Options) -> Run:
        """Evaluate the network."""
        model = self.model()
        assert model is not None
        if options.track and not self.proven:
            # Where there is no rule for some node, no statistics must have changed before it, and
            # dropout must not have drawn.
            device = next(iter(weights.values())).device
            with torch.random.fork_rng([device] if device.type == "cuda" else []):
                self.run(weights, inputs, replace(options, track=False))
        tape = _Evaluation(model, self.graph, self.names, self.fusions, weights, options)
        with tape.own_terms():
            result = tape.run(*(inputs if isinstance(inputs, tuple) else (inputs,)))
        if not isinstance(result, Folded) or result.value.ndim != 2:
            raise CannotFold(f"{self.kind} does not end in logits [B, C]")
        self.proven = True
        return Run(result.value, tape.pull_back)


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
