"""The files that measurements go on in: kept, compared, written."""

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from mlnt.bench import IssuesResult
from mlnt.bench.accuracy import AccuracyRow
from mlnt.bench.issues import IssuesRow, _row_from
from mlnt.bench.ledger import Ledger
from mlnt.errors import InputError

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


@dataclasses.dataclass(frozen=True)
class Found:
    """A bench as simple as can be."""

    machine: str = "ours"
    settings: dict[str, Any] = dataclasses.field(default_factory=lambda: {"lr": 0.1})
    mentor: float = 0.0
    rows: tuple[Any, ...] = ()

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))


@dataclasses.dataclass(frozen=True)
class Row:
    sets: int


def read(path: Path | None, now: Found | None = None) -> dict[str, Any]:
    return Ledger(path).read(now or Found(), Row, ("machine",), ("mentor",))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    path = tmp_path / "done.json"
    assert read(path) == {}
    Ledger(path).write(Found(mentor=81.5, rows=(Row(1), Row(2))))
    assert read(path) == {"mentor": 81.5, "rows": (Row(1), Row(2))}


def test_without_a_file_nothing_is_kept() -> None:
    Ledger(None).write(Found())
    assert read(None) == {}


@pytest.mark.parametrize(
    ("now", "message"),
    [
        (
            Found(machine="another"),
            "machine was 'ours' in .*done.json, now it is 'another'; choose",
        ),
        (Found(settings={"lr": 0.2}), "lr was 0.1 in .*, now it is 0.2; choose another file"),
        (Found(settings={"lr": 0.1, "new": 1}), "new was None in .*, now it is 1"),
    ],
)
def test_other_arguments_are_refused(now: Found, message: str, tmp_path: Path) -> None:
    Ledger(tmp_path / "done.json").write(Found())
    with pytest.raises(InputError, match=message):
        read(tmp_path / "done.json", now)


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        '{"rows": [], "machine": "ours"}',
        '{"rows": [], "mentor": 1}',
        '{"rows": 5, "mentor": 1, "machine": "ours"}',
        '{"rows": [5], "mentor": 1, "machine": "ours"}',
        '{"rows": [{"sets": 1, "more": 2}], "mentor": 1, "machine": "ours"}',
        '{"rows": [], "mentor": 1, "machine": "ours", "settings": [1]}',
    ],
)
def test_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"other.json holds no such bench .*; choose another file"):
        read(path)
    path.write_text("[]", encoding="utf-8")
    with pytest.raises(InputError, match="must hold a JSON object"):
        read(path)


@pytest.mark.parametrize(
    ("name", "row"),
    [
        ("cpu-issues.json", _row_from),
        ("h200-issues.json", _row_from),
        ("h200-accuracy.json", AccuracyRow),
    ],
)
def test_what_was_measured_long_ago_is_still_read(name: str, row: Callable[..., Any]) -> None:
    content = json.loads((BENCHMARKS / name).read_text(encoding="utf-8"))
    now = IssuesResult(machine=content["machine"], torch="another", date="later")
    rows = Ledger(BENCHMARKS / name).read(now, row, ("machine",))["rows"]
    # By way of JSON, which has no tuples.
    assert json.loads(json.dumps([dataclasses.asdict(each) for each in rows])) == content["rows"]
    assert all(isinstance(each, IssuesRow | AccuracyRow) for each in rows)
    assert all(isinstance(getattr(each, "interval", None), tuple | None) for each in rows)
