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


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,b\n1,2\n3,4\n", r"^t has no labels; name .* --label-column NAME \(columns: a, b\)$"),
        ("a,b,c,d,e,f,g\n" + "1,2,3,4,5,6,7\n" * 2, r"\(columns: a, b, c, d, e and 2 more\)"),
        ("a|b|label\n1|2|x\n3|4|y\n", r"only column is 'a\|b\|label'; are columns separated by"),
        ("a\n1\n2\n", r"only column is 'a'; are columns separated by a comma, a semicolon or"),
    ],
)
def test_where_labels_may_be(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.open_dataset(write(tmp_path / "t.csv", content))
