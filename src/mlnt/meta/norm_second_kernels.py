"""The second derivative of batch norm with ReLU as Triton kernels: see `norm_kernels`."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from mlnt.meta.norm_kernels import (
    TILE,
    blocks,
    of_channels,
    program,
    splits_of,
    sums_of,
    terms,
)


@triton.jit
def _second_sums(
    u_ptr, dy_ptr, x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, partial_ptr,
    rows, cols, eps, rows_per_split,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    """partial[split] = (Σ u, Σ u x̂, Σ u g), u the gradient that arrives at dx."""
    col = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    in_cols = col < cols
    channel = col % OWN if OWN else col  # a constant: the compiler sees what lies side by side
    own = OWN if OWN else cols
    split = tl.program_id(1)
    mean, r, weight, bias = of_channels(
        mean_ptr, var_ptr, weight_ptr, bias_ptr, channel, in_cols, eps
    )
    first = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    second = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    third = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for start in range(0, rows_per_split, BLOCK_R):
        row = split * rows_per_split + start + tl.arange(0, BLOCK_R)
        mask = (row < rows)[:, None] & in_cols[None, :]
        row = row.to(tl.int64)[:, None]
        at, x_at = row * cols + col[None, :], row * own + channel[None, :]
        u = tl.load(u_ptr + at, mask, 0.0).to(tl.float32)
        g, xhat = terms(dy_ptr + at, x_ptr + x_at, mask, mean, r, weight, bias, RELU)
        first += u
        second += u * xhat
        third += u * g
    at = split * 3 * cols + col
    tl.store(partial_ptr + at, tl.sum(first, 0), in_cols)
    tl.store(partial_ptr + at + cols, tl.sum(second, 0), in_cols)
    tl.store(partial_ptr + at + 2 * cols, tl.sum(third, 0), in_cols)


@triton.jit
def _second_gradients(
    u_ptr, dy_ptr, x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr,
    sums_ptr, second_ptr, a_ptr, b_ptr, ddy_ptr, ddx_ptr,
    rows, own, eps, sets,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """What u at dx, a at dγ and b at dβ send to dy and (summed over the sets) to x.

    With means ḡ, q = mean(g x̂), ū, p = mean(u x̂), w = mean(u g) and s = γ r:
    to g:  s (u − ū − x̂ p) + a x̂ + b
    to x̂:  D = s (−u q − g p) + a g, of mean a ḡ − s (ū q + ḡ p) and mean(D x̂) = a q − 2 s p q
    to r:  T = γ R (w − ū ḡ − p q)
    to x:  r (D − mean(D) − x̂ mean(D x̂)) − T r² x̂ / R
    """
    across, down = program(own, BLOCK_K)
    channel = across * BLOCK_K + tl.arange(0, BLOCK_K)
    in_cols = channel < own
    cols = own * sets
    mean, r, weight, bias = of_channels(
        mean_ptr, var_ptr, weight_ptr, bias_ptr, channel, in_cols, eps
    )
    s = weight * r
    row = down * BLOCK_R + tl.arange(0, BLOCK_R)
    mask = (row < rows)[:, None] & in_cols[None, :]
    row = row.to(tl.int64)[:, None]
    x = tl.load(x_ptr + row * own + channel[None, :], mask, 0.0).to(tl.float32)
    xhat = (x - mean) * r
    on = (x - mean) * s + bias > 0
    total = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for number in range(sets):
        col = number * own + channel
        mean_g = (tl.load(sums_ptr + col, in_cols, 0.0) / rows)[None, :]
        q = (tl.load(sums_ptr + cols + col, in_cols, 0.0) / rows)[None, :]
        mean_u = (tl.load(second_ptr + col, in_cols, 0.0) / rows)[None, :]
        p = (tl.load(second_ptr + cols + col, in_cols, 0.0) / rows)[None, :]
        w = (tl.load(second_ptr + 2 * cols + col, in_cols, 0.0) / rows)[None, :]
        a = tl.load(a_ptr + col, in_cols, 0.0)[None, :]
        b = tl.load(b_ptr + col, in_cols, 0.0)[None, :]
        at = row * cols + col[None, :]
        u = tl.load(u_ptr + at, mask, 0.0).to(tl.float32)
        g = tl.load(dy_ptr + at, mask, 0.0).to(tl.float32)
        if RELU:
            g = tl.where(on, g, 0.0)
        to_g = s * (u - mean_u - xhat * p) + a * xhat + b
        if RELU:
            to_g = tl.where(on, to_g, 0.0)
        tl.store(ddy_ptr + at, to_g.to(ddy_ptr.dtype.element_ty), mask)
        to_xhat = a * g - s * (u * q + g * p)
        mean_d = a * mean_g - s * (mean_u * q + mean_g * p)
        mean_dx = a * q - 2 * s * p * q
        to_r = weight * (w - mean_u * mean_g - p * q)
        total += r * (to_xhat - mean_d - xhat * mean_dx) - to_r * r * r * xhat
    at = row * own + channel[None, :]
    tl.store(ddx_ptr + at, total.to(ddx_ptr.dtype.element_ty), mask)


def pull_back_twice(
    u_RK: Tensor,
    a_K: Tensor,
    b_K: Tensor,
    dy_RK: Tensor,
    x: Tensor,
    statistics: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    sums: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """What (u, a, b) at (dx, dγ, dβ) send to dy [R, K], to x [R, own] and to γ [own]."""
    rows, cols = dy_RK.shape
    own, sets = x.shape[1], cols // x.shape[1]
    mean, var = statistics
    across, sizes = blocks(cols, TILE // 2)
    splits, per_split = splits_of(rows, across, sizes["BLOCK_R"])
    partial = torch.empty(splits, 3, cols, device=x.device)
    _second_sums[(across, splits)](
        u_RK, dy_RK, x, mean, var, weight, bias, partial, rows, cols, eps, per_split,
        RELU=relu, OWN=0 if own == cols else own, **sizes,
    )  # fmt: skip
    second = sums_of(partial)
    ddy, ddx = torch.empty_like(dy_RK), torch.empty_like(x)
    across, sizes = blocks(own, TILE)
    block_r, block_k = sizes["BLOCK_R"], sizes["BLOCK_K"]
    _second_gradients[(across * triton.cdiv(rows, block_r),)](
        u_RK, dy_RK, x, mean, var, weight, bias, sums, second, a_K, b_K, ddy, ddx,
        rows, own, eps, sets,
        RELU=relu, BLOCK_R=block_r, BLOCK_K=block_k,
    )  # fmt: skip
    covariance = second[2] - second[0] * sums[0] / rows - second[1] * sums[1] / rows
    to_weight = covariance.view(-1, own).sum(0) * torch.rsqrt(var + eps)
    return ddy, ddx, to_weight
