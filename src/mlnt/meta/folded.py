"""The meta-gradient of `plain.py` with the M models folded into the channel axis.

The same function. The inner step is one forward pass at θ and M backward passes at once; the meta
step is one forward and one backward pass of the M models θ′_1 … θ′_M:

    g_m   = ∇L_c(X, Ŷ_m, θ)         from one forward pass: only the gradient at the logits differs
    θ′_m  = θ − α g_m
    v_m   = ∇J(θ′_m)
    first order   ∇L_meta = 1/M Σ_m v_m
    second order  ∇L_meta = 1/M Σ_m (v_m − α H_m v_m),  Σ_m H_m v_m = ∇_θ Σ_m ⟨g_m(θ), v_m⟩

Axes: M sets, B batch, C classes.
"""

import logging
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.distributed import WHOLE, Rows
from mlnt.meta.flat import Layout, merge, split_by_rank
from mlnt.meta.folding import FoldedNetwork
from mlnt.meta.plain import CONSISTENCIES, Gradients, check_target, plain_meta_gradient
from mlnt.meta.tape import CannotFold, Options
from mlnt.meta.tracing import oddity_of, settings_of

log = logging.getLogger("mlnt")

Target = Tensor | Callable[[], Tensor]

# Tracing takes as long as several steps, so it is kept as long as the network stays what it is:
# its modules, their modes and hooks, its parameters (its kind), and its own code's settings.
_traced: "weakref.WeakKeyDictionary[nn.Module, dict[Any, FoldedNetwork | None]]"
_traced = weakref.WeakKeyDictionary()
TRACES_KEPT = 4
GIVEN_UP = None  # instead of settings


def folded_meta_gradient(
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target: Target,
    alpha: float | Tensor,
    order: int = 1,
    consistency: str = "kl",
    rows: Rows = WHOLE,
) -> tuple[Tensor, Gradients]:
    """What `plain_meta_gradient` gives; a network that cannot be folded is given to it.

    The target may be a function that gives it: it is asked for after the inner step.
    """
    network = folded_network(model)
    if network is not None:
        try:
            return _compute(
                network, model, inputs, synthetic_MB, target, alpha, order, consistency, rows
            )
        except CannotFold as obstacle:
            give_up(model, obstacle)
    target_BC = target() if callable(target) else target
    return plain_meta_gradient(
        model, inputs, synthetic_MB, target_BC, alpha, order, consistency, rows
    )


def folded_network(model: nn.Module) -> FoldedNetwork | None:
    """The traced network as it is now; None if it cannot be folded."""
    traces, (kind, settings) = _traced.setdefault(model, {}), _signature(model)
    if (kind, GIVEN_UP) in traces:
        return None
    if (kind, settings) not in traces:
        while len(traces) >= TRACES_KEPT:
            traces.pop(next(iter(traces)))
        try:
            network = FoldedNetwork(model)
        except CannotFold as obstacle:
            give_up(model, obstacle)
            return None
        # A setting that the forward pass does not ask: all that was proven holds.
        same = [t for (k, _), t in traces.items() if k == kind and t and t.code == network.code]
        traces[kind, settings] = (same or [network])[0]
    return traces[kind, settings]


def give_up(model: nn.Module, obstacle: CannotFold) -> None:
    """Say why a network is not folded, and do not try again while it is of this kind."""
    log.warning("folded engine: %s; the plain loop is used instead", obstacle)
    _traced[model][_signature(model)[0], GIVEN_UP] = None


def _signature(model: nn.Module) -> tuple[Any, Any]:
    """(its kind, its settings)."""
    modules, settings = [], []
    for name, module in model.named_modules():
        modules.append((name, type(module), module.training, oddity_of(module)))
        if not type(module).__module__.startswith("torch.nn."):
            settings.append(settings_of(module))  # those of layers are not part of a trace
    parameters = [(name, id(p)) for name, p in model.named_parameters()]
    return (tuple(modules), tuple(parameters)), tuple(settings)


def _compute(
    network: FoldedNetwork,
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target: Target,
    alpha: float | Tensor,
    order: int,
    consistency: str,
    rows: Rows,
) -> tuple[Tensor, Gradients]:
    sets = len(synthetic_MB)
    theta = Parameters(dict(model.named_parameters()), sets, compute_type(model))
    inputs = theta.prepare(inputs)
    inner, differentiate = _inner_gradients(
        network, theta, inputs, synthetic_MB, target, order, rows
    )
    theta_prime = theta.step(inner, alpha)
    run = network.run(theta_prime, inputs, Options(sets, rows=rows))
    target_BC = target() if callable(target) else target
    loss, dlogits = _consistency(run.logits, target_BC, sets, consistency, rows.share)
    by_set = theta.joined(run.pull_back(dlogits))
    gradients = theta.sum_over_models(by_set)
    if order == 2:
        v = [rows.group.sum(vector) for vector in by_set]
        for name, curvature in differentiate(theta.views(v)).items():
            gradients[name] = gradients[name] - alpha * curvature
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    return loss, {name: gradients[name] for name in trainable}


