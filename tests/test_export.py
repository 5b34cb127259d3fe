"""A run as one file that runs without mlnt, compared with what `mlnt.predict` says."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import mlnt
from mlnt import export
from mlnt.cli import run as command
from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder
from mlnt.data.text_encoding import TextEncoder
from mlnt.export import Deployable, describe, export_model, load_onnx, random_inputs, write_onnx
from mlnt.models import build_model

onnx = pytest.importorskip("onnx", reason="needs mlnt[export]: onnx")
runtime = pytest.importorskip("onnxruntime", reason="needs mlnt[export]: onnxruntime")

WORDS = (("sun", "warm", "sky's"), ("rain", "cold", "cloud"))
QUICK: dict[str, Any] = {"epochs": 1, "sets": 1, "iterations": 1, "batch_size": 16}
SMALL = 60  # samples
Samples = tuple[Any, list[str]]


def images() -> Samples:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 3, SMALL)
    pixels = draw.integers(0, 80, (SMALL, 3, 8, 8)) + 60 * labels[:, None, None, None]
    return pixels.astype(np.uint8), [f"class {n}" for n in labels]


def rows() -> Samples:
    """A column with values far beyond the rest, and at last a time in seconds, for which float32
    has no room."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, SMALL)
    values = draw.normal(size=(SMALL, 3)) + 2 * labels[:, None]
    values[3, 0] = 1e6
    return values * [1, 0.01, 10] + [0, 5, 1.7e9], [("no", "yes")[n] for n in labels]


def texts() -> Samples:
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, SMALL)
    made = [" ".join(draw.choice(WORDS[n], draw.integers(1, 9))).capitalize() for n in labels]
    made[-2:] = ["Sun, and words that nobody knows", "..."]
    return made, [("fine", "foul")[n] for n in labels]


def chinese() -> Samples:
    """Without a space, and each text once."""
    draw = np.random.default_rng(0)
    labels = draw.integers(0, 2, SMALL)
    of_class = ["晴日暖风云花", "雨雪寒霜雷雾"]
    made = ["今" + "".join(draw.choice([*of_class[n]], draw.integers(4, 9))) for n in labels]
    made[-1] = "猫 猫"
    return made, [("fine", "foul")[n] for n in labels]


