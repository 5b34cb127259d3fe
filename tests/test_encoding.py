"""Encoders: what is constant, where the channels of images are."""

import dataclasses
import json
import math
from typing import Any

import numpy as np
import pytest
import torch

from mlnt.data.encoding import (
    ImageEncoder,
    TableEncoder,
    encoder_from_json,
    encoder_to_json,
    pixel_range,
)
from mlnt.data.text_encoding import TextEncoder

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


class TestFarValues:
    """A column is bent where a few of its values would squeeze the others to nothing."""

    rows = np.concatenate([NUMBERS, np.exp(3 * NUMBERS[:, :1])], axis=1)

    def test_by_hand(self) -> None:
        column = np.array([[1.0, 2, 3, 4, 1e6]])
        encoder = TableEncoder.fit(column.T)
        assert (encoder.mean, encoder.std, encoder.bent) == ((3.0,), (2 / 1.349,), (True,))
        expected = np.arcsinh((column[0] - 3) / (2 / 1.349))
        np.testing.assert_allclose(encoder.encode(column.T)[:, 0], expected, rtol=1e-6)

    def test_the_other_columns_stay_what_they_were(self) -> None:
        found, alone = TableEncoder.fit(self.rows), TableEncoder.fit(NUMBERS)
        assert found.bent == (False, False, False, True)
        assert torch.equal(found.encode(self.rows)[:, :3], alone.encode(NUMBERS))
        assert alone.bent == (), "as it was saved before there were such columns"
        assert found.encode(self.rows)[:, 3].abs().max() < 8
        np.testing.assert_allclose(found.decode(found.encode(self.rows)), self.rows, 1e-4, 1e-6)

    @pytest.mark.parametrize("far", [50.0, 1e6, -1e150])
    def test_one_cell_does_not_squeeze_the_others(self, far: float) -> None:
        rows = NUMBERS.copy()
        rows[7] = far
        encoded = TableEncoder.fit(rows).encode(rows)
        others = torch.cat([encoded[:7], encoded[8:]])
        assert bool((others.std(dim=0) > 0.5).all())

    @pytest.mark.parametrize("column", [[0] * 49 + [1], [0] * 40 + [3] * 10, [0, 1] * 25, [5] * 50])
    def test_few_that_differ_are_no_reason(self, column: list[float]) -> None:
        assert TableEncoder.fit(np.array(column, float)[:, None]).bent == ()

    def test_a_column_mostly_of_zeros(self) -> None:
        amounts = np.concatenate([np.zeros(200), np.arange(1, 50), [1e6]])
        assert TableEncoder.fit(amounts[:, None]).std == (pytest.approx(1.4826 * 25.5),)

    def test_it_is_saved(self) -> None:
        for rows in (self.rows, NUMBERS):
            encoder = TableEncoder.fit(rows)
            text = json.dumps(encoder_to_json(encoder))
            assert encoder_from_json(json.loads(text)) == encoder
        old = {"kind": "table", "columns": ["a"], "mean": [1.0], "std": [2.0]}
        assert encoder_from_json(old).encode([[5.0]]).item() == 2

    @pytest.mark.parametrize("bent", [[True], [0, 0, 0, 1], ["x"] * 4, 3])
    def test_what_cannot_be_is_refused(self, bent: Any) -> None:
        values = encoder_to_json(TableEncoder.fit(self.rows)) | {"bent": bent}
        with pytest.raises(ValueError, match="bent"):
            encoder_from_json(values)


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


class TestBlackAndWhite:
    def test_images_come_back_and_are_shown(self) -> None:
        images = np.random.default_rng(0).integers(0, 256, (8, 3, 5, 5), np.uint8)
        encoder = ImageEncoder.fit(images)
        assert encoder.black_white == (0, 255)
        np.testing.assert_allclose(encoder.decode(encoder.encode(images)), images, atol=1e-4)
        assert np.array_equal(encoder.show(encoder.encode(images)), images)
        assert np.array_equal(encoder.show(encoder.encode(images)[3]), images[3])
        scaled = images / 255
        encoder = ImageEncoder.fit(scaled)
        assert np.array_equal(encoder.show(encoder.encode(scaled)), images)

    def test_encoders_travel_as_json_and_older_ones_have_none(self) -> None:
        encoder = ImageEncoder.fit(np.random.default_rng(0).random((4, 5, 5)))
        values = json.loads(json.dumps(encoder_to_json(encoder)))
        assert encoder_from_json(values) == encoder
        del values["black_white"]
        assert encoder_from_json(values) == dataclasses.replace(encoder, black_white=())

    @pytest.mark.parametrize("given", [[0], [1, 0], [0, 0], ["0", "1"], [0, float("nan")], 3, True])
    def test_what_a_stranger_may_claim(self, given: object) -> None:
        values = encoder_to_json(ImageEncoder((1, 5, 5), (0.0,), (1.0,))) | {"black_white": given}
        with pytest.raises(ValueError, match="black_white must hold"):
            encoder_from_json(values)

    @pytest.mark.parametrize(
        ("low", "high", "found"),
        [(0, 1, (0, 1)), (0, 16, (0, 16)), (3, 250, (0, 255)), (-1, 1, (-1, 1)), (5, 5, (5, 6)),
         (-1e-7, 1.0000001, (0, 1)), (1e17, 1e17, (1e17, 1e17 + 16)), (0, 65535, (0, 65535))],
    )  # fmt: skip
    def test_range_of_pixels(self, low: float, high: float, found: tuple) -> None:
        assert pixel_range(low, high) == found


