"""A sheet of images that the mentor filtered out, with the given label and the mentor's own."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from mlnt.data.dataset import Dataset
from mlnt.data.encoding import ImageEncoder
from mlnt.data.sources import open_dataset
from mlnt.data.streaming import batches
from mlnt.errors import InputError
from mlnt.filtered import read_filtered
from mlnt.gallery import as_picture
from mlnt.reproduce.cells import Cell
from mlnt.runs import FILTERED, RunFolder

if TYPE_CHECKING:  # slow to import, and seldom wanted
    from matplotlib.figure import Figure

COLUMNS, ROWS = 6, 4
SHEET, DPI = "filtered.png", 90  # a small picture beside the run's figures
# Colour-blind safe (Okabe and Ito), and the words say which is which.
GIVEN, MENTOR, TRUTH = "#D55E00", "#0072B2", "#555555"


def draw_filtered(cell: Cell, title: str) -> "Figure":
    """From the run folder's filtered.csv and the data, spread evenly by the label's probability."""
    from matplotlib.figure import Figure

    filtered = read_filtered(cell.folder / FILTERED)
    chosen = spread_evenly(filtered, COLUMNS * ROWS)
    dataset = open_dataset(**_for_opening(cell.data))
    rows = max(1, math.ceil(len(chosen) / COLUMNS))
    height = 2.05 * rows + 0.35
    figure = Figure(figsize=(1.55 * COLUMNS, height))
    axes = figure.subplots(rows, COLUMNS, squeeze=False).flatten()
    figure.subplots_adjust(0.01, 0.55 / height, 0.99, 1 - 0.4 / height, 0.1, 0.42)
    for axis in axes:
        axis.axis("off")
    with RunFolder(cell.folder).expect_intact():
        indices = [int(issue["index"]) for issue in chosen]
        pictures = to_pictures(dataset, indices)
        true = [_true_class(dataset, cell, index) for index in indices]
        words = [_words(*of_issue) for of_issue in zip(chosen, true, strict=True)]
    for axis, picture, lines in zip(axes, pictures, words, strict=False):
        _draw_issue(axis, picture, lines)
    heading = f"{title}: {len(filtered):,} filtered out, the least probable labels first"
    figure.suptitle(heading, fontsize=10, y=1 - 0.1 / height)
    return figure


def write_sheet(cell: Cell, title: str) -> Path | None:
    """The sheet in the cell's own folder; None where the mentor filtered nothing."""
    path = cell.folder / SHEET
    if not path.exists():
        if not (cell.folder / FILTERED).is_file() or not read_filtered(cell.folder / FILTERED):
            return None
        figure = draw_filtered(cell, title)
        RunFolder(cell.folder).write(SHEET, lambda aside: figure.savefig(aside, dpi=DPI))
    return path


def spread_evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, first and last included."""
    if len(items) <= most:
        return list(items)
    return [items[round(place)] for place in np.linspace(0, len(items) - 1, most)]


def _for_opening(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `mlnt.train` that name the data, as `open_dataset` calls them."""
    names = {"data": "source", "validation_data": "validation", "test_data": "test"}
    return {names.get(name, name): value for name, value in arguments.items()}


def _true_class(dataset: Dataset, cell: Cell, index: int) -> str | None:
    """Where noise was put in, the labels as they came are the true ones."""
    split = dataset.train
    true_N = split.labels if cell.settings.noise != "none" else split.true_labels
    return None if true_N is None else dataset.classes[int(true_N[index])]


def _words(issue: Mapping[str, str], true: str | None) -> list[tuple[str, str]]:
    """The lines below a picture, and their colours."""
    given, mentor = (
        f"{issue[name]} ({float(issue[f'{name}_probability']):.2f})" for name in ("given", "mentor")
    )
    lines = [(f"given: {given}", GIVEN), (f"mentor: {mentor}", MENTOR)]
    if true is not None:
        lines.append((f"true: {true}", TRUTH))
    return lines


def _draw_issue(axis: Any, picture: np.ndarray, lines: Sequence[tuple[str, str]]) -> None:
    axis.imshow(picture, cmap="gray", vmin=0, vmax=255, interpolation="nearest")
    for place, (text, colour) in enumerate(lines):
        plain = text.replace("$", r"\$")  # to matplotlib they would be mathematics
        axis.annotate(
            plain, (0.5, 0), (0, -3 - 11 * place), "axes fraction", "offset points",
            color=colour, fontsize=7.5, ha="center", va="top",
        )  # fmt: skip


def to_pictures(dataset: Dataset, indices: Sequence[int]) -> list[np.ndarray]:
    """Bytes [H, W] or [H, W, 3] each, as the report shows them."""
    encoder = dataset.encoder
    if not isinstance(encoder, ImageEncoder):
        raise InputError(f"{dataset.name} holds no images; there is nothing to show on a sheet")
    if not indices:
        return []
    inputs = dataset.train.inputs[torch.tensor(indices)]
    encoded_NCHW = torch.cat(list(batches(inputs, len(indices))))
    return [np.asarray(as_picture(pixels)) for pixels in encoder.show(encoded_NCHW)]
