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

from mlnt.gallery import GALLERY, read_gallery
from mlnt.report.charts import STYLES, draw_curves
from mlnt.report.findings import read_findings
from mlnt.report.page import render
from mlnt.runs import CONFIG, CURVES, LABEL_ISSUES, REPORT, SUMMARY, RunFolder

__all__ = ["STYLES", "draw_curves", "write_report"]


def write_report(run: RunFolder) -> None:
    """Make curves.png and report.html from what the run folder holds."""
    with run.expect_intact():
        config, summary = run.read_json(CONFIG), run.read_json(SUMMARY)
        findings = read_findings(
            run.file(LABEL_ISSUES), config["data"]["classes"], summary["label_issues"]["flagged"]
        )
        metrics, gallery = run.read_metrics(), read_gallery(run.file(GALLERY))
        page = render(config, summary, metrics, findings, gallery).encode()
    # Now the figures are known to be some: what goes wrong here is no matter of the files.
    picture = io.BytesIO()
    draw_curves(metrics).savefig(picture, format="png", dpi=150)
    run.write(CURVES, lambda path: path.write_bytes(picture.getvalue()))
    run.write(REPORT, lambda path: path.write_bytes(page))
