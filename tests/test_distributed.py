"""Several processes under torchrun come to what one comes to; and how they end.

Only loopback is used, and every launch has a time limit.
"""

import ast
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

import mlnt
from many_processes import CASES, SLOW_CASES, Case
from mlnt.cli import run as command
from mlnt.distributed import ALL_ALONE, WHOLE, Group, Rows, World, join, most_columns
from mlnt.errors import InputError
from mlnt.ready import _check_same_everywhere
from mlnt.runs import RunFolder

TESTS = Path(__file__).parent
TIMES = ("seconds", "step_ms")
LIMIT_S = 240  # for a machine that has other things to do
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4}
# Its network has no dropout, whose masks under each label set depend on how many processes there
# are.
TRAIN = (
    "train", str(TESTS / "golden" / "points.npz"), "--epochs", "2", "--iterations", "2", "--sets",
    "2", "--batch-size", "64", "--seed", "3", "--precision", "float64", "--device", "cpu",
)  # fmt: skip
TENTH_STEP = str(TESTS / "tenth_step.py")


def launch(
    processes: int, program: Sequence[str], folder: Path, restarts: int = 0, **variables: str
) -> subprocess.CompletedProcess:
    """torchrun --standalone, in `folder`."""
    torchrun = ["-m", "torch.distributed.run", "--standalone"]
    options = ["--nproc-per-node", str(processes), "--max-restarts", str(restarts)]
    return run_python([*torchrun, *options, *program], folder, **variables)


def run_python(
    arguments: Sequence[str], folder: Path, **variables: str
) -> subprocess.CompletedProcess:
    source = str(TESTS.parent / "src")
    with subprocess.Popen(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": source, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=LIMIT_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # the processes that it started too
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def four_processes(folder: Path, *options: str) -> subprocess.CompletedProcess:
    done = run_python([str(TESTS / "many_processes.py"), str(folder), *options], folder)
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def own_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("mlnt: ")]


def exit_codes(done: subprocess.CompletedProcess) -> set[str]:
    """What torchrun says of each process."""
    return set(re.findall(r"exitcode *: (-?\d+) *\(pid", done.stderr))


class TestShares:
    @pytest.mark.parametrize("total", [0, 1, 3, 7, 8])
    @pytest.mark.parametrize("size", [1, 2, 3, 8])
    def test_every_thing_once(self, total: int, size: int) -> None:
        group = Group(0, size)
        parts = [group.part(total, rank) for rank in range(size)]
        assert [i for part in parts for i in range(total)[part]] == list(range(total))
        lengths = [part.stop - part.start for part in parts]
        assert max(lengths) - min(lengths) <= 1

    def test_rows(self) -> None:
        rows = Rows(Group(1, 3), 7)  # 3, 2, 2
        assert rows.share == pytest.approx(2 / 7)
        x = torch.arange(7)
        assert rows.take(x).tolist() == [3, 4]
        kept, number = rows.take((x, 5))
        assert (kept.tolist(), number) == ([3, 4], 5)
        assert WHOLE.take(x) is x
        assert WHOLE.share == 1

    def test_up_to_as_many_processes_as_sets_each_has_all_rows(self) -> None:
        for size in range(1, 11):
            worlds = [World(rank, size) for rank in range(size)]
            grids = [world.grid(10, 32) for world in worlds]
            assert all(rows.is_whole for _, rows in grids)
            assert [m for sets, _ in grids for m in range(10)[sets]] == list(range(10))

    @pytest.mark.parametrize(
        ("processes", "sets", "batch", "columns"),
        [
            (64, 10, 32, 8),  # ten do not divide 64
            (20, 10, 32, 10),
            (4, 2, 9, 2),
            (13, 10, 32, 1),
            (8, 1, 8, 1),
            (12, 10, 32, 6),
        ],
    )
    def test_beyond_that_a_grid(self, processes: int, sets: int, batch: int, columns: int) -> None:
        assert most_columns(processes, sets, batch) == columns

    def test_too_many(self) -> None:
        with pytest.raises(InputError, match="100 processes are more than the 3 label sets times"):
            most_columns(100, 3, 8)

    def test_alone_nothing_is_divided(self) -> None:
        assert ALL_ALONE.rows(5) is WHOLE
        assert World(0, 4).divide(3) is WHOLE, "fewer samples than processes"
        assert World(0, 4, divides_rows=False).rows(8) is WHOLE
        assert ALL_ALONE.share({"a": 1}) == {"a": 1}
        assert ALL_ALONE.gather_values(2) == [2]


