"""Runs M copies of a network with different weights at once, folded into the channel axis.

A folded value is [B, M·C, ...]: the channels of model 0, then those of model 1, and so on. Grouped
convolution keeps the models apart, batch norm over M·C channels is M batch norms, and whatever
acts on each channel alone (activations, pooling, padding, flattening) needs no change at all.
Inputs are the same for all models, so the first layer is one ordinary layer with M times the
output channels.

The network is traced with torch.fx. A layer without a folded form raises `CannotFold`.

Axes: M models, B batch, C channels, D features in, O features out.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn


class CannotFold(Exception):
    """Names the layer that has no folded form."""


@dataclass(frozen=True)
class Folded:
    """A value that differs from model to model, [B, M·C, ...]."""

    value: Tensor


Weights = dict[str, Tensor]  # by parameter name, each [M, *shape]

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
CHANNELWISE_METHODS = {"relu", "sigmoid", "tanh", "contiguous"}
ARITHMETIC = {
    operator.add, operator.iadd, operator.sub, operator.mul, operator.imul, operator.truediv,
    torch.add, torch.sub, torch.mul,
}  # fmt: skip
DROPOUTS = {nn.Dropout: F.dropout, nn.Dropout1d: F.dropout1d, nn.Dropout2d: F.dropout2d}


class FoldedNetwork:
    """A traced network; `run` evaluates it for M sets of weights."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        try:
            self.graph = fx.Tracer().trace(model)
        except Exception as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise CannotFold(f"{type(model).__name__} cannot be traced: {reason}") from None
        self.modules = dict(model.named_modules())
        self.names = {id(parameter): name for name, parameter in model.named_parameters()}

    def run(self, weights: Weights, inputs: Any, models: int, share_masks: bool = False) -> Tensor:
        """Logits [M, B, C]. With `share_masks` all models drop out the same units."""
        arguments = inputs if isinstance(inputs, tuple) else (inputs,)
        evaluation = _Evaluation(self, weights, models, share_masks)
        result = evaluation.run(*arguments)
        if not isinstance(result, Folded) or result.value.ndim != 2:
            raise CannotFold(f"{type(self.model).__name__} does not end in logits [B, C]")
        logits_BMC = result.value.unflatten(1, (models, -1))
        return logits_BMC.transpose(0, 1)


