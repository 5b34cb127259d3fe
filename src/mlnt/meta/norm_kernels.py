"""Batch norm with ReLU as Triton kernels: a read for the moments, a read and a write for the rest.

All tensors are rows of channels, [R, K] in memory, R = batch × height × width. K columns of output
or gradient belong to `own` channels of x: column k to channel k mod own. So M sets of gradients
may share one x (K = M·own), or each model has its own (own = K). Sums are float32, in a fixed
order: the same inputs give the same bits. OWN = 0 in a kernel says that own = K.

With x̂ = (x − μ)·r, r = (σ² + ε)^(−1/2), z = γ x̂ + β, y = z or max(z, 0), g = dy·[z > 0]:

    dx = γ r (g − mean(g) − x̂ mean(g x̂))    dγ = Σ g x̂    dβ = Σ g

The names in the kernels are those of these formulas.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements; the sums, which hold accumulators as well, take half
PROGRAMS = 1056  # eight for each of the 132 multiprocessors of a Hopper GPU


@triton.jit
def program(cols, BLOCK_K: tl.constexpr):
    """(block of columns, block of rows): on one axis of the grid, as the others are short."""
    across = tl.cdiv(cols, BLOCK_K)
    return tl.program_id(0) % across, tl.program_id(0) // across


@triton.jit
def of_channels(mean_ptr, var_ptr, weight_ptr, bias_ptr, channel, mask, eps):
    """μ, r, γ and β of a block of channels, as rows."""
    mean = tl.load(mean_ptr + channel, mask, 0.0)[None, :]
    r = 1.0 / tl.sqrt(tl.load(var_ptr + channel, mask, 1.0) + eps)[None, :]
    weight = tl.load(weight_ptr + channel, mask, 0.0)[None, :]
    bias = tl.load(bias_ptr + channel, mask, 0.0)[None, :]
    return mean, r, weight, bias


@triton.jit
def terms(dy_ptr, x_ptr, mask, mean, r, weight, bias, RELU: tl.constexpr):
    """(g, x̂) of a tile."""
    g = tl.load(dy_ptr, mask, 0.0).to(tl.float32)
    x = tl.load(x_ptr, mask, 0.0).to(tl.float32)
    if RELU:
        # As the forward pass computes it, so that the same units are on.
        g = tl.where((x - mean) * (weight * r) + bias > 0, g, 0.0)
    return g, (x - mean) * r


@triton.jit
def _add_up(partial_ptr, sums_ptr, splits, width, BLOCK_S: tl.constexpr, BLOCK_W: tl.constexpr):
    """sums = Σ over the splits of partial, [splits, width]."""
    at = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    total = tl.zeros([BLOCK_S, BLOCK_W], tl.float32)
    for start in range(0, splits, BLOCK_S):
        split = start + tl.arange(0, BLOCK_S)
        mask = (split < splits)[:, None] & (at < width)[None, :]
        total += tl.load(partial_ptr + split[:, None] * width + at[None, :], mask, 0.0)
    tl.store(sums_ptr + at, tl.sum(total, 0), at < width)


@triton.jit
def _moments(
    x_ptr, other_ptr, total_ptr, partial_ptr, rows, cols, rows_per_split,
    ADD: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """partial[split] = (Σ x − p, Σ (x − p)²) with the first row as pivot p; total = x + other."""
    col = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    split = tl.program_id(1)
    in_cols = col < cols
    pivot = tl.load(x_ptr + col, in_cols, 0.0).to(tl.float32)
    if ADD:
        pivot += tl.load(other_ptr + col, in_cols, 0.0).to(tl.float32)
        pivot = pivot.to(x_ptr.dtype.element_ty).to(tl.float32)
    first = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    second = tl.zeros([BLOCK_R, BLOCK_K], tl.float32)
    for start in range(0, rows_per_split, BLOCK_R):
        row = split * rows_per_split + start + tl.arange(0, BLOCK_R)
        mask = (row < rows)[:, None] & in_cols[None, :]
        at = row.to(tl.int64)[:, None] * cols + col[None, :]
        x = tl.load(x_ptr + at, mask, 0.0).to(tl.float32)
        if ADD:
            x += tl.load(other_ptr + at, mask, 0.0).to(tl.float32)
            rounded = x.to(x_ptr.dtype.element_ty)
            tl.store(total_ptr + at, rounded, mask)
            x = rounded.to(tl.float32)
        centred = tl.where(mask, x - pivot[None, :], 0.0)
        first += centred
        second += centred * centred
    at = split * 2 * cols + col
    tl.store(partial_ptr + at, tl.sum(first, 0), in_cols)
    tl.store(partial_ptr + at + cols, tl.sum(second, 0), in_cols)


@triton.jit
def _normalise(
    x_ptr, sums_ptr, weight_ptr, bias_ptr, y_ptr, mean_ptr, var_ptr,
    running_mean_ptr, running_var_ptr, tracked_ptr, rows, cols, eps, momentum,
    RELU: tl.constexpr, TRACK: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """y from the sums; the programs of the first rows also write μ, σ² and the running ones."""
    across, down = program(cols, BLOCK_K)
    col = across * BLOCK_K + tl.arange(0, BLOCK_K)
    in_cols = col < cols
    pivot = tl.load(x_ptr + col, in_cols, 0.0).to(tl.float32)
    first = tl.load(sums_ptr + col, in_cols, 0.0) / rows
    second = tl.load(sums_ptr + cols + col, in_cols, 0.0) / rows
    mean = pivot + first
    var = tl.maximum(second - first * first, 0.0)
    if down == 0:
        tl.store(mean_ptr + col, mean, in_cols)
        tl.store(var_ptr + col, var, in_cols)
        if TRACK:
            old = tl.load(running_mean_ptr + col, in_cols, 0.0)
            tl.store(running_mean_ptr + col, old + momentum * (mean - old), in_cols)
            old = tl.load(running_var_ptr + col, in_cols, 0.0)
            unbiased = var * (rows / (rows - 1.0))
            tl.store(running_var_ptr + col, old + momentum * (unbiased - old), in_cols)
            if across == 0:
                tl.store(tracked_ptr, tl.load(tracked_ptr) + 1)
    scale = tl.load(weight_ptr + col, in_cols, 0.0) * (1.0 / tl.sqrt(var + eps))
    shift = tl.load(bias_ptr + col, in_cols, 0.0)
    row = down * BLOCK_R + tl.arange(0, BLOCK_R)
    mask = (row < rows)[:, None] & in_cols[None, :]
    at = row.to(tl.int64)[:, None] * cols + col[None, :]
    x = tl.load(x_ptr + at, mask, 0.0).to(tl.float32)
    y = (x - mean[None, :]) * scale[None, :] + shift[None, :]
    if RELU:
        y = tl.maximum(y, 0.0, propagate_nan=tl.PropagateNan.ALL)
    tl.store(y_ptr + at, y.to(y_ptr.dtype.element_ty), mask)


@triton.jit
def _gradient_sums(
    dy_ptr, x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, partial_ptr,
    rows, cols, eps, rows_per_split,
    RELU: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    """partial[split] = (Σ g, Σ g x̂)."""
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
    for start in range(0, rows_per_split, BLOCK_R):
        row = split * rows_per_split + start + tl.arange(0, BLOCK_R)
        mask = (row < rows)[:, None] & in_cols[None, :]
        row = row.to(tl.int64)[:, None]
        at, x_at = row * cols + col[None, :], row * own + channel[None, :]
        g, xhat = terms(dy_ptr + at, x_ptr + x_at, mask, mean, r, weight, bias, RELU)
        first += g
        second += g * xhat
    at = split * 2 * cols + col
    tl.store(partial_ptr + at, tl.sum(first, 0), in_cols)
    tl.store(partial_ptr + at + cols, tl.sum(second, 0), in_cols)


@triton.jit
def _input_gradient(
    dy_ptr, x_ptr, mean_ptr, var_ptr, weight_ptr, bias_ptr, sums_ptr, plus_ptr, dx_ptr,
    rows, cols, eps,
    RELU: tl.constexpr, PLUS: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
    OWN: tl.constexpr,
):  # fmt: skip
    """dx, plus what other branches have sent to the same x."""
    across, down = program(cols, BLOCK_K)
    col = across * BLOCK_K + tl.arange(0, BLOCK_K)
    in_cols = col < cols
    channel = col % OWN if OWN else col  # a constant: the compiler sees what lies side by side
    own = OWN if OWN else cols
    mean, r, weight, bias = of_channels(
        mean_ptr, var_ptr, weight_ptr, bias_ptr, channel, in_cols, eps
    )
    mean_g = (tl.load(sums_ptr + col, in_cols, 0.0) / rows)[None, :]
    mean_gx = (tl.load(sums_ptr + cols + col, in_cols, 0.0) / rows)[None, :]
    row = down * BLOCK_R + tl.arange(0, BLOCK_R)
    mask = (row < rows)[:, None] & in_cols[None, :]
    row = row.to(tl.int64)[:, None]
    at = row * cols + col[None, :]
    x_at = row * own + channel[None, :]
    g, xhat = terms(dy_ptr + at, x_ptr + x_at, mask, mean, r, weight, bias, RELU)
    dx = weight * r * (g - mean_g - xhat * mean_gx)
    if PLUS:
        dx += tl.load(plus_ptr + at, mask, 0.0).to(tl.float32)
    tl.store(dx_ptr + at, dx.to(dx_ptr.dtype.element_ty), mask)


def blocks(cols: int, tile: int) -> tuple[int, dict[str, int]]:
    """(programs across, sizes of a tile): rows of 128 bytes of bfloat16 where there are as many."""
    block_k = min(64, triton.next_power_of_2(cols))
    return triton.cdiv(cols, block_k), {"BLOCK_R": tile // block_k, "BLOCK_K": block_k}


def splits_of(rows: int, column_blocks: int, block_r: int) -> tuple[int, int]:
    """(splits, rows per split): enough programs to fill the machine, whole blocks of rows."""
    row_blocks = triton.cdiv(rows, block_r)
    wanted = min(max(1, PROGRAMS // column_blocks), max(64, row_blocks // 4))
    per_split = triton.cdiv(row_blocks, wanted) * block_r
    return triton.cdiv(rows, per_split), per_split


def sums_of(partial: Tensor) -> Tensor:
    splits, width = partial.shape[0], partial[0].numel()
    sums = torch.empty_like(partial[0])
    _add_up[(triton.cdiv(width, 32),)](partial, sums, splits, width, BLOCK_S=64, BLOCK_W=32)
    return sums


def normalise(
    x_RK: Tensor,
    other_RK: Tensor | None,
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    running: tuple[Tensor, Tensor, Tensor, float] | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(x + other, y, μ, σ²); `running` statistics and their momentum are updated in place."""
    rows, cols = x_RK.shape
    column_blocks, sizes = blocks(cols, TILE)
    block_r, block_k = sizes["BLOCK_R"], sizes["BLOCK_K"]
    splits, per_split = splits_of(rows, column_blocks, block_r)
    partial = torch.empty(splits, 2, cols, device=x_RK.device)
    total = x_RK if other_RK is None else torch.empty_like(x_RK)
    _moments[(column_blocks, splits)](
        x_RK, x_RK if other_RK is None else other_RK, total, partial, rows, cols, per_split,
        ADD=other_RK is not None, BLOCK_R=block_r, BLOCK_K=block_k,
    )  # fmt: skip
    y = torch.empty_like(x_RK)
    mean, var = torch.empty(2, cols, device=x_RK.device)
    running_mean, running_var, tracked, momentum = running or (mean, var, mean, 0.0)
    _normalise[(column_blocks * triton.cdiv(rows, block_r),)](
        total, sums_of(partial), weight, bias, y, mean, var,
        running_mean, running_var, tracked, rows, cols, eps, momentum,
        RELU=relu, TRACK=running is not None, BLOCK_R=block_r, BLOCK_K=block_k,
    )  # fmt: skip
    return total, y, mean, var


