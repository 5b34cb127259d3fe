"""`mlnt data check` says of data what a training would say of it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from mlnt.cli import run as command

GENERATOR = np.random.default_rng(0)


def shown(path: Path, capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert command(["data", "check", str(path)]) == 0
    return capsys.readouterr().out.splitlines()


def test_what_is_odd_about_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    labels = ["cat"] * 60 + ["dog"] * 60 + ["Cat"] * 4
    values = GENERATOR.normal(size=(124, 2))
    rows = [f"{a:.4f},{b:.4f},{name}" for (a, b), name in zip(values, labels, strict=True)]
    (tmp_path / "t.csv").write_text("\n".join(["a,b,label", *rows, *rows[:20]]))
    lines = shown(tmp_path / "t.csv", capsys)
    for note in (
        "'Cat' and 'cat' differ in case or white space only: one class?",
        "20 of 144 samples are repetitions of others",
    ):
        assert f"note: {note}" in lines
    assert any(line.startswith("note: very few samples of Cat (") for line in lines)
    assert any(line.startswith("complete: 144 rows") for line in lines)


def test_what_is_odd_about_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("a", "A"):
        (tmp_path / "pets" / name).mkdir(parents=True)
        for i in range(30):
            pixels = GENERATOR.integers(0, 256, (8, 8, 3)).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pets" / name / f"{i % 25}{i // 25}.png")
    lines = shown(tmp_path / "pets", capsys)
    assert "note: 'A' and 'a' differ in case or white space only: one class?" in lines
    assert any(line.endswith("samples are few: expect figures that vary by seed") for line in lines)


def test_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    X, y = GENERATOR.normal(size=(300, 3)), np.arange(300) % 3
    np.savez(tmp_path / "x.npz", X=X, y=y)
    assert "complete: 300 samples are there" in "\n".join(shown(tmp_path / "x.npz", capsys))
    X[7, 1] = np.nan
    np.savez(tmp_path / "x.npz", X=X, y=y)
    assert command(["data", "check", str(tmp_path / "x.npz")]) == 2
    assert "features must be finite, but 1 of 300 samples" in capsys.readouterr().err


def test_what_would_be_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "pets" / "a").mkdir(parents=True)
    Image.new("RGB", (4, 4)).save(tmp_path / "pets" / "a" / "1.png")
    (line,) = (s for s in shown(tmp_path / "pets", capsys) if s.startswith("note:"))
    assert line.startswith("note: `mlnt train` refuses it: ")
    assert command(["data", "check", str(tmp_path / "none.npz")]) == 2
    assert "no folder or file at" in capsys.readouterr().err


def test_columns_are_named_and_left_out_as_for_a_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{i},word{i} said,{'ab'[i % 2]}" for i in range(40)]
    (tmp_path / "t.csv").write_text("\n".join(["day,title,label", *rows]))
    options = ["--drop-columns", "day", "--text-column", "title"]
    assert command(["data", "check", str(tmp_path / "t.csv"), *options]) == 0
    assert "passing over" not in capsys.readouterr().out
