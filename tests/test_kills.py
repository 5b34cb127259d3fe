"""A process that is killed at any moment loses nothing but time: see kills.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import mlnt

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def kill(times: int) -> list[dict]:
    """One line for each kill."""
    script = Path(__file__).with_name("kills.py")
    environment = {**os.environ, "PYTHONPATH": str(Path(mlnt.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, str(script), str(times)], env=environment, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    print(done.stdout, done.stderr)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_ten_kills() -> None:
    rows = kill(10)
    assert [row["equal"] for row in rows] == [True] * 10


@pytest.mark.soak
def test_a_hundred_kills() -> None:
    rows = kill(100)
    assert [row["equal"] for row in rows] == [True] * 100
    assert len({row["epochs_before"] for row in rows}) >= 5, "all over the training"
