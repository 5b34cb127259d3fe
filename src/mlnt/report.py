"""Run folder -> curves.png and one self-contained report.html."""

import base64
import io
from typing import Any

import jinja2
from matplotlib.figure import Figure

from mlnt.label_issues import read_label_issues
from mlnt.runs import CONFIG, CURVES, LABEL_ISSUES, REPORT, SUMMARY, RunFolder

SHOWN_ISSUES = 100

# Colour-blind safe (Okabe and Ito), told apart by line style as well.
STYLES = {
    "cross_entropy student": {"color": "#000000", "linestyle": ":"},
    "mlnt student": {"color": "#E69F00", "linestyle": "--"},
    "mlnt teacher": {"color": "#0072B2", "linestyle": "-"},
}


def write_report(run: RunFolder) -> None:
    """Make curves.png and report.html from what the run folder holds."""
    with run.expect_intact():
        picture = io.BytesIO()
        draw_curves(run.read_metrics()).savefig(picture, format="png", dpi=150)
        page = render_report(run, picture.getvalue())
    run.write(CURVES, lambda path: path.write_bytes(picture.getvalue()))
    run.write_text(REPORT, page)


def draw_curves(rows: list[dict[str, Any]]) -> Figure:
    """Test (else validation) accuracy by epoch: a panel per iteration, cross entropy in each."""
    part = "test" if any("test" in row.get("student", {}) for row in rows) else "validation"
    iterations = sorted({row["iteration"] for row in rows if row["iteration"] > 0}) or [0]
    figure = Figure(figsize=(3.2 * len(iterations) + 1.2, 3.6), layout="constrained")
    axes = figure.subplots(1, len(iterations), sharey=True, squeeze=False)[0]
    baseline = [row for row in rows if row["method"] == "cross_entropy"]
    for axis, iteration in zip(axes, iterations, strict=True):
        _draw(axis, baseline, "student", part, "cross entropy", "cross_entropy student")
        if iteration > 0:
            own = [row for row in rows if row["iteration"] == iteration]
            for model in ("student", "teacher"):
                name = f"{own[0]['method'].replace('_', ' ')} {model}"
                _draw(axis, own, model, part, name, f"mlnt {model}")
            axis.set_title(f"iteration {iteration}")
        axis.set_xlabel("epoch")
        axis.grid(alpha=0.3)
    axes[0].set_ylabel(f"{part} accuracy, %")
    lines, names = axes[-1].get_legend_handles_labels()
    figure.legend(lines, names, loc="outside upper center", ncols=len(names), frameon=False)
    return figure


def _draw(
    axis: Any, rows: list[dict[str, Any]], model: str, part: str, label: str, style: str
) -> None:
    points = [(row["epoch"], row[model][part]) for row in rows if part in row.get(model, {})]
    if points:
        axis.plot(*zip(*points, strict=True), label=label, **STYLES[style])


def render_report(run: RunFolder, curves_png: bytes) -> str:
    config, summary = run.read_json(CONFIG), run.read_json(SUMMARY)
    issues = read_label_issues(run.file(LABEL_ISSUES))
    flagged = summary["labels_flagged"]
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlnt", "."),
        autoescape=True,  # names and texts come from the data
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["number"] = _number
    environment.filters["probability"] = lambda text: f"{float(text):.3f}"
    template = environment.get_template("report.html.jinja")
    try:
        return template.render(
            config=config,
            summary=summary,
            issues=issues[: min(flagged, SHOWN_ISSUES)],
            flagged=flagged,
            total=len(issues),
            has_text=any(row["sample"] for row in issues[:SHOWN_ISSUES]),
            curves=base64.b64encode(curves_png).decode("ascii"),
        )
    except jinja2.UndefinedError as error:
        raise KeyError(str(error)) from None  # a figure the files should hold


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f}"
