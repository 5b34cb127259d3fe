"""Hostile inputs, as a user meets them: one clear line and status 2, or they work; never more.

All run in this process, where memory and time are limited; a few as `python -m mlnt` under ulimit.
"""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from corpus.running import VARYING, Runs, all_cases, outcomes, try_case

ROOT = Path(__file__).parent.parent
CASES = all_cases()
EXPECTED = outcomes()
IN_SOAK = set(sorted(CASES)[1::2])  # every other one: `make soak` tries the rest
SAMPLE = ("npz/bomb",)  # as a process of its own
MOST_BYTES = 8 * 2**30  # of addresses, most of which torch reserves and never touches


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return Runs.make(tmp_path_factory.mktemp("runs"))


def test_there_are_enough_and_each_outcome_is_written_down() -> None:
    fixed = {name for name in CASES if not name.startswith(VARYING)}
    said = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
    assert f"{len(CASES):,} hostile and broken inputs" in said
    assert f"{len(CASES) - len(fixed):,} whose outcome varies" in said
    assert fixed == EXPECTED.keys()
    works = {name for name, status in EXPECTED.items() if status == 0}
    assert {name for name in CASES if "/fine/" in name} <= works


@pytest.mark.parametrize("name", [name for name in CASES if name not in IN_SOAK])
def test_case(name: str, runs: Runs, tmp_path: Path) -> None:
    tried = try_case(CASES[name], runs, tmp_path / "case")
    assert not tried.problems
    # What a damaged run says depends on its figures, which vary by the machine.
    assert tried.status == EXPECTED.get(name, tried.status), tried.said


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(IN_SOAK))
def test_further_case(name: str, runs: Runs, tmp_path: Path) -> None:
    test_case(name, runs, tmp_path)


def as_process(name: str, runs: Runs, here: Path) -> subprocess.CompletedProcess[str]:
    case = CASES[name]
    here.mkdir()
    if case.run:
        subprocess.run(["cp", "-r", runs.table, here / "run"], check=True)
    case.write(here)
    places = {"here": here, "table": runs.table, "pictures": runs.pictures}
    return subprocess.run(
        [sys.executable, "-m", "mlnt", *(part.format(**places) for part in case.command)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES)),
    )


@pytest.mark.parametrize("name", SAMPLE)
def test_as_a_process_of_its_own(name: str, runs: Runs, tmp_path: Path) -> None:
    done = as_process(name, runs, tmp_path / "case")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert done.stderr.startswith("mlnt: ")


@pytest.mark.soak
@pytest.mark.parametrize(
    "name", sorted(name for name, status in EXPECTED.items() if status == 2)[::12]
)
def test_many_as_processes_of_their_own(name: str, runs: Runs, tmp_path: Path) -> None:
    test_as_a_process_of_its_own(name, runs, tmp_path)
