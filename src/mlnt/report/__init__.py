"""Run folder -> curves.png and one self-contained report.html, which asks nothing of the network.

    findings.py   what label_issues.csv says: by class, by pair of classes, by score
    words.py      the headline and other sentences
    matrix.py     which classes were mixed up
    charts.py     curves and histogram as coordinates; curves.png
    download.py   how the page writes the corrected labels, so that training reads them back
    page.py       all of it in page.html.jinja, with page.css and page.js inside

The samples themselves come from gallery.jsonl, where the run left one.
"""

import io
from typing import Any

from mlnt.gallery import GALLERY, read_gallery
from mlnt.report.charts import STYLES, draw_curves
from mlnt.report.findings import read_findings
from mlnt.report.page import render
from mlnt.runs import CONFIG, CURVES, LABEL_ISSUES, REPORT, SUMMARY, RunFolder, plain

__all__ = ["STYLES", "draw_curves", "write_report"]


def write_report(run: RunFolder, summary: dict[str, Any] | None = None) -> None:
    """Make curves.png and report.html from what the run folder holds.

    `summary` is what will be its summary.json, where that is still to be written.
    """
    with run.expect_intact():
        config = run.read_json(CONFIG)
        summary = run.read_json(SUMMARY) if summary is None else plain(summary)
        findings = read_findings(
            run.file(LABEL_ISSUES), config["data"]["classes"], summary["label_issues"]["flagged"]
        )
        metrics, gallery = run.read_metrics(), read_gallery(run.file(GALLERY))
        picture = io.BytesIO()
        draw_curves(metrics).savefig(picture, format="png", dpi=150)
        page = render(config, summary, metrics, findings, gallery)
        run.write(CURVES, lambda path: path.write_bytes(picture.getvalue()))
        run.write_text(REPORT, page)