def pull_back(
    dy_RK: Tensor,
    x: Tensor,
    statistics: tuple[Tensor, Tensor],
    weight: Tensor,
    bias: Tensor,
    eps: float,
    relu: bool,
    plus_RK: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """(dx [R, K], (dβ, dγ) [2, K]) of x [R, own]."""
    rows, cols = dy_RK.shape
    own = x.shape[1]
    mean, var = statistics
    across, sizes = blocks(cols, TILE // 2)
    splits, per_split = splits_of(rows, across, sizes["BLOCK_R"])
    partial = torch.empty(splits, 2, cols, device=x.device)
    _gradient_sums[(across, splits)](
        dy_RK, x, mean, var, weight, bias, partial, rows, cols, eps, per_split,
        RELU=relu, OWN=0 if own == cols else own, **sizes,
    )  # fmt: skip
    sums = sums_of(partial)
    dx = torch.empty_like(dy_RK)
    across, sizes = blocks(cols, TILE)
    _input_gradient[(across * triton.cdiv(rows, sizes["BLOCK_R"]),)](
        dy_RK, x, mean, var, weight, bias, sums, dx if plus_RK is None else plus_RK, dx,
        rows, cols, eps,
        RELU=relu, PLUS=plus_RK is not None, OWN=0 if own == cols else own, **sizes,
    )  # fmt: skip
    return dx, sums
