"""Views of pictures: the same thing, and yet it looks different each time.

What is common to the views of a picture is what it shows; a network can learn that without labels.

Axes: B batch, C channels, H height, W width.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_AREA = 0.2  # of a picture that a view shows
MOST_STRETCH = 4 / 3  # of a view's sides against each other
# Of pictures with a standard deviation of about one.
CONTRAST, BRIGHTNESS, SATURATION, TINT = 0.4, 0.8, 0.4, 0.2
COLOURED, GREY = 0.8, 0.2  # shares of the views whose colours change, that have none


def random_view(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """A part of each picture at the size of the whole, in other colours."""
    return random_colours(random_part(images_BCHW, generator), generator)


def random_part(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """A rectangle at a random place of each picture, blown up to the size of the whole."""

    def uniform_B(low: float, high: float) -> Tensor:
        return _uniform(images_BCHW, (), low, high, generator)

    side_B = uniform_B(LEAST_AREA, 1).sqrt()
    stretch_B = (uniform_B(-0.5, 0.5) * math.log(MOST_STRETCH)).exp()
    width_B = (side_B * stretch_B).clamp(max=1)
    height_B = (side_B / stretch_B).clamp(max=1)
    zero_B = torch.zeros_like(side_B)
    rows = (
        (width_B, zero_B, (1 - width_B) * uniform_B(-1, 1)),
        (zero_B, height_B, (1 - height_B) * uniform_B(-1, 1)),
    )
    place_B23 = torch.stack([torch.stack(row, dim=1) for row in rows], dim=1)
    # Places as exact as they are, whatever a network computes in; no rim that fades to black.
    with torch.autocast(images_BCHW.device.type, enabled=False):
        grid = F.affine_grid(place_B23, list(images_BCHW.shape), align_corners=False)
        return F.grid_sample(images_BCHW, grid, padding_mode="border", align_corners=False)


def random_colours(images_BCHW: Tensor, generator: torch.Generator) -> Tensor:
    """Contrast, brightness, saturation and tint of each picture changed, or its colours taken."""
    channels = images_BCHW.shape[1]

    def change(most: float, channels: int = 1) -> Tensor:
        return changed_B * _uniform(images_BCHW, (channels, 1, 1), -most, most, generator)

    changed_B = (_uniform(images_BCHW, (1, 1, 1), 0, 1, generator) < COLOURED).to(images_BCHW)
    colour_B = (_uniform(images_BCHW, (1, 1, 1), 0, 1, generator) >= GREY).to(images_BCHW)
    mean_B = images_BCHW.mean(dim=(1, 2, 3), keepdim=True)
    contrasted = mean_B + (images_BCHW - mean_B) * (1 + change(CONTRAST)) + change(BRIGHTNESS)
    grey = contrasted.mean(dim=1, keepdim=True)
    tinted = contrasted - grey + change(TINT, channels)
    return grey + tinted * colour_B * (1 + change(SATURATION))


def _uniform(
    like: Tensor, shape: tuple[int, ...], low: float, high: float, generator: torch.Generator
) -> Tensor:
    """[B, *shape], each between low and high."""
    drawn = torch.rand(len(like), *shape, generator=generator, device=like.device)
    return low + (high - low) * drawn.to(like.dtype)