DATA: dict[str, Callable[[], Samples]] = {
    "image": images,
    "table": rows,
    "text": texts,
    "characters": chinese,
}


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A run on data of this kind, trained once for all tests."""
    parent, trained = tmp_path_factory.mktemp("runs"), set()

    def folder(kind: str) -> Path:
        if kind not in trained:
            mlnt.train(DATA[kind](), out=parent / kind, **QUICK)
            trained.add(kind)
        return parent / kind

    return folder


def words_to_numbers(samples: list[str], metadata: dict[str, str]) -> np.ndarray:
    """As somebody without mlnt would do it, by what the file says alone."""
    number = {word: i + 2 for i, word in enumerate(json.loads(metadata["vocabulary"]))}
    length = int(metadata["length"])
    encoded = np.zeros((len(samples), length), np.int64)
    for row, text in enumerate(samples):
        found = re.finditer(metadata["word_pattern"], text.lower())
        words = [word for match in found for word in match.groups() or [match[0]] if word]
        words = words[:length] or [""]
        encoded[row, : len(words)] = [number.get(word, 1) for word in words]
    return encoded


def as_raw(samples: Any, metadata: dict[str, str]) -> np.ndarray:
    if metadata["kind"] == "text":
        return words_to_numbers(samples, metadata)
    return np.asarray(samples, metadata["input"].split()[0])


@pytest.mark.parametrize("kind", DATA)
def test_onnx_says_what_predict_says(
    kind: str, run_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, (samples, labels) = run_folder(kind), DATA[kind]()
    path = export_model(folder, "onnx", tmp_path / "model.onnx")
    assert [found.name for found in tmp_path.iterdir()] == ["model.onnx"], "one file, all in it"
    onnx.checker.check_model(path, full_check=True)
    session = runtime.InferenceSession(path)
    metadata = session.get_modelmeta().custom_metadata_map
    raw = as_raw(samples, metadata)
    wanted = mlnt.predict(folder, (samples, labels))
    for size in (1, 13, SMALL):
        (given,) = session.run(None, {"input": raw[:size]})
        np.testing.assert_allclose(given, wanted.probabilities[:size].numpy(), atol=1e-4)
    assert tuple(json.loads(metadata["classes"])) == wanted.classes == tuple(sorted(set(labels)))
    kind = "text" if kind == "characters" else kind
    assert (metadata["kind"], metadata["mlnt"]) == (kind, mlnt.__version__)
    if kind == "table":
        assert json.loads(metadata["columns"]) == ["column 0", "column 1", "column 2"]


@pytest.mark.parametrize("kind", DATA)
def test_torch_export_says_what_predict_says(
    kind: str, run_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    folder, (samples, labels) = run_folder(kind), DATA[kind]()
    path = export_model(folder, "torch-export", tmp_path / "model.pt2")
    extra = {"metadata.json": ""}
    model = torch.export.load(path, extra_files=extra).module()
    metadata = json.loads(extra["metadata.json"])
    raw = torch.from_numpy(as_raw(samples, metadata))
    wanted = mlnt.predict(folder, (samples, labels)).probabilities
    for size in (1, 13, SMALL):
        torch.testing.assert_close(model(raw[:size]), wanted[:size], rtol=0, atol=1e-4)
    assert metadata["kind"] == ("text" if kind == "characters" else kind)


@pytest.mark.parametrize(
    ("name", "encoder"),
    [
        ("preact_resnet32", ImageEncoder((1, 12, 12), (100.0,), (50.0,))),
        ("resnet18", ImageEncoder((3, 32, 32), (100.0, 110.0, 120.0), (50.0, 60.0, 70.0))),
        ("mlp", TableEncoder(("a", "b"), (1e9, 0.0), (1.0, 1e-3))),
        ("mlp", TableEncoder(("a", "b"), (1e9, 5.0), (1.0, 1e-3), (False, True))),
        (
            "bins8",
            TableEncoder(
                ("a", "b"), (5.0, 0.0), (1.0, 2.0), edges=(tuple(n / 32 for n in range(65)), ())
            ),
        ),
        ("bag", TextEncoder(tuple("abcdefgh"), 5, tuple(1 + n / 4 for n in range(8)))),
        ("gru", TextEncoder(tuple("abcdefgh"), 5)),
    ],
)
def test_each_network_in_any_batch(name: str, encoder: Encoder, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = Deployable(build_model(name, encoder, 4), encoder).eval().requires_grad_(False)
    example = random_inputs(encoder, 2, torch.Generator())
    with export._quiet():
        write_onnx(model, example, describe(encoder, tuple("wxyz")), tmp_path / "model.onnx")
    exported = load_onnx(tmp_path / "model.onnx")
    for size in (1, 2, 7):
        raw = random_inputs(encoder, size, torch.Generator().manual_seed(size))
        torch.testing.assert_close(exported(raw), model(raw), rtol=0, atol=1e-4)


def test_what_one_exporter_lacks_another_has(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Pooling of three pixels to two is beyond the older one."""
    pytest.importorskip("onnxscript", reason="needs mlnt[export]: onnxscript")
    data = np.random.default_rng(0).normal(size=(SMALL, 5, 5)), ["a", "b"] * (SMALL // 2)
    mlnt.train(data, out=tmp_path / "run", **QUICK)
    capfd.readouterr()
    path = export_model(tmp_path / "run", "onnx")
    assert "".join(capfd.readouterr()) == "", "neither of them talks"
    assert path == tmp_path / "run" / "model.onnx"
    raw = torch.from_numpy(data[0]).float().unsqueeze(1)
    wanted = mlnt.predict(tmp_path / "run", data).probabilities
    torch.testing.assert_close(load_onnx(path)(raw), wanted, rtol=0, atol=1e-4)


def test_a_run_in_float64(tmp_path: Path) -> None:
    mlnt.train(rows(), out=tmp_path / "run", precision="float64", **QUICK)
    path = export_model(tmp_path / "run", "onnx")
    wanted = mlnt.predict(tmp_path / "run", rows()).probabilities
    given = load_onnx(path)(torch.from_numpy(rows()[0]))
    torch.testing.assert_close(given.double(), wanted, rtol=0, atol=1e-4)


def test_pictures_from_files_say_how_they_were_cut() -> None:
    mean, std = (tuple(255 * v for v in values) for values in ((0.485, 0.456, 0.406), (1.0,) * 3))
    for from_files in (True, False):
        encoder = ImageEncoder((3, 224, 224), mean, std, from_files=from_files)
        said = describe(encoder, ("a", "b"))["input"]
        assert ("shorter side resized to 256" in said) == from_files


def test_the_command(
    run_folder: Callable[[str], Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, out = run_folder("text"), tmp_path / "model.onnx"
    capfd.readouterr()
    assert command(["export", str(folder), "--to", "onnx", "--out", str(out)]) == 0
    captured = capfd.readouterr()
    assert captured.out.startswith(str(out))
    assert len(captured.out.splitlines()) == 1
    assert captured.err == ""
    assert command(["export", str(folder), "--to", "onnx", "--out", str(out)]) == 2
    assert capfd.readouterr().err.count("\n") == 1


class TestNothingWrongIsLeft:
    @pytest.mark.parametrize("to", ["onnx", "torch-export"])
    def test_other_probabilities(
        self,
        to: str,
        run_folder: Callable[[str], Path],
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        class Wrong(Deployable):
            def forward(self, inputs: Tensor) -> Tensor:
                return super().forward(inputs + self.std)

        folder = run_folder("table")
        monkeypatch.setattr(export, "Deployable", Wrong)
        with pytest.raises(
            mlnt.InputError, match=r"differ by .* the limit is 0.0001; no file"
        ) as caught:
            export_model(folder, to, tmp_path / "model")
        assert "\n" not in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_a_network_that_no_exporter_takes(
        self, run_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        class Wild(Deployable):
            def forward(self, inputs: Tensor) -> Tensor:
                raise RuntimeError("no way\nand more of it")

        folder = run_folder("table")
        monkeypatch.setattr(export, "Deployable", Wild)
        with pytest.raises(mlnt.InputError, match=r"cannot be written as torch-export: .*") as it:
            export_model(folder, "torch-export", tmp_path / "model.pt2")
        assert "\n" not in str(it.value)
        assert list(tmp_path.iterdir()) == []


class TestMistakes:
    def test_an_unknown_format(self, run_folder: Callable[[str], Path]) -> None:
        with pytest.raises(mlnt.InputError, match=r"unknown format 'onx'; did you mean 'onnx'"):
            export_model(run_folder("table"), "onx")

    def test_a_file_that_is_there_already(
        self, run_folder: Callable[[str], Path], tmp_path: Path
    ) -> None:
        path = tmp_path / "model.onnx"
        path.write_text("mine")
        with pytest.raises(mlnt.InputError, match="exists already"):
            export_model(run_folder("table"), "onnx", path)
        assert path.read_text() == "mine"
        with pytest.raises(mlnt.InputError, match="there is no folder"):
            export_model(run_folder("table"), "onnx", tmp_path / "nowhere" / "model.onnx")

    def test_a_package_that_is_missing(
        self, run_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(mlnt.InputError, match=r"onnxruntime .*pip install onnx "):
            export_model(run_folder("table"), "onnx", tmp_path / "model.onnx")

    def test_a_network_of_ones_own(self, tmp_path: Path) -> None:
        def own() -> torch.nn.Module:
            return torch.nn.Sequential(
                torch.nn.Linear(3, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)
            )

        mlnt.train(rows(), out=tmp_path / "run", model=own, **QUICK)
        with pytest.raises(mlnt.InputError, match="your own network"):
            export_model(tmp_path / "run", "torch-export")
        path = export_model(tmp_path / "run", "torch-export", model=own)
        wanted = mlnt.predict(tmp_path / "run", rows(), model=own).probabilities
        found = torch.export.load(path).module()(torch.tensor(rows()[0]))
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)
