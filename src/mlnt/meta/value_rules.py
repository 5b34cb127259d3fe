"""How everything but layers with weights is evaluated for M models at once, and differentiated.

What acts on each channel alone (activations, pooling, padding, flattening) is the same function on
folded values. What has no rule raises `CannotFold`.

Axes: M models, B batch, C channels.
"""

import copy
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mlnt.meta.layer_rules import LAYER_RULES
from mlnt.meta.products import through_relu
from mlnt.meta.tape import CannotFold, Folded, Tape

# Act on each element or each channel alone, with no weights: the same function on folded values.
CHANNELWISE_MODULES = (
    nn.Identity, nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.ELU, nn.CELU, nn.SELU, nn.GELU, nn.SiLU,
    nn.Mish, nn.Hardswish, nn.Hardsigmoid, nn.Sigmoid, nn.Tanh, nn.Softplus,
    nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d,
    nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d,
    nn.ZeroPad2d, nn.ReflectionPad2d, nn.ReplicationPad2d, nn.ConstantPad2d,
)  # fmt: skip
CHANNELWISE_FUNCTIONS = {
    torch.relu, torch.sigmoid, torch.tanh, torch.nn.functional.silu, F.relu, F.relu6,
    F.leaky_relu, F.elu, F.gelu, F.mish, F.hardswish, F.hardsigmoid, F.softplus,
    F.max_pool2d, F.avg_pool2d, F.adaptive_avg_pool2d, F.adaptive_max_pool2d, F.pad,
}  # fmt: skip
SPATIAL: dict[Any, int] = {  # axes that they must be given
    nn.MaxPool1d: 3, nn.AvgPool1d: 3, nn.AdaptiveAvgPool1d: 3, nn.AdaptiveMaxPool1d: 3,
    nn.MaxPool2d: 4, nn.AvgPool2d: 4, nn.AdaptiveAvgPool2d: 4, nn.AdaptiveMaxPool2d: 4,
    nn.ZeroPad2d: 4, nn.ReflectionPad2d: 4, nn.ReplicationPad2d: 4, nn.ConstantPad2d: 4,
    F.max_pool2d: 4, F.avg_pool2d: 4, F.adaptive_avg_pool2d: 4, F.adaptive_max_pool2d: 4,
}  # fmt: skip
OUT_OF_PLACE: dict[Any, Callable] = {
    operator.iadd: operator.add, operator.isub: operator.sub,
    operator.imul: operator.mul, operator.itruediv: operator.truediv,
}  # fmt: skip
IN_PLACE = {
    F.relu, F.relu6, F.leaky_relu, F.elu, F.silu, F.mish, F.hardswish, F.hardsigmoid,
}  # fmt: skip
CHANNELWISE_METHODS = {"relu", "sigmoid", "tanh", "contiguous"}
ADDITIONS = {operator.add, operator.iadd, torch.add}
ARITHMETIC = {
    *ADDITIONS, *OUT_OF_PLACE, *OUT_OF_PLACE.values(), torch.sub, torch.mul,
}  # fmt: skip
DROPOUTS = {nn.Dropout: F.dropout, nn.Dropout1d: F.dropout1d, nn.Dropout2d: F.dropout2d}


@dataclass(frozen=True)
class _BatchSize:
    """The shape of a folded value, of which only the batch axis may be asked for."""

    batch: int


def apply_module(tape: Tape, target: Any, args: Any, kwargs: Any) -> Any:
    module = tape.fetch_attr(target)
    unfolded = not any(isinstance(value, Folded) for value in args)
    if unfolded and not list(module.parameters()) and type(module) not in LAYER_RULES:
        if list(module.buffers()):
            raise CannotFold(f"{target} ({type(module).__name__}) has a state of its own")
        if type(module) in DROPOUTS and module.training:
            raise CannotFold(f"{target} drops out inputs shared by all models")
        return module(*args, **kwargs)
    rule = RULES.get(type(module))
    if rule is not None and len(args) == 1 and not kwargs:
        return rule(tape, target, module, args[0])
    raise CannotFold(f"{target} ({type(module).__name__}) has no folded form")


