"""What `mlnt reproduce` makes of finished cells: tables and figures beside the paper's own."""

import dataclasses
import io
import json
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from mlnt.reproduce import EXPERIMENTS, ResultTable, Row, Spread, run_experiment
from mlnt.reproduce.cells import Cell, choose, plan
from mlnt.reproduce.experiments import ASYMMETRIC, METHODS, REPRESENTATIVE, SYMMETRIC, Line
from mlnt.reproduce.figures import draw_progress, draw_sweep, save_figure
from mlnt.reproduce.paper import Published, find_published, published
from mlnt.reproduce.places import Place, find_place
from mlnt.reproduce.results import collect
from mlnt.reproduce.sheet import spread_evenly

MODELS = [(0, "student")] + [(i, model) for i in (1, 2, 3) for model in ("student", "teacher")]


def test_paper_figures_by_hand() -> None:
    figures = published()
    mlnt = ("table1", "mlnt", "teacher", 3, "symmetric:0.5", "")
    assert figures[mlnt] == Published(90.65, 0.09)
    assert figures["table1", "cross_entropy", "student", 0, "symmetric:0.9", ""].value == 45.85
    assert figures["table1", "mlnt", "student", 2, "symmetric:0.7", ""] == Published(86.28, 0.19)
    assert figures["table2", "mlnt", "student", 3, "asymmetric:0.4", ""] == Published(91.87, 0.12)
    assert figures["table2", "mlnt", "teacher", 1, "asymmetric:0.5", ""] == Published(78.44, 0.45)
    assert figures["table2", "cnn_crf", "student", 1, "asymmetric:0.2", ""] == Published(91.5)
    assert figures["table3", "mlnt", "student", 1, "symmetric:0.7", "order=2"] == Published(82.05)
    assert figures["table4", "mlnt", "teacher", 3, "real", ""] == Published(73.47)


def test_paper_figures_are_complete() -> None:
    own = [("cross_entropy", "student", 0)]
    own += [("mlnt", model, i) for i in (1, 2, 3) for model in ("student", "teacher")]
    quoted = [("cross_entropy_quoted", "student", 0), ("joint_optimization", "student", 2)]
    more = [(method, "student", 1) for method in ("forward_true", "cnn_crf")]
    expected = {("table1", *key, noise, "") for key in own + quoted for noise in SYMMETRIC}
    expected |= {("table2", *k, noise, "") for k in own + quoted + more for noise in ASYMMETRIC}
    expected |= {
        ("table3", "mlnt", "student", 1, noise, f"order={order}")
        for order in (1, 2)
        for noise in REPRESENTATIVE
    }
    expected |= {("table4", *k, "real", "") for k in [*own, *quoted, ("forward", "student", 1)]}
    assert set(published()) == expected
    for key, figure in published().items():
        with_error = key[0] in ("table1", "table2") and key[1] in ("mlnt", "cross_entropy")
        assert (figure.error is not None) == with_error


def test_a_sweep_meets_the_tables_at_one_value() -> None:
    sweep = EXPERIMENTS["sweep-m"]
    at_10, at_5 = (Line("mlnt", "student", 1, f"sets={m}") for m in (10, 5))
    assert find_published(sweep, at_10, "asymmetric:0.2") == Published(91.84, 0.10)
    assert find_published(sweep, at_5, "asymmetric:0.2") is None
    assert find_published(sweep, Line("cross_entropy", "student", 0), "symmetric:0.3") is not None


# Tables


def finished(cell: Cell, test: Sequence[float]) -> None:
    """A run folder as if the cell had been trained: `test` are the figures of MODELS."""
    cell.folder.mkdir(parents=True)
    settings = dataclasses.asdict(cell.settings)
    (cell.folder / "config.json").write_text(json.dumps({"settings": settings}))
    models = [
        {"method": "mlnt" if iteration else "cross_entropy", "iteration": iteration,
         "model": model, "best": value, "last": value - 10, "peak": value + 1}
        for (iteration, model), value in zip(MODELS, test, strict=False)
    ]  # fmt: skip
    noise = {"asked": cell.noise, "wrong_in_train": 20.0}
    (cell.folder / "summary.json").write_text(json.dumps({"models": models, "noise": noise}))


def test_differences_from_the_paper_by_hand(tmp_path: Path) -> None:
    experiment = dataclasses.replace(EXPERIMENTS["table2"], methods=("cross_entropy", "mlnt"))
    place = Place("CIFAR-10", "cifar10", ASYMMETRIC, lambda noise: {"data": "x", "noise": noise})
    cells = plan(experiment, place, 3, tmp_path, {})
    at_40 = [c for c in cells if c.method == "mlnt" and c.noise == "asymmetric:0.4"]
    finished(at_40[0], [86, 88, 89, 90, 91, 92, 92])
    finished(at_40[1], [87, 88, 89, 90, 91, 92, 93])
    rows = collect(experiment, list(experiment.lines(3)), ASYMMETRIC, cells)
    assert len(rows) == len(MODELS) * len(ASYMMETRIC)
    row = next(r for r in rows if (r.model, r.iteration, r.n) == ("teacher", 3, 2))
    # 92 and 93: mean 92.5, standard deviation 1 / √2, standard error 0.5; the paper has 92.30.
    assert (row.best.mean, row.best.error) == (92.5, pytest.approx(0.5))
    assert row.difference == pytest.approx(0.20)
    assert (row.last.mean, row.peak.mean, row.wrong.mean) == (82.5, 93.5, 20.0)
    table = ResultTable("Table 2", "CIFAR-10", tuple(rows))
    line = next(line for line in table.to_csv().splitlines() if ",teacher,3,asymmetric:0.4" in line)
    assert line == (
        "mlnt,teacher,3,asymmetric:0.4,2,92.5000,0.5000,82.5000,0.5000,92.3,0.2000,0.1,,"
        "CIFAR-10,20.0000,93.5000,0.5000"
    )
    baseline = next(r for r in rows if r.method == "cross_entropy" and r.n)
    assert baseline.best.values == (86, 87), "from the cells of mlnt"


