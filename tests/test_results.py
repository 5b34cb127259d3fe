"""What the README claims of accuracy, measured again. Minutes: run by make test-slow."""

from pathlib import Path

import pytest

from mlnt.reproduce import Row, run_experiment


@pytest.mark.slow
def test_digits_under_70_percent_noise(tmp_path: Path) -> None:
    table = run_experiment("digits", 5, None, tmp_path, device="cpu")

    def row(method: str, model: str, iteration: int) -> Row:
        wanted = (method, model, iteration)
        return next(r for r in table.rows if (r.method, r.model, r.iteration) == wanted)

    baseline, teacher = row("cross_entropy", "student", 0), row("mlnt", "teacher", 3)
    assert teacher.best.mean - baseline.best.mean >= 8
    assert teacher.best.mean - baseline.peak.mean >= 8, "even against the best epoch by hindsight"
    assert teacher.best.mean - baseline.last.mean >= 25