def apply_function(tape: Tape, target: Any, args: Any, kwargs: Any) -> Any:
    if target is operator.getitem and isinstance(args[0], _BatchSize) and args[1] == 0:
        return args[0].batch
    values = list(_flat(args)) + list(_flat(tuple(kwargs.values())))
    if (
        target is F.dropout
        and _dropout_options(args, kwargs)["training"]
        and not any(isinstance(value, Folded) for value in values)
    ):
        raise CannotFold("dropout of inputs shared by all models")
    if not any(isinstance(value, Folded) for value in values):
        return target(*args, **kwargs)
    name = getattr(target, "__name__", str(target))
    if not args:
        raise CannotFold(f"{name} is called with names for all arguments")
    first = args[0]
    if tape.node in tape.fusions.sum_of.values() and _same_shape(args):
        tape.late[tape.node] = (args[0], args[1])
        return args[0]  # a stand-in: the batch norm that comes next replaces it
    if target in (F.relu, torch.relu) and isinstance(first, Folded):
        return relu(tape, first)
    if target in CHANNELWISE_FUNCTIONS and isinstance(first, Folded):
        _check_axes(name, target, first.value, args[1:], kwargs)
        options, named = _out_of_place(target, args[1:], kwargs)
        return channelwise(tape, lambda x: target(x, *options, **named), first)
    if target in ARITHMETIC and not kwargs and _foldable_operands(args):
        return arithmetic(tape, target, args)
    if target is torch.flatten:
        return flatten(tape, name, *args, **kwargs)
    if target is torch.mean:
        return mean(tape, name, *args, **kwargs)
    if target is torch.cat:
        return concatenate(tape, *args, **kwargs)
    if target is F.dropout and isinstance(first, Folded):
        return dropout(tape, F.dropout, first, **_dropout_options(args, kwargs))
    if target is getattr and isinstance(first, Folded) and args[1] == "shape":
        return _BatchSize(first.value.shape[0])
    raise CannotFold(f"{name} has no folded form")


def apply_method(tape: Tape, target: Any, args: Any, kwargs: Any) -> Any:
    first = args[0]
    if not isinstance(first, Folded):
        return getattr(first, target)(*args[1:], **kwargs)
    if target == "relu":
        return relu(tape, first)
    if target in CHANNELWISE_METHODS:
        return channelwise(tape, lambda x: getattr(x, target)(*args[1:], **kwargs), first)
    if target == "flatten":
        return flatten(tape, target, *args, **kwargs)
    if target == "mean":
        return mean(tape, target, *args, **kwargs)
    batch = first.value.shape[0]
    if target == "size" and args[1:] == (0,):
        return batch
    if target in ("view", "reshape") and args[1:] == (batch, -1):
        return flatten(tape, target, first, 1)
    raise CannotFold(f".{target}{args[1:]} has no folded form")


def channelwise(tape: Tape, function: Callable[[Tensor], Tensor], x: Folded) -> Folded:
    source = tape.node.args[0]

    def pull(dy: Tensor) -> None:
        value = tape.every_value(x.value)
        tape.send(source, tape.differentiate(function, [value], dy)[0])

    tape.on_the_way_back(pull)
    return Folded(function(x.value))


def _channelwise_module(tape: Tape, target: str, module: nn.Module, x: Folded) -> Folded:
    _check_axes(target, type(module), x.value, (), {})
    return channelwise(tape, _not_in_place(module), x)


def relu(tape: Tape, x: Folded) -> Folded:
    y, source = x.value.relu(), tape.node.args[0]
    tape.on_the_way_back(lambda dy: tape.send(source, through_relu(dy, y)))
    return Folded(y)


def arithmetic(tape: Tape, function: Callable, operands: tuple) -> Folded:
    # `y += x` in the network: what is kept for the way back must not change.
    function = OUT_OF_PLACE.get(function, function)
    folded = [x for x in operands if isinstance(x, Folded)]
    sources = [
        node
        for node, x in zip(tape.node.args, operands, strict=True)
        if isinstance(x, Folded) and isinstance(node, fx.Node)
    ]

    def of(*values: Tensor) -> Tensor:
        rest = iter(values)
        return function(*(next(rest) if isinstance(x, Folded) else x for x in operands))

    def pull(dy: Tensor) -> None:
        if function in ADDITIONS:
            gradients: tuple[Tensor, ...] = (dy,) * len(sources)
        else:
            ready = [tape.every_value(x.value) for x in folded]
            gradients = tape.differentiate(of, [v.view_as(v) for v in ready], dy)
        for source, gradient in zip(sources, gradients, strict=True):
            tape.send(source, gradient)

    tape.on_the_way_back(pull)
    return Folded(of(*(x.value for x in folded)))


def flatten(tape: Tape, name: str, x: Any, start_dim: int = 0, end_dim: int = -1) -> Folded:
    if start_dim != 1 or end_dim not in (-1, x.value.ndim - 1):
        raise CannotFold(f"{name} from axis {start_dim} to {end_dim}")
    source, spatial = tape.node.args[0], x.value.shape[2:]

    def pull(dy: Tensor) -> None:
        tape.send(source, dy.unflatten(1, (-1, *spatial)) if spatial else dy)

    tape.on_the_way_back(pull)
    return Folded(x.value.flatten(1))


