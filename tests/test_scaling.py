"""The model of what a step costs with several processes, by hand; and the bench as it is run."""

import json
from pathlib import Path

import pytest

from mlnt.bench.scaling import (
    H200,
    SETS,
    SIZES,
    Cost,
    clothing1m,
    fit,
    last_words,
    run_scaling,
)

COST = Cost(class_ms=10, set_ms=5, latency_ms=1, ms_per_mb=2, parameters_mb=3, norms=2)


@pytest.mark.parametrize(
    ("processes", "expected"),
    [
        (1, 10 + 4 * 5),
        # class step and teacher of half the rows, the pass at θ, two sets; two sums of 3 MB;
        # 3 · 2 agreements and 2 gathers of logits
        (2, 8 / 2 + 2 + 2 * 5 + 2 * 7 + 8),
        # a grid of four columns: one set of half the rows; its inner gradient is a third sum;
        # forward and back at θ and at θ′ are 2 · 2 · 2 agreements; among eight a message takes 3
        (8, 8 / 8 + 2 / 2 + 5 / 2 + 3 * 9 + 8 * 3 + 8),
    ],
)
def test_cost_of_a_step(processes: int, expected: float) -> None:
    assert COST.step_ms(processes, sets=4, batch=32) == pytest.approx(expected)


def test_a_class_step_that_is_not_divided_agrees_on_nothing() -> None:
    assert COST.step_ms(2, 4, 32, divides_class=False) == pytest.approx(8 + 2 + 2 * 5 + 2 * 7)


def test_reading_counts_where_it_takes_longer() -> None:
    slow = Cost(10, 5, 1, 2, 3, 2, load_ms=100)
    assert slow.step_ms(1, 4, 32) == slow.step_ms(2, 4, 32) == 100


def test_fit() -> None:
    messages = [{str(size): 0.5 + size * 4e-6 for size in SIZES}]
    steps = {(1, 1): 12.0, (1, SETS): 12.0 + 3.0 * (SETS - 1), (2, 1): 100.0}
    cost = fit(steps, messages)
    assert cost.step_ms(2, 1, 128) == pytest.approx(100)
    assert (cost.set_ms, cost.class_ms) == (pytest.approx(3), pytest.approx(9))
    assert cost.latency_ms == pytest.approx(0.5, abs=1e-2)
    assert cost.ms_per_mb == pytest.approx(1, rel=1e-3)
    assert cost.norms == 3


def test_clothing1m() -> None:
    one, eight, many = clothing1m(H200)
    assert one.step_ms == pytest.approx(98.91)
    assert one.hours == pytest.approx(93_750 * (7.49 + 3 * 98.91) / 3_600_000, rel=1e-3)
    assert (eight.columns, many.columns) == (8, 8)
    assert one.hours > many.hours > eight.hours, "four pictures a process are too few"


def test_the_file_in_the_repository_is_of_this_form() -> None:
    path = Path(__file__).parent.parent / "benchmarks" / "cpu-scaling.json"
    found = json.loads(path.read_text("utf-8"))
    assert [row["gpus"] for row in found["clothing1m"]] == [1, 8, 64]
    expected = [row.hours for row in clothing1m(H200)]
    assert [row["hours"] for row in found["clothing1m"]] == pytest.approx(expected)
    assert {(p["processes"], p["sets"]) for p in found["points"]} >= {(1, 4), (2, 4), (4, 4)}


TORCHRUN_SAYS = (
    "W1115 20:52:59.939000 29958 torch/distributed/elastic/multiprocessing/api.py:1028] Sending\n"
    "E1115 20:53:00.110000 29958 torch/distributed/elastic/multiprocessing/api.py:1002] failed\n"
    "Traceback (most recent call last):\n"
    "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"
    "  exitcode  : -15 (pid: 30152)\nRoot Cause (first observed failure):\n"
    "  exitcode  : -9 (pid: 30151)\n"
)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("Traceback …\n  File\nMemoryError: no more\n\n", "MemoryError: no more"),
        ("", "a process ended with status -9"),
    ],
)
def test_the_words_of_the_process_that_failed(said: str, words: str) -> None:
    assert last_words(said + TORCHRUN_SAYS) == words
    assert last_words("") == ""


@pytest.mark.slow
def test_the_bench_itself() -> None:
    result = run_scaling(processes=(1, 2), rounds=1, steps=2)
    assert {(point.processes, point.sets) for point in result.points} == {
        (1, 1), (1, SETS), (2, 1), (2, SETS),
    }  # fmt: skip
    assert all(point.ms > 0 for point in result.points)
    assert len(list(result.to_rich())) == 3
