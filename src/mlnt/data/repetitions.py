"""Samples that repeat others: found, and held out together.

A sample that is both learnt from and validated on makes a model that learnt by heart look good.

N: samples, U: distinct inputs
"""

import hashlib
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import torch
from torch import Tensor

from mlnt.data.dataset import Split
from mlnt.data.encoding import split_words
from mlnt.data.image_files import ImageFiles

FEWEST_REPEATED = 0.01  # of all samples: less cannot sway which epoch is best
# Where the same few inputs come again and again, as rows of zeros and ones do, that is what the
# data is: to hold out all samples of an input would ask for what nothing in training tells.
FEWEST_DISTINCT = 0.1  # of all samples
FEWEST_HELD_OUT = 5  # distinct inputs
# Pictures on disk: of more it takes minutes to ask for the sizes alone, where a disk is far away.
MOST_FILES = 200_000
END = 2**16  # bytes of a picture's file, at its beginning and at its end, that tell it from others

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
        note = f"{repeated:,} of {len(number_N):,} samples are repetitions of others"
        others = int((labels_N != labels_N[first_of_each(number_N)][number_N]).sum())
        yield f"{note}, {others:,} of them with another label" if others else note


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


def _repeated(number_N: Tensor) -> int:
    return len(number_N) - int(number_N.max()) - 1


def _key_of_text(text: str) -> bytes:
    return _short(" ".join(split_words(text)).encode("utf-8", "surrogatepass"))


def _keys_of_files(parts: Sequence[ImageFiles]) -> list[Keys]:
    """By their contents; a file that no other is as long as need not be read."""
    if sum(map(len, parts)) > MOST_FILES:
        return [[_short(os.fsencode(path)) for path in _paths(files)] for files in parts]
    paths = [list(_paths(files)) for files in parts]
    sizes = {path: _size(path) for some in paths for path in some}
    of_this_size = Counter(sizes.values())
    keys = {
        path: _short(os.fsencode(path))
        if size < 0 or of_this_size[size] == 1
        else _ends(path, size)
        for path, size in sizes.items()
    }
    return [[keys[path] for path in some] for some in paths]


def _paths(files: ImageFiles) -> Iterator[str]:
    return (os.path.join(files.paths.root, path) for path in files.paths)


def _size(path: str) -> int:
    """-1 of what is no file; training will say so. To read from a pipe would wait for ever."""
    try:
        status = os.stat(path)
    except OSError:
        return -1
    return status.st_size if stat.S_ISREG(status.st_mode) else -1


def _ends(path: str, size: int) -> bytes:
    try:
        with open(path, "rb") as file:
            content = file.read(END)
            file.seek(max(END, size - END))
            return _short(f"{size} bytes: ".encode() + content + file.read(END))
    except OSError:
        return _short(os.fsencode(path))


def _short(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=16).digest()
