"""Data sets that Hugging Face's `datasets` has written: read back, trained on, predicted."""

import csv
import io
import json
import pickle
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import mlnt
from mlnt.cli import run as command
from mlnt.data.huggingface import (
    RawParts,
    holds_pictures,
    is_saved_dataset,
    only_labelled,
    read_saved,
    read_saved_pictures,
    read_saved_rows,
)
from mlnt.data.pictures import Parts, PictureError

datasets = pytest.importorskip("datasets", reason="needs datasets, to write what is read here")
pytest.importorskip("pyarrow", reason="needs mlnt[huggingface]: pyarrow")

datasets.disable_progress_bars()

QUICK: dict[str, Any] = {"epochs": 1, "sets": 1, "iterations": 1, "batch_size": 16}
CLASSES = ["zebra", "ape"]  # not in the order of the alphabet


def picture(colour: int, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    noise = np.random.default_rng(colour).integers(0, 40, (20, 24, 3))
    Image.fromarray((noise + colour).astype(np.uint8)).save(file, kind)
    return file.getvalue()


def pictures(labels: list[int], **more: Any) -> Any:
    features = {"image": datasets.Image(), "label": datasets.ClassLabel(names=CLASSES)}
    rows = [{"bytes": picture(40 + 120 * max(label, 0)), "path": None} for label in labels]
    values = {"image": rows, "label": labels, **more}
    for name in more:
        features[name] = datasets.Value("string")
    return datasets.Dataset.from_dict(values, features=datasets.Features(features))


def save(data: Any, path: Path) -> Path:
    data.save_to_disk(path)
    return path


@pytest.fixture(scope="module")
def picture_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = datasets.DatasetDict(
        train=pictures([0, 1] * 24, id=[f"n{i}" for i in range(48)]),
        validation=pictures([1, 0, 1, 1]),
        test=pictures([0, 0, 1, 1, 1, 1]),
        unsupervised=pictures([-1, -1]),
    )
    return save(data, tmp_path_factory.mktemp("saved") / "animals")


class TestPictures:
    def test_are_read_row_by_row(self, picture_set: Path) -> None:
        assert is_saved_dataset(picture_set)
        assert holds_pictures(picture_set)
        parts = read_saved(picture_set)
        assert isinstance(parts, Parts)
        assert (parts.name, parts.classes) == ("animals", tuple(CLASSES))
        assert parts.test is not None
        assert parts.test.labels.tolist() == [0, 0, 1, 1, 1, 1]
        assert list(parts.test.paths[:2]) == ["test/0", "test/1"]
        assert "'unsupervised' is left out" in parts.notes[0]
        assert parts.read is not None
        for row, colour in ((0, 40), (3, 160)):
            pixels = parts.read(parts.train.paths.full(row), 16, 8)
            assert pixels.shape == (3, 8, 8)
            assert colour <= pixels.min() <= pixels.max() < colour + 40

    def test_one_split_alone(self, picture_set: Path) -> None:
        parts = read_saved_pictures(picture_set / "test")
        assert (parts.validation, parts.test) == (None, None)
        assert parts.train.paths[5] == "5"
        assert parts.read is not None
        assert parts.read(parts.train.paths.full(5), 16, 8).min() >= 160

    def test_further_data_is_the_part_that_is_wanted(self, picture_set: Path) -> None:
        data = mlnt.open_dataset(
            picture_set / "train", validation=picture_set, test=picture_set, label_column="label"
        )
        assert data.validation is not None
        assert data.validation.labels.tolist() == [1, 0, 1, 1]
        assert data.test is not None
        assert len(data.test) == 6

    def test_travel_to_other_processes_without_the_data(self, picture_set: Path) -> None:
        parts = read_saved_pictures(picture_set)
        assert parts.read is not None
        sent = pickle.dumps(parts.read)
        assert len(sent) < 200
        path = parts.train.paths.full(1)
        assert np.array_equal(pickle.loads(sent)(path, 16, 8), parts.read(path, 16, 8))

    def test_in_several_files(self, tmp_path: Path) -> None:
        data = pictures([0, 1, 1, 0, 1])
        data.save_to_disk(tmp_path / "saved", num_shards=3)
        parts = read_saved_pictures(tmp_path / "saved")
        assert parts.train.labels.tolist() == [0, 1, 1, 0, 1]
        assert parts.read is not None
        assert parts.read(parts.train.paths.full(4), 16, 8).min() >= 160

    def test_train_and_predict(
        self, picture_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        run = tmp_path / "run"
        options: dict[str, Any] = {"image_size": 16, "weights": "none", "preset": "image"}
        options |= {"model": "small_conv", "workers": 1, "lr": 0.1}
        training = mlnt.train(picture_set, out=run, **{**QUICK, **options, "epochs": 4})
        assert training.classes == tuple(CLASSES)
        assert training.summary["chosen"]["best"] == 100
        with (run / "label_issues.csv").open() as file:
            samples = {row["sample"] for row in csv.DictReader(file)}
        assert samples == {f"train/{row}" for row in range(48)}
        predicted = mlnt.predict(run, picture_set)
        assert (predicted.accuracy, predicted.part) == (100, "test")
        assert mlnt.predict(run, picture_set / "validation").part == ""
        assert mlnt.predict(run, picture_set / "validation").predicted[1] == "zebra"
        assert command(["predict", str(run), str(picture_set / "unsupervised")]) == 0
        captured = capsys.readouterr()
        assert len(captured.out.splitlines()) == 3
        assert "agrees" not in captured.err

    def test_what_cannot_be_read_is_said(self, tmp_path: Path) -> None:
        secret = tmp_path / "secret.png"
        secret.write_bytes(picture(40))
        rows = [b"no picture", picture(40, "JPEG")[:300], b""]
        images = [{"bytes": content, "path": None} for content in rows]
        images.append({"bytes": None, "path": str(secret)})
        table = datasets.Dataset.from_dict({"image": images, "label": ["a", "b", "a", "b"]})
        # By hand: the library would put the bytes of the file in the place of its path.
        saved = save(table, tmp_path / "saved")
        info = json.loads((saved / "dataset_info.json").read_text())
        info["features"]["image"] = {"_type": "Image"}
        (saved / "dataset_info.json").write_text(json.dumps(info))
        parts = read_saved_pictures(saved)
        assert parts.read is not None
        reasons = ["no picture of a known format", "truncated", "no picture in this row"]
        for row, reason in enumerate([*reasons, "no picture in this row"]):
            with pytest.raises(PictureError, match=reason):
                parts.read(parts.train.paths.full(row), 16, 8)


class TestTexts:
    def test_train_and_predict(self, tmp_path: Path) -> None:
        features = datasets.Features(
            {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=CLASSES)}
        )
        words = ["black and white stripes", "swings from a tree"]

        def split(labels: list[int]) -> Any:
            values = {"text": [words[label] for label in labels], "label": labels}
            return datasets.Dataset.from_dict(values, features=features)

        data = datasets.DatasetDict(train=split([0, 1] * 24), test=split([1, 1, 0]))
        path = save(data, tmp_path / "saved")
        opened = mlnt.open_dataset(path)
        assert opened.classes == tuple(CLASSES), "in the order of the data set"
        assert opened.test is not None
        assert opened.test.texts == [words[1], words[1], words[0]]
        mlnt.train(path, out=tmp_path / "run", **QUICK)
        assert len(mlnt.predict(tmp_path / "run", path).predicted) == 3

    def test_further_data_is_the_part_that_is_wanted(self, tmp_path: Path) -> None:
        def split(*texts: str) -> Any:
            values = {"text": list(texts), "label": ["x", "y"] * (len(texts) // 2)}
            return datasets.Dataset.from_dict(values)

        train, validation, test = split("a", "b"), split("c", "d"), split("e", "f")
        parts = {"train": train, "validation": validation, "test": test}
        whole = save(datasets.DatasetDict(parts), tmp_path / "whole")
        alone = save(split("g", "h"), tmp_path / "alone")
        data = mlnt.open_dataset(alone, validation=whole, test=whole)
        assert data.validation is not None
        assert data.validation.texts == ["c", "d"]
        assert data.test is not None
        assert data.test.texts == ["e", "f"]
        del parts["validation"]
        fewer = save(datasets.DatasetDict(parts), tmp_path / "fewer")
        data = mlnt.open_dataset(alone, validation=fewer)
        assert data.validation is not None
        assert data.validation.texts == ["a", "b"], "never test in the place of validation"

    def test_a_text_column_by_name(self, tmp_path: Path) -> None:
        values = {"idx": [1, 2], "sentence": ["a b", "c"], "note": ["x", "y"], "label": [3, 10]}
        path = save(datasets.Dataset.from_dict(values), tmp_path / "saved")
        saved = read_saved(path, text_column="sentence")
        assert isinstance(saved, RawParts)
        assert (saved.train.kind, saved.train.samples) == ("text", ["a b", "c"])
        assert (saved.train.labels, saved.classes) == (["3", "10"], ())
        with pytest.raises(mlnt.InputError, match="name the text column"):
            read_saved(path)
        with pytest.raises(mlnt.InputError, match="did you mean 'sentence'"):
            read_saved(path, text_column="sentense")
        with pytest.raises(mlnt.InputError, match="no column of texts 'idx'"):
            read_saved(path, text_column="idx")
        with pytest.raises(mlnt.InputError, match="both the text and the label"):
            read_saved(path, "note", "note")


class TestTables:
    def test_train_and_predict(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(0)
        labels = draw.integers(0, 2, 60)
        values = {
            "width": (draw.normal(size=60) + 4 * labels).astype(np.float32),
            "count": draw.integers(0, 9, 60),
            "new": labels == 1,
            "kind": [CLASSES[label] for label in labels],
        }
        path = save(datasets.Dataset.from_dict(values), tmp_path / "saved")
        saved = read_saved_rows(path, "kind")
        assert (saved.train.kind, saved.train.columns) == ("table", ("width", "count", "new"))
        np.testing.assert_array_equal(saved.train.samples[:, 1], values["count"])
        np.testing.assert_array_equal(saved.train.samples[:, 2], labels)
        run = tmp_path / "run"
        training = mlnt.train(path, out=run, label_column="kind", **QUICK)
        assert training.classes == ("ape", "zebra")
        wanted = training.predict_probabilities(saved.train.samples)
        torch.testing.assert_close(mlnt.predict(run, path).probabilities, wanted)
        unlabelled = save(
            datasets.load_from_disk(path).remove_columns("kind"), tmp_path / "unlabelled"
        )
        torch.testing.assert_close(mlnt.predict(run, unlabelled).probabilities, wanted)

    def test_a_missing_number_is_an_error_of_its_own(self, tmp_path: Path) -> None:
        values = {"a": [1, None, 3, 4], "label": ["x", "y", "x", "y"]}
        path = save(datasets.Dataset.from_dict(values), tmp_path / "saved")
        with pytest.raises(mlnt.InputError, match="index 1, 'a'"):
            mlnt.open_dataset(path)

    def test_other_columns_are_refused(self, tmp_path: Path) -> None:
        values = {"a": [1, 2], "v": [[1.0], [2.0]], "label": ["x", "y"]}
        path = save(datasets.Dataset.from_dict(values), tmp_path / "saved")
        with pytest.raises(mlnt.InputError, match="'v' holds neither"):
            read_saved(path)


class TestLabels:
    def test_of_a_competition_are_secret(self, tmp_path: Path) -> None:
        data = datasets.DatasetDict(train=pictures([0, 1]), test=pictures([-1, -1]))
        parts = read_saved(save(data, tmp_path / "saved"))
        assert isinstance(parts, Parts)
        assert parts.test is not None, "it can be predicted"
        kept = only_labelled(parts)
        assert kept.test is None, "but not tested with"
        assert "'test' has no labels" in kept.notes[0]

    def test_a_few_that_lack(self, tmp_path: Path) -> None:
        path = save(pictures([0, 1, -1]), tmp_path / "saved")
        with pytest.raises(mlnt.InputError, match="row 2 has no label"):
            read_saved(path)

    def test_several_columns_of_classes(self, tmp_path: Path) -> None:
        coarse = datasets.ClassLabel(names=["mammal"])
        data = pictures([0, 1]).rename_column("label", "fine").add_column("coarse", [0, 0])
        path = save(data.cast_column("coarse", coarse), tmp_path / "saved")
        with pytest.raises(mlnt.InputError, match=r"\(fine, coarse\); name the label column"):
            read_saved(path)
        assert read_saved(path, "fine").classes == tuple(CLASSES)
        with pytest.raises(mlnt.InputError, match="did you mean 'coarse'"):
            read_saved(path, "course")

    def test_that_train_has_not(self, tmp_path: Path) -> None:
        parts = {
            name: pictures([0] * 3).remove_columns("label").add_column("label", labels)
            for name, labels in (("train", ["ape", "hen", "ape"]), ("test", ["ape", "hem", "ape"]))
        }
        path = save(datasets.DatasetDict(parts), tmp_path / "saved")
        with pytest.raises(mlnt.InputError, match=r"test: label 'hem' \(at .* did you mean 'hen'"):
            read_saved(path)

    def test_none_at_all(self, tmp_path: Path) -> None:
        path = save(pictures([0, 1]).remove_columns("label"), tmp_path / "saved")
        parts = read_saved_pictures(path)
        assert (parts.classes, parts.train.labels.tolist()) == ((), [-1, -1])
        with pytest.raises(mlnt.InputError, match="no labels"):
            mlnt.open_dataset(path)


class TestDamage:
    @pytest.fixture
    def saved(self, picture_set: Path, tmp_path: Path) -> Path:
        return Path(shutil.copytree(picture_set / "test", tmp_path / "saved"))

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("data-00000-of-00001.arrow", b"\0" * 99, "cannot be read"),
            ("data-00000-of-00001.arrow", b"", "cannot be read"),
            ("data-00000-of-00001.arrow", None, "cannot be read"),
            ("state.json", b"{", "is damaged"),
            ("state.json", b"[]", "must hold a JSON object"),
            ("state.json", b"{}", "cannot be read"),
            (
                "state.json",
                b'{"_data_files": [{"filename": "../train/data-00000-of-00001.arrow"}]}',
                "leads out of its folder",
            ),
            ("state.json", b'{"_indices_data_files": [{}]}', "very old version"),
            ("dataset_info.json", b'{"features": null}', "must describe the columns"),
            ("dataset_info.json", b'{"features": {"label": {"_type": "Image"}}}', "no encoded"),
            (
                "dataset_info.json",
                b'{"features": {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel"}}}',
                r"damaged: .* \(KeyError",
            ),
            (
                "dataset_info.json",
                b'{"features": {"image": {"_type": "Value", "dtype": "int8"}, "label": [1]}}',
                "is damaged: columns differ",
            ),
            (
                "dataset_info.json",
                b'{"features": {"lost": {"_type": "Image"}}}',
                "no column 'lost'",
            ),
        ],
    )
    def test_is_one_line(self, saved: Path, name: str, content: bytes | None, message: str) -> None:
        (saved / name).unlink()
        if content is not None:
            (saved / name).write_bytes(content)
        with pytest.raises(mlnt.InputError, match=message) as caught:
            read_saved(saved)
        assert "\n" not in str(caught.value)

    def test_of_the_list_of_splits(self, picture_set: Path, tmp_path: Path) -> None:
        (tmp_path / "dataset_dict.json").write_text('{"splits": ["test", "../train"]}')
        with pytest.raises(mlnt.InputError, match="no split train"):
            read_saved(tmp_path)
        (tmp_path / "dataset_dict.json").write_text('{"splits": 3}')
        with pytest.raises(mlnt.InputError, match="must name the splits"):
            read_saved(tmp_path)
        (tmp_path / "dataset_dict.json").write_text('{"splits": ["train"]}')
        with pytest.raises(mlnt.InputError, match="cannot read"):
            read_saved(tmp_path)

    def test_no_other_folder_is_taken_for_one(self, tmp_path: Path) -> None:
        (tmp_path / "dataset_info.json").write_text("{}")
        assert not is_saved_dataset(tmp_path)
        assert not is_saved_dataset(tmp_path / "dataset_info.json")
        assert not is_saved_dataset("digits")


def test_a_package_that_is_missing(picture_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(mlnt.InputError, match=r"pyarrow .*pip install pyarrow"):
        read_saved(picture_set)
