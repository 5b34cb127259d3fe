"""Triton kernels that move pixels: patches for strided convolutions, and the way back of ReLU.

Images are [B, H, W, M, C] in memory; M models or sets of gradients, C channels of each.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

TILE = 4096  # elements


@triton.jit
def _unfold(
    x_ptr, to_ptr, rows, H, W, OUT_H, OUT_W, top, left,
    STEP: tl.constexpr, M: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, C: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """Patches [B, OUT_H, OUT_W, M, KH, KW, C]; a row is the C numbers of one tap."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    tap = row % (KH * KW)
    m = row // (KH * KW) % M
    place = row // (KH * KW * M)
    w = place % OUT_W * STEP + tap % KW - left
    h = place // OUT_W % OUT_H * STEP + tap // KW - top
    b = place // OUT_W // OUT_H
    inside = (h >= 0) & (h < H) & (w >= 0) & (w < W)
    c = tl.arange(0, BLOCK_C)
    ok = (row < rows)[:, None] & (c < C)[None, :]
    at = ((b * H + h) * W + w) * M + m
    value = tl.load(x_ptr + at[:, None] * C + c[None, :], ok & inside[:, None], 0.0)
    tl.store(to_ptr + row[:, None] * C + c[None, :], value, ok)


@triton.jit
def _fold(
    patches_ptr, x_ptr, rows, H, W, OUT_H, OUT_W, top, left,
    STEP: tl.constexpr, M: tl.constexpr, KH: tl.constexpr, KW: tl.constexpr, C: tl.constexpr,
    BLOCK_R: tl.constexpr, BLOCK_C: tl.constexpr,
):  # fmt: skip
    """The adjoint: every pixel gathers what the patches hold of it."""
    row = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    m = row % M
    w = row // M % W
    h = row // M // W % H
    b = row // M // W // H
    c = tl.arange(0, BLOCK_C)
    ok = (row < rows)[:, None] & (c < C)[None, :]
    total = tl.zeros([BLOCK_R, BLOCK_C], tl.float32)
    # Of the taps of a kernel only every step-th can have touched a pixel.
    for down in tl.static_range((KH + STEP - 1) // STEP):
        for across in tl.static_range((KW + STEP - 1) // STEP):
            a, i = (h + top) % STEP + STEP * down, (h + top) // STEP - down
            e, j = (w + left) % STEP + STEP * across, (w + left) // STEP - across
            hit = (a < KH) & (e < KW) & (i >= 0) & (j >= 0) & (i < OUT_H) & (j < OUT_W)
            at = (((b * OUT_H + i) * OUT_W + j) * M + m) * (KH * KW) + a * KW + e
            total += tl.load(patches_ptr + at[:, None] * C + c[None, :], ok & hit[:, None], 0.0).to(
                tl.float32
            )
    tl.store(x_ptr + row[:, None] * C + c[None, :], total.to(x_ptr.dtype.element_ty), ok)


@triton.jit
def _relu_back(
    dy_ptr, y_ptr, dx_ptr, rows, own, cols,
    BLOCK_R: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """dx = dy where the ReLU was on; column k of dy belongs to column k mod own of y."""
    across = tl.cdiv(cols, BLOCK_K)
    row = (tl.program_id(0) // across * BLOCK_R + tl.arange(0, BLOCK_R)).to(tl.int64)[:, None]
    col = (tl.program_id(0) % across * BLOCK_K + tl.arange(0, BLOCK_K))[None, :]
    ok = (row < rows) & (col < cols)
    y = tl.load(y_ptr + row * own + col % own, ok, 0.0)
    dy = tl.load(dy_ptr + row * cols + col, ok, 0.0)
    tl.store(dx_ptr + row * cols + col, tl.where(y > 0, dy, 0.0), ok)


def unfold(
    x: Tensor, models: int, kernel: tuple[int, int], step: int, pads: tuple[int, int],
    out: tuple[int, int],
) -> Tensor:  # fmt: skip
    """[B·OUT_H·OUT_W, M·KH·KW·C] of an image [B, M·C, H, W]."""
    batch, columns, high, wide = x.shape
    channels, taps = columns // models, kernel[0] * kernel[1]
    patches = torch.empty(
        batch * out[0] * out[1], models * taps * channels, dtype=x.dtype, device=x.device
    )
    _launch(
        _unfold, patches.numel() // channels, channels,
        x.contiguous(memory_format=torch.channels_last), patches,
        (high, wide, *out, *pads), step, models, kernel,
    )  # fmt: skip
    return patches


def fold(
    patches: Tensor, models: int, kernel: tuple[int, int], step: int, pads: tuple[int, int],
    out: tuple[int, int], size: tuple[int, int],
) -> Tensor:  # fmt: skip
    """The adjoint of `unfold`, for an image of the size `size`."""
    batch = len(patches) // (out[0] * out[1])
    channels = patches.shape[1] // models // (kernel[0] * kernel[1])
    x = torch.empty(batch, *size, models * channels, dtype=patches.dtype, device=patches.device)
    _launch(
        _fold, x.numel() // channels, channels, patches.contiguous(), x,
        (*size, *out, *pads), step, models, kernel,
    )  # fmt: skip
    return x.permute(0, 3, 1, 2)


def _launch(
    kernel: triton.JITFunction, rows: int, channels: int, source: Tensor, to: Tensor,
    places: tuple[int, ...], step: int, models: int, taps: tuple[int, int],
) -> None:  # fmt: skip
    block_c = triton.next_power_of_2(channels)
    block_r = max(1, TILE // block_c)
    kernel[(triton.cdiv(rows, block_r),)](
        source, to, rows, *places,
        STEP=step, M=models, KH=taps[0], KW=taps[1], C=channels, BLOCK_R=block_r, BLOCK_C=block_c,
    )  # fmt: skip


def relu_back(dy_RK: Tensor, y: Tensor) -> Tensor:
    """dx [R, K] of y [R, own]."""
    rows, cols = dy_RK.shape
    dx = torch.empty_like(dy_RK)
    _relu_back[(triton.cdiv(cols, 64) * triton.cdiv(rows, 64),)](
        dy_RK, y, dx, rows, y.shape[1], cols, BLOCK_R=64, BLOCK_K=64
    )
    return dx
