"""Penultimate features of any network."""

import copy
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mlnt.errors import InputError
from mlnt.models import computed_values


def as_arguments(inputs: Any) -> Any:
    """A tensor, or a tuple of the model's arguments; what a DataLoader collates is a list."""
    if isinstance(inputs, Mapping):
        raise InputError(
            "inputs must be a tensor or a tuple of the model's arguments, got a mapping; a module "
            "around the model that takes its values and gives logits will do"
        )
    parts = inputs if isinstance(inputs, list | tuple) else [inputs]
    if any(isinstance(x, np.ndarray) for x in parts) and not any(
        isinstance(x, Tensor) for x in parts
    ):
        raise InputError(
            "inputs must be tensors, got a NumPy array; torch.as_tensor(inputs, dtype=..., "
            "device=...) makes one as the model takes it"
        )
    return tuple(inputs) if isinstance(inputs, list) else inputs


def forward(model: nn.Module, inputs: Any) -> Tensor:
    """What the network says, [B, C]; of a tuple of inputs each is an argument."""
    logits_BC = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    if not isinstance(logits_BC, Tensor) or logits_BC.ndim != 2:
        got = tuple(logits_BC.shape) if isinstance(logits_BC, Tensor) else type(logits_BC).__name__
        raise InputError(f"the model must give logits [B, C], it gave {got}{_wrapping(logits_BC)}")
    return logits_BC


def _wrapping(output: Any) -> str:
    """How logits [B, C] come out of it, if it holds some."""
    parts = enumerate(output) if isinstance(output, list | tuple) else ()
    named = output.items() if isinstance(output, Mapping) else parts
    fitting = [key for key, part in named if isinstance(part, Tensor) and part.ndim == 2]
    if hasattr(output, "logits"):
        which = ".logits"
    elif fitting:
        which = f"[{'logits' if 'logits' in fitting else fitting[0]!r}]"
    else:
        return ""
    return f"; give its logits: wrap it in a module whose forward returns model(x){which}"


@torch.no_grad()
def logits_and_features(model: nn.Module, inputs: Any) -> tuple[Tensor, Tensor]:
    """(logits [B, C], features [B, D]): the features are what the last linear layer was given.

    A network without a linear layer is described by its logits.
    """
    with _last_call(model) as last_call:
        logits_BC = forward(model, inputs)
    features = last_call.given if last_call.given is not None else logits_BC
    if len(features) != len(logits_BC):
        features = logits_BC
    return logits_BC, features.flatten(1)


def penultimate(model: nn.Module, inputs: Any) -> Tensor:
    """Penultimate features [B, D] in eval mode; the model's mode is restored."""
    with evaluating(model):
        return logits_and_features(model, inputs)[1]


def split_at_features(model: nn.Module, inputs: Any) -> tuple[nn.Module, nn.Linear]:
    """(the network up to its features, the linear layer that makes logits of them).

    The former shares its parameters and buffers with the model. InputError if the network is not
    just the one after the other, or if nothing in the former could be trained.
    """
    with evaluating(model), torch.no_grad(), _last_call(model) as last_call:
        logits_BC = forward(model, inputs)
    last = model.get_submodule(last_call.path) if last_call.path else None
    if not isinstance(last, nn.Linear):
        raise InputError("weights='self' needs a network that ends with a linear layer")
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    encoder = copy.deepcopy(model, computed_values(model) | shared)
    parent, _, name = last_call.path.rpartition(".")
    setattr(encoder.get_submodule(parent), name, nn.Identity())
    if not _is_both(encoder, last, inputs, logits_BC):
        raise InputError("weights='self' needs a network that is its features and one last layer")
    if not any(p.requires_grad for p in encoder.parameters()):
        raise InputError("weights='self' needs something to train before the last layer")
    return encoder, last


def _is_both(encoder: nn.Module, last: nn.Linear, inputs: Any, logits_BC: Tensor) -> bool:
    """Whether the two of them are all of a network that gives these logits."""
    if {id(p) for p in encoder.parameters()} & {id(p) for p in last.parameters()}:
        return False
    try:
        with evaluating(encoder), torch.no_grad():
            again_BC = last(forward(encoder, inputs))
    except Exception:  # without its last layer any step of a stranger's network may fail
        return False
    return again_BC.shape == logits_BC.shape and torch.allclose(again_BC, logits_BC, atol=1e-4)


@dataclass
class _Call:
    """Of a linear layer."""

    path: str = ""
    given: Tensor | None = None


@contextmanager
def _last_call(model: nn.Module) -> Iterator[_Call]:
    """The last call of a linear layer, once the model has run."""
    call = _Call()

    def watch(path: str, module: nn.Linear) -> RemovableHandle:
        def remember(_: nn.Module, arguments: tuple, named: dict[str, Tensor]) -> None:
            call.path, call.given = path, arguments[0] if arguments else named["input"]

        return module.register_forward_pre_hook(remember, with_kwargs=True)

    hooks = [watch(path, m) for path, m in model.named_modules() if isinstance(m, nn.Linear)]
    try:
        yield call
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """In eval mode; each module's mode is restored."""
    were_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in were_training:
            module.training = True
