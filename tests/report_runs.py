"""Run folders made up for tests of the report, without any training."""

import atexit
import base64
import functools
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mlnt import __version__
from mlnt.config import make_settings
from mlnt.gallery import GALLERY
from mlnt.label_issues import LabelIssues, rank_labels, write_label_issues
from mlnt.noise_model import Judgement, judge
from mlnt.report import write_report
from mlnt.runs import CONFIG, LABEL_ISSUES, METRICS, SUMMARY, RunFolder

# Each would do harm, or break something, in a page that takes it for more than a text.
HOSTILE = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "</script><b>bold",
    "{{ 7 * 7 }}", "=1+1", "a,b\n\"c\" 'd' & &amp;", "🙂 \u2028\u2029", "שלום \u202e עולם",
    "x" * 300, "__proto__",
)  # fmt: skip


def make_issues(count: int, classes: int, wrong: float = 0.4, seed: int = 0) -> LabelIssues:
    """Labels of which a share is wrong, and a model that is nearly always right."""
    random = np.random.default_rng(seed)
    truth = random.integers(classes, size=count)
    given = np.where(random.random(count) < wrong, random.integers(classes, size=count), truth)
    logits = random.normal(size=(count, classes))
    logits[np.arange(count), truth] += 6
    labels_N, probabilities_NC = torch.tensor(given), torch.tensor(logits).softmax(dim=1)
    if classes <= 100:
        return rank_labels(labels_N, judge(labels_N, probabilities_NC))
    # The noise model takes its time with very many classes; a report does not ask how it came.
    wrong_N = 1 - probabilities_NC.gather(1, labels_N[:, None]).squeeze(1)
    share = float(wrong_N.mean())
    judgement = Judgement(probabilities_NC, wrong_N, torch.eye(classes), share, (share, share))
    return rank_labels(labels_N, judgement)


def make_run(
    folder: Path,
    classes: Sequence[str],
    count: int = 200,
    texts: Sequence[str] | None = None,
    gallery: Sequence[dict[str, Any]] = (),
    label_issues: dict[str, Any] | None = None,
    label_column: str | None = None,
) -> LabelIssues:
    """A finished run. `gallery` holds what is shown of the samples, most suspicious first."""
    folder.mkdir(parents=True, exist_ok=True)
    run, issues = RunFolder(folder), make_issues(count, len(classes))
    settings = vars(make_settings("digits"))
    data = {
        "name": "made up", "label_column": label_column, "text_column": None,
        "classes": list(classes), "samples": {"train": count - count // 10, "test": 50},
        "encoder": {"kind": "table"}, "fingerprint": "0" * 64,
    }  # fmt: skip
    noise = {"asked": "none"}
    run.write_json(
        CONFIG,
        {
            "mlnt": __version__, "torch": "2", "python": "3", "settings": settings,
            "own_model": "", "data": data, "noise": noise, "source": {"data": "made-up.csv"},
        },
    )  # fmt: skip
    row = {"method": "cross_entropy", "iteration": 0, "model": "student", "best_epoch": 3,
           "validation": 70.0, "best": 80.0, "last": 60.0, "seconds": 3.0}  # fmt: skip
    summary = {
        "models": [row, {**row, "method": "mlnt", "iteration": 1, "model": "teacher"}],
        "chosen": {"method": "mlnt", "iteration": 1, "model": "teacher", "best": 80.0},
        "filters": [], "seconds": 6.0, "noise": noise,
        "labels": count, "label_issues": label_issues or issues.in_words(classes),
    }  # fmt: skip
    run.write_json(SUMMARY, summary)
    for method, iteration, models in (("cross_entropy", 0, 1), ("mlnt", 1, 2)):
        for epoch in range(1, 6):
            found = {"validation": 60.0 + epoch, "test": 70.0 + 2 * epoch}
            seen = dict.fromkeys(("student", "teacher")[:models], found)
            run.append_metrics({"method": method, "iteration": iteration, "epoch": epoch, **seen})
    run.write(
        LABEL_ISSUES,
        lambda path: write_label_issues(path, issues, classes, [None] * count, texts),
    )
    if gallery:
        positions = issues.positions.tolist()
        lines = [
            json.dumps({"index": index, **entry})
            for index, entry in zip(positions, gallery, strict=False)
        ]
        run.write_text(GALLERY, "\n".join(lines) + "\n")
    assert run.file(METRICS).is_file()
    return issues


def leave_gaps(folder: Path) -> None:
    """As if a tenth of the rows had no label, which the run has left out: 9, 19 and so on."""
    path = folder / LABEL_ISSUES
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    cells = (line.split(",", 1) for line in lines)
    moved = [f"{int(index) + int(index) // 9},{rest}" for index, rest in cells]
    path.write_text("\n".join([header, *moved]) + "\n", encoding="utf-8")


@functools.cache
def large_report() -> Path:
    """Of a hundred thousand labels, with as much in the gallery as it may hold."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    noise = np.random.default_rng(0).bytes(6000)
    picture = f"data:image/jpeg;base64,{base64.b64encode(noise).decode()}"
    entries = [{"picture": picture, "text": f"folder/{i}.jpg"} for i in range(1000)]
    make_run(folder, [f"class {i}" for i in range(10)], 100_000, gallery=entries)
    write_report(RunFolder(folder))
    return folder / "report.html"
