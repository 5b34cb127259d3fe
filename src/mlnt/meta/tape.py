"""One forward pass of a traced network that remembers how to go back.

The rules that evaluate the nodes (`layer_rules`, `value_rules`) leave behind functions that pull a
gradient back through them; `Tape.pull_back` calls these in reverse. There are two kinds of run:

    own      each of the M models has its own weights; values and gradients are [B, M·C, ...]
    shared   one set of weights, values [B, C, ...]; only the gradients, of M losses, are folded

Axes: M models, B batch, C channels.
"""

import contextlib
import functools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn

from mlnt.distributed import WHOLE, Rows
from mlnt.meta.plain import Gradients

Weights = Mapping[str, Tensor]  # by parameter name, [M·shape[0], *shape[1:]], or [*shape] if shared
LAYERS_AHEAD = 4  # that the way back may be ahead of the gradients of weights


class CannotFold(Exception):
    """Names the layer that has no folded form."""


@dataclass(frozen=True)
class Folded:
    """A value that depends on weights: [B, M·C, ...], or [B, C, ...] in a shared run."""

    value: Tensor


@dataclass(frozen=True)
class Fusions:
    """What batch norms do for their neighbours."""

    relu_of: Mapping[fx.Node, fx.Node]  # batch norm: the ReLU that alone uses it
    sum_of: Mapping[fx.Node, fx.Node]  # batch norm: the sum it is the first to use


@dataclass(frozen=True)
class Options:
    models: int
    shared: bool = False
    track: bool = False  # batch norms update their running statistics
    differentiable: bool = False  # autograd may differentiate the run and its pullback
    rows: Rows = WHOLE  # of the batch, where several processes divide it


@dataclass
class Run:
    """The result of a forward pass."""

    logits: Tensor  # [B, M·C], or [B, C] if shared
    pull_back: Callable[[Tensor], Gradients]  # gradients at the logits [B, M·C] -> of the weights


