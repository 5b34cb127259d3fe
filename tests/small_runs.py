"""Less of everything, for trainings of which nobody asks how well they learn."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.utils import Bunch

Arrays = tuple[np.ndarray, np.ndarray]


def few_digits(begin: int, end: int) -> Arrays:
    """Pictures of 8 × 8 and what they show."""
    found = load_digits()
    return found.images[begin:end].astype(np.float32), found.target[begin:end]


def write_digits(path: Path, digits: Arrays) -> Path:
    """As an .npz, for the command line."""
    np.savez(path, X=digits[0], y=digits[1])
    return path


def shorten_digits(patch: pytest.MonkeyPatch, count: int) -> None:
    """Let the data set `digits` have fewer of them."""
    whole = load_digits()
    fewer = Bunch(images=whole.images[:count], target=whole.target[:count])
    patch.setattr("sklearn.datasets.load_digits", lambda: fewer)


def leave_out_reports(patch: pytest.MonkeyPatch) -> None:
    """They are drawn from what was written before, and take as long as a small training."""
    patch.setattr("mlnt.outcome.write_report", lambda run: None)
