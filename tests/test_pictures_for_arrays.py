"""Pictures on disk for a run that was trained on arrays: read as these were, or refused."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits

import mlnt
from mlnt.cli import run as command
from mlnt.data.encoding import ImageEncoder, encoder_from_json, encoder_to_json
from mlnt.data.image_files import CROP, IMAGENET_MEAN, SIZE, ImageFiles
from mlnt.data.picture_sets import pictures_to_predict
from mlnt.runs import CONFIG, RunFolder

QUICK = {"epochs": 2, "iterations": 1, "sets": 1, "batch_size": 16, "model": "small_conv"}
CLASSES = ("0", "1")


def save(folder: Path, images: np.ndarray) -> Path:
    """One file for each, without loss."""
    folder.mkdir()
    for number, image in enumerate(images):
        Image.fromarray(image).save(folder / f"{number:03d}.png")
    return folder


def noise(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Images whose class can be seen: every other one is lighter."""
    images = np.random.default_rng(seed).integers(0, 200, (80, *shape))
    images[1::2] += 55
    return images.astype(np.uint8)


def files_of(path: Path, encoder: ImageEncoder) -> ImageFiles:
    found = pictures_to_predict(path, encoder, CLASSES)
    assert found is not None
    assert isinstance(found[0].inputs, ImageFiles)
    return found[0].inputs


@pytest.mark.parametrize("shape", [(32, 32, 3), (12, 12)], ids=["coloured", "grey"])
@pytest.mark.parametrize("white", [255, 1])
def test_files_of_the_arrays_are_predicted_as_these(
    shape: tuple[int, ...], white: int, tmp_path: Path
) -> None:
    images = noise(shape)
    arrays = images if white == 255 else images.astype(np.float32) / 255
    training = mlnt.train((arrays, np.arange(80) % 2), out=tmp_path / "run", **QUICK)
    folder = save(tmp_path / "new", images)
    encoder = RunFolder(tmp_path / "run").read_json(CONFIG)["data"]["encoder"]
    assert (encoder["black_white"], encoder["from_files"]) == ([0, white], False)
    files = files_of(folder, training.encoder)
    encoded = training.encoder.encode(arrays)
    assert torch.equal(files.normalise(files.load(torch.arange(80))), encoded)
    found, expected = (mlnt.predict(tmp_path / "run", data) for data in (folder, (arrays, None)))
    torch.testing.assert_close(found.probabilities, expected.probabilities)
    assert found.predicted == expected.predicted
    assert len(set(found.predicted)) == 2
    assert found.notes == ()


def test_digits_are_grey_and_white_is_16(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, images = tmp_path / "run", load_digits().images[:100]
    mlnt.train("digits", out=run, **QUICK | {"batch_size": 128})
    folder = save(tmp_path / "new", (images * 255 / 16).round().astype(np.uint8))
    assert command(["predict", str(run), str(folder)]) == 0
    assert "white in these pictures is taken for 16, the largest" in capsys.readouterr().err
    found, expected = (mlnt.predict(run, data) for data in (folder, (images, None)))
    torch.testing.assert_close(found.probabilities, expected.probabilities, rtol=0, atol=0.02)


def test_coloured_and_larger_ones_for_a_grey_run(tmp_path: Path) -> None:
    """Of others than squares the middle is seen, to the edge."""
    encoder = ImageEncoder.fit(noise((6, 6)))
    wide = np.zeros((1, 12, 20, 3), np.uint8)
    wide[..., 1], wide[:, :, :4], wide[:, :, 16:] = 200, 255, 255
    pixels = files_of(save(tmp_path / "new", wide), encoder).load(torch.tensor([0]))
    assert pixels.shape == (1, 1, 6, 6)
    assert (pixels[..., 1:5] == 117).all()  # 0.587 · 200


def test_what_cannot_be_read_is_of_the_mean_colour(tmp_path: Path) -> None:
    encoder = ImageEncoder.fit(noise((6, 6)))
    folder = save(tmp_path / "new", noise((6, 6)))
    (folder / "000.png").write_bytes(b"none")
    files = files_of(folder, encoder)
    assert files.normalise(files.load(torch.tensor([0]))).abs().max() < 0.01


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        (noise((8, 9, 3)), r"is arrays of 3 × 8 × 9 \(channels, height, width\); give arrays$"),
        (noise((4, 8, 8)), r"as squares, grey or RGB, but .* is arrays of 4 × 8 × 8 \(channels"),
        (noise((8, 8)) / 127 - 1, "the training data is arrays of values from -1 to 1; give"),
    ],
)
def test_what_files_cannot_become_is_refused(
    arrays: np.ndarray, message: str, tmp_path: Path
) -> None:
    folder = save(tmp_path / "new", noise((8, 8)))
    with pytest.raises(mlnt.InputError, match=message):
        files_of(folder, ImageEncoder.fit(arrays))


class TestRunsFromBeforeItWasKept:
    def older(self, encoder: ImageEncoder) -> ImageEncoder:
        values = json.loads(json.dumps(encoder_to_json(encoder)))
        for name in ("black_white", "from_files"):
            del values[name]
        found = encoder_from_json(values)
        assert isinstance(found, ImageEncoder)
        return found

    def test_of_arrays(self, tmp_path: Path) -> None:
        older = self.older(ImageEncoder.fit(noise((8, 8, 3))))
        assert not older.from_files
        with pytest.raises(mlnt.InputError, match="this run does not say what is white in the arr"):
            files_of(save(tmp_path / "new", noise((8, 8, 3))), older)

    def test_of_files(self, tmp_path: Path) -> None:
        for label in CLASSES:
            (tmp_path / label).mkdir()
            Image.new("RGB", (8, 8)).save(tmp_path / label / "a.png")
        encoder = mlnt.open_dataset(tmp_path).encoder
        assert isinstance(encoder, ImageEncoder)
        assert encoder.from_files
        older = self.older(encoder)
        assert older.from_files
        for each in (encoder, older):
            files = files_of(tmp_path, each)
            assert (files.size, files.crop) == (SIZE, CROP)
            assert (files.mean, files.white) == (IMAGENET_MEAN, 1)


@pytest.mark.parametrize(
    "claims", [{"from_files": 1}, {"from_files": "yes"}, {"from_files": True}, {"from_files": None}]
)
def test_what_a_stranger_may_claim(claims: dict[str, Any]) -> None:
    """Files are RGB; this is grey."""
    values = encoder_to_json(ImageEncoder.fit(noise((8, 8)))) | claims
    with pytest.raises(ValueError, match="from_files"):
        encoder_from_json(values)