class TestRarities:
    def test_by_hand(self) -> None:
        encoder = TextEncoder.fit(["a b b", "a b", "a c"])
        assert encoder.words == ("a", "b"), "c is there once"
        assert encoder.rarities == (1.0, round(1 + math.log(4 / 3), 4)), "in 3 and 2 of 3 texts"

    def test_encoders_from_before_there_were_any(self) -> None:
        """What is written of one is what was read."""
        old = encoder_from_json({"kind": "text", "words": ["a", "b"], "length": 3})
        assert old == TextEncoder(("a", "b"), 3)
        new = TextEncoder(("a", "b"), 3, (1.0, 2.5))
        assert encoder_from_json(json.loads(json.dumps(encoder_to_json(new)))) == new

    def test_characters_and_pairs_by_hand(self) -> None:
        encoder = TextEncoder.fit(["花見", "花見", "見酒"])
        assert encoder.by_character
        assert encoder.words == ("花", "花見", "見")
        assert encoder.length == 3
        assert encoder.encode(["花見花", "花 見", "x", ""]).tolist() == [
            [2, 3, 4],
            [2, 4, 0],
            [1, 0, 0],
            [1, 0, 0],
        ]

    @pytest.mark.parametrize(
        ("texts", "by_character"),
        [
            (["今天天气很好", "明天天气也好"] * 9, True),  # whole texts would repeat
            (["今天 天气 很 好", "明天 天气 也 好"] * 9, False),
            (["วันนี้อากาศดี มาก", "พรุ่งนี้ฝนตก"] * 9, True),
            (["the rain came early", "the sun came early"], False),
            (["Schmidt", "Schultze", "Mayer", "Meyer"], True),
            (["", "..."], False),
        ],
    )
    def test_by_word_or_by_character(self, texts: list[str], by_character: bool) -> None:
        encoder = TextEncoder.fit(texts)
        assert encoder.by_character == by_character
        again = encoder_from_json(json.loads(json.dumps(encoder_to_json(encoder))))
        assert again == encoder
        assert torch.equal(again.encode(texts), encoder.encode(texts))

    def test_texts_without_a_known_word_are_told_where_there_are_many(self) -> None:
        encoder = TextEncoder.fit(["a b"] * 9)
        (note,) = encoder.note_unread(encoder.encode(["a"] * 8 + ["c d", ""]), "texts")
        assert note == "2 of 10 texts hold no known word: all such texts get the same answer"
        assert not [*encoder.note_unread(encoder.encode(["a"] * 19 + ["c"]), "texts")]

    @pytest.mark.parametrize(
        "claim", [{"by_character": 1}, {"by_character": "yes"}, {"length": 1024}]
    )
    def test_by_character_is_true_or_false_and_allows_twice_the_length(self, claim: dict) -> None:
        as_json = {"kind": "text", "words": ["a"], "length": 1024, "by_character": True}
        assert encoder_from_json(as_json).shape == (1024,)
        with pytest.raises(ValueError, match=r"by_character must hold|length must hold"):
            encoder_from_json({**as_json, "by_character": False, **claim})

    @pytest.mark.parametrize(
        "rarities", [[1.0], [1.0, math.inf], [1.0, "2"], [1.0, True], 3, "ab", None, {}]
    )
    def test_what_cannot_be(self, rarities: object) -> None:
        with pytest.raises(ValueError, match="rarities must hold"):
            encoder_from_json(
                {"kind": "text", "words": ["a", "b"], "length": 3, "rarities": rarities}
            )
