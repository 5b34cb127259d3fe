"""Training on pictures that stay on disk: Clothing1M's form, folders by class, weights to start."""

import base64
import contextlib
import csv
import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

import mlnt
from clothing_tree import coloured_noise, make_small_tree
from mlnt.cli import run as command
from mlnt.data.encoding import ImageEncoder
from mlnt.iterations import right_by
from mlnt.models import build_model, load_weights
from mlnt.resnet import ResNet, resnet18, resnet50
from mlnt.training import Watcher

CLASSES = 3


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_tree(
        tmp_path_factory.mktemp("tree") / "clothing1m", per_class=32, classes=CLASSES, wrong=0.3
    )


def train(tree: Path, **options: Any) -> mlnt.Training:
    given = {"model": "small_conv", "weights": "none", "image_size": 16, "epochs": 4, "sets": 1}
    given |= {"iterations": 1, "lr": 0.1, "batch_size": 32, "workers": 0, "preset": "image"}
    return mlnt.train(tree, **{**given, **options})


def test_clothing1m_is_learnt_from_disk(tree: Path, tmp_path: Path) -> None:
    broken = next((tree / "images").rglob("*noisy_train*.jpg"))
    content = broken.read_bytes()
    broken.write_bytes(content[:200])
    try:
        training = train(tree, out=tmp_path / "run")
    finally:
        broken.write_bytes(content)
    assert training.classes == ("T-Shirt", "Shirt", "Knitwear")
    assert training.summary["chosen"]["best"] > 80
    assert all(0 <= row["waiting_share"] <= 1 for row in training.history)
    assert training.summary["unreadable_pictures"] == 1
    with (tmp_path / "run" / "faults.csv").open() as file:
        (fault,) = csv.DictReader(file)
    assert fault["path"].endswith(broken.name)


