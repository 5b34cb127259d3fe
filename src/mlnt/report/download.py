"""How the page writes the corrected labels, so that `mlnt train --labels` reads them back exactly.

A class name may be one that a spreadsheet takes for a formula, and the quote mark that protects it
elsewhere would make it another name here. Such classes are written as numbers, which training takes
for classes that have names.
"""

import base64
import csv
import io
import re
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np

from mlnt.texts import harmless


def label_cells(classes: Sequence[str]) -> tuple[list[str], str]:
    """What stands in a cell for each class, and a remark for the user where it is not its name."""
    if all(harmless(name) == name == name.strip() for name in classes):
        return [_cell(name) for name in classes], ""
    numbers = [str(number) for number in range(len(classes))]
    if set(numbers).isdisjoint(classes):
        remark = (
            "Some class names are not safe in a spreadsheet, so the file holds the numbers of the "
            "classes, counted from 0 in the order of config.json; training takes them."
        )
        return numbers, remark
    # Numbers would be taken for the classes that are called so.
    remark = (
        "Some class names are not safe in a spreadsheet: a formula in them would be carried out. "
        "Do not open the file in one."
    )
    return [_cell(name) for name in classes], remark


def label_header(label_column: str | None) -> str:
    """Training looks for the column that the user named, or else for `label`."""
    label = label_column or "label"
    return f"{_cell('row' if label == 'index' else 'index')},{_cell(label)}"


def file_name(data_name: str) -> str:
    """Of the data, less what a file system or a shell might mind."""
    return f"{re.sub(r'[^A-Za-z0-9_-]+', '-', data_name).strip('-')[:60] or 'data'}-corrected.csv"


def packed(numbers_N: np.ndarray, count: int) -> dict[str, Any]:
    """Whole numbers below `count`, little-endian in 1, 2 or 4 bytes each, in base64."""
    size = 1 if count <= 2**8 else 2 if count <= 2**16 else 4
    raw = numbers_N.astype(f"<u{size}").tobytes()
    return {"size": size, "base64": base64.b64encode(raw).decode("ascii")}


def next_training(source: dict[str, Any], file: str) -> str:
    """How to train again with the corrected labels."""
    given = {name: value for name, value in source.items() if value is not None}
    data = given.pop("data", None)
    if data is None:
        return f"mlnt.train(data, labels={file!r})"
    options = {**given, "labels": file}
    words = ["mlnt", "train", data]
    for name, value in options.items():
        words += [f"--{name.replace('_', '-')}", value]
    return shlex.join(words)


def _cell(text: str) -> str:
    """As the csv module writes it: in quotes where it must be."""
    file = io.StringIO()
    csv.writer(file, lineterminator="").writerow([text])
    return file.getvalue()
