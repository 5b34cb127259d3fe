"""Samples that repeat others are held out together, and said."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import mlnt
from mlnt.config import make_settings
from mlnt.data.dataset import Dataset, Split
from mlnt.data.image_files import FaultLog, ImageFiles
from mlnt.data.pictures import PathTable
from mlnt.data.prepare import hold_out, prepare
from mlnt.data.repetitions import first_of_each, number_inputs
from mlnt.terminal import describe_data

SETTINGS = make_settings("table")
ROWS = np.random.default_rng(0).normal(size=(200, 3))


def held(data: Dataset, share: float = 0.1) -> tuple[Split, Split]:
    split = hold_out(data, share, torch.Generator().manual_seed(0))
    assert split.validation is not None
    return split.train, split.validation


def common(train: Split, validation: Split) -> int:
    rows = [{row.tobytes() for row in part.inputs.numpy()} for part in (train, validation)]
    return len(rows[0] & rows[1])


def test_equal_inputs_have_equal_numbers() -> None:
    data = mlnt.open_dataset((ROWS[[4, 7, 4, 1, 7]], [0, 1, 0, 1, 1]))
    numbers = number_inputs(data.train)
    assert numbers.tolist() == [0, 1, 0, 2, 1]
    assert first_of_each(numbers).tolist() == [0, 1, 3]


def test_texts_are_equal_by_all_their_words() -> None:
    """Not by their numbers: words that come once have no number of their own."""
    texts = ["Once upon", "once, upon!", "never before", "a day", "a day"]
    data = mlnt.open_dataset((texts, [0, 1, 0, 1, 0]))
    assert number_inputs(data.train).tolist() == [0, 0, 1, 2, 2]


@pytest.mark.parametrize("times", [2, 3])
def test_repetitions_are_held_out_together(times: int) -> None:
    rows, labels = np.tile(ROWS, (times, 1)), np.arange(200 * times) % 2
    labels[:9] = 1 - labels[:9]  # the same input may have several labels
    train, validation = held(mlnt.open_dataset((rows, labels)))
    assert common(train, validation) == 0
    assert len(validation) == 20 * times
    assert len(train) == 180 * times


def test_without_repetitions_the_split_is_drawn_sample_by_sample() -> None:
    labels = np.arange(200) % 2
    _, validation = held(mlnt.open_dataset((ROWS, labels)))
    generator = torch.Generator().manual_seed(0)
    chosen = [2 * torch.randperm(100, generator=generator)[:10] + number for number in (0, 1)]
    expected = torch.cat(chosen).sort().values
    whole = mlnt.open_dataset((ROWS, labels)).train
    assert torch.equal(validation.inputs, whole.inputs[expected])


def test_a_few_repetitions_change_no_split() -> None:
    labels = np.arange(200) % 2
    rows = ROWS.copy()
    rows[1] = rows[0]
    indices = [
        hold_out(mlnt.open_dataset((some, labels)), 0.1, torch.Generator().manual_seed(0))
        for some in (ROWS, rows)
    ]
    assert torch.equal(indices[0].held_out_indices, indices[1].held_out_indices)


def test_few_distinct_inputs_are_what_the_data_is() -> None:
    """Of eight rows of zeros and ones none is kept out of the training."""
    rows = np.array([[n & 1, n >> 1 & 1, n >> 2 & 1] for n in range(8)] * 50)
    train, validation = held(mlnt.open_dataset((rows, np.arange(400) % 2)))
    assert len(validation) == 40
    assert len(train.inputs.unique(dim=0)) == 8


def test_classes_of_one_input_each_are_drawn_sample_by_sample() -> None:
    rows = np.tile(ROWS, (3, 1))
    train, validation = held(mlnt.open_dataset((rows, np.arange(600) % 200)))
    assert (len(train), len(validation)) == (540, 60)


def test_an_input_that_is_half_of_the_data_stays_in_training() -> None:
    rows = np.concatenate([ROWS, np.zeros((200, 3))])
    for seed in range(20):
        split = hold_out(
            mlnt.open_dataset((rows, np.arange(400) % 2)), 0.1, torch.Generator().manual_seed(seed)
        )
        assert split.validation is not None
        assert len(split.validation) <= 40


@pytest.mark.parametrize("has_validation", [False, True])
def test_they_are_said(has_validation: bool) -> None:
    data = (np.tile(ROWS, (3, 1)), np.arange(600) % 2)
    opened = mlnt.open_dataset(data, validation=data if has_validation else None)
    prepared, _ = prepare(opened, make_settings("table"))
    assert "  note: 400 of 600 samples are repetitions of others" in list(describe_data(prepared))
    prepared, _ = prepare(mlnt.open_dataset("digits"), make_settings("digits"))
    assert not any("repetitions" in line for line in describe_data(prepared))


def test_contradictions_are_said() -> None:
    labels = np.tile(np.arange(200) % 2, 2)
    labels[200:207] = 1 - labels[200:207]
    prepared, _ = prepare(mlnt.open_dataset((np.tile(ROWS, (2, 1)), labels)), SETTINGS)
    said = (
        "200 of 400 samples are repetitions of others; 7 labels are not what most of the same have"
    )
    assert f"  note: {said}" in list(describe_data(prepared))


@pytest.mark.parametrize("odd", [0, 1, 3])
def test_contradictions_in_any_order(odd: int) -> None:
    labels = np.zeros((100, 4), int)
    labels[50:] = 1
    labels[:50, odd] = 1
    rows = np.repeat(ROWS[:100], 4, axis=0)
    prepared, _ = prepare(mlnt.open_dataset((rows, labels.ravel())), SETTINGS)
    assert any("; 50 labels are not what" in line for line in describe_data(prepared))


@pytest.mark.parametrize("part", ["validation", "test"])
def test_further_data_that_is_trained_on_is_noticed(part: str) -> None:
    labels = np.arange(200) % 2
    fresh = np.random.default_rng(1).normal(size=(20, 3))
    for known, expected in ((5, "5 of the 25 samples"), (0, "")):
        rows = np.concatenate([ROWS[:known], fresh])
        data = mlnt.open_dataset((ROWS, labels), **{part: (rows, np.arange(len(rows)) % 2)})
        said = [line for line in describe_data(prepare(data, SETTINGS)[0]) if "trained on" in line]
        assert len(said) == bool(expected)
        assert all(f"{expected} for {part} are trained on as well" in line for line in said)


def test_where_inputs_are_few_they_are_everywhere() -> None:
    rows = np.tile(np.eye(3), (60, 1))
    data = mlnt.open_dataset((rows, np.arange(180) % 2), test=(rows[:12], np.arange(12) % 2))
    assert not any("trained on" in line for line in describe_data(prepare(data, SETTINGS)[0]))


def draw(path: Path, number: int, size: tuple[int, int] = (8, 8)) -> None:
    pixels = np.random.default_rng(number).integers(256, size=(*size, 3), dtype=np.uint8)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def test_pictures_on_disk_are_equal_by_their_contents(tmp_path: Path) -> None:
    """Uncompressed ones are all of one length, and things on white begin and end alike."""
    for label, names in (("cat", "abca"), ("dog", "ddb")):
        (tmp_path / label).mkdir()
        for number, name in enumerate(names):
            picture = Image.new("RGB", (200, 300), "white")
            picture.putpixel((100, 150), (ord(name), 0, 0))
            picture.save(tmp_path / label / f"{number}.bmp")
    data = mlnt.open_dataset(str(tmp_path))
    assert [Path(path).stem for path in data.train.inputs.paths] == [*"0123", *"012"]
    assert number_inputs(data.train).tolist() == [0, 1, 2, 0, 3, 3, 1]


def test_a_picture_that_cannot_be_read_is_like_no_other(tmp_path: Path) -> None:
    for name in "ab":
        draw(tmp_path / "cat" / f"{name}.png", ord(name))
    (tmp_path / "cat" / "c.png").symlink_to(tmp_path / "gone.png")
    (tmp_path / "cat" / "d.png").symlink_to(tmp_path / "gone.png")
    for name in "ef":
        os.mkfifo(tmp_path / "cat" / f"{name}.png")
    for name in "gh":
        (tmp_path / "cat" / f"{name}.png").touch()
    paths = PathTable.of(tmp_path, [f"cat/{name}.png" for name in "abcdefgh"])
    split = Split(ImageFiles(paths, FaultLog(9)), torch.zeros(8, dtype=torch.long))
    assert number_inputs(split).tolist() == [0, 1, 2, 3, 4, 5, 6, 7]


def test_of_very_many_files_only_the_paths_are_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for label in ("cat", "dog"):
        draw(tmp_path / label / "x.png", 1)
    data = mlnt.open_dataset(str(tmp_path))
    assert number_inputs(data.train).tolist() == [0, 0]
    monkeypatch.setattr("mlnt.data.repetitions.MOST_FILES", 1)
    assert number_inputs(data.train).tolist() == [0, 1]


def test_copies_of_pictures_are_held_out_together(tmp_path: Path) -> None:
    for number in range(60):
        for copy in range(2):
            draw(tmp_path / "train" / "ab"[number % 2] / f"{number}-{copy}.png", number)
    for number in range(50, 70):
        draw(tmp_path / "test" / "ab"[number % 2] / f"{number}.png", number)
    data = mlnt.open_dataset(str(tmp_path / "train"), test=str(tmp_path / "test"))
    prepared, _ = prepare(data, make_settings("image", validation_share=0.2))
    assert prepared.validation is not None
    held_out, trained_on = (
        {Path(path).stem.split("-")[0] for path in split.inputs.paths}
        for split in (prepared.validation, prepared.train)
    )
    assert len(held_out) == 12
    assert not held_out & trained_on
    lines = list(describe_data(prepared))
    assert "  note: 60 of 120 samples are repetitions of others" in lines
    assert any("10 of the 20 samples for test are trained on as well" in line for line in lines)
