"""The first digits, for trainings of which nobody asks how well they learn."""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

Arrays = tuple[np.ndarray, np.ndarray]


def few_digits(begin: int, end: int) -> Arrays:
    """Pictures of 8 × 8 and what they show."""
    found = load_digits()
    return found.images[begin:end].astype(np.float32), found.target[begin:end]


def write_digits(path: Path, digits: Arrays) -> Path:
    """As an .npz, for the command line."""
    np.savez(path, X=digits[0], y=digits[1])
    return path
