"""Encoders: what is constant, where the channels of images are."""

import numpy as np
import pytest
import torch

from mlnt.data.encoding import ImageEncoder, TableEncoder

NUMBERS = np.random.default_rng(0).normal(size=(50, 3))


def test_nothing_is_divided_by_zero() -> None:
    assert TableEncoder.fit(NUMBERS * 1e-200).std == (1.0,) * 3, "the squares are zero"


class TestConstantColumns:
    @pytest.mark.parametrize("unit", [1e-150, 1e-13, 1.0, 1e13, 1e150])
    def test_the_unit_does_not_matter(self, unit: float) -> None:
        scaled, expected = NUMBERS * unit, TableEncoder.fit(NUMBERS).encode(NUMBERS)
        torch.testing.assert_close(TableEncoder.fit(scaled).encode(scaled), expected)
        of_images = ImageEncoder.fit(scaled[:, None, None, :])
        assert of_images.std == pytest.approx((NUMBERS.std() * unit,))

    @pytest.mark.parametrize("value", [0.0, 0.1, 1e-13, 1 / 3e10, -1e100])
    def test_what_varies_by_rounding_alone_stays_at_zero(self, value: float) -> None:
        rows = np.full((100_000, 1), value)
        rows[::2] = np.nextafter(value, np.inf) if value else 0
        encoder = TableEncoder.fit(rows)
        assert encoder.std == (1.0,)
        assert ImageEncoder.fit(rows[:, :, None, None]).std == (1.0,)

    def test_small_steps_at_a_large_value_count(self) -> None:
        seconds = 1.7e9 + np.arange(50)[:, None] * 1e-3
        assert TableEncoder.fit(seconds).encode(seconds).std(correction=0).item() == pytest.approx(
            1, rel=1e-3
        )


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((16, 16, 5), (5, 16, 16)),
        ((16, 16, 2), (2, 16, 16)),
        ((8, 8, 16), (16, 8, 8)),
        ((2, 16, 16), (2, 16, 16)),
        ((5, 16, 16), (5, 16, 16)),
        ((16, 8, 8), (16, 8, 8)),
        ((5, 16, 12), (5, 16, 12)),
        ((6, 6, 6), (6, 6, 6)),
        ((16, 16, 3), (3, 16, 16)),
        ((3, 16, 16), (3, 16, 16)),
        ((6, 5, 3), (3, 6, 5)),
        ((16, 16), (1, 16, 16)),
    ],
)
def test_where_the_channels_are(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    images = np.random.default_rng(0).random((4, *shape))
    encoder = ImageEncoder.fit(images)
    assert encoder.shape == expected
    assert encoder.encode(images).shape[1:] == expected


def test_images_of_the_shape_trained_on_are_taken_as_they_are() -> None:
    encoder = ImageEncoder((16, 16, 5), (0.0,) * 16, (1.0,) * 16)
    images = np.random.default_rng(0).random((4, 16, 16, 5))
    np.testing.assert_allclose(encoder.encode(images), images, rtol=1e-6)
