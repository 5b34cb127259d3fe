"""report.html: one file with its style, its script and its data inside.

What comes from the data is escaped by jinja, or by `embedded` where the script reads it. The policy
in the head names the one style and the one script by their hashes and allows no request at all, so
that even a text that slipped through could do nothing.
"""

import base64
import functools
import hashlib
import json
from collections.abc import Sequence
from importlib import resources
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from mlnt.config import fields_by_name
from mlnt.report import charts, words
from mlnt.report.download import file_name, label_cells, label_header, next_training, packed
from mlnt.report.findings import Findings, OfClass
from mlnt.report.matrix import make_matrix, short_name
from mlnt.training import model_name

BINS = 40
MOST_ROWS = 30  # in the table of classes
SHOWN_CONFUSIONS, SAID_CONFUSIONS = 6, 3


def render(
    config: dict[str, Any],
    summary: dict[str, Any],
    metrics: list[dict[str, Any]],
    findings: Findings,
    gallery: dict[int, dict[str, Any]],
) -> str:
    """The whole page."""
    here = resources.files("mlnt.report")
    style, script = (
        here.joinpath(name).read_text(encoding="utf-8") for name in ("page.css", "page.js")
    )
    data = config["data"]
    file, remark = file_name(data["name"]), label_cells(findings.classes)[1]
    by_class = findings.by_class()
    panels = charts.curves(metrics)
    try:
        return _template().render(
            policy=policy(style, script),
            style=Markup(style),
            script=Markup(script),
            embedded=embedded(review_data(config, findings, gallery, file)),
            config=config,
            summary=summary,
            chosen=words.chosen_row(summary),
            findings=findings,
            headline=words.headline(findings, summary),
            none_flagged=words.none_flagged(findings, summary),
            doubt=words.doubt(summary, config),
            confused=words.confused_most(findings),
            said_confusions=SAID_CONFUSIONS,
            confusions=findings.confusions()[:SHOWN_CONFUSIONS],
            by_class=shown_classes(by_class),
            hardly_learnt=summary.get("label_issues", {}).get("hardly_learnt", []),
            accuracy_of=dict(
                zip(findings.classes, summary.get("test_by_class") or (), strict=False)
            ),
            matrix=make_matrix(findings, summary.get("label_issues", {}).get("transition")),
            histogram=charts.histogram(findings.histogram(BINS), findings.threshold),
            drawings=charts.drawings(panels),
            panels=panels,
            chart=charts,
            part=charts.measured_part(metrics),
            together=words.epochs_together(summary),
            keys=class_keys(findings.classes),
            keys_are_names=keys_are_names(findings.classes),
            source=config.get("source", {}),
            file=file,
            remark=remark,
            command=next_training(config.get("source", {}), file),
            settings=_settings(config["settings"], config.get("reasons", {})),
            model_name=model_name,
        )
    except jinja2.UndefinedError as error:
        raise KeyError(str(error)) from None  # a figure the files should hold


@functools.cache
def _template() -> jinja2.Template:
    """Compiled once: it takes longer than a page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("mlnt.report", "."),
        autoescape=True,  # names and texts come from the data
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters.update(
        accuracy=lambda value: "–" if value is None else f"{value:.1f}",
        count=lambda value: f"{value:,}",
        percent=words.percent,
        times=words.times,
        duration=words.duration,
        short_name=short_name,
    )
    return environment.get_template("page.html.jinja")


def policy(style: str, script: str) -> str:
    """The Content-Security-Policy: no request of any kind, no other style or script."""
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
        for text in (style, script)
    ]
    return (
        f"default-src 'none'; img-src data:; style-src {hashes[0]}; script-src {hashes[1]}; "
        "base-uri 'none'; form-action 'none'"
    )


def embedded(value: Any) -> Markup:
    """JSON that can stand inside a script element, whatever texts it holds."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)  # ASCII alone
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Markup(text)


def review_data(
    config: dict[str, Any], findings: Findings, gallery: dict[int, dict[str, Any]], file: str
) -> dict[str, Any]:
    """What page.js needs: all labels for the download, and the samples to be looked at."""
    rows_N, labels_N = findings.labels_in_order()
    has_gaps = int(rows_N[-1]) >= len(rows_N)  # rows without a label
    samples = []
    for suspect in findings.suspects:
        shown = gallery.get(suspect.index, {})
        sample = {
            "index": suspect.index,
            "given": suspect.given,
            "suggested": suspect.suggested,
            "pGiven": round(suspect.given_probability, 4),
            "pSuggested": round(suspect.suggested_probability, 4),
        }
        text = shown.get("text", suspect.text)
        extra = {"text": text, "picture": shown.get("picture"), "row": shown.get("row")}
        sample.update({name: value for name, value in extra.items() if value})
        if shown.get("more"):
            sample["more"] = shown["more"]
        samples.append(sample)
    return {
        "run": _fingerprint(config, findings, labels_N),
        "classes": findings.classes,
        "keys": class_keys(findings.classes),
        "labels": packed(labels_N, len(findings.classes)),
        "rows": packed(rows_N, int(rows_N[-1]) + 1) if has_gaps else None,
        "total": findings.total,
        "cells": label_cells(findings.classes)[0],
        "header": label_header(config["data"].get("label_column")),
        "file": file,
        "samples": samples,
    }


def _fingerprint(config: dict[str, Any], findings: Findings, labels_N: np.ndarray) -> str:
    """Progress is kept under it: the same for the same suggestions on the same labels."""
    digest = hashlib.sha256(json.dumps([config["data"]["name"], findings.classes]).encode())
    for values in (labels_N, findings.index_N, findings.suggested_N):
        digest.update(values.astype("<i8").tobytes())
    return digest.hexdigest()[:32]


def class_keys(classes: Sequence[str]) -> dict[str, int]:
    """Which key chooses which class: its own name if all are digits, else 1 to 9 and 0."""
    if keys_are_names(classes):
        return {name: number for number, name in enumerate(classes)}
    return {str((number + 1) % 10): number for number in range(min(10, len(classes)))}


def keys_are_names(classes: Sequence[str]) -> bool:
    return all(len(name) == 1 and name in "0123456789" for name in classes)


def shown_classes(rows: list[OfClass]) -> list[OfClass]:
    """All classes, or of very many those with the most flagged labels."""
    if len(rows) <= MOST_ROWS:
        return rows
    return sorted(rows, key=lambda row: -row.flagged)[:MOST_ROWS]


def _settings(values: dict[str, Any], reasons: dict[str, str]) -> list[tuple[str, Any, str]]:
    """Name, value and meaning, or why the data made it that value."""
    meanings = {name: field.metadata["meaning"] for name, field in fields_by_name().items()}
    meanings |= {name: f"{meanings.get(name, '')}; {why}" for name, why in reasons.items()}
    return [(name, value, meanings.get(name, "")) for name, value in values.items()]
