"""A case as a user would meet it: the command in this process, with bounded memory and time."""

import contextlib
import io
import json
import resource
import shutil
import signal
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from mlnt import cli
from mlnt.data import streaming

from . import arrays, packed, pictures, run_folders, tables
from .case import QUICK, Case

VARYING = ("damaged/", "checkpoint/")  # by the figures of the run that is damaged
OUTCOMES = Path(__file__).with_name("outcomes.txt")
MOST_SECONDS, PATIENCE = 10, 100  # of computing; by the clock, for what waits
MOST_BYTES = 3 * 2**30  # beyond what the process has before: the address space, not what is touched


@dataclass(frozen=True)
class Runs:
    """Whole runs, of a table and of pictures."""

    table: Path
    pictures: Path

    @classmethod
    def make(cls, folder: Path) -> "Runs":
        data = folder / "data"
        (data / "d").mkdir(parents=True)
        (data / "t.csv").write_bytes(tables.GOOD)
        for name in "ab":
            (data / "d" / name).mkdir()
            for number in range(8):
                path = data / "d" / name / f"{number}.png"
                path.write_bytes(pictures.encoded("PNG", number))
        for source, name in ((data / "t.csv", "table"), (data / "d", "pictures")):
            command = ["train", str(source), "--out", str(folder / name), *QUICK]
            with contextlib.redirect_stdout(io.StringIO()):
                assert cli.run(command) == 0
        # Whether a label looks wrong after one epoch is chance; the report shall show some.
        shown = [{"index": index, "row": [["a", "1"], ["b", "2"]]} for index in range(4)]
        lines = "".join(f"{json.dumps(entry)}\n" for entry in shown)
        (folder / "table" / "gallery.jsonl").write_text(lines, encoding="utf-8")
        return cls(folder / "table", folder / "pictures")


def all_cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for part in (tables, arrays, packed, pictures, run_folders):
        for case in part.cases():
            assert case.name not in found, case.name
            found[case.name] = case
    return found


def outcomes() -> dict[str, int]:
    """What was written down of each case; of those that depend on a run's figures nothing."""
    lines = OUTCOMES.read_text(encoding="utf-8").splitlines()
    return {name: int(status) for status, name in (line.split(" ", 1) for line in lines)}


@dataclass(frozen=True)
class Tried:
    status: int
    seconds: float
    megabytes: float  # by which the highest use of memory so far rose
    said: str
    problems: list[str]


def try_case(case: Case, runs: Runs, here: Path) -> Tried:
    """Run the command of a case; `problems` is all that must not be, whatever the status."""
    here.mkdir(parents=True)
    if case.run:
        shutil.copytree(getattr(runs, case.run), here / "run")
    case.write(here)
    places = {"here": here, "table": runs.table, "pictures": runs.pictures}
    arguments = [part.format(**places) if "{" in part else part for part in case.command]
    out, err = io.StringIO(), io.StringIO()
    before, began = _peak(), time.process_time()  # other programs may run beside
    problems = []
    try:
        with (
            bounded(),
            # Read here, where memory is limited, not by processes of their own.
            mock.patch.object(streaming, "default_workers", return_value=0),
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            status = cli.run(arguments)
    except BaseException:
        status = -1
        problems.append(traceback.format_exc(limit=-4))
    seconds, said = time.process_time() - began, err.getvalue()
    if status == 2 and (not said.startswith("mlnt: ") or said.count("\n") != 1 or len(said) > 2100):
        problems.append(f"not one line: {said[:300]!r}")
    if status not in (0, 1, 2):
        problems.append(f"status {status}")
    if status == 1 and case.command[:2] != ("data", "check"):  # which found faults, and said so
        problems.append(f"status 1: {said[:300]!r}")
    # Predictions are a file: names in it are the data's own.
    shown = said if case.command[0] == "predict" else out.getvalue() + said
    if "Traceback" in said or "\x1b" in shown:
        problems.append("a traceback or an escape sequence was printed")
    if seconds > MOST_SECONDS:
        problems.append(f"it took {seconds:.1f} s")
    shutil.rmtree(here, ignore_errors=True)
    return Tried(status, seconds, (_peak() - before) / 1024, said, problems)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # kB


@contextlib.contextmanager
def bounded() -> Iterator[None]:
    """What takes too much memory or time ends in an error."""

    def late(*_: object) -> None:
        raise TimeoutError(f"still at it after {PATIENCE} s")

    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MOST_BYTES, hard))
    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
