"""The meta-gradient of `plain.py` with the M models folded into the channel axis.

The same function: with the identical θ in all M groups one backward pass gives the M inner
gradients, and one forward and backward pass at θ′_1 … θ′_M gives those of the consistency losses.

Axes: M sets, B batch, C classes.
"""

import logging
import weakref
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.meta.folding import CannotFold, FoldedNetwork
from mlnt.meta.plain import CONSISTENCIES, Gradients, gradient, plain_meta_gradient

log = logging.getLogger("mlnt")

# Tracing takes as long as several steps; a network's structure does not change while it trains.
_traced: "weakref.WeakKeyDictionary[nn.Module, FoldedNetwork | None]" = weakref.WeakKeyDictionary()


def folded_meta_gradient(
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target_BC: Tensor,
    alpha: float | Tensor,
    order: int = 1,
    consistency: str = "kl",
) -> tuple[Tensor, Gradients]:
    """What `plain_meta_gradient` gives; a network that cannot be folded is given to it."""
    network = _network(model)
    if network is not None:
        try:
            return _compute(
                network, model, inputs, synthetic_MB, target_BC, alpha, order, consistency
            )
        except CannotFold as obstacle:
            _give_up(model, obstacle)
    return plain_meta_gradient(model, inputs, synthetic_MB, target_BC, alpha, order, consistency)


def _network(model: nn.Module) -> FoldedNetwork | None:
    if model not in _traced:
        try:
            _traced[model] = FoldedNetwork(model)
        except CannotFold as obstacle:
            _give_up(model, obstacle)
    return _traced[model]


def _give_up(model: nn.Module, obstacle: CannotFold) -> None:
    log.warning("folded engine: %s; the plain loop is used instead", obstacle)
    _traced[model] = None


def _compute(
    network: FoldedNetwork,
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target_BC: Tensor,
    alpha: float | Tensor,
    order: int,
    consistency: str,
) -> tuple[Tensor, Gradients]:
    sets, measure = len(synthetic_MB), CONSISTENCIES[consistency]
    parameters = dict(model.named_parameters())
    theta: dict[str, Tensor] = {name: p for name, p in parameters.items() if p.requires_grad}
    frozen = {name: _copies(p, sets) for name, p in parameters.items() if not p.requires_grad}
    with torch.enable_grad():
        # In all M groups the same θ. For second order they stay connected to it; for first
        # order they start a graph of their own.
        copies = {name: _copies(p, sets) for name, p in theta.items()}
        if order == 1:
            copies = {name: p.detach().requires_grad_() for name, p in copies.items()}
        logits_MBC = network.run({**copies, **frozen}, inputs, sets, share_masks=True)
        # Summed over the sets, each a mean over the batch: the groups do not mix.
        class_loss = F.cross_entropy(
            logits_MBC.flatten(0, 1), synthetic_MB.flatten(), reduction="sum"
        ) / len(target_BC)
        inner = gradient(class_loss, copies, retain_graph=order == 2, create_graph=order == 2)
        theta_prime = {name: copies[name] - alpha * inner[name] for name in theta}
        if order == 1:
            theta_prime = {name: p.detach().requires_grad_() for name, p in theta_prime.items()}
        logits_MBC = network.run({**theta_prime, **frozen}, inputs, sets)
        targets = target_BC.expand(sets, *target_BC.shape).flatten(0, 1)
        # A mean over M·B rows is the mean over the sets of the means over the batch.
        loss = measure(targets, logits_MBC.flatten(0, 1))
        if order == 1:
            by_set = gradient(loss, theta_prime, retain_graph=False)
            gradients = {name: g.sum(dim=0) for name, g in by_set.items()}
        else:
            gradients = gradient(loss, theta, retain_graph=False)
    return loss.detach(), gradients


def _copies(parameter: Tensor, sets: int) -> Tensor:
    """[M, *shape], each copy in memory of its own.

    A mere view would do in most layers, but a weight with one output channel would then reach the
    convolution as overlapping memory, and its gradient would be wrong.
    """
    return parameter.expand(sets, *parameter.shape).contiguous()
