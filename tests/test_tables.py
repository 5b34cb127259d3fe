"""How tables are read: separators, columns that are known or missing, cells that are no numbers."""

from pathlib import Path

import pytest

import mlnt


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("header", "columns"),
    [
        ("size (w,h);b;label", ("size (w,h)", "b")),
        ('"w,h,d";b;label', ("w,h,d", "b")),
        ('"w;h;d",b,label', ("w;h;d", "b")),
        ("w;h,b,label", ("w;h", "b")),
        ("a,b\tb\tlabel", ("a,b", "b")),
    ],
)
def test_a_separator_may_stand_in_a_name(
    tmp_path: Path, header: str, columns: tuple[str, ...]
) -> None:
    rows = [header[-6].join(row) for row in ("12x", "34y", "56x")]
    path = write(tmp_path / "t.csv", "\n".join([header, *rows]))
    assert mlnt.open_dataset(path).encoder.columns == columns
