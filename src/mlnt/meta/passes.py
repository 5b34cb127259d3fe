"""Forward and backward passes of one network, by the fast rules of `folding` on a GPU.

On a CPU, and for networks that cannot be traced, the network itself and autograd do the same.
Several processes divide the rows of a batch among them; what comes back is that of the whole batch.

Axes: B batch, C classes.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.distributed import ALL_ALONE, WHOLE, Rows, World
from mlnt.meta.features import forward
from mlnt.meta.folded import Parameters, compute_type, folded_network, give_up
from mlnt.meta.plain import Gradients
from mlnt.meta.synchronised import synchronised
from mlnt.meta.tape import CannotFold, Options, Run

# logits [B, C] of the whole batch -> the loss, and its gradient at them
LossAt = Callable[[Tensor], tuple[Tensor, Tensor]]


def logits_of(model: nn.Module, inputs: Any, rows: Rows = WHOLE) -> Tensor:
    """f(X, θ) without gradients; what is in training mode updates its running statistics."""
    own = rows.take(inputs)
    in_training = any(module.training for module in model.modules())
    run = _fast_run(model, own, rows) if in_training else None
    with torch.no_grad():
        if run is not None:
            return rows.gather(run[0].logits)
        with synchronised(rows):
            return rows.gather(forward(model, own))


def class_gradient(
    model: nn.Module,
    inputs: Any,
    labels_B: Tensor,
    world: World = ALL_ALONE,
    class_weights: Tensor | None = None,
) -> tuple[Tensor, Tensor, Gradients]:
    """(L_c(X, Y, θ), logits [B, C], ∇L_c by name) of the trainable parameters.

    With weights [C] of the classes, L_c is the mean in which each sample has that of its label.
    """

    def cross_entropy(leaf_BC: Tensor) -> tuple[Tensor, Tensor]:
        loss = F.cross_entropy(leaf_BC, labels_B, class_weights)
        return loss.detach(), torch.autograd.grad(loss, leaf_BC)[0]

    rows = world.rows(len(labels_B))
    fast = _fast_run(model, rows.take(inputs), rows)
    if fast is None and world.size == 1:
        return _by_autograd(model, inputs, labels_B, class_weights)
    return _forth_and_back(model, inputs, cross_entropy, rows, world, fast)


def loss_gradient(
    model: nn.Module, inputs: Any, loss_at: LossAt, world: World, batch: int
) -> tuple[Tensor, Tensor, Gradients]:
    """(loss, logits [B, C], gradients by name) of any loss of the logits."""
    rows = world.rows(batch)
    fast = _fast_run(model, rows.take(inputs), rows)
    return _forth_and_back(model, inputs, loss_at, rows, world, fast)


def _forth_and_back(
    model: nn.Module,
    inputs: Any,
    loss_at: LossAt,
    rows: Rows,
    world: World,
    fast: "tuple[Run, Parameters] | None",
) -> tuple[Tensor, Tensor, Gradients]:
    """Each process runs the network on its rows; all compute the loss of the whole batch."""
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if fast is not None:
        own = fast[0].logits
    else:
        with torch.enable_grad(), synchronised(rows):
            own = forward(model, rows.take(inputs))
    full = next(iter(trainable.values())).dtype
    leaf_BC = rows.gather(own.detach()).to(full).requires_grad_()
    with torch.enable_grad(), torch.autocast(leaf_BC.device.type, enabled=False):
        loss, dlogits_BC = loss_at(leaf_BC)
    dlogits = rows.take(dlogits_BC).to(own.dtype)
    if fast is not None:
        run, theta = fast
        found = theta.sum_over_models(theta.joined(run.pull_back(dlogits)))
        gradients = {name: found[name] for name in trainable}
    else:
        gradients = _laid_out(
            trainable,
            torch.autograd.grad(own, list(trainable.values()), dlogits, allow_unused=True),
        )
    return loss, leaf_BC.detach(), of_all(gradients, rows, world)


def of_all(gradients: Gradients, rows: Rows, world: World) -> Gradients:
    """The gradients of the whole batch, the same in all processes."""
    return world.from_leader(gradients) if rows.is_whole else rows.group.sum_named(gradients)


def _by_autograd(
    model: nn.Module, inputs: Any, labels_B: Tensor, class_weights: Tensor | None
) -> tuple[Tensor, Tensor, Gradients]:
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    with torch.enable_grad():
        logits_BC = forward(model, inputs)
        loss = F.cross_entropy(logits_BC, labels_B, class_weights)
        found = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
    return loss.detach(), logits_BC.detach(), _laid_out(trainable, found)


def _laid_out(trainable: dict[str, nn.Parameter], found: tuple[Tensor | None, ...]) -> Gradients:
    """Gradients laid out as their parameters, as `backward` would: fused optimizers ask for it."""
    return {
        name: g if g.stride() == p.stride() else torch.empty_like(p).copy_(g)
        for (name, p), g in zip(trainable.items(), found, strict=True)
        if g is not None
    }


def _fast_run(model: nn.Module, inputs: Any, rows: Rows) -> tuple[Run, Parameters] | None:
    first = next(model.parameters())
    is_faster = first.device.type == "cuda" and first.dtype != torch.float64
    return _run_by_rules(model, inputs, rows) if is_faster else None


def _run_by_rules(model: nn.Module, inputs: Any, rows: Rows) -> tuple[Run, Parameters] | None:
    network = folded_network(model)
    if network is None:
        return None
    theta = Parameters(dict(model.named_parameters()), 1, compute_type(model))
    options = Options(1, track=True, rows=rows)
    try:
        return network.run(theta.shared(), theta.prepare(inputs), options), theta
    except CannotFold as obstacle:
        give_up(model, obstacle)
        return None