class _Evaluation(fx.Interpreter):
    def __init__(
        self, network: FoldedNetwork, weights: Weights, models: int, share_masks: bool
    ) -> None:
        super().__init__(network.model, garbage_collect_values=True, graph=network.graph)
        self.network = network
        self.weights = weights
        self.models = models
        self.share_masks = share_masks

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Any:
        raise CannotFold(f"{target} is a parameter or buffer used outside of a layer")

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        module = self.network.modules[target]
        shared = not any(isinstance(value, Folded) for value in args)
        if shared and not list(module.parameters()):
            if type(module) in DROPOUTS and module.training:
                raise CannotFold(f"{target} drops out inputs shared by all models")
            return module(*args, **kwargs)
        fold = FOLDED_MODULES.get(type(module))
        if fold is not None and len(args) == 1 and not kwargs:
            return fold(self, target, module, args[0])
        raise CannotFold(f"{target} ({type(module).__name__}) has no folded form")

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        values = list(_flat(args)) + list(_flat(tuple(kwargs.values())))
        if not any(isinstance(value, Folded) for value in values):
            return super().call_function(target, args, kwargs)
        first = args[0]
        name = getattr(target, "__name__", str(target))
        if target in CHANNELWISE_FUNCTIONS and isinstance(first, Folded):
            return Folded(target(first.value, *args[1:], **kwargs))
        if target in ARITHMETIC and not kwargs and _foldable_operands(args):
            return Folded(target(*(_value(argument) for argument in args)))
        if target is torch.flatten:
            return _flatten(name, *args, **kwargs)
        if target is torch.mean:
            return _mean(name, *args, **kwargs)
        if target is torch.cat:
            return self._concatenate(*args, **kwargs)
        if target is F.dropout and isinstance(first, Folded):
            return self._dropout(F.dropout, first, **_dropout_options(args, kwargs))
        if target is getattr and isinstance(first, Folded) and args[1] == "shape":
            return _Shape(first.value.shape[0])
        if target is operator.getitem and isinstance(first, _Shape) and args[1] == 0:
            return first.batch
        raise CannotFold(f"{name} has no folded form")

    def call_method(self, target: Any, args: Any, kwargs: Any) -> Any:
        first = args[0]
        if not isinstance(first, Folded):
            return super().call_method(target, args, kwargs)
        if target in CHANNELWISE_METHODS:
            return Folded(getattr(first.value, target)(*args[1:], **kwargs))
        if target == "flatten":
            return _flatten(target, *args, **kwargs)
        if target == "mean":
            return _mean(target, *args, **kwargs)
        if target == "size" and args[1:] == (0,):
            return first.value.shape[0]
        batch = first.value.shape[0]
        if target in ("view", "reshape") and args[1:] == (batch, -1):
            return Folded(first.value.flatten(1))
        raise CannotFold(f".{target}{args[1:]} has no folded form")

    def weight(self, parameter: Tensor) -> Tensor:
        """[M, *shape] of one of the model's parameters."""
        return self.weights[self.network.names[id(parameter)]]

    def stacked(self, parameter: Tensor | None) -> Any:
        """[M·shape[0], *shape[1:]], as grouped layers want it; None for a layer without it."""
        return None if parameter is None else self.weight(parameter).flatten(0, 1)

    def repeated(self, buffer: Tensor | None) -> Tensor | None:
        return None if buffer is None else buffer.repeat(self.models)

    def convolution(self, target: str, module: Any, x: Any) -> Folded:
        functions = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d}
        if module.padding_mode != "zeros":
            raise CannotFold(f"{target} pads by {module.padding_mode}")
        groups = module.groups
        if isinstance(x, Folded):
            groups = groups * self.models
        elif module.groups != 1:
            raise CannotFold(f"{target} is a grouped convolution of inputs shared by all models")
        return Folded(
            functions[type(module)](
                _value(x),
                self.stacked(module.weight),
                self.stacked(module.bias),
                module.stride,
                module.padding,
                module.dilation,
                groups,
            )
        )

    def linear(self, target: str, module: Any, x: Any) -> Folded:
        value = _value(x)
        if value.ndim != 2:
            raise CannotFold(f"{target} is a linear layer on {value.ndim} axes")
        if not isinstance(x, Folded):
            return Folded(F.linear(value, self.stacked(module.weight), self.stacked(module.bias)))
        x_MBD = value.unflatten(1, (self.models, -1)).transpose(0, 1)
        y_MBO = torch.bmm(x_MBD, self.weight(module.weight).transpose(1, 2))
        if module.bias is not None:
            y_MBO = y_MBO + self.weight(module.bias)[:, None]
        return Folded(y_MBO.transpose(0, 1).flatten(1))

    def batch_norm(self, target: str, module: Any, x: Any) -> Folded:
        if not isinstance(x, Folded):
            x = Folded(x.repeat(1, self.models, *[1] * (x.ndim - 2)))
        # In training mode the batch's own statistics; no running ones are read or written.
        in_batch = module.training or module.running_mean is None
        return Folded(
            F.batch_norm(
                x.value,
                None if in_batch else self.repeated(module.running_mean),
                None if in_batch else self.repeated(module.running_var),
                self.stacked(module.weight),
                self.stacked(module.bias),
                training=in_batch,
                momentum=0.0,
                eps=module.eps,
            )
        )

    def group_norm(self, target: str, module: Any, x: Any) -> Folded:
        if not isinstance(x, Folded):
            raise CannotFold(f"{target} normalises inputs shared by all models")
        groups = module.num_groups * self.models
        weight, bias = self.stacked(module.weight), self.stacked(module.bias)
        return Folded(F.group_norm(x.value, groups, weight, bias, module.eps))

    def channelwise(self, target: str, module: Any, x: Folded) -> Folded:
        return Folded(module(x.value))

    def flatten(self, target: str, module: Any, x: Folded) -> Folded:
        return _flatten(target, x, module.start_dim, module.end_dim)

    def dropout(self, target: str, module: Any, x: Folded) -> Folded:
        return self._dropout(DROPOUTS[type(module)], x, p=module.p, training=module.training)

    def _dropout(self, function: Callable, x: Folded, p: float, training: bool) -> Folded:
        if not training or p == 0:
            return x
        if not self.share_masks:
            return Folded(function(x.value, p=p, training=True))
        own = x.value.shape[1] // self.models
        mask = function(torch.ones_like(x.value[:, :own]), p=p, training=True)
        return Folded(x.value * mask.repeat(1, self.models, *[1] * (mask.ndim - 2)))

    def _concatenate(self, tensors: Any, dim: int = 0) -> Folded:
        parts = list(tensors)
        if not all(isinstance(part, Folded) for part in parts):
            raise CannotFold("cat of values that are shared by all models with others")
        if dim not in (1, 1 - parts[0].value.ndim):
            raise CannotFold(f"cat along axis {dim}")
        apart = [part.value.unflatten(1, (self.models, -1)) for part in parts]
        return Folded(torch.cat(apart, dim=2).flatten(1, 2))


