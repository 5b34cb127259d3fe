"""Samples that repeat others: found, and held out together.

A sample that is both learnt from and validated on makes a model that learnt by heart look good.

N: samples, U: distinct inputs
"""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from mlnt.data.dataset import Split
from mlnt.data.image_files import ImageFiles
from mlnt.data.text_encoding import split_words

FEWEST_REPEATED = 0.01  # of all samples: less cannot sway which epoch is best
# Where the same few inputs come again and again, as rows of zeros and ones do, that is what the
# data is: to hold out all samples of an input would ask for what nothing in training tells.
FEWEST_DISTINCT = 0.1  # of all samples
FEWEST_HELD_OUT = 5  # distinct inputs
# Pictures on disk. Of more of them even a look at each would take long where a disk is far away.
MOST_FILES = 200_000
END = 2**12  # bytes at the beginning and at the end of a file, read before all of it is

T = TypeVar("T")
Keys = Sequence[bytes]  # one for each sample, short, so that large images are not kept once more


def keys_of(*splits: Split) -> list[Keys]:
    """Of each split. Equal inputs have equal keys, in whichever split they are."""
    of_files = iter(_keys_of_files([s.inputs for s in splits if isinstance(s.inputs, ImageFiles)]))
    keys: list[Keys] = []
    for split in splits:
        if isinstance(split.inputs, ImageFiles):
            keys.append(next(of_files))
        elif split.texts is not None:  # encoded, texts of rare words would all be alike
            keys.append([_key_of_text(text) for text in split.texts])
        else:
            keys.append([_short(row.tobytes()) for row in split.inputs.cpu().numpy()])
    return keys


def numbered(keys: Keys) -> Tensor:
    """LongTensor [N]: equal inputs have equal numbers, which begin at 0 in order of appearance."""
    seen: dict[bytes, int] = {}
    return torch.tensor([seen.setdefault(key, len(seen)) for key in keys])


def number_inputs(split: Split) -> Tensor:
    (keys,) = keys_of(split)
    return numbered(keys)


def note_repetitions(number_N: Tensor, labels_N: Tensor) -> Iterator[str]:
    """What to say of them, if there are so many that they matter."""
    repeated = _repeated(number_N)
    if repeated and repeated >= FEWEST_REPEATED * len(number_N):
        repeat = "is a repetition of another" if repeated == 1 else "are repetitions of others"
        note = f"{repeated:,} of {len(number_N):,} samples {repeat}"
        against = _against_the_others(number_N, labels_N)
        are = "label is" if against == 1 else "labels are"
        yield f"{note}; {against:,} {are} not what most of the same have" if against else note


def note_trained_on(trained: Keys, others: Mapping[str, Keys]) -> Iterator[str]:
    """Of further data that is given: how much of it is in the training data as well."""
    trained_on = set(trained)
    if len(trained_on) < FEWEST_DISTINCT * len(trained):
        return  # the same few inputs everywhere
    for name, keys in others.items():
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


def _against_the_others(number_N: Tensor, labels_N: Tensor) -> int:
    """How many labels are not the most frequent one among equal inputs."""
    pairs, counts = torch.stack([number_N, labels_N]).unique(dim=1, return_counts=True)
    most_U = torch.zeros(int(number_N.max()) + 1, dtype=counts.dtype)
    most_U.scatter_reduce_(0, pairs[0], counts, "amax")
    return len(number_N) - int(most_U.sum())


def _repeated(number_N: Tensor) -> int:
    return len(number_N) - int(number_N.max()) - 1


def _key_of_text(text: str) -> bytes:
    return _short(" ".join(split_words(text)).encode("utf-8", "surrogatepass"))


def _keys_of_files(parts: Sequence[ImageFiles]) -> list[Keys]:
    """By their contents, as far as it takes to tell them apart: length, then ends, then all.

    What is no file, such as a place in a saved data set, and what is empty go by their paths, and
    so do all where there are very many.
    """
    if sum(map(len, parts)) > MOST_FILES:
        return [[_key_of_path(path) for path in _paths(files)] for files in parts]
    paths = [list(_paths(files)) for files in parts]
    keys = {path: _key_of_path(path) for some in paths for path in some}
    sizes = _alike({path: size for path in keys if (size := _size(path)) > 0})
    ends = _alike({path: (size, _short(_ends(path, size))) for path, size in sizes.items()})
    for path in ends:
        keys[path] = _short(_content(path))
    return [[keys[path] for path in some] for some in paths]


def _alike(of_path: dict[str, T]) -> dict[str, T]:
    """Those whose value another has too."""
    counts = Counter(of_path.values())
    return {path: value for path, value in of_path.items() if counts[value] > 1}


def _key_of_path(path: str) -> bytes:
    return _short(os.fsencode(path))


def _paths(files: ImageFiles) -> Iterator[str]:
    return (os.path.join(files.paths.root, path) for path in files.paths)


def _size(path: str) -> int:
    """-1 of what is no file: to read from a pipe would wait for ever."""
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _content(path: str, start: int = 0, count: int = -1) -> bytes:
    """Of what cannot be read the path, which is no other's."""
    try:
        with open(path, "rb") as file:
            file.seek(start)
            return file.read(count)
    except OSError:
        return os.fsencode(path)


def _ends(path: str, size: int) -> bytes:
    return _content(path, 0, END) + _content(path, max(0, size - END), END)


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