@pytest.mark.parametrize("text", ["abc", "", "0", "-1", "2.5", "9" * 5000])
def test_odd_environment_variables_are_one_line(
    text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WORLD_SIZE", text)
    assert command(["train", "odd.csv"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("mlnt: the environment variable WORLD_SIZE must be a whole number")
    assert said.count("\n") == 1


def names_in(tree: ast.AST) -> set[str]:
    """What is imported, and what is reached through dots."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Import):
            found |= {f"{alias.name}." for alias in node.names}
        elif isinstance(node, ast.Attribute):
            found.add(f"{ast.unparse(node)}.")
    return found


def test_one_file_knows_torch_distributed() -> None:
    knowing = {
        path.name
        for path in (TESTS.parent / "src" / "mlnt").rglob("*.py")
        if any(
            f"{name}.".startswith("torch.distributed.")
            for name in names_in(ast.parse(path.read_text("utf-8")))
        )
    }
    assert knowing == {"distributed.py"}


@pytest.fixture(scope="module")
def trajectories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    done = four_processes(folder)
    line = "the samples of a batch cannot be divided in Coupled: every process computes them all"
    assert done.stderr.count(line) == 1, "said by the first process alone"
    return folder


@pytest.fixture(scope="module")
def slow_trajectories(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many")
    four_processes(folder, "slow")
    return folder


def assert_one_trajectory(folder: Path, case: Case) -> None:
    """All processes of all worlds end with the same weights; those of one world to the last bit."""
    alone = load_file(folder / f"{case.name}-1-0.safetensors")
    assert any(name.startswith("loss.") and len(alone[name]) == case.steps for name in alone)
    limit = TOLERANCE[case.dtype]
    for size in case.sizes[1:]:
        first = load_file(folder / f"{case.name}-{size}-0.safetensors")
        assert first.keys() == alone.keys()
        for name, expected in alone.items():
            print(size, name, float((first[name] - expected).abs().max()))
            torch.testing.assert_close(first[name], expected, rtol=limit, atol=limit)
        for rank in range(1, size):
            other = load_file(folder / f"{case.name}-{size}-{rank}.safetensors")
            assert all(torch.equal(other[name], first[name]) for name in first)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_as_one_process(trajectories: Path, case: Case) -> None:
    assert_one_trajectory(trajectories, case)


@pytest.mark.slow
@pytest.mark.parametrize("case", SLOW_CASES, ids=lambda case: case.name)
def test_as_one_process_in_other_cases(slow_trajectories: Path, case: Case) -> None:
    assert_one_trajectory(slow_trajectories, case)


def test_a_checkpoint_of_four_goes_on_with_one_and_back(trajectories: Path) -> None:
    ends = [load_file(trajectories / f"resumed-{rank}.safetensors") for rank in range(4)]
    whole = load_file(trajectories / "whole.safetensors")
    for end in ends:
        for name, expected in whole.items():
            torch.testing.assert_close(end[name], expected, rtol=1e-10, atol=1e-10)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [{k: v for k, v in json.loads(line).items() if k not in TIMES} for line in lines]


def flat(row: dict[str, Any]) -> dict[str, float]:
    """The figures of a line of metrics, of each model too."""
    found = {k: v for k, v in row.items() if isinstance(v, int | float)}
    for model in ("student", "teacher"):
        found |= {f"{model} {k}": v for k, v in row.get(model, {}).items()}
    return found


def assert_same_end(folder: Path, other: Path) -> None:
    """Up to the order of sums in float64."""
    rows, other_rows = read_metrics(folder), read_metrics(other)
    assert len(rows) == len(other_rows) == 6
    for row, expected in zip(rows, other_rows, strict=True):
        assert row.keys() == expected.keys()
        assert flat(row) == pytest.approx(flat(expected), rel=1e-10)
        assert row["method"] == expected["method"]
    for name in ("best", "student", "teacher"):
        found, expected = (load_file(f / f"{name}.safetensors") for f in (folder, other))
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
    assert (folder / "label_issues.csv").read_text() == (other / "label_issues.csv").read_text()
    assert not (folder / "checkpoints").exists()


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("alone") / "run"
    assert command([*TRAIN, "--out", str(folder)]) == 0
    return folder


def test_a_process_that_dies_is_named_and_torchrun_goes_on(tmp_path: Path, alone: Path) -> None:
    """Through iterations and resume: the folder that nobody named is found again."""
    done = launch(2, [TENTH_STEP, *TRAIN], tmp_path, restarts=1, WHO="1", WHAT="dies")
    assert done.returncode == 0, done.stderr[-3000:]
    assert own_lines(done.stderr) == [
        "mlnt: process 1 of 2 ended or does not answer; go on with: mlnt train --resume "
        "runs/points-001"
    ]
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["points-001"]
    assert done.stdout.count("run folder: runs/points-001") == 1
    assert_same_end(tmp_path / "runs" / "points-001", alone)
    for rank in range(2):  # else they might outlive the interpreter, and abort
        assert "gloo" not in (tmp_path / f"threads-{rank}").read_text()


def stop_and_go_on(processes: int, what: str, folder: Path) -> subprocess.CompletedProcess:
    done = launch(processes, [TENTH_STEP, *TRAIN, "--out", "run"], folder, WHAT=what)
    assert done.stderr.count("Traceback") == 1, "torchrun's own"
    # The tenth step is the first of the second epoch; they agree after its third and last.
    saved = RunFolder(folder / "run").checkpoints.load("1-mlnt")
    assert saved is not None
    assert (len(saved["progress"]["history"]), saved["steps"]["epoch"]["done"]) == (1, 3)
    assert done.stdout.count("go on with: mlnt train --resume run\n") == 1
    assert done.stderr.count("mlnt: stopping after this step; once more ends at once\n") == 1
    assert command(["train", "--resume", str(folder / "run")]) == 0
    return done


def test_a_signal_to_torchrun_stops_all_after_a_step(tmp_path: Path, alone: Path) -> None:
    done = stop_and_go_on(2, "SIGTERM", tmp_path)
    assert "stopped by SIGTERM; go on with" in done.stdout
    assert_same_end(tmp_path / "run", alone)


def test_mistakes_appear_once_and_all_end_with_2(tmp_path: Path) -> None:
    done = launch(2, ["-m", "mlnt", "train", "digits", "--rho", "50"], tmp_path)
    assert own_lines(done.stderr) == ["mlnt: rho must lie in [0, 1], got 50; did you mean 0.5?"]
    assert exit_codes(done) == {"2"}
    assert done.stdout == ""
    assert not (tmp_path / "runs").exists()


def test_different_data_are_refused_by_all() -> None:
    class Two(World):
        def gather_values(self, value: Any) -> list[Any]:
            return [value, "of other data"]

    _check_same_everywhere(mlnt.open_dataset("digits"), World())
    with pytest.raises(InputError, match="the processes have different data; give all of them"):
        _check_same_everywhere(mlnt.open_dataset("digits"), Two(size=2))


def test_a_group_of_the_users_own_is_named_as_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        with pytest.raises(InputError, match=r"has called .*init_process_group itself"):
            join()
    finally:
        dist.destroy_process_group()


@pytest.mark.slow
class TestEnds:
    def test_of_the_first_process_alone(self, tmp_path: Path, alone: Path) -> None:
        """Only the first looks at the folder; the others wait for it elsewhere."""
        done = launch(2, ["-m", "mlnt", *TRAIN, "--out", str(alone)], tmp_path)
        assert own_lines(done.stderr) == [
            f"mlnt: {alone} already holds a run; choose another folder with --out"
        ]
        assert exit_codes(done) == {"2"}

    def test_a_folder_of_others_is_not_gone_on_with_after_a_restart(
        self, tmp_path: Path, alone: Path
    ) -> None:
        before = (alone / "metrics.jsonl").read_bytes()
        done = launch(2, ["-m", "mlnt", *TRAIN, "--out", str(alone)], tmp_path, restarts=1)
        assert len(own_lines(done.stderr)) == 2, "once for each start"
        assert done.returncode != 0
        assert (alone / "metrics.jsonl").read_bytes() == before

    @pytest.mark.parametrize("who", ["0", "3"])
    def test_four_that_lose_one_are_gone_on_with_by_one(
        self, tmp_path: Path, alone: Path, who: str
    ) -> None:
        done = launch(4, [TENTH_STEP, *TRAIN], tmp_path, WHO=who, WHAT="dies")
        assert done.returncode != 0
        (line,) = own_lines(done.stderr)
        assert line.startswith(f"mlnt: process {who} of 4 ended or does not answer; go on with")
        folder = tmp_path / "runs" / "points-001"
        assert command(["train", "--resume", str(folder)]) == 0
        assert_same_end(folder, alone)

    def test_one_that_was_stopped_is_gone_on_with_by_four(
        self, tmp_path: Path, alone: Path
    ) -> None:
        folder = tmp_path / "run"
        launch(1, [TENTH_STEP, *TRAIN, "--out", str(folder)], tmp_path, WHAT="dies")
        assert (folder / "checkpoints").is_dir()
        done = launch(4, ["-m", "mlnt", "train", "--resume", str(folder)], tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert_same_end(folder, alone)

    @pytest.mark.parametrize("what", ["Ctrl-C", "SIGTERM to all", "SIGTERM to it alone"])
    def test_four_that_are_stopped_are_gone_on_with_by_one(
        self, tmp_path: Path, alone: Path, what: str
    ) -> None:
        """A scheduler signals torchrun and its processes, and torchrun the processes again."""
        done = stop_and_go_on(4, what, tmp_path)
        assert f"stopped by {'SIGINT' if what == 'Ctrl-C' else 'SIGTERM'}; go on" in done.stdout
        assert_same_end(tmp_path / "run", alone)

    def test_other_commands_say_no(self, tmp_path: Path, alone: Path) -> None:
        done = launch(2, ["-m", "mlnt", "issues", str(alone)], tmp_path)
        assert own_lines(done.stderr) == [
            "mlnt: torchrun is for `mlnt train` alone; start other commands without it"
        ]
        assert exit_codes(done) == {"2"}

    @pytest.mark.parametrize(("processes", "sets"), [(4, 3), (4, 1)])
    def test_the_whole_flow(self, tmp_path: Path, processes: int, sets: int) -> None:
        """A world of more processes than sets, through iterations."""
        options = [*TRAIN, "--sets", str(sets)]
        done = launch(processes, ["-m", "mlnt", *options, "--out", "many"], tmp_path)
        assert done.returncode == 0, done.stderr[-3000:]
        assert command([*options, "--out", str(tmp_path / "one")]) == 0
        assert_same_end(tmp_path / "many", tmp_path / "one")