@dataclass(frozen=True)
class _Shape:
    """The shape of a folded value, of which only the batch axis may be asked for."""

    batch: int


def _flat(values: Any) -> Any:
    for value in values:
        if isinstance(value, list | tuple):
            yield from _flat(value)
        else:
            yield value


def _value(x: Any) -> Any:
    return x.value if isinstance(x, Folded) else x


def _foldable_operands(arguments: Any) -> bool:
    """Two folded values of one shape, or a folded value and a number."""
    shapes = [x.value.shape for x in arguments if isinstance(x, Folded)]
    others = [x for x in arguments if not isinstance(x, Folded)]
    return len(set(shapes)) == 1 and all(isinstance(x, int | float) for x in others)


def _flatten(name: str, x: Any, start_dim: int = 0, end_dim: int = -1) -> Folded:
    if start_dim != 1 or end_dim not in (-1, x.value.ndim - 1):
        raise CannotFold(f"{name} from axis {start_dim} to {end_dim}")
    return Folded(x.value.flatten(1))


def _mean(name: str, x: Any, dim: Any = None, keepdim: bool = False) -> Folded:
    axes = (dim,) if isinstance(dim, int) else tuple(dim or ())
    if not axes or any(axis % x.value.ndim < 2 for axis in axes):
        raise CannotFold(f"{name} over the axes {dim}")
    return Folded(x.value.mean(dim=axes, keepdim=keepdim))


def _dropout_options(args: Any, kwargs: Any) -> dict[str, Any]:
    given = dict(zip(("p", "training"), args[1:3], strict=False))
    return {
        "p": 0.5,
        "training": True,
        **given,
        **{k: kwargs[k] for k in ("p", "training") if k in kwargs},
    }


FOLDED_MODULES: dict[type, Callable[..., Any]] = {
    nn.Conv1d: _Evaluation.convolution,
    nn.Conv2d: _Evaluation.convolution,
    nn.Linear: _Evaluation.linear,
    nn.BatchNorm1d: _Evaluation.batch_norm,
    nn.BatchNorm2d: _Evaluation.batch_norm,
    nn.GroupNorm: _Evaluation.group_norm,
    nn.Flatten: _Evaluation.flatten,
    **dict.fromkeys(DROPOUTS, _Evaluation.dropout),
    **dict.fromkeys(CHANNELWISE_MODULES, _Evaluation.channelwise),
}
