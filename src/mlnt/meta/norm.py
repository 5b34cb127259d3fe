"""Batch norm, with ReLU where one follows, as a function with hand-written derivatives.

Plain PyTorch on any device and type is the specification; Triton kernels do the same on a GPU.
x is [B, C, ...]. A gradient dy is [B, M·C, ...]: M sets of gradients at one x, set by set. A
batch norm whose x differs from model to model is one batch norm of more channels, with M = 1.
Where several processes have the rows of a batch, moments and means are those of the whole batch;
gradients of weights are each process's own part.

Axes: B batch, C channels, M sets.
"""

from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function

from mlnt.distributed import WHOLE, Rows

try:
    from mlnt.meta import norm_kernels as kernels
    from mlnt.meta import norm_second_kernels as second_kernels
except ImportError:  # no Triton in a build of torch for CPUs
    kernels = second_kernels = None  # type: ignore[assignment]

Running = tuple[Tensor, Tensor, Tensor, float]  # running mean, variance, batches seen; momentum
KERNEL_TYPES: Final = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Normalised:
    """What the forward pass leaves for the backward pass."""

    x: Tensor
    y: Tensor
    weight: Tensor
    bias: Tensor
    statistics: tuple[Tensor, Tensor]  # μ, σ²
    eps: float
    relu: bool
    fixed: bool  # running statistics were used: they do not depend on x
    rows: Rows

    def pull_back(self, dy: Tensor, plus: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """(dx + plus [B, M·C, ...], dγ [M·C], dβ [M·C])."""
        options = (self.eps, self.relu, self.fixed)
        return _PullBack.apply(
            dy, self.x, self.weight, self.bias, plus, self.statistics, options, self.rows
        )


def normalise(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    relu: bool = False,
    *,
    other: Tensor | None = None,
    fixed: tuple[Tensor, Tensor] | None = None,
    running: Running | None = None,
    rows: Rows = WHOLE,
) -> Normalised:
    """Normalise x + other by its own moments, or by `fixed` ones; `running` ones are updated."""
    # Parameters and statistics stay in full precision whatever x is computed in.
    full = torch.float64 if x.dtype == torch.float64 else torch.float32
    channels = x.shape[1]
    weight = torch.ones(channels, dtype=full, device=x.device) if weight is None else weight
    bias = torch.zeros(channels, dtype=full, device=x.device) if bias is None else bias
    total, y, mean, var = _Normalise.apply(
        x, other, weight.to(full), bias.to(full), (eps, relu), fixed, running, rows
    )
    statistics = (mean, var)
    return Normalised(total, y, weight, bias, statistics, eps, relu, fixed is not None, rows)


class _Normalise(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        other: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        options: tuple[float, bool],
        fixed: tuple[Tensor, Tensor] | None,
        running: Running | None,
        rows: Rows,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        eps, relu = options
        if fixed is None and _use_kernels(x, rows):
            total, y, mean, var = kernels.normalise(
                _rows(x), None if other is None else _rows(other), weight, bias, eps, relu, running
            )
            total, y = (x if other is None else _unrows(total, x)), _unrows(y, x)
        else:
            total = x if other is None else x + other
            if fixed is None:
                mean, var = _moments(total, rows)
            else:
                mean, var = fixed[0].detach(), fixed[1].detach()
            if running is not None:
                _track(running, mean, var, values_per_channel(total, rows))
            scale = weight * (var + eps).rsqrt()
            y = (total.to(mean.dtype) - _wide(mean, x)) * _wide(scale, x) + _wide(bias, x)
            y = (y.relu() if relu else y).to(x.dtype)
        ctx.save_for_backward(total, weight, bias, mean, var)
        ctx.options, ctx.rows = (eps, relu, fixed is not None), rows
        ctx.added = other is not None
        ctx.mark_non_differentiable(mean, var)
        if total is x:
            total = x.view_as(x)
        return total, y, mean, var

    @staticmethod
    def backward(ctx: Any, dtotal: Tensor, dy: Tensor, *_: Any) -> Any:
        total, weight, bias, mean, var = ctx.saved_tensors
        dx, dweight, dbias = _PullBack.apply(
            dy, total, weight, bias, dtotal, (mean, var), ctx.options, ctx.rows
        )
        return dx, dx if ctx.added else None, dweight, dbias, None, None, None, None


class _PullBack(Function):
    """The backward pass of `_Normalise`, differentiable itself."""

    @staticmethod
    def forward(
        ctx: Any,
        dy: Tensor,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        plus: Tensor | None,
        statistics: tuple[Tensor, Tensor],
        options: tuple[float, bool, bool],
        rows: Rows,
    ) -> tuple[Tensor, Tensor, Tensor]:
        eps, relu, fixed = options
        if not fixed and _use_kernels(x, rows):
            dy_RK = _rows(dy)
            dx, sums = kernels.pull_back(
                dy_RK, _rows(x), statistics, weight, bias, eps, relu,
                None if plus is None else _rows(plus),
            )  # fmt: skip
            dx = _unrows(dx, dy)
        else:
            terms = _Terms(dy, x, statistics, weight, bias, eps, relu, rows)
            g, xhat = terms.g, terms.xhat
            sums = torch.stack([terms.sum(g), terms.sum(g * xhat)])
            if not fixed:
                mean_g, q = terms.means(g, g * xhat)
                g = g - mean_g - xhat * q
            dx = terms.fold(terms.scale * g).to(dy.dtype)
            dx = dx if plus is None else dx + plus
        ctx.save_for_backward(dy, x, weight, bias, *statistics, sums)
        ctx.options, ctx.rows, ctx.with_plus = options, rows, plus is not None
        return dx, sums[1], sums[0]

    @staticmethod
    def backward(ctx: Any, u: Tensor, a: Tensor, b: Tensor) -> Any:
        """The formulas are those of `norm_second_kernels._second_gradients`."""
        dy, x, weight, bias, mean, var, sums = ctx.saved_tensors
        eps, relu, fixed = ctx.options
        plus = u if ctx.with_plus else None
        if not fixed and _use_kernels(x, ctx.rows):
            ddy, ddx, dweight = second_kernels.pull_back_twice(
                _rows(u), a.contiguous(), b.contiguous(), _rows(dy), _rows(x), (mean, var),
                weight, bias, eps, relu, sums,
            )  # fmt: skip
            return _unrows(ddy, dy), _unrows(ddx, x), dweight, None, plus, None, None, None
        terms = _Terms(dy, x, (mean, var), weight, bias, eps, relu, ctx.rows)
        u_, a_, b_ = terms.unfold(u), terms.per_channel(a), terms.per_channel(b)
        g, xhat, s = terms.g, terms.xhat, terms.scale
        if fixed:
            to_g, to_x = s * u_ + a_ * xhat + b_, terms.r * a_ * g
            dweight = terms.sum(u_ * g * terms.r)
        else:
            mean_g, q, mean_u, p, w = terms.means(g, g * xhat, u_, u_ * xhat, u_ * g)
            to_g = s * (u_ - mean_u - xhat * p) + a_ * xhat + b_
            d = a_ * g - s * (u_ * q + g * p)
            to_r = w - mean_u * mean_g - p * q
            mean_d, mean_dx = terms.means(d, d * xhat)
            to_x = terms.r * (d - mean_d - xhat * mean_dx)
            to_x = to_x - s * terms.r * to_r * xhat
            dweight = terms.sum((to_r * terms.r).expand_as(g))
        ddy = terms.fold(to_g * terms.on).to(dy.dtype)
        ddx = to_x.sum(dim=1).to(x.dtype)
        return ddy, ddx, dweight.view(-1, x.shape[1]).sum(0), None, plus, None, None, None


class _Terms:
    """g and x̂ of the formulas, [B, M, C, ...], and sums over all but sets and channels."""

    def __init__(
        self,
        dy: Tensor,
        x: Tensor,
        statistics: tuple[Tensor, Tensor],
        weight: Tensor,
        bias: Tensor,
        eps: float,
        relu: bool,
        rows: Rows,
    ) -> None:
        mean, var = statistics
        self.rows = rows
        self.channels = x.shape[1]
        self.dtype = mean.dtype
        self.axes = (0, *range(3, x.ndim + 1))
        wide = x.to(mean.dtype).unsqueeze(1)
        self.r = self.per_channel((var + eps).rsqrt())
        self.scale = self.per_channel(weight) * self.r
        self.xhat = (wide - self.per_channel(mean)) * self.r
        z = self.xhat * self.per_channel(weight) + self.per_channel(bias)
        self.on = (z > 0).to(mean.dtype) if relu else torch.ones_like(z)
        self.g = self.unfold(dy) * self.on

    def unfold(self, folded: Tensor) -> Tensor:
        return folded.to(self.dtype).unflatten(1, (-1, self.channels))

    def fold(self, value: Tensor) -> Tensor:
        return value.flatten(1, 2)

    def per_channel(self, vector: Tensor) -> Tensor:
        """[M·C] as [1, M, C, 1, ...]."""
        return vector.view(1, -1, self.channels, *[1] * (len(self.axes) - 1))

    def means(self, *values: Tensor) -> tuple[Tensor, ...]:
        """Over the whole batch."""
        means = [value.mean(dim=self.axes, keepdim=True) for value in values]
        if not self.rows.is_whole:
            means = self.rows.group.sum_all([self.rows.share * mean for mean in means])
        return tuple(means)

    def sum(self, value: Tensor) -> Tensor:
        return value.sum(dim=self.axes).flatten()


def _moments(x: Tensor, rows: Rows) -> tuple[Tensor, Tensor]:
    full = torch.float64 if x.dtype == torch.float64 else torch.float32
    axes = (0, *range(2, x.ndim))
    var, mean = torch.var_mean(x.to(full), dim=axes, correction=0)
    if rows.is_whole:
        return mean, var
    # Means and variances of the parts, weighed by their rows: no difference of large numbers.
    parts = rows.group.stack(torch.stack([mean, var, torch.full_like(mean, rows.share)]))
    mean_P, var_P, share_P = parts.unbind(1)
    mean = (share_P * mean_P).sum(0)
    return mean, (share_P * (var_P + (mean_P - mean).square())).sum(0)


def values_per_channel(x: Tensor, rows: Rows) -> int:
    """That a batch norm of x takes its moments of, in all processes together."""
    own = x.numel() // x.shape[1]
    return own if rows.is_whole else round(own / rows.share)


def _track(running: Running, mean: Tensor, var: Tensor, count: int) -> None:
    running_mean, running_var, seen, momentum = running
    running_mean.lerp_(mean, momentum)
    running_var.lerp_(var * (count / (count - 1)), momentum)
    seen.add_(1)


def _use_kernels(x: Tensor, rows: Rows) -> bool:
    suits = x.is_cuda and x.ndim in (2, 4) and x.dtype in KERNEL_TYPES
    return kernels is not None and suits and rows.is_whole


def _rows(x: Tensor) -> Tensor:
    """[R, K], a view where the channels are last in memory."""
    return x.contiguous() if x.ndim == 2 else x.permute(0, 2, 3, 1).reshape(-1, x.shape[1])


def _unrows(rows_RK: Tensor, like: Tensor) -> Tensor:
    if like.ndim == 2:
        return rows_RK
    batch, _, height, width = like.shape
    return rows_RK.view(batch, height, width, -1).permute(0, 3, 1, 2)


def _wide(vector: Tensor, like: Tensor) -> Tensor:
    return vector.view(1, -1, *[1] * (like.ndim - 2))
