"""The meta-gradient divided among processes, and which networks allow their rows to be divided.

    L_meta = 1/M Σ_m J_m    each process the sum over its sets and its rows; then one sum over all

The label sets are independent given θ, so that up to M processes share nothing but that last sum.
More of them stand in a grid: those of a column have the same sets and divide the rows.

Axes: M sets, B batch, C classes.
"""

import logging
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.distributed import Group, World
from mlnt.meta.choice import milliseconds
from mlnt.meta.folded import Target
from mlnt.meta.gradient import gradient_by_engine
from mlnt.meta.passes import class_gradient, logits_of
from mlnt.meta.plain import Gradients
from mlnt.models import copy_model

log = logging.getLogger("mlnt")


def divided_meta_gradient(
    world: World,
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target: Target,
    alpha: float | Tensor,
    order: int,
    engine: str,
    consistency: str,
) -> tuple[Tensor, Gradients]:
    """What `meta_gradient` gives for all sets and rows, computed by all processes together."""
    if world.size == 1:
        return gradient_by_engine(
            model, inputs, synthetic_MB, target, alpha, order, engine, consistency
        )
    sets, batch = synthetic_MB.shape
    own_sets, rows = world.grid(sets, batch)
    own_MB = synthetic_MB[own_sets, rows.own]
    if len(own_MB):
        with world.own_numbers():
            loss, gradients = gradient_by_engine(
                model,
                rows.take(inputs),
                own_MB,
                _own_target(target, rows.own),
                alpha,
                order,
                engine,
                consistency,
                rows,
            )
    else:
        weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients = {name: torch.zeros_like(p) for name, p in weights.items()}
        loss = next(iter(gradients.values())).new_zeros(())
    return added_up(world, loss, gradients, len(own_MB) / sets)


def added_up(
    group: Group, loss: Tensor, gradients: Gradients, share: float
) -> tuple[Tensor, Gradients]:
    """The sum over the processes of this share of each one's loss and gradients, sent as one."""
    parts = {"": loss.to(next(iter(gradients.values())).dtype), **gradients}
    total = group.sum_named({name: share * part for name, part in parts.items()})
    return total.pop(""), total


def _own_target(target: Target, own: slice) -> Target:
    """In its time, which may be later: see `Target`."""
    return target[own] if isinstance(target, Tensor) else lambda: target()[own]


def _fill_zeros_(model: nn.Module) -> None:
    """Random weights for those that are all zero: through them every logit would be the same."""
    generator = torch.Generator().manual_seed(0)  # in all processes
    for parameter in model.parameters():
        if not parameter.any():
            parameter.data.copy_(torch.randn(parameter.shape, generator=generator))


def division_for(world: World, model: nn.Module, inputs: Any) -> World:
    """The world as this network can be divided in it: tried on a few inputs.

    Where the rows of a batch depend on each other otherwise than by batch norm, and some network of
    one's own may do so, all processes compute the whole batch; their label sets differ all the
    same. What a network draws (dropout) is found out too; on a GPU it prevents the division.
    """
    if world.size == 1:
        return world
    trial = copy_model(model).train()
    _fill_zeros_(trial)
    rows = world.divide(len(inputs[0]) if isinstance(inputs, tuple) else len(inputs))
    devices = [inputs.device] if isinstance(inputs, Tensor) and inputs.is_cuda else []
    with torch.random.fork_rng(devices=devices):
        before = torch.get_rng_state()
        whole_BC = logits_of(copy_model(trial), inputs).float()
        draws = not torch.equal(before, torch.get_rng_state())
        torch.set_rng_state(before)
        divided_BC = logits_of(trial, inputs, rows).float()
    scale = float(whole_BC.abs().max().clamp(min=1e-6))
    near = 1e-3 if whole_BC.device.type == "cpu" else 5e-2
    agrees = float((whole_BC - divided_BC).abs().max()) <= near * scale
    divides, draws = world.share([agrees, draws])
    if not divides:
        log.warning(
            "the samples of a batch cannot be divided in %s: every process computes them all",
            type(model).__name__,
        )
    world = replace(world, divides_rows=divides, draws=draws)
    if divides and whole_BC.is_cuda:
        # By the clock, as the engine; on a CPU it always pays, and a clock would make runs differ.
        labels_B = torch.zeros(len(whole_BC), dtype=torch.long, device=whole_BC.device)
        times = {
            way: milliseconds(
                class_gradient, (trial, inputs, labels_B, replace(world, divides_class=way))
            )
            for way in (False, True)
        }
        pays = world.share(times[True] < times[False])
        log.info("class step: divided %.1f ms, whole %.1f ms", times[True], times[False])
        world = replace(world, divides_class=pays)
    return world