class Tape(fx.Interpreter):
    def __init__(
        self,
        model: nn.Module,
        graph: fx.Graph,
        names: Mapping[int, str],
        fusions: Fusions,
        weights: Weights,
        options: Options,
    ) -> None:
        super().__init__(model, garbage_collect_values=True, graph=graph)
        self.extra_traceback = False
        self.names, self.fusions, self.weights = names, fusions, weights
        self.models, self.shared = options.models, options.shared
        self.track, self.differentiable = options.track, options.differentiable
        self.rows = options.rows
        self.node: fx.Node = next(iter(graph.nodes))
        self.early: dict[fx.Node, Folded] = {}  # ReLUs that a batch norm has done
        self.late: dict[fx.Node, tuple[Folded, Folded]] = {}  # sums that one will do
        # In the order of evaluation: (node, gradient at it -> gradients at its inputs).
        self.pullbacks: list[tuple[fx.Node, Callable[[Tensor], None]]] = []
        self.at: dict[fx.Node, Tensor] = {}  # gradients on their way back
        self.gradients: Gradients = {}
        self.device = next(iter(weights.values())).device
        self.aside = None if self.differentiable else stream_aside(self.device)
        self.went_aside = False  # a recording may not wait for a stream that is not part of it
        self.unfinished: deque[tuple[torch.cuda.Event, Tensor, Tensor]] = deque()

    def run_node(self, n: fx.Node) -> Any:
        self.node = n
        return self.early.pop(n) if n in self.early else super().run_node(n)

    @contextlib.contextmanager
    def own_terms(self) -> Iterator[None]:
        """The tape decides what is recorded by autograd, and in which types: no autocast."""
        with (
            torch.set_grad_enabled(self.differentiable),
            torch.autocast(self.device.type, enabled=False),
        ):
            yield

    # --- going back -------------------------------------------------------------------------

    def pull_back(self, dlogits: Tensor) -> Gradients:
        """The gradients of every weight used, [M·shape[0], *shape[1:]]; may be called once."""
        (end,) = (node for node in self.graph.nodes if node.op == "output")
        with self.own_terms():
            self.at[end.args[0]] = dlogits
            while self.pullbacks:
                node, pull = self.pullbacks.pop()
                if node in self.at:
                    pull(self.at.pop(node))
        if self.aside is not None and self.went_aside:
            torch.cuda.current_stream(dlogits.device).wait_stream(self.aside)
            self.unfinished.clear()
        return self.gradients

    def on_the_way_back(self, pull: Callable[[Tensor], None], node: fx.Node | None = None) -> None:
        """Call `pull` with the gradient at a node, by default the one being evaluated."""
        self.pullbacks.append((node or self.node, pull))

    def send(self, source: Any, gradient: Tensor) -> None:
        """Add to the gradient at a node; nothing flows to what does not depend on weights."""
        if isinstance(source, fx.Node):
            there = self.at.get(source)
            self.at[source] = gradient if there is None else there + gradient

    def give(self, parameter: Tensor, gradient: Tensor) -> None:
        """Add to the gradient of a weight; tied weights get several."""
        name = self.names[id(parameter)]
        there = self.gradients.get(name)
        self.gradients[name] = gradient if there is None else there + gradient

    def give_aside(
        self, parameter: Tensor, compute: Callable[[Tensor], Tensor], dy: Tensor, x: Tensor
    ) -> None:
        """Give the gradient of a weight; on a GPU computed beside the way back, which does not
        wait for it. What it reads is kept until it is done, for a few layers at most."""
        if self.aside is None:
            self.give(parameter, compute(dy))
            return
        main = torch.cuda.current_stream(dy.device)
        self.went_aside = True
        self.aside.wait_stream(main)
        with torch.cuda.stream(self.aside):
            self.give(parameter, compute(dy))
        self.unfinished.append((self.aside.record_event(), dy, x))
        if len(self.unfinished) > LAYERS_AHEAD:
            main.wait_event(self.unfinished.popleft()[0])

    def differentiate(
        self, function: Callable[..., Tensor], inputs: list[Tensor], dy: Tensor
    ) -> tuple[Tensor, ...]:
        """Pull dy back through a function that is evaluated once more."""
        with torch.enable_grad():
            inputs = [
                x if self.differentiable and x.requires_grad else x.detach().requires_grad_()
                for x in inputs
            ]
            y = function(*inputs)
            return torch.autograd.grad(y, inputs, dy, create_graph=self.differentiable)

    # --- what is shared, and what each model has --------------------------------------------

    def weight(self, parameter: Tensor | None) -> Any:
        """[M·shape[0], ...], or [*shape] in a shared run; None for a layer without it."""
        return None if parameter is None else self.weights[self.names[id(parameter)]]

    def every_weight(self, weight: Tensor) -> Tensor:
        """[M·shape[0], ...] in any run."""
        if not self.shared or self.models == 1:
            return weight
        return weight.repeat(self.models, *[1] * (weight.ndim - 1))

    def every_value(self, value: Tensor) -> Tensor:
        """A folded value in any run."""
        return self.repeated(value) if self.shared else value

    def repeated(self, value: Tensor) -> Tensor:
        """What is shared by all models, as a folded value."""
        if self.models == 1:
            return value
        if value.ndim == 4 and value.is_contiguous(memory_format=torch.channels_last):
            batch, channels, height, width = value.shape  # and they stay last
            last = value.permute(0, 2, 3, 1).unsqueeze(3)
            whole = last.expand(batch, height, width, self.models, channels).flatten(3)
            return whole.permute(0, 3, 1, 2)
        return value.repeat(1, self.models, *[1] * (value.ndim - 2))


@functools.cache
def _stream_of(index: int) -> torch.cuda.Stream:
    return torch.cuda.Stream(index)


def stream_aside(device: torch.device) -> torch.cuda.Stream | None:
    """A stream for what runs beside the rest; None where there are none."""
    return _stream_of(device.index or 0) if device.type == "cuda" else None


def value_of(x: Any) -> Any:
    return x.value if isinstance(x, Folded) else x