def count_what_is_compared(counted: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    """The samples on which stages are compared."""
    monkeypatch.setattr(
        "mlnt.iterations.right_by",
        lambda labels_H, *others: counted.append(len(labels_H)) or right_by(labels_H, *others),
    )


def test_accuracy_counts_what_could_be_read(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures to be judged that are torn: the same figures as without them."""
    counted: list[int] = []
    count_what_is_compared(counted, monkeypatch)
    torn, without = tmp_path / "torn", tmp_path / "without"
    for copy in (torn, without):
        shutil.copytree(tree, copy)
    for part in ("clean_val", "clean_test"):
        keys = (tree / f"{part}_key_list.txt").read_text().split()
        for key in keys[:5]:
            (torn / key).write_bytes(b"no picture")
        (without / f"{part}_key_list.txt").write_text("\n".join(keys[5:]) + "\n")
    runs = [
        train(copy, epochs=2, lr=0.05, out=tmp_path / f"run {copy.name}")
        for copy in (torn, without)
    ]
    for row, other in zip(*(run.history for run in runs), strict=True):
        assert row["student"] == other["student"]
    assert any(0 < row["student"]["test"] < 100 for row in runs[0].history)
    keys = (without / "clean_val_key_list.txt").read_text().split()
    assert set(counted) == {len(keys)}, "by which the iteration is chosen"
    assert runs[0].summary["test_by_class"] == runs[1].summary["test_by_class"]
    found, expected = (mlnt.predict(tmp_path / "run torn", copy) for copy in (torn, without))
    assert found.accuracy == expected.accuracy
    assert found.predicted == [""] * 5 + expected.predicted
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "a.jpg").write_bytes(b"no picture")
    with pytest.raises(mlnt.InputError, match=r"none of the 1 pictures can be read; .*a\.jpg"):
        mlnt.predict(tmp_path / "run torn", tmp_path / "new")


def test_nothing_is_said_of_labels_whose_pictures_nobody_saw(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, run, random = tmp_path / "data", tmp_path / "run", np.random.default_rng(0)
    for number in range(60):
        is_blue, is_wrong = number % 2, number % 10 in (1, 4)
        path = data / ("red", "blue")[is_blue ^ is_wrong] / f"{number:02d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        coloured_noise(is_blue / 2, (8, 8), random).save(path)
        if number < 8:
            path.write_bytes(b"no picture")
    options = {"batch_size": 8, "image_size": 8, "epochs": 4, "iterations": 2, "tau": 0.5}
    training = train(data, out=run, validation_share=0.3, **options)
    assert training.summary["labels"] == len(training.label_issues.positions) == 52
    expected = training.summary["label_issues"]
    assert expected["expected_errors"] == pytest.approx(52 * expected["noise_rate"] / 100)
    with (run / "label_issues.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(int(row["index"]) for row in rows) == list(range(60))
    for row in rows:
        is_torn = int(Path(row["sample"]).stem) < 8
        judged = {name: row[name] for name in rows[0] if name not in ("index", "sample", "given")}
        assert bool(row["score"]) != is_torn
        assert row["given"] == Path(row["sample"]).parent.name
        assert not (is_torn and any(judged.values()))
    assert not any(row["score"] for row in rows[52:])
    answers = [row["kept"] for row in rows if row["kept"]]
    (mentor,) = training.summary["filters"]
    assert (mentor["kept"], mentor["of"]) == (answers.count("yes"), len(answers))
    with (run / "filtered.csv").open() as file:
        assert sum(1 for _ in csv.DictReader(file)) == answers.count("no") > 0

    assert command(["issues", str(run), "--top", "60"]) == 0
    assert "of the 52 labels" in capsys.readouterr().out
    page = (run / "report.html").read_text()
    assert "Of 52 labels, " in page
    review = json.loads(page.split('id="report-data">')[1].split("</script>")[0])
    labels = list(base64.b64decode(review["labels"]["base64"]))
    assert review["total"] == len(labels) == 60
    # What the page lets one download is taken by the next training.
    lines = [f"{i},{review['cells'][label]}" for i, label in enumerate(labels)]
    (tmp_path / "corrected.csv").write_text("\n".join([review["header"], *lines]) + "\n")
    options |= {"epochs": 1, "iterations": 1}
    again = train(data, labels=tmp_path / "corrected.csv", **options)
    given = [again.classes[int(label)] for label in again.label_issues.given]
    paths = mlnt.open_dataset(data).train.texts
    assert given == [Path(paths[i]).parent.name for i in again.label_issues.positions]


def test_the_recipe_is_the_papers(tree: Path, tmp_path: Path) -> None:
    """What the data itself chooses; another network, and nothing to start it from."""
    small = {"weights": "none", "image_size": 16, "epochs": 1, "sets": 1, "workers": 0}
    training = mlnt.train(tree, model="small_conv", **small)
    settings = training.settings
    assert (settings.lr, settings.alpha, settings.eta, settings.tau) == (8e-4, 0.02, 8e-4, 0.3)
    assert (settings.batch_size, settings.weight_decay) == (32, 1e-3)
    assert not settings.flip
    assert len(training.history) == 4
    deep = mlnt.train(tree, model="resnet18", iterations=1, **small)
    assert (deep.settings.lr, deep.settings.batch_size) == (settings.lr, settings.batch_size)
    assert [row["method"] for row in deep.history] == ["cross_entropy", "mlnt"]


def test_workers_change_nothing(tree: Path) -> None:
    here, elsewhere = (train(tree, epochs=1, workers=count) for count in (0, 1))
    for row, other in zip(here.history, elsewhere.history, strict=True):
        assert row["class_loss"] == other["class_loss"]
        assert row["student"] == other["student"]


class StopAfter(Watcher):
    def __init__(self, steps: int) -> None:
        self.steps = steps

    def step_ends(self) -> None:
        self.steps -= 1
        if self.steps == 0:
            raise mlnt.Stopped


def test_interrupted_within_an_epoch_it_goes_on(tree: Path, tmp_path: Path) -> None:
    """The batches of an epoch are drawn when it begins; the rest of them is remembered."""
    options = {"epochs": 2, "iterations": 2, "batch_size": 16}
    whole, folder, stops = train(tree, **options), tmp_path / "run", 0
    with pytest.raises(mlnt.Stopped):
        train(tree, out=folder, deadline=0, **options)
    again = None
    while again is None:
        with contextlib.suppress(mlnt.Stopped):
            again = train(tree, out=folder, resume=True, watchers=[StopAfter(7)], **options)
        stops += 1
    assert stops > 3
    losses = [[row[name] for name in row if name.endswith("loss")] for row in again.history]
    assert losses == [[row[n] for n in row if n.endswith("loss")] for row in whole.history]
    state = whole.model.state_dict()
    assert all(torch.equal(state[name], value) for name, value in again.model.state_dict().items())


class StopAtTheEnd(Watcher):
    """After the last epoch of the second iteration; nothing is left to be trained."""

    def epoch_ends(self, row: dict[str, Any]) -> None:
        if (row["iteration"], row["epoch"]) == (2, 2):
            raise mlnt.Stopped


def test_what_could_not_be_read_is_known_when_a_run_goes_on(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torn, counted = tmp_path / "torn", list[int]()
    shutil.copytree(tree, torn)
    for part in ("noisy_train", "clean_val", "clean_test"):
        for key in (tree / f"{part}_key_list.txt").read_text().split()[:3]:
            (torn / key).write_bytes(b"no picture")
    readable = len((tree / "clean_val_key_list.txt").read_text().split()) - 3

    count_what_is_compared(counted, monkeypatch)
    options = {"epochs": 2, "iterations": 2, "tau": 0.5}
    whole = train(torn, **options).summary
    assert set(counted) == {readable}, "by which the mentor is chosen, and the model in the end"
    with pytest.raises(mlnt.Stopped):
        train(torn, out=tmp_path / "run", watchers=[StopAtTheEnd()], **options)
    counted.clear()
    again = train(torn, out=tmp_path / "run", resume=True, **options).summary
    assert set(counted) == {readable}
    for name in ("unreadable_pictures", "filters", "label_issues", "test_by_class"):
        assert again[name] == whole[name], name
    assert whole["unreadable_pictures"] == 9


def test_a_folder_by_class_and_predictions(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "pictures"
    labels = dict(line.split() for line in (tree / "clean_label_kv.txt").read_text().splitlines())
    for number, (key, label) in enumerate(sorted(labels.items())):
        target = data / ("train" if number % 4 else "test") / f"class {label}" / Path(key).name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes((tree / key).read_bytes())
    run = tmp_path / "run"
    options = ["--epochs", "4", "--iterations", "1", "--sets", "1", "--batch-size", "16"]
    options += ["--image-size", "16", "--workers", "0", "--out", str(run)]
    assert command(["train", str(data), *options]) == 0
    config = json.loads((run / "config.json").read_text())
    assert config["data"]["classes"] == ["class 0", "class 1", "class 2"]
    assert config["data"]["encoder"]["shape"] == [3, 16, 16]
    assert "waiting for data" in capsys.readouterr().out
    assert command(["predict", str(run), str(data)]) == 0
    captured = capsys.readouterr()
    tested = len(list((data / "test").rglob("*.jpg")))
    assert len(captured.out.splitlines()) == 1 + tested
    assert f"of {data} the part test alone was predicted\n" in captured.err
    assert "agrees with the labels of the data" in captured.err
    assert mlnt.predict(run, data / "train").part == ""
    (data / "test").rename(tmp_path / "test")
    assert mlnt.predict(run, data).part == "", "all there is"
    (data / "val" / "class 0").mkdir(parents=True)
    assert mlnt.predict(run, data).part == "train"


def test_further_pictures_are_of_the_part_that_is_wanted(tmp_path: Path) -> None:
    """Epochs must not be chosen by the pictures that the result is tested on."""
    for part in ("train", "val", "test"):
        for label in "ab":
            folder = tmp_path / part / label
            folder.mkdir(parents=True)
            Image.new("RGB", (8, 8)).save(folder / f"{part}.png")
    data = mlnt.open_dataset(tmp_path / "train", validation=tmp_path, test=tmp_path)
    assert data.validation is not None
    assert list(data.validation.texts or ()) == ["val/a/val.png", "val/b/val.png"]
    assert data.test is not None
    assert list(data.test.texts or ()) == ["test/a/test.png", "test/b/test.png"]


def test_pictures_without_labels_are_predicted(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A flat folder, a single file; names that are no text; what cannot be read says so."""
    run, new = tmp_path / "run", tmp_path / "new"
    train(tree, out=run, epochs=1)
    new.mkdir()
    content = next((tree / "images").rglob("*clean_test*.jpg")).read_bytes()
    (new / os.fsdecode(b"caf\xe9.jpg")).write_bytes(content)
    (new / "good.jpg").write_bytes(content)
    (new / "torn.jpg").write_bytes(content[:100])
    capsys.readouterr()
    assert command(["predict", str(run), str(new)]) == 0
    found = capsys.readouterr()
    rows = list(csv.DictReader(found.out.splitlines()))
    assert [row["sample"] for row in rows] == [r"caf\xe9.jpg", "good.jpg", "torn.jpg"]
    assert [bool(row["predicted"]) for row in rows] == [True, True, False]
    assert "not read:" in found.err
    assert command(["predict", str(run), str(new / "good.jpg")]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2


def test_folders_of_pictures_that_are_no_class(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An empty one counts for nothing; of another it is said that nothing was compared."""
    for label, colour in (("a", (255, 0, 0)), ("b", (0, 0, 255))):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(12):
            Image.new("RGB", (8, 8), colour).save(tmp_path / "data" / label / f"{number}.png")
    train(tmp_path / "data", out=tmp_path / "run", batch_size=4, image_size=8, epochs=1)
    (tmp_path / "data" / "empty" / "more").mkdir(parents=True)
    (tmp_path / "data" / ".hidden").mkdir()
    predict = ["predict", str(tmp_path / "run"), str(tmp_path / "data")]
    capsys.readouterr()
    assert command([*predict, "--out", str(tmp_path / "all.csv")]) == 0
    found = capsys.readouterr()
    assert found.out.replace("\n", "") == f"24 predictions in {tmp_path / 'all.csv'}"
    assert "agrees with the labels of the data" in found.err
    (tmp_path / "data" / "b" / "torn.png").write_bytes(b"none")
    (tmp_path / "data" / "b").rename(tmp_path / "data" / "c")
    assert command([*predict, "--out", str(tmp_path / "some.csv")]) == 0
    found = capsys.readouterr()
    assert f"24 predictions, 1 not read, in {tmp_path / 'some.csv'}" in found.out
    assert "not compared with the labels of the data: 'c' is no class of this run" in found.err


def test_names_that_are_no_text(tree: Path, tmp_path: Path) -> None:
    for label, colour in (("a", (255, 0, 0)), ("b", (0, 0, 255))):
        (tmp_path / "data" / label).mkdir(parents=True)
        for number in range(12):
            name = os.fsdecode(b"\xff%d.png" % number)
            Image.new("RGB", (8, 8), colour).save(tmp_path / "data" / label / name)
    training = train(tmp_path / "data", out=tmp_path / "run", batch_size=4, image_size=8)
    assert training.folder is not None
    assert r"a/\xff0.png" in (training.folder / "label_issues.csv").read_text("utf-8")


def test_data_check(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["data", "check", str(tree), "--seconds", "2"]) == 0
    assert "complete" in capsys.readouterr().out
    gone = next((tree / "images").rglob("*clean_val*.jpg"))
    content = gone.read_bytes()
    gone.unlink()
    try:
        assert command(["data", "check", str(tree), "--seconds", "2"]) == 1
    finally:
        gone.write_bytes(content)
    assert "missing" in capsys.readouterr().out


class TestWeights:
    def test_all_but_the_classifier_come_from_a_file(self, tmp_path: Path) -> None:
        torch.manual_seed(0)
        source, encoder = resnet18(3, 1000), ImageEncoder((3, 32, 32), (0,) * 3, (1,) * 3)
        torch.save(source.state_dict(), tmp_path / "w.pt")
        save_file(source.state_dict(), tmp_path / "w.safetensors")
        torch.save({"state_dict": source.state_dict()}, tmp_path / "nested.pt")
        for name in ("w.pt", "w.safetensors", "nested.pt"):
            model = build_model("resnet18", encoder, 5, str(tmp_path / name))
            assert torch.equal(model.layer4[1].conv2.weight, source.layer4[1].conv2.weight)
            assert model.fc.weight.shape == (5, 512)

    @pytest.mark.parametrize(
        ("content", "message"),
        [
            ({"a": torch.zeros(1)}, "has no weights 'conv1.weight'"),
            ({"a": 1}, "must hold tensors by name"),
            (b"no weights at all", "cannot be read as weights"),
            (None, "no file of weights"),
        ],
    )
    def test_what_does_not_fit_is_said(self, tmp_path: Path, content: Any, message: str) -> None:
        path = tmp_path / "w.pt"
        if isinstance(content, bytes):
            path.write_bytes(content)
        elif content is not None:
            torch.save(content, path)
        encoder = ImageEncoder((3, 32, 32), (0,) * 3, (1,) * 3)
        with pytest.raises(mlnt.InputError, match=message):
            build_model("resnet18", encoder, 5, str(path))

    def test_other_shapes_are_refused(self) -> None:
        with pytest.raises(mlnt.InputError, match=r"'conv1.weight' of it has the shape \[64, 1,"):
            load_weights(resnet18(3, 5), resnet18(1, 5).state_dict(), "it")

    def test_a_pickle_that_would_run_something_is_refused(self, tmp_path: Path) -> None:
        class Hostile:
            def __reduce__(self) -> tuple[Any, ...]:
                return Path.touch, (tmp_path / "executed",)

        torch.save({"a": Hostile()}, tmp_path / "w.pt")
        encoder = ImageEncoder((3, 32, 32), (0,) * 3, (1,) * 3)
        with pytest.raises(mlnt.InputError, match="cannot be read as weights"):
            build_model("resnet18", encoder, 5, str(tmp_path / "w.pt"))
        assert not (tmp_path / "executed").exists()

    def test_of_a_deeper_network_are_refused(self) -> None:
        deeper = ResNet((3, 4, 6, 3), 1, 3, 5).state_dict()
        with pytest.raises(mlnt.InputError, match="which the network has not"):
            load_weights(resnet18(3, 5), deeper, "it")

    def test_as_many_parameters_as_published(self) -> None:
        assert sum(p.numel() for p in resnet18(3, 1000).parameters()) == 11_689_512
        assert sum(p.numel() for p in resnet50(3, 1000).parameters()) == 25_557_032


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_equals_torchvision(name: str) -> None:
    try:
        models = __import__("torchvision.models", fromlist=["models"])
    except Exception as error:
        pytest.skip(f"torchvision cannot be used here: {str(error).splitlines()[0]}")
    torch.manual_seed(0)
    theirs = models.get_model(name, num_classes=7).eval()
    ours = {"resnet18": resnet18, "resnet50": resnet50}[name](3, 7).eval()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(2, 3, 64, 64)
    torch.testing.assert_close(ours(x), theirs(x))
