"""What follows from the data, what is said of it before training, networks of one's own."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import mlnt
from mlnt.cli import run as command
from mlnt.data.prepare import prepare
from mlnt.defaults import choose_settings, without_effect
from mlnt.terminal import describe_data

CPU, GPU = torch.device("cpu"), torch.device("cuda")


def rows(count: int, classes: int = 3) -> mlnt.Dataset:
    generator = np.random.default_rng(0)
    return mlnt.open_dataset((generator.normal(size=(count, 2)), np.arange(count) % classes))


@pytest.mark.parametrize(
    ("samples", "batch_size", "epochs"),
    # 90 % of the samples train, or all but 20; 8 steps at least; 40 epochs · √(1200 / samples),
    # within 4 and 60.
    [(20, 2, 60), (100, 8, 60), (1334, 128, 40), (5000, 128, 21), (500_000, 128, 4)],
)
def test_batch_size_and_epochs_follow_from_the_samples(
    samples: int, batch_size: int, epochs: int
) -> None:
    settings = choose_settings(rows(samples), CPU, None, {}).settings
    assert (settings.batch_size, settings.epochs) == (batch_size, epochs)


def test_the_samples_of_a_reason_are_those_that_train() -> None:
    data = rows(250)  # 84, 83 and 83 of a class: 8 of each are held out, not a tenth of all
    chosen = choose_settings(data, CPU, None, {})
    prepared, _ = prepare(data, chosen.settings)
    assert len(prepared.train) == 226
    assert chosen.reasons["epochs"].startswith("so that 226 samples")


def test_samples_that_repeat_others_are_counted_rightly(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are held out together, and more or fewer than a share of the rows."""
    lines = [f"{i},{i % 3},{'yes' if i % 2 else 'no'}" for i in (i // 3 for i in range(250))]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *lines]))
    command(["train", str(tmp_path / "t.csv"), "--minutes", "0", "--out", str(tmp_path / "run")])
    said = capsys.readouterr().out
    numbers = re.findall(r"(\d+) rows of numbers|that (\d+) samples (?:make|are)", said)
    trained = {number for found in numbers for number in found if number}
    assert len(numbers) == 3
    assert len(trained) == 1
    expected = choose_settings(mlnt.open_dataset(tmp_path / "t.csv"), CPU, None, {})
    assert trained.pop() not in expected.reasons["epochs"], "or this test says nothing"


def test_what_the_user_says_comes_first() -> None:
    chosen = choose_settings(rows(100), CPU, None, {"epochs": 7})
    assert chosen.settings.epochs == 7
    assert chosen.settings.batch_size == 8
    assert set(chosen.reasons) == {"validation_share", "batch_size", "tau"}
    share = choose_settings(rows(80), CPU, None, {"validation_share": 0.1}).settings
    assert (share.validation_share, share.batch_size) == (0.1, 8), "72 samples make 8 steps"
    auto = choose_settings(rows(100), CPU, None, {"model": "auto"})
    assert auto.settings.model == "mlp", "what is meant is written down"
    preset = choose_settings(rows(100), CPU, "table", {})
    assert preset.settings.batch_size == 128
    assert not preset.reasons


def test_settings_without_effect_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"{i / 7:.3f},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(60)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *lines]))
    words = ["--flip", "--cutout", "4", "--minutes", "0", "--out"]
    assert command(["train", str(tmp_path / "t.csv"), *words, str(tmp_path / "run")]) == 0
    assert "  note: flip, cutout have no effect: these are no pictures\n" in capsys.readouterr().out
    assert command(["train", "--resume", str(tmp_path / "run"), "--minutes", "0"]) == 0
    assert "no effect" not in capsys.readouterr().out, "said once"

    pictures = mlnt.open_dataset((np.zeros((20, 3, 9, 8), np.uint8), np.arange(20) % 2))
    asked = ("flip", "image_size", "epochs")
    assert list(without_effect(pictures, asked)) == [
        "image_size has no effect: these pictures stay 9 × 8"
    ]
    assert list(without_effect(rows(20), ["image_size"])) == [
        "image_size has no effect: these are no pictures"
    ]


@pytest.mark.parametrize(
    ("side", "device", "model", "sets"),
    [
        (31, CPU, "small_conv", 3),
        (31, GPU, "small_conv", 3),
        (32, CPU, "pooled_conv", 1),
        (32, GPU, "preact_resnet32", 3),
    ],
)
def test_the_network_follows_from_the_pictures_and_the_device(
    side: int, device: torch.device, model: str, sets: int
) -> None:
    pixels = np.zeros((20, 3, side, side), np.uint8)
    data = mlnt.open_dataset((pixels, np.arange(20) % 2))
    settings = choose_settings(data, device, None, {}).settings
    assert (settings.model, settings.sets) == (model, sets)


def pictures(side: int, coloured: int, of: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """So many of them coloured, the others grey: [N, H, W, 3]."""
    pixels = np.random.default_rng(0).integers(0, 256, (of, side, side, 3), dtype=np.uint8)
    pixels[coloured:] = pixels[coloured:, ..., :1]
    return pixels, np.arange(of) % 2


@pytest.mark.parametrize(
    ("side", "coloured", "flip", "crop_padding"),
    [(32, 40, True, 4), (64, 30, True, 8), (64, 10, False, 8), (31, 40, False, 0)],
)
@pytest.mark.parametrize("on_disk", [False, True])
def test_pictures_are_shifted_and_photographs_flipped(
    side: int, coloured: int, flip: bool, crop_padding: int, on_disk: bool, tmp_path: Path
) -> None:
    if on_disk:
        for number, (image, label) in enumerate(zip(*pictures(side, coloured), strict=True)):
            (tmp_path / str(label)).mkdir(exist_ok=True)
            Image.fromarray(image).save(tmp_path / str(label) / f"{number:02}.png")
    data = mlnt.open_dataset(tmp_path if on_disk else pictures(side, coloured))
    chosen = choose_settings(data, CPU, None, {})
    assert (chosen.settings.flip, chosen.settings.crop_padding) == (flip, crop_padding)
    assert ("--no-flip" in chosen.reasons.get("flip", "")) == flip
    said = choose_settings(data, CPU, None, {"flip": False, "crop_padding": 2}).settings
    assert (said.flip, said.crop_padding) == (False, 2)
    if on_disk:
        assert chosen.settings.image_size == side, "small pictures are not enlarged"
        assert choose_settings(data, CPU, None, {"image_size": 64}).settings.image_size == 64


@pytest.mark.parametrize("name", ["digits", "cifar10", "clothing1m"])
def test_a_file_may_be_called_like_a_known_set(tmp_path: Path, name: str) -> None:
    lines = [f"{i / 7:.3f},{i % 3},{'yes' if i % 2 else 'no'}" for i in range(40)]
    (tmp_path / f"{name}.csv").write_text("\n".join(["a,b,label", *lines]))
    data = mlnt.open_dataset(tmp_path / f"{name}.csv")
    assert choose_settings(data, CPU, None, {}).settings.model == "mlp"
    known = mlnt.open_dataset("digits")
    assert choose_settings(known, CPU, None, {}).settings.epochs == 40


def test_data_is_described_with_what_is_odd_about_it() -> None:
    labels = np.array([0] * 600 + [1] * 4)
    data = mlnt.open_dataset((np.random.default_rng(0).normal(size=(604, 2)), labels))
    lines = list(describe_data(data))
    assert lines[0] == "arrays: 604 rows of numbers in 2 classes to train on"
    assert lines[1] == "  labels: 0 600, 1 4"
    assert lines[2:] == [
        "  note: very few samples of 1 (4)",
        "  note: the largest class has 150 times the smallest",
    ]


def test_it_is_said_aloud_and_written_down(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    lines = [
        f"{a:.3f},{b:.3f},{'yes' if a > 0 else 'no'}" for a, b in generator.normal(size=(80, 2))
    ]
    (tmp_path / "data.csv").write_text("a,b,label\n" + "\n".join(lines))
    run = tmp_path / "run"
    assert command(["train", str(tmp_path / "data.csv"), "--epochs", "1", "--out", str(run)]) == 0
    said = capsys.readouterr().out
    assert "data: 60 rows of numbers in 2 classes to train on; 20 for validation, held out" in said
    assert "batch_size = 4: so that 60 samples make at least 8 steps an epoch" in said
    assert "few: expect figures that vary by seed" in said
    assert "batch_size" in json.loads((run / "config.json").read_text())["reasons"]


class TestTableOfPictures:
    @pytest.fixture
    def table(self, tmp_path: Path) -> Path:
        lines = ["path,label"]
        (tmp_path / "some").mkdir()
        for number in range(24):
            colour = (220, 30, number) if number % 2 else (30, 220, number)
            Image.new("RGB", (20, 20), colour).save(tmp_path / "some" / f"{number}.png")
            lines.append(f"some/{number}.png,{'red' if number % 2 else 'green'}")
        (tmp_path / "pictures.csv").write_text("\n".join(lines))
        return tmp_path / "pictures.csv"

    def test_train_and_predict(
        self, table: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = tmp_path / "run"
        options = ["--image-size", "8", "--workers", "0", "--iterations", "1", "--epochs", "8"]
        assert command(["train", str(table), "--out", str(run), *options]) == 0
        assert "pictures: 16 pictures on disk in 2 classes" in capsys.readouterr().out
        unlabelled = tmp_path / "new.csv"
        unlabelled.write_text("path\nsome/0.png\nsome/1.png\n")
        assert command(["predict", str(run), str(unlabelled)]) == 0
        found = capsys.readouterr()
        assert [line.split(",")[2] for line in found.out.splitlines()[1:]] == ["green", "red"]
        assert "agrees" not in found.err

    @pytest.mark.parametrize("path", ["../secret.png", "/etc/some.png", "a/../../b.png"])
    def test_paths_that_climb_out_are_refused(self, tmp_path: Path, path: str) -> None:
        (tmp_path / "t.csv").write_text(f"path,label\n{path},a\n{path},b\n")
        with pytest.raises(mlnt.InputError, match="row 1 leads out of its folder"):
            mlnt.open_dataset(tmp_path / "t.csv")

    def test_without_labels_it_is_no_training_data(self, tmp_path: Path) -> None:
        (tmp_path / "t.csv").write_text("path\na.png\n")
        with pytest.raises(mlnt.InputError, match="has no labels"):
            mlnt.open_dataset(tmp_path / "t.csv")


class TestOwnNetwork:
    @pytest.fixture(autouse=True)
    def module(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "my_networks.py").write_text(
            "from torch import nn\n"
            "def linear(classes):\n    return nn.Linear(2, classes)\n"
            "def text(classes):\n    return 'no network'\n"
        )
        monkeypatch.syspath_prepend(tmp_path)

    def test_by_name(self, tmp_path: Path) -> None:
        training = mlnt.train(
            rows(60), model="my_networks:linear", epochs=1, iterations=1, out=tmp_path / "run"
        )
        assert isinstance(training.model, nn.Linear)
        # A run folder may be a stranger's: it must not say what code to run.
        data = (np.zeros((1, 2)), None)
        with pytest.raises(mlnt.InputError, match="is your own"):
            mlnt.predict(tmp_path / "run", data)
        found = mlnt.predict(tmp_path / "run", data, model="my_networks:linear")
        torch.testing.assert_close(found.probabilities, training.predict_probabilities(data[0]))

    def test_given_as_a_module_or_a_function(self, tmp_path: Path) -> None:
        """Whoever predicts gives it again."""
        own, data = nn.Linear(2, 3), (np.eye(2), None)
        training = mlnt.train(rows(60), model=own, epochs=1, iterations=1, out=tmp_path / "run")
        with pytest.raises(mlnt.InputError, match="give it again with model="):
            mlnt.predict(tmp_path / "run", data)
        wanted = training.predict_probabilities(data[0])
        for model in (own, lambda: nn.Linear(2, 3), "my_networks:linear"):
            found = mlnt.predict(tmp_path / "run", data, model=model)
            torch.testing.assert_close(found.probabilities, wanted)

    def test_networks_of_mlnt_need_no_other(self, tmp_path: Path) -> None:
        mlnt.train(rows(60), epochs=1, iterations=1, out=tmp_path / "run")
        with pytest.raises(mlnt.InputError, match="has a network of mlnt's, mlp; give no other"):
            mlnt.predict(tmp_path / "run", (np.eye(2), None), model=nn.Linear(2, 3))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("my_networks:nothing", "cannot import nothing from my_networks"),
            ("nowhere:net", "cannot import net from nowhere"),
            ("my_networks:text", "must give an nn.Module, got str"),
        ],
    )
    def test_mistakes(self, name: str, message: str) -> None:
        with pytest.raises(mlnt.InputError, match=message):
            mlnt.train(rows(60), model=name, epochs=1)

    def test_resuming_asks_for_it_again(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        np.savez(tmp_path / "d.npz", X=np.random.default_rng(0).normal(size=(60, 2)),
                 y=np.arange(60) % 2)  # fmt: skip
        options = {"model": "my_networks:linear", "epochs": 1, "iterations": 1}
        with pytest.raises(mlnt.Stopped):
            mlnt.train(tmp_path / "d.npz", out=tmp_path / "run", deadline=-math.inf, **options)
        assert command(["train", "--resume", str(tmp_path / "run")]) == 2
        assert "was begun with a network of your own" in capsys.readouterr().err
        again = ["train", "--resume", str(tmp_path / "run"), "--model", "my_networks:linear"]
        assert command(again) == 0
