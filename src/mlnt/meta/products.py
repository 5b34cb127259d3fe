"""Convolutions and linear maps of M models at once, and their pullbacks, differentiable again.

Either the M models share one input and one weight (the inner step at θ: only the gradients differ),
or each has its own, folded into the channel axis: [B, M·C, ...] and weights [M·O, C, ...].

Axes: M models, B batch, R rows (batch × height × width), C channels in, O channels out.
"""

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

try:
    from mlnt.meta import patch_kernels as kernels
except ImportError:  # no Triton in a build of torch for CPUs
    kernels = None  # type: ignore[assignment]

CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d}
TRANSPOSED = {1: F.conv_transpose1d, 2: F.conv_transpose2d}


@dataclass(frozen=True)
class Shape:
    """The options of a convolution."""

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    kernel: tuple[int, ...]
    groups: int

    def times(self, models: int) -> "Shape":
        return Shape(self.stride, self.padding, self.dilation, self.kernel, self.groups * models)


def convolve(x: Tensor, weight: Tensor, shape: Shape) -> Tensor:
    function = CONVOLUTIONS[len(shape.kernel)]
    return function(x, weight, None, shape.stride, shape.padding, shape.dilation, shape.groups)


def input_gradient(dy: Tensor, weight: Tensor, size: tuple[int, ...], shape: Shape) -> Tensor:
    """∂/∂x of Σ dy · convolve(x, weight), for x of the spatial size `size`."""
    output_padding = [
        whole - ((out - 1) * stride - 2 * pad + dilation * (kernel - 1) + 1)
        for whole, out, stride, pad, dilation, kernel in zip(
            size, dy.shape[2:], shape.stride, shape.padding, shape.dilation, shape.kernel,
            strict=True,
        )
    ]  # fmt: skip
    return TRANSPOSED[len(shape.kernel)](
        dy, weight, None, shape.stride, shape.padding, output_padding, shape.groups, shape.dilation
    )


