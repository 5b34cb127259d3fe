"""Samples that repeat others: found, and held out together.

A sample that is both learnt from and validated on makes a model that learnt by heart look good.

N: samples, U: distinct inputs
"""

import hashlib
from collections.abc import Iterator

import torch
from torch import Tensor

from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import split_words
from mlnt.data.image_files import ImageFiles

FEWEST_REPEATED = 0.01  # of all samples: less cannot sway which epoch is best
# Where the same few inputs come again and again, as rows of zeros and ones do, that is what the
# data is: to hold out all samples of an input would ask for what nothing in training tells.
FEWEST_DISTINCT = 0.1  # of all samples
FEWEST_HELD_OUT = 5  # distinct inputs


def number_inputs(split: Split) -> Tensor:
    """LongTensor [N]: equal inputs have equal numbers, which begin at 0 in order of appearance.

    Pictures on disk would all have to be read: each has its own number.
    """
    if not isinstance(split.inputs, Tensor):
        return torch.arange(len(split))
    seen: dict[bytes, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in _keys(split)])


def note_repetitions(number_N: Tensor) -> tuple[str, ...]:
    """What to say of them, if there are so many that they matter."""
    repeated = _repeated(number_N)
    if repeated == 0 or repeated < FEWEST_REPEATED * len(number_N):
        return ()
    return (f"{repeated:,} of {len(number_N):,} samples are repetitions of others",)


def note_trained_on(dataset: Dataset) -> Iterator[str]:
    """Of further data that is given: how much of it is in the training data as well."""
    parts = {"validation": dataset.validation, "test": dataset.test}
    keys_of = {name: list(_keys(split)) for name, split in parts.items() if split is not None}
    trained_on = set(_keys(dataset.train)) if keys_of else set()
    if len(trained_on) < FEWEST_DISTINCT * len(dataset.train):
        return  # the same few inputs everywhere
    for name, keys in keys_of.items():
        count = sum(key in trained_on for key in keys)
        if count and count >= FEWEST_REPEATED * len(keys):
            yield (
                f"{count:,} of the {len(keys):,} samples for {name} are trained on as well; "
                "accuracy on them says little about others"
            )


def held_together(number_N: Tensor, share: float) -> Tensor:
    """The numbers, if samples of one number are to be held out together; else all different."""
    repeated, total = _repeated(number_N), len(number_N)
    distinct = total - repeated
    if (
        repeated < FEWEST_REPEATED * total
        or distinct < FEWEST_DISTINCT * total
        or share * distinct < FEWEST_HELD_OUT
    ):
        return torch.arange(total)
    return number_N


def first_of_each(number_N: Tensor) -> Tensor:
    """LongTensor [U]: where each number appears first."""
    first_U = torch.full((int(number_N.max()) + 1,), len(number_N))
    return first_U.scatter_reduce_(0, number_N, torch.arange(len(number_N)), "amin")


def _repeated(number_N: Tensor) -> int:
    return len(number_N) - int(number_N.max()) - 1


def _keys(split: Split) -> Iterator[bytes]:
    """Short, so that large images are not kept once more; pictures on disk go by their paths."""
    if isinstance(split.inputs, ImageFiles):
        for number in range(len(split)):
            yield _short(split.inputs.paths.full(number).encode("utf-8", "surrogatepass"))
    elif split.texts is not None:  # encoded, texts of rare words would all be alike
        for text in split.texts:
            yield _short(" ".join(split_words(text)).encode("utf-8", "surrogatepass"))
    else:
        for row in split.inputs.cpu().numpy():
            yield _short(row.tobytes())


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