def full_table(n: int) -> ResultTable:
    """Table 1 with every method."""
    experiment = EXPERIMENTS["table1"]
    values = Spread(tuple(80.0 + i for i in range(n)))
    rows = [
        Row(line.method, line.model, line.iteration, noise, "", values, values, values, values,
            find_published(experiment, line, noise))
        for line in experiment.lines(3)
        for noise in SYMMETRIC
    ]  # fmt: skip
    return ResultTable(experiment.title, "CIFAR-10", tuple(rows))


@pytest.mark.parametrize("n", [0, 1, 5])
def test_the_full_table_fits_into_100_columns(n: int) -> None:
    table, printed = full_table(n), io.StringIO()
    Console(width=100, file=printed).print(table.to_rich())
    text = printed.getvalue()
    assert "…" not in text
    for method in METHODS:
        assert method.partition("_")[0] in text.lower().replace("-", "_")
    lines = [line for line in table.to_markdown().splitlines() if line.startswith("|")]
    assert max(map(len, lines)) <= 112
    assert ("82.00±0.71" in text) == (n == 5)
    assert "91.84" in text
    assert ("last epoch" in text) == (n > 0)


# Figures


def check_pictures(paths: Sequence[Path]) -> None:
    svg, png = paths
    assert (svg.suffix, png.suffix) == (".svg", ".png")
    assert ElementTree.parse(svg).getroot().tag.endswith("svg")
    with Image.open(png) as picture:
        picture.load()
        assert min(picture.size) > 300


def test_progress_is_drawn_the_same_twice(tmp_path: Path) -> None:
    experiment = EXPERIMENTS["progress"]
    place = find_place("progress", experiment, Path("digits"), fast=True)
    cells = [c for c in plan(experiment, place, 2, tmp_path, {}) if c.method == "mlnt"]
    for cell in cells:
        finished(cell, [80, 81, 82])
        rows = [
            {"method": method, "iteration": iteration, "epoch": epoch, "train": 50.0 + epoch,
             "student": {"test": 70.0 + epoch}, "teacher": {"test": 75.0 + epoch}}
            for method, iteration in (("cross_entropy", 0), ("mlnt", 1))
            for epoch in (1, 2, 3)
        ]  # fmt: skip
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (cell.folder / "metrics.jsonl").write_text(text)
    paths = save_figure(draw_progress(cells, "progress"), tmp_path / "progress")
    check_pictures(paths)
    before = [path.read_bytes() for path in paths]
    save_figure(draw_progress(cells, "progress"), tmp_path / "progress")
    assert [path.read_bytes() for path in paths] == before


@pytest.mark.parametrize("what", ["sweep-m", "sweep-rho", "sweep-tau"])
def test_sweeps_are_drawn(what: str, tmp_path: Path) -> None:
    experiment = EXPERIMENTS[what]
    place = find_place(what, experiment, Path("digits"), fast=True)
    cells = choose(plan(experiment, place, 2, tmp_path, {}), None)
    for cell in (cell for cell in cells if cell.seed == 0):
        finished(cell, [80, 81, 82, 83, 84])
    lines = list(experiment.lines(cells[0].settings.iterations))
    rows = collect(experiment, lines, place.noises, cells)
    assert {row.n for row in rows} == {1}
    figure = draw_sweep(experiment, rows, experiment.title)
    shown = [text.get_text() for text in figure.legends[0].get_texts()]
    assert shown == [*(noise.replace(":", " ") for noise in experiment.noises), "the paper"]
    emptied = [
        row if row.noise == rows[0].noise else dataclasses.replace(row, best=Spread(()))
        for row in rows
    ]
    few = draw_sweep(experiment, emptied, experiment.title, with_paper=False)
    assert [text.get_text() for text in few.legends[0].get_texts()] == shown[:1], "has points"
    check_pictures(save_figure(figure, tmp_path / what))
    outcome = run_experiment(what, 2, Path("digits"), tmp_path, fast=True, minutes=0)
    assert (outcome.finished, outcome.asked) == (len(cells) // 2, len(cells))
    check_pictures(outcome.files[2:])


def test_spread_evenly_by_hand() -> None:
    assert spread_evenly(range(11), 3) == [0, 5, 10]
    assert spread_evenly([1, 2], 3) == [1, 2]
