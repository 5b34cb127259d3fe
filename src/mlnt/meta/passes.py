"""Forward and backward passes of one network, by the fast rules of `folding` on a GPU.

On a CPU, and for networks that cannot be traced, the network itself and autograd do the same.

Axes: B batch, C classes.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.meta.folded import Parameters, compute_type, folded_network, give_up
from mlnt.meta.folding import Run
from mlnt.meta.plain import Gradients
from mlnt.meta.tape import CannotFold, Options


def logits_of(model: nn.Module, inputs: Any) -> Tensor:
    """f(X, θ) without gradients; in training mode the running statistics are updated."""
    run = _fast_run(model, inputs) if model.training else None
    with torch.no_grad():
        if run is not None:
            return run[0].logits
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)


def class_gradient(model: nn.Module, inputs: Any, labels_B: Tensor) -> tuple[Tensor, Tensor, Any]:
    """(L_c(X, Y, θ), logits [B, C], ∇L_c by name) of the trainable parameters."""
    fast = _fast_run(model, inputs)
    if fast is None:
        return _by_autograd(model, inputs, labels_B)
    run, theta = fast
    with torch.enable_grad():
        leaf = run.logits.detach().to(theta.full).requires_grad_()
        loss = F.cross_entropy(leaf, labels_B)
        (dlogits,) = torch.autograd.grad(loss, leaf)
    gradients = theta.sum_over_models(theta.joined(run.pull_back(dlogits.to(run.logits.dtype))))
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    return loss.detach(), leaf.detach(), {name: gradients[name] for name in trainable}


def _by_autograd(
    model: nn.Module, inputs: Any, labels_B: Tensor
) -> tuple[Tensor, Tensor, Gradients]:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        logits_BC = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
        loss = F.cross_entropy(logits_BC, labels_B)
        found = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    gradients = {
        # Laid out as their parameters, as `backward` would: fused optimizers ask for it.
        name: g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        for (name, p), g in zip(trainable.items(), found, strict=True)
        if g is not None
    }
    return loss.detach(), logits_BC.detach(), gradients


def _fast_run(model: nn.Module, inputs: Any) -> tuple[Run, Parameters] | None:
    first = next(model.parameters())
    if first.device.type != "cuda" or first.dtype == torch.float64:
        return None
    network = folded_network(model)
    if network is None:
        return None
    theta = Parameters(dict(model.named_parameters()), 1, compute_type(model))
    try:
        return network.run(theta.shared(), theta.prepare(inputs), Options(1, track=True)), theta
    except CannotFold as obstacle:
        give_up(model, obstacle)
        return None