def _inner_gradients(
    network: FoldedNetwork,
    theta: "Parameters",
    inputs: Any,
    synthetic_MB: Tensor,
    target: Target,
    order: int,
    rows: Rows,
) -> Any:
    """(g_1 … g_M in one vector per type, a function v -> Σ_m H_m v_m)."""
    sets, own_rows = synthetic_MB.shape
    batch = own_rows if rows.is_whole else rows.total
    weights = theta.shared(requires_grad=order == 2)
    options = Options(sets, shared=True, differentiable=order == 2, rows=rows)
    run = network.run(weights, inputs, options)
    if isinstance(target, Tensor):
        check_target(run.logits.shape, target)
    with torch.set_grad_enabled(order == 2):
        probabilities_BC = run.logits.to(theta.full).softmax(dim=1)
        one_hot_BMC = F.one_hot(synthetic_MB.T, probabilities_BC.shape[1])
        dlogits_BMC = (probabilities_BC.unsqueeze(1) - one_hot_BMC) / batch
        inner = run.pull_back(dlogits_BMC.flatten(1).to(run.logits.dtype))

    def differentiate(v: Mapping[str, Tensor]) -> Gradients:
        names = [name for name in inner if theta.named[name].requires_grad]
        outputs = [inner[name] for name in names]
        found = torch.autograd.grad(
            outputs,
            [weights[name] for name in names],
            [v[name].reshape(g.shape).to(g.dtype) for name, g in zip(names, outputs, strict=True)],
            allow_unused=True,
        )
        return {
            name: torch.zeros_like(weights[name]) if g is None else g.to(theta.full)
            for name, g in zip(names, found, strict=True)
        }

    vectors = theta.joined({name: g.detach() for name, g in inner.items()})
    return [rows.group.sum(vector) for vector in vectors], differentiate


def _consistency(
    logits: Tensor, target_BC: Tensor, sets: int, consistency: str, share: float
) -> tuple[Tensor, Tensor]:
    """(L_meta, its gradient at the folded logits [B, M·C])."""
    check_target((len(logits), logits.shape[1] // sets), target_BC)
    with torch.enable_grad():
        leaf = logits.detach().to(target_BC.dtype).requires_grad_()
        logits_MBC = leaf.unflatten(1, (sets, -1)).transpose(0, 1)
        targets = target_BC.expand(sets, *target_BC.shape).flatten(0, 1)
        # A mean over M·B rows is the mean over the sets of the means over the batch.
        loss = share * CONSISTENCIES[consistency](targets, logits_MBC.flatten(0, 1))
        (dlogits,) = torch.autograd.grad(loss, leaf)
    return loss.detach(), dlogits.to(logits.dtype)


def compute_type(model: nn.Module) -> torch.dtype:
    """What to compute in: the type of autocast where it is on, else that of the weights."""
    first = next(model.parameters())
    if torch.is_autocast_enabled(first.device.type):
        return torch.get_autocast_dtype(first.device.type)
    return first.dtype


class Parameters:
    """θ, and M versions of it, in the types they are computed with."""

    def __init__(self, named: Mapping[str, Tensor], sets: int, dtype: torch.dtype) -> None:
        self.named, self.sets, self.dtype = named, sets, dtype
        self.full = next(iter(named.values())).dtype
        self.kinds = split_by_rank(named)
        self.types = (dtype, self.full)
        self.layouts = [Layout(kind, sets) for kind in self.kinds]
        self.single = [Layout(kind, 1) for kind in self.kinds]

    def prepare(self, inputs: Any) -> Any:
        """Floating inputs in the type of computation, images with channels last on a GPU."""
        return cast_inputs(inputs, self.dtype)

    def shared(self, requires_grad: bool = False) -> dict[str, Tensor]:
        """θ itself."""
        parts = [
            layout.views(layout.join({name: p.detach() for name, p in kind.items()}).to(dtype))
            for layout, kind, dtype in zip(self.single, self.kinds, self.types, strict=True)
            if kind
        ]
        weights = merge(self.named, *parts)
        if requires_grad:
            for name, weight in weights.items():
                weights[name] = weight.detach().requires_grad_(self.named[name].requires_grad)
        return weights

    def joined(self, gradients: Mapping[str, Tensor]) -> list[Tensor]:
        """Gradients of all parameters, one vector for each kind; zero where there is none."""
        vectors = []
        for layout, kind, dtype in zip(self.layouts, self.kinds, self.types, strict=True):
            parts = {}
            for name, p in kind.items():
                found = gradients.get(name)
                if found is None:
                    found = p.new_zeros(self.sets * p.numel(), dtype=dtype).view(-1, *p.shape[1:])
                parts[name] = found
            vectors.append(layout.join(parts) if kind else torch.empty(0))
        return vectors

    def step(self, gradients: list[Tensor], alpha: float | Tensor) -> dict[str, Tensor]:
        """θ − α g of every model; frozen parameters stay."""
        parts = []
        for layout, kind, vector, dtype in zip(
            self.layouts, self.kinds, gradients, self.types, strict=True
        ):
            if kind:
                moved = layout.repeat(kind).sub_(vector * alpha)
                parts.append(layout.views(moved.to(dtype)))
        weights = merge(self.named, *parts)
        for name, p in self.named.items():
            if not p.requires_grad:
                weights[name] = (
                    p.detach().to(weights[name].dtype).repeat(self.sets, *[1] * (p.ndim - 1))
                )
        return weights

    def views(self, vectors: list[Tensor]) -> dict[str, Tensor]:
        pairs = zip(self.layouts, self.kinds, vectors, strict=True)
        return merge(self.named, *(layout.views(v) for layout, kind, v in pairs if kind))

    def sum_over_models(self, vectors: list[Tensor]) -> dict[str, Tensor]:
        pairs = zip(self.layouts, self.kinds, vectors, strict=True)
        return merge(
            self.named,
            *(layout.sum_over_models(v.to(self.full)) for layout, kind, v in pairs if kind),
        )


def cast_inputs(inputs: Any, dtype: torch.dtype) -> Any:
    if isinstance(inputs, tuple):
        return tuple(cast_inputs(value, dtype) for value in inputs)
    if not isinstance(inputs, Tensor) or not inputs.is_floating_point():
        return inputs
    inputs = inputs.to(dtype)
    if inputs.is_cuda and inputs.ndim == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs
