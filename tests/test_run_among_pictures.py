"""`cd my-pictures && mlnt train .` writes runs/ there: no class, the second time."""

from pathlib import Path

import pytest
from PIL import Image

from mlnt.cli import run as command
from mlnt.data.folders import image_folder_parts

OPTIONS = ["--image-size", "8", "--workers", "0", "--iterations", "1", "--epochs", "1"]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for label, colour in (("a", (255, 0, 0)), ("b", (0, 0, 255))):
        (tmp_path / label).mkdir()
        for number in range(12):
            Image.new("RGB", (8, 8), colour).save(tmp_path / label / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_runs_are_no_class(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["train", ".", *OPTIONS]) == 0
    assert next((folder / "runs").rglob("curves.png"), None) is not None
    parts = image_folder_parts(folder)
    assert parts.classes == ("a", "b")
    assert parts.notes == ("passing over 'runs', which holds runs",)
    (run,) = (folder / "runs").iterdir()
    run.rename(folder / "my-run")  # as by --out
    assert image_folder_parts(folder).classes == ("a", "b")
    capsys.readouterr()
    assert command(["predict", "my-run", "."]) == 0
    found = capsys.readouterr()
    assert len(found.out.splitlines()) == 1 + 24
    assert "agrees with the labels" in found.err


def test_a_class_may_be_called_runs(folder: Path) -> None:
    (folder / "a").rename(folder / "runs")
    (folder / "runs" / "config.json").write_text("{}")
    assert image_folder_parts(folder).classes == ("b", "runs")


def test_a_class_with_a_run_in_it_stays_one(folder: Path) -> None:
    for place in ("a/my-run", "b/below/my-run"):
        (folder / place).mkdir(parents=True)
        for name in ("config.json", "metrics.jsonl"):
            (folder / place / name).write_text("")
        Image.new("RGB", (8, 8)).save(folder / place / "curves.png")
    parts = image_folder_parts(folder)
    assert parts.classes == ("a", "b")
    assert len(parts.train.paths) == 24, "the curves are no samples"
