"""The exactness figures: on a CPU those of the engines and of the precisions are real ones."""

import functools
import io
import json
from dataclasses import asdict, replace

import pytest
import torch
from rich.console import Console
from torch import nn

from mlnt.api import train
from mlnt.bench import exactness
from mlnt.bench.exactness import ExactnessResult, compare_accuracies, run_exactness
from mlnt.networks import SmallConv


def dense() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


@pytest.fixture(scope="module")
def result() -> ExactnessResult:
    with pytest.MonkeyPatch.context() as patch:
        # Convolutions in bfloat16 are slow on a CPU.
        patch.setattr(exactness, "train", functools.partial(train, model=dense))
        return run_exactness("cpu", seeds=1, epochs=1)


def test_folded_is_plain_in_float64(result: ExactnessResult) -> None:
    found = {(row["network"], row["order"]) for row in result.engines}
    assert found >= {(name, order) for name in exactness.NETWORKS for order in (1, 2)}
    for row in result.engines:
        assert row["precision"] == "float64"
        assert row["folded"], row
        assert row["error"] <= (1e-9 if row["network"] in exactness.NETWORKS else 1e-6), row
        assert row["cosine"] == pytest.approx(1)


def test_precisions_are_compared_by_accuracy(result: ExactnessResult) -> None:
    assert (result.precision["epochs"], result.precision["seeds"]) == (1, 1)
    assert [row["epoch"] for row in result.precision["rows"]] == ["best", "last"]
    for row in result.precision["rows"]:
        values = result.precision["values"][row["epoch"]]
        assert 0 < row["float32"] <= 100
        assert row["difference"] == values["bfloat16"][0] - values["float32"][0]
        assert row["difference_error"] is None
        assert row["within_noise"] is None


def test_figures_survive_json_and_are_shown(result: ExactnessResult) -> None:
    assert result.ok
    assert json.loads(result.to_json()) == {**asdict(result), "ok": True}
    assert result.graph["rows"] == []
    console = Console(width=80, record=True, file=io.StringIO())
    console.print(*result.to_rich())
    shown = console.export_text()
    for text in ("preact_resnet32", "only on a CUDA device", "1 epochs, n=1", "float64", "1e-09"):
        assert text in shown


def test_one_figure_beyond_its_limit_is_not_ok(result: ExactnessResult) -> None:
    engines = [*result.engines[1:], {**result.engines[0], "ok": False}]
    assert not replace(result, engines=engines).ok
    runs = {**result.graph, "rows": [{"ok": False}]}
    assert not replace(result, graph=runs).ok
    assert not replace(result, precision={"rows": [{"within_noise": False}]}).ok


def test_a_wrong_gradient_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = exactness.folded_meta_gradient

    def wrong(*arguments: object) -> tuple:
        loss, gradients = right(*arguments)  # type: ignore[arg-type]
        return loss, {**gradients, "0.weight": gradients["0.weight"] * (1 + 1e-8)}

    monkeypatch.setattr(exactness, "folded_meta_gradient", wrong)
    build = exactness.NETWORKS["vgg"]
    row = exactness.compare_gradients("vgg", build, "float64", 1, torch.device("cpu"))
    assert row["error"] == pytest.approx(1e-8)
    assert not row["ok"]


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_other_numbers_err_as_the_plain_loops_do(precision: str) -> None:
    build = exactness.NETWORKS["separable"]
    row = exactness.compare_gradients("separable", build, precision, 2, torch.device("cpu"))
    assert row["ok"]
    assert row["error"] < 2 * row["plain_error"]


def test_accuracies_by_hand() -> None:
    row = compare_accuracies([90.0, 92.0], [93.0, 93.0])
    assert (row["bfloat16"], row["bfloat16_error"]) == (91.0, pytest.approx(1.0))
    assert (row["float32"], row["float32_error"]) == (93.0, 0.0)
    assert (row["difference"], row["difference_error"]) == (-2.0, pytest.approx(1.0))
    # Student's t with two degrees of freedom is 4.303; the standard error 1 / √3.
    assert compare_accuracies([90.0, 91.0, 92.0], [93.4] * 3)["within_noise"]
    assert not compare_accuracies([90.0, 91.0, 92.0], [93.6] * 3)["within_noise"]
    assert compare_accuracies([93.4, 93.4], [93.0, 93.0])["within_noise"]  # half a point


def test_runs_on_a_cpu_agree_but_are_not_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exactness, "PreActResNet32", SmallConv)
    monkeypatch.setattr(exactness, "SIDE", 8)
    monkeypatch.setattr(exactness, "RATES", exactness.RATES[:12])
    cpu = torch.device("cpu")
    rows = exactness.compare_runs(cpu, "float64")
    assert [row["recorded_against"] for row in rows] == ["eager", "interrupted"]
    for row in rows:
        assert [row[n] for n in ("losses", "student", "teacher", "statistics")] == [0, 0, 0, 0]
        assert not row["recorded"]
        assert not row["ok"]
    whole = exactness.run_steps(cpu, "float32")
    monkeypatch.setattr(exactness, "RATES", exactness.RATES[::-1])
    other = exactness.run_steps(cpu, "float32")
    assert exactness.relative(other["student"], whole["student"]) > 1e-3  # it can differ
