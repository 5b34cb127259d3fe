"""Penultimate features of any network."""

from typing import Any

import torch
from torch import Tensor, nn

from mlnt.errors import InputError


def forward(model: nn.Module, inputs: Any) -> Tensor:
    """What the network says, [B, C]; of a tuple of inputs each is an argument."""
    logits_BC = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if not isinstance(logits_BC, Tensor) or logits_BC.ndim != 2:
        got = tuple(logits_BC.shape) if isinstance(logits_BC, Tensor) else type(logits_BC).__name__
        raise InputError(f"the model must give logits [B, C], it gave {got}")
    return logits_BC


@torch.no_grad()
def logits_and_features(model: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
    """(logits [B, C], features [B, D]): the features are what the last linear layer was given.

    A network without a linear layer is described by its logits.
    """
    last_input: list[Tensor] = []

    def remember(module: nn.Module, arguments: tuple, named: dict[str, Tensor]) -> None:
        last_input[:] = [arguments[0] if arguments else named["input"]]

    hooks = [
        module.register_forward_pre_hook(remember, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, nn.Linear)
    ]
    try:
        logits_BC = forward(model, inputs)
    finally:
        for hook in hooks:
            hook.remove()
    features = last_input[0] if last_input else logits_BC
    if len(features) != len(logits_BC):
        features = logits_BC
    return logits_BC, features.flatten(1)


def penultimate(model: nn.Module, inputs: Any) -> Tensor:
    """Penultimate features [B, D] in eval mode; the model's mode is restored."""
    was_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        return logits_and_features(model, inputs)[1]
    finally:
        for module in was_training:
            module.training = True
