"""mlnt bench --issues: the comparison with cleanlab, small."""

import json
from pathlib import Path

import pytest

from mlnt.bench import run_issues
from mlnt.cli import run
from mlnt.errors import InputError

pytest.importorskip("cleanlab", reason="the comparison needs cleanlab")
pytestmark = pytest.mark.filterwarnings("ignore")  # cleanlab's own

SMALL = {"epochs": 3, "iterations": 2, "sets": 1}


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("issues") / "issues.json"
    run_issues("digits", noises=("symmetric:0.4",), done=path, **SMALL)
    return path


def test_both_find_wrong_labels_and_are_judged_alike(done: Path) -> None:
    cleanlab, *ours = json.loads(done.read_text())["rows"]
    assert cleanlab["system"].startswith("cleanlab, 5 folds")
    assert [row["system"] for row in ours] == [
        "mlnt after cross entropy", "mlnt after iteration 1", "mlnt after iteration 2",
    ]  # fmt: skip
    for row in (cleanlab, *ours):
        assert row["labels"] == 1352, "held-out labels are judged too"
        assert row["wrong"] == pytest.approx(36, abs=3)
        assert row["ap"] > 0.9
        assert row["seconds"] > 0
    assert [row["seconds"] for row in ours] == sorted(row["seconds"] for row in ours)
    for row in ours:
        assert row["estimated"] == pytest.approx(row["wrong"], abs=5)
        assert row["interval"][0] <= row["wrong"] <= row["interval"][1]
        assert row["flagged_wrong"] > 90


def test_what_was_measured_is_kept(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = json.loads(done.read_text())["rows"]
    run_issues("digits", noises=("symmetric:0.4",), done=done, **SMALL)
    assert json.loads(done.read_text())["rows"] == before
    # With other settings it is something else.
    arguments = ["bench", "--issues", "--noise", "symmetric:0.4", "--epochs", "1"]
    assert run([*arguments, "--json", str(done)]) == 0
    rows = json.loads(done.read_text())["rows"]
    assert rows[: len(before)] == before
    assert {row["given"] for row in rows} == {"epochs=1", "epochs=3, iterations=2, sets=1"}
    shown = capsys.readouterr().out
    assert "36." in shown
    assert "mean (± standard deviation) over seeds" in " ".join(shown.split())
    done.write_text(json.dumps({**json.loads(done.read_text()), "rows": before}))


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"rows": [{"a": 1}]}')
    with pytest.raises(InputError, match="holds no such bench"):
        run_issues("digits", done=tmp_path / "x.json")


def test_the_epochs_are_those_asked_for(done: Path, tmp_path: Path) -> None:
    arguments = ["bench", "--issues", "--noise", "symmetric:0.4", "--epochs", "1"]
    assert run([*arguments, "--json", str(tmp_path / "short.json")]) == 0
    longer, short = (
        next(row for row in json.loads(path.read_text())["rows"] if "cross" in row["system"])
        for path in (done, tmp_path / "short.json")
    )
    assert short["ap"] < longer["ap"]