def mean(tape: Tape, name: str, x: Any, dim: Any = None, keepdim: bool = False) -> Folded:
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not axes or any(axis % x.value.ndim < 2 for axis in axes):
        raise CannotFold(f"{name} over the axes {dim}")
    return channelwise(tape, lambda value: value.mean(dim=axes, keepdim=keepdim), x)


def dropout(tape: Tape, function: Callable, x: Folded, p: float, training: bool) -> Folded:
    if not training or p == 0:
        return channelwise(tape, lambda value: value.view_as(value), x)
    mask = function(torch.ones_like(x.value), p=p, training=True)
    source = tape.node.args[0]

    def pull(dy: Tensor) -> None:
        tape.send(source, dy * tape.every_value(mask))

    tape.on_the_way_back(pull)
    return Folded(x.value * mask)


def concatenate(tape: Tape, tensors: Any, dim: int = 0) -> Folded:
    parts = list(tensors)
    if not all(isinstance(part, Folded) for part in parts):
        raise CannotFold("cat of values that are shared by all models with others")
    if dim not in (1, 1 - parts[0].value.ndim):
        raise CannotFold(f"cat along axis {dim}")
    nodes = tape.node.args[0]
    models = 1 if tape.shared else tape.models
    channels = [part.value.shape[1] // models for part in parts]
    apart = [part.value.unflatten(1, (models, -1)) for part in parts]

    def pull(dy: Tensor) -> None:
        pieces = dy.unflatten(1, (tape.models, -1)).split(channels, dim=2)
        for node, piece in zip(nodes, pieces, strict=True):  # type: ignore[arg-type]
            tape.send(node, piece.flatten(1, 2))

    tape.on_the_way_back(pull)
    return Folded(torch.cat(apart, dim=2).flatten(1, 2))


def _check_axes(name: str, kind: Any, value: Tensor, args: Any, kwargs: Any) -> None:
    """Pooling and padding take an image without its batch too: a folded table is none."""
    if kind in SPATIAL and value.ndim != SPATIAL[kind]:
        raise CannotFold(f"{name} of {value.ndim} axes")
    if kind is F.pad:
        pads = kwargs.get("pad", args[0] if args else ())
        if len(pads) > 2 * (value.ndim - 2):
            raise CannotFold(f"{name} of the channels")


def overwritten_by(node: fx.Node, model: nn.Module) -> Any:
    """The node whose value this one overwrites, if it does."""
    in_place = node.target in OUT_OF_PLACE or node.kwargs.get("inplace") is True
    if node.op == "call_module":
        in_place = getattr(model.get_submodule(str(node.target)), "inplace", False)
    elif node.target in IN_PLACE:
        in_place = in_place or any(argument is True for argument in node.args)
    return node.args[0] if in_place and node.args else None


def _out_of_place(function: Any, args: Any, kwargs: Any) -> tuple[tuple, dict[str, Any]]:
    """The options of an activation, without in-place: its input is needed on the way back."""
    if function in IN_PLACE:
        args = tuple(False if argument is True else argument for argument in args)
    return args, {name: value for name, value in kwargs.items() if name != "inplace"}


def _not_in_place(module: nn.Module) -> nn.Module:
    if not getattr(module, "inplace", False):
        return module
    twin = copy.copy(module)
    twin.inplace = False  # type: ignore[assignment]
    return twin


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _same_shape(arguments: Any) -> bool:
    values = [x.value.shape for x in arguments if isinstance(x, Folded)]
    return len(values) == len(arguments) and len(set(values)) == 1


def _foldable_operands(arguments: Any) -> bool:
    """Two folded values of one shape, or a folded value and a number."""
    shapes = [x.value.shape for x in arguments if isinstance(x, Folded)]
    others = [x for x in arguments if not isinstance(x, Folded)]
    return len(set(shapes)) == 1 and all(isinstance(x, int | float) for x in others)


def _dropout_options(args: Any, kwargs: Any) -> dict[str, Any]:
    given = dict(zip(("p", "training"), args[1:3], strict=False))
    return {
        "p": 0.5,
        "training": True,
        **given,
        **{k: kwargs[k] for k in ("p", "training") if k in kwargs},
    }


RULES: dict[type, Callable[..., Folded]] = {
    **dict.fromkeys(
        CHANNELWISE_MODULES,
        lambda tape, target, module, x: _channelwise_module(tape, target, module, x),
    ),
    **dict.fromkeys(
        DROPOUTS,
        lambda tape, target, module, x: dropout(
            tape, DROPOUTS[type(module)], x, module.p, module.training
        ),
    ),
    nn.ReLU: lambda tape, target, module, x: relu(tape, x),
    nn.Flatten: lambda tape, target, module, x: flatten(
        tape, target, x, module.start_dim, module.end_dim
    ),
    **LAYER_RULES,
}
