"""Patches and the way back of ReLU: against PyTorch, and the kernels against plain tensors."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from mlnt.meta import products
from mlnt.meta.products import Patches, Shape, through_relu
from test_norm import DEVICE, needs_kernels

CASES = [  # height, width, kernel, stride, padding
    (8, 8, (3, 3), 2, (1, 1)),
    (7, 9, (3, 3), 2, (1, 1)),
    (9, 7, (5, 2), 2, (2, 0)),
    (11, 8, (7, 7), 3, (1, 1)),
    (8, 8, (1, 1), 2, (0, 0)),
]
MODELS, CHANNELS = 3, 4


def image(height: int, width: int, device: str = "cpu") -> Tensor:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, MODELS * CHANNELS, height, width, generator=generator)
    return x.to(device).contiguous(memory_format=torch.channels_last)


def plan_of(x: Tensor, kernel: tuple[int, int], stride: int, padding: tuple[int, int]) -> Patches:
    return Patches(x, Shape((stride, stride), padding, (1, 1), kernel, 1), MODELS)


@pytest.mark.parametrize(("height", "width", "kernel", "stride", "padding"), CASES)
def test_product_of_patches_is_the_grouped_convolution(
    height: int, width: int, kernel: tuple[int, int], stride: int, padding: tuple[int, int]
) -> None:
    x = image(height, width).double()
    weight = torch.randn(MODELS * 5, CHANNELS, *kernel, dtype=torch.float64)
    plan = plan_of(x, kernel, stride, padding)
    patches = plan.of(x).view(plan.rows, MODELS, -1)
    flat = weight.permute(0, 2, 3, 1).flatten(1).view(MODELS, 5, -1)
    y = plan.image(torch.einsum("rmk,mok->rmo", patches, flat).flatten(1))
    torch.testing.assert_close(y, F.conv2d(x, weight, None, stride, padding, 1, MODELS))


@needs_kernels
@pytest.mark.parametrize(("height", "width", "kernel", "stride", "padding"), CASES)
def test_kernels_move_the_same_pixels(
    height: int, width: int, kernel: tuple[int, int], stride: int, padding: tuple[int, int]
) -> None:
    x = image(height, width, DEVICE)
    plan = plan_of(x, kernel, stride, padding)
    options = (MODELS, plan.kernel, plan.step, plan.pads, plan.out)
    expected = plan_of(x.cpu(), kernel, stride, padding).of(x.cpu())
    patches = products.kernels.unfold(x, *options)
    assert torch.equal(patches.cpu(), expected)
    back = products.kernels.fold(patches, *options, plan.size)
    torch.testing.assert_close(back.cpu(), plan.back(expected))


@needs_kernels
def test_kernel_of_relu_takes_one_output_for_several_gradients() -> None:
    y, dy = image(3, 5, DEVICE)[:, :CHANNELS].relu(), image(3, 5, DEVICE)
    found = products.kernels.relu_back(
        dy.permute(0, 2, 3, 1).reshape(-1, dy.shape[1]),
        y.permute(0, 2, 3, 1).reshape(-1, CHANNELS),
    )
    with torch.enable_grad():  # where plain tensors do it
        expected = through_relu(dy, y)
    assert torch.equal(found.view(2, 3, 5, -1).permute(0, 3, 1, 2), expected)
