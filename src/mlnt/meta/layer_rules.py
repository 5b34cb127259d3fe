"""How layers with weights are evaluated for M models at once, and differentiated.

Grouped convolution keeps the models apart, batch norm over M·C channels is M batch norms. What
comes straight from the data is the same for all models, so the first layer is one ordinary layer
with M times the outputs.

Axes: M models, B batch, R rows (batch × places), C channels in, O channels out.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, fx, nn

from mlnt.meta.norm import normalise, values_per_channel
from mlnt.meta.products import (
    Patches,
    Shape,
    blockwise,
    convolve,
    input_gradient,
    weight_gradient,
)
from mlnt.meta.tape import CannotFold, Folded, Tape, value_of


def convolution(tape: Tape, target: str, module: Any, x: Any) -> Folded:
    plain = _shape_of(target, module)
    weight, bias, source = tape.weight(module.weight), tape.weight(module.bias), tape.node.args[0]
    value, from_data = value_of(x), not isinstance(x, Folded)
    if tape.models > 1 and not from_data and Patches.suit(plain):
        return _as_product(tape, module, value, plain, source)
    # Ungrouped, one input serves the weights (or the weights' gradients) of all models.
    one_input = plain.groups == 1 and (from_data or tape.shared)
    if from_data and not tape.shared and not one_input:
        value = tape.repeated(value)
    shape = plain if tape.shared or one_input else plain.times(tape.models)
    x_own = value if one_input else tape.every_value(value)
    own_shape = plain if one_input else plain.times(tape.models)
    y = convolve(value, weight.to(value.dtype), shape)
    y = y if bias is None else y + bias.to(y.dtype).view(-1, *[1] * (y.ndim - 2))
    size = tuple(value.shape[2:])

    def gradient_of_weight(dy: Tensor) -> Tensor:
        return weight_gradient(x_own, dy, own_shape)

    def pull(dy: Tensor) -> None:
        tape.give_aside(module.weight, gradient_of_weight, dy, x_own)
        _give_bias(tape, module, dy)
        if not from_data:
            every = tape.every_weight(weight.to(dy.dtype))
            tape.send(source, input_gradient(dy, every, size, plain.times(tape.models)))

    tape.on_the_way_back(pull)
    return Folded(y)


def _as_product(tape: Tape, module: Any, value: Tensor, shape: Shape, source: Any) -> Folded:
    """A convolution with a stride or of a single tap, as a product of its patches."""
    plan = Patches(value, shape, tape.models)
    weight = tape.weight(module.weight).to(value.dtype)
    flat = weight.permute(0, 2, 3, 1).flatten(1)  # [M·O, K·C]
    if tape.shared:
        x, y = value, convolve(value, weight, shape)
    else:
        x = plan.of(value)
        y = plan.image(_product(tape, x, flat, plan.rows))
    if module.bias is not None:
        y = y + tape.weight(module.bias).to(y.dtype).view(-1, 1, 1)

    def gradient_of_weight(dy: Tensor) -> Tensor:
        if tape.shared:
            return weight_gradient(x, dy, shape)
        found = _product_weight(tape, x, plan.rows_of(dy), plan.rows)
        return found.unflatten(1, (*shape.kernel, -1)).permute(0, 3, 1, 2)

    def pull(dy: Tensor) -> None:
        tape.give_aside(module.weight, gradient_of_weight, dy, x)
        _give_bias(tape, module, dy)
        dpatches = _product_input(tape, plan.rows_of(dy), flat, plan.rows)
        tape.send(source, plan.back(dpatches))

    tape.on_the_way_back(pull)
    return Folded(y)


# Products of rows with the models' matrices: x [R, M·C] (shared: [R, C]) and weight [M·O, C]
# (shared: [O, C]) to y [R, M·O] (shared: [R, O]).


def _product(tape: Tape, x: Tensor, weight: Tensor, rows: int) -> Tensor:
    if tape.shared or tape.models == 1:
        return x @ weight.T
    x_RMC = x.view(rows, tape.models, -1)
    return blockwise(x_RMC, weight.unflatten(0, (tape.models, -1)).transpose(1, 2)).flatten(1)


def _product_weight(tape: Tape, x: Tensor, dy: Tensor, rows: int) -> Tensor:
    """[M·O, C]."""
    if tape.shared or tape.models == 1:
        return dy.T @ x
    dy_MOR = dy.view(rows, tape.models, -1).permute(1, 2, 0)
    return torch.bmm(dy_MOR, x.view(rows, tape.models, -1).transpose(0, 1)).flatten(0, 1)


def _product_input(tape: Tape, dy: Tensor, weight: Tensor, rows: int) -> Tensor:
    """[R, M·C]."""
    if tape.shared:
        return (dy.reshape(rows * tape.models, -1) @ weight).view(rows, -1)
    dy_RMO = dy.reshape(rows, tape.models, -1)
    return blockwise(dy_RMO, weight.unflatten(0, (tape.models, -1))).flatten(1)


def _give_bias(tape: Tape, module: Any, dy: Tensor) -> None:
    if module.bias is not None:
        axes = (0, *range(2, dy.ndim))
        tape.give(module.bias, dy.sum(dim=axes, dtype=tape.weight(module.bias).dtype))


def linear(tape: Tape, target: str, module: Any, x: Any) -> Folded:
    value, source = value_of(x), tape.node.args[0]
    if value.ndim != 2:
        raise CannotFold(f"{target} is a linear layer on {value.ndim} axes")
    from_data, rows = not isinstance(x, Folded), len(value)
    weight = tape.weight(module.weight).to(value.dtype)
    y = value @ weight.T if from_data else _product(tape, value, weight, rows)
    if module.bias is not None:
        y = y + tape.weight(module.bias).to(y.dtype)

    def pull(dy: Tensor) -> None:
        _give_bias(tape, module, dy)
        if from_data:
            tape.give(module.weight, dy.T @ value)
        else:
            tape.give(module.weight, _product_weight(tape, value, dy, rows))
            tape.send(source, _product_input(tape, dy, weight, rows))

    tape.on_the_way_back(pull)
    return Folded(y)


def batch_norm(tape: Tape, target: str, module: Any, x: Any) -> Folded:
    node, source = tape.node, tape.node.args[0]
    relu = tape.fusions.relu_of.get(node)
    total = tape.fusions.sum_of.get(node)
    parts = tape.late.pop(total, None) if total is not None else None
    from_data = not isinstance(x, Folded)
    value = value_of(x) if parts is None else parts[0].value
    if from_data and not tape.shared:
        value = tape.repeated(value)
    if module.training and module.running_mean is not None and module.momentum is None:
        raise CannotFold(f"{target} averages its statistics over all batches")
    if module.training and values_per_channel(value, tape.rows) == 1:
        raise CannotFold(f"{target} has one value per channel")
    # In training mode the batch's own statistics; running ones change only if asked for.
    in_batch = module.training or module.running_mean is None
    running = None
    if tape.track and module.training and module.running_mean is not None:
        counts = (module.running_mean, module.running_var, module.num_batches_tracked)
        running = (*counts, module.momentum)
    fixed = None
    if not in_batch:
        times = 1 if tape.shared else tape.models
        fixed = (module.running_mean.repeat(times), module.running_var.repeat(times))
    result = normalise(
        value,
        tape.weight(module.weight),
        tape.weight(module.bias),
        module.eps,
        relu is not None,
        other=None if parts is None else parts[1].value,
        fixed=fixed,
        running=running,
        rows=tape.rows,
    )

    def pull(dy: Tensor) -> None:
        plus = tape.at.pop(source, None) if isinstance(source, fx.Node) else None
        dx, dweight, dbias = result.pull_back(dy, plus)
        if module.weight is not None:
            tape.give(module.weight, dweight)
        if module.bias is not None:
            tape.give(module.bias, dbias)
        if not from_data:
            tape.send(source, dx)

    if total is not None and parts is not None:
        tape.env[total] = Folded(result.x)
        tape.on_the_way_back(lambda gradient: _send_to_both(tape, total, gradient), total)
    tape.on_the_way_back(pull, node if relu is None else relu)
    if relu is not None:
        tape.early[relu] = Folded(result.y)
    return Folded(result.y)


def _send_to_both(tape: Tape, total: fx.Node, gradient: Tensor) -> None:
    for source in total.args:
        tape.send(source, gradient)


def group_norm(tape: Tape, target: str, module: Any, x: Any) -> Folded:
    if not isinstance(x, Folded):
        raise CannotFold(f"{target} normalises inputs shared by all models")
    source = tape.node.args[0]
    if (module.weight is None) != (module.bias is None):
        raise CannotFold(f"{target} has a weight and no bias")
    parts = [x.value]
    if module.weight is not None:
        parts += [tape.weight(module.weight), tape.weight(module.bias)]

    def function(value: Tensor, *affine: Tensor) -> Tensor:
        if value.device.type == "cpu" and torch.is_grad_enabled() and not value.requires_grad:
            # PyTorch's way back crashes on channels that lie last, if it is to give no gradient
            # at the value, as behind frozen layers.
            value = value.contiguous()
        times = value.shape[1] // module.num_channels
        weight, bias = [p.to(value.dtype) for p in affine] or (None, None)
        return F.group_norm(value, module.num_groups * times, weight, bias, module.eps)

    def pull(dy: Tensor) -> None:
        ready = [tape.every_value(x.value), *map(tape.every_weight, parts[1:])]
        dx, *dparts = tape.differentiate(function, ready, dy)
        for parameter, gradient in zip((module.weight, module.bias), dparts, strict=False):
            tape.give(parameter, gradient)
        tape.send(source, dx)

    tape.on_the_way_back(pull)
    return Folded(function(*parts))


def _shape_of(target: str, module: Any) -> Shape:
    if module.padding_mode != "zeros":
        raise CannotFold(f"{target} pads by {module.padding_mode}")
    padding = module.padding
    if isinstance(padding, str):
        reach = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        if padding == "same" and any(r % 2 for r in reach):
            raise CannotFold(f"{target} pads more on one side than on the other")
        padding = tuple(r // 2 if padding == "same" else 0 for r in reach)
    return Shape(module.stride, padding, module.dilation, module.kernel_size, module.groups)


LAYER_RULES = {
    nn.Conv1d: convolution,
    nn.Conv2d: convolution,
    nn.Linear: linear,
    nn.BatchNorm1d: batch_norm,
    nn.BatchNorm2d: batch_norm,
    nn.GroupNorm: group_norm,
}
