"""filtered.csv: the samples that the last mentor left out of the class loss, and why."""

import csv
from pathlib import Path
from typing import Any

from mlnt.data.dataset import Dataset
from mlnt.errors import InputError
from mlnt.files import open_text
from mlnt.iterations import Kept
from mlnt.judging import seen
from mlnt.texts import harmless

COLUMNS = ("index", "given", "mentor", "given_probability", "mentor_probability")


def write_filtered(path: Path, kept: Kept, dataset: Dataset) -> None:
    """One row for each sample left out, the least probable label first."""
    labels_N = dataset.train.labels
    probabilities_NC = kept.probabilities.cpu()
    left_out_N = seen(dataset.train)
    left_out_N[kept.indices.cpu()] = False
    given_N = probabilities_NC.gather(1, labels_N[:, None]).squeeze(1)
    highest_N, mentor_N = probabilities_NC.max(dim=1)
    places = left_out_N.nonzero().squeeze(1)
    places = places[given_N[places].argsort(stable=True)]
    came_N = dataset.rows[: len(labels_N)]
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        columns = (
            values[places].tolist() for values in (came_N, labels_N, mentor_N, given_N, highest_N)
        )
        for index, given, mentor, *probabilities in zip(*columns, strict=True):
            writer.writerow(
                [
                    index,
                    harmless(dataset.classes[given]),
                    harmless(dataset.classes[mentor]),
                    *(f"{probability:.6f}" for probability in probabilities),
                ]
            )


def read_filtered(path: Path) -> list[dict[str, Any]]:
    try:
        with open_text(path) as file:
            rows = list(csv.DictReader(file))
    except FileNotFoundError:
        raise InputError(f"no {path}; the run had no mentor, or has not finished") from None
    except (OSError, UnicodeError, csv.Error) as error:
        raise InputError(f"{path} cannot be read: {error}") from None
    if any(tuple(row) != COLUMNS or None in row.values() for row in rows):
        raise InputError(f"{path} is damaged: it must hold the columns {', '.join(COLUMNS)}")
    return rows
