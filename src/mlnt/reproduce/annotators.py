"""Labels as people give them, for the miniature: three annotators who saw few examples each.

An annotator knows three samples of each class and gives every sample the label of the nearest one,
so the errors lie where the samples are ambiguous, as people's do. From the three labels come the
sets of CIFAR-10N, with error rates close to its own (9, 17 and 40 %): aggregate 12 %, random1 15 %,
worst 36 %.
"""

from functools import cache

import numpy as np
from torch import Tensor

from mlnt.data.sources import open_dataset

EXAMPLES_PER_CLASS = 3
ANNOTATORS = 3


@cache
def annotated_digits(kind: str) -> tuple[str, ...]:
    """The labels of the digits' training part: `aggregate`, `random1` or `worst`."""
    train = open_dataset("digits").train
    assert isinstance(train.inputs, Tensor)
    truth_N, pixels_ND = train.labels.numpy(), train.inputs.flatten(1).numpy()
    votes = np.stack([_annotate(pixels_ND, truth_N, number) for number in range(ANNOTATORS)])
    choose = {"aggregate": _majority, "random1": _first, "worst": _worst}[kind]
    return tuple(str(choose(own, true)) for own, true in zip(votes.T, truth_N, strict=True))


def _annotate(pixels_ND: np.ndarray, truth_N: np.ndarray, seed: int) -> np.ndarray:
    from sklearn.neighbors import KNeighborsClassifier

    generator = np.random.default_rng(seed)
    seen = [
        generator.choice(np.flatnonzero(truth_N == number), EXAMPLES_PER_CLASS, replace=False)
        for number in np.unique(truth_N)
    ]
    rows = np.concatenate(seen)
    return KNeighborsClassifier(1).fit(pixels_ND[rows], truth_N[rows]).predict(pixels_ND)


def _majority(votes: np.ndarray, true: int) -> int:
    """The label most gave; the first annotator's where all differ."""
    names, counts = np.unique(votes, return_counts=True)
    return int(names[counts.argmax()] if counts.max() > 1 else votes[0])


def _first(votes: np.ndarray, true: int) -> int:
    return int(votes[0])


def _worst(votes: np.ndarray, true: int) -> int:
    """A wrong label if anybody gave one."""
    wrong = votes[votes != true]
    return int(wrong[0] if len(wrong) else true)