def weight_gradient(x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
    """∂/∂W of Σ dy · convolve(x, W), [O, C/groups, *kernel]."""
    return _WeightGradient.apply(x, dy, shape)


class _WeightGradient(Function):
    """Linear in x and in dy, so its own derivatives are convolutions; PyTorch's double backward
    of a grouped convolution would be a loop over the groups."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dy: Tensor, shape: Shape) -> Tensor:
        ctx.save_for_backward(x, dy)
        ctx.shape = shape
        if not x.is_cuda:
            # oneDNN writes beyond its memory for few channels that lie last (oneDNN issue 6035).
            x, dy = x.contiguous(), dy.contiguous()
        weight = dy.new_empty(1).expand(dy.shape[1], x.shape[1] // shape.groups, *shape.kernel)
        return torch.ops.aten.convolution_backward(
            dy, x, weight, None, shape.stride, shape.padding, shape.dilation, False,
            [0] * len(shape.kernel), shape.groups, [False, True, False],
        )[1]  # fmt: skip

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Any:
        x, dy = ctx.saved_tensors
        size = tuple(x.shape[2:])
        return input_gradient(dy, v, size, ctx.shape), convolve(x, v, ctx.shape), None


def _use_kernels(x: Tensor) -> bool:
    """They add up in float32."""
    return kernels is not None and x.is_cuda and x.dtype != torch.float64


class Patches:
    """A convolution as a product of matrices: its patches [R, M·K·C] with weights [M·O, K·C].

    R are the places of the output, K the taps of the kernel. Grouped convolutions with a stride,
    or of one tap, are slow; products are not.
    """

    def __init__(self, x: Tensor, shape: Shape, models: int) -> None:
        self.models, self.kernel, self.size = models, shape.kernel, tuple(x.shape[2:])
        self.step, self.pads = shape.stride[0], shape.padding
        reach = [2 * p - k for p, k in zip(shape.padding, shape.kernel, strict=True)]
        self.out = tuple((n + r) // self.step + 1 for n, r in zip(self.size, reach, strict=True))
        self.rows = len(x) * self.out[0] * self.out[1]
        self.trivial = self.kernel == (1, 1) and self.step == 1 and self.pads == (0, 0)

    @staticmethod
    def suit(shape: Shape) -> bool:
        """Whether a convolution is better written so."""
        return (
            len(shape.kernel) == 2
            and shape.groups == 1
            and shape.dilation == (1, 1)
            and shape.stride[0] == shape.stride[1]
            and (shape.stride[0] > 1 or shape.kernel == (1, 1))
        )

    def of(self, x: Tensor) -> Tensor:
        if self.trivial:
            return x.permute(0, 2, 3, 1).reshape(self.rows, -1)
        return _Unfold.apply(x, self, False)

    def back(self, patches: Tensor) -> Tensor:
        """The adjoint of `of`: [B, M·C, ...]."""
        if self.trivial:
            return self.image(patches)
        return _Unfold.apply(patches, self, True)

    def image(self, y: Tensor) -> Tensor:
        """[R, M·O] as [B, M·O, ...]."""
        return y.reshape(-1, *self.out, y.shape[1]).permute(0, 3, 1, 2)

    def rows_of(self, image: Tensor) -> Tensor:
        return image.permute(0, 2, 3, 1).reshape(self.rows, -1)


class _Unfold(Function):
    """`Patches.of` and, with `back`, its adjoint; each is the derivative of the other."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, plan: Patches, back: bool) -> Tensor:
        ctx.plan, ctx.back = plan, back
        if _use_kernels(x):
            options: list[Any] = [plan.models, plan.kernel, plan.step, plan.pads, plan.out]
            move: Any = kernels.fold if back else kernels.unfold
            return move(x, *options, plan.size) if back else move(x, *options)
        taps = plan.kernel[0] * plan.kernel[1]
        hints: dict[str, Any] = {
            "kernel_size": plan.kernel,
            "stride": plan.step,
            "padding": plan.pads,
        }
        places = plan.out[0] * plan.out[1]
        if back:  # [B·L, M·K·C] to [B·M, C·K, L]
            x = x.view(-1, places, plan.models, taps, x.shape[1] // plan.models // taps)
            x = x.permute(0, 2, 4, 3, 1).flatten(2, 3).flatten(0, 1)
            return F.fold(x, plan.size, **hints).unflatten(0, (-1, plan.models)).flatten(1, 2)
        x = F.unfold(x.unflatten(1, (plan.models, -1)).flatten(0, 1), **hints)
        x = x.view(-1, plan.models, x.shape[1] // taps, taps, places)
        return x.permute(0, 4, 1, 3, 2).reshape(plan.rows, -1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return _Unfold.apply(gradient, ctx.plan, not ctx.back), None, None


def through_relu(dy: Tensor, y: Tensor) -> Tensor:
    """Pull dy [B, M·C, ...] back through y = max(x, 0) [B, C, ...], shared or with M = 1."""
    if _use_kernels(dy) and dy.ndim == 4 and not torch.is_grad_enabled():
        rows = dy.permute(0, 2, 3, 1).reshape(-1, dy.shape[1])
        found = kernels.relu_back(rows, y.permute(0, 2, 3, 1).reshape(-1, y.shape[1]))
        return found.view(len(dy), *dy.shape[2:], -1).permute(0, 3, 1, 2)
    on = (y > 0).to(dy.dtype).unsqueeze(1)
    return (dy.unflatten(1, (-1, y.shape[1])) * on).flatten(1, 2)


def blockwise(x_RMC: Tensor, weight_MCO: Tensor) -> Tensor:
    """y[r, m] = x[r, m] · weight[m]: [R, M, O], models next to channels in memory."""
    return _Blockwise.apply(x_RMC, weight_MCO)


class _Blockwise(Function):
    """A batched product that reads and writes the folded layout as it is."""

    @staticmethod
    def forward(ctx: Any, x_RMC: Tensor, weight_MCO: Tensor) -> Tensor:
        ctx.save_for_backward(x_RMC, weight_MCO)
        y_RMO = x_RMC.new_empty(*x_RMC.shape[:2], weight_MCO.shape[2])
        torch.bmm(x_RMC.transpose(0, 1), weight_MCO, out=y_RMO.transpose(0, 1))
        return y_RMO

    @staticmethod
    def backward(ctx: Any, dy_RMO: Tensor) -> Any:
        x_RMC, weight_MCO = ctx.saved_tensors
        dx_RMC = blockwise(dy_RMO, weight_MCO.transpose(1, 2))
        return dx_RMC, torch.bmm(x_RMC.permute(1, 2, 0), dy_RMO.transpose(0, 1))
