"""What reading data gives, before encoding."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from mlnt.data.columns import Column

Source = str | Path | tuple[Any, Any]


@dataclass(frozen=True)
class Raw:
    """Samples as they were found: before encoding, labels still names."""

    kind: str  # image, table or text
    samples: Any
    labels: list[str] | None
    columns: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()  # what the user should know of it
    label: str | None = None  # the column that the labels came from
    made_of: tuple[Column, ...] = ()  # what became these columns, if not all were numbers
    # [N] bool, of all rows as given: those that have a label; None: all, and none was left out.
    labelled: np.ndarray | None = None

    @property
    def texts(self) -> list[str] | None:
        return list(self.samples) if self.kind == "text" else None


@dataclass(frozen=True)
class Known:
    """A data set that mlnt knows: its parts, its classes and what is often confused in it."""

    name: str
    classes: tuple[str, ...]
    train: Raw
    test: Raw
    usual_confusions: Mapping[int, int]
    labels_are_true: bool = True  # as published; of a stranger's files nobody knows
