"""Clothing1M in its official form: a million pictures with noisy labels, some with clean ones.

    noisy_label_kv.txt, clean_label_kv.txt      `images/0/00/x.jpg 3` in each line
    noisy_train_key_list.txt, clean_val_…, clean_test_…      `images/0/00/x.jpg` in each line
    category_names_eng.txt      a name in each line
    images/

The lists may also lie in a folder `annotations`. We train on noisy labels, and choose and test by
clean ones, as the paper does; clean_train_key_list.txt is not needed.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from mlnt.data.pictures import NO_LABEL, Part, Parts, PathTable
from mlnt.errors import InputError
from mlnt.files import read_file

CLASSES = (
    "T-Shirt", "Shirt", "Knitwear", "Chiffon", "Sweater", "Hoodie", "Windbreaker", "Jacket",
    "Downcoat", "Suit", "Shawl", "Dress", "Vest", "Underwear",
)  # fmt: skip
NOISY, CLEAN = "noisy_label_kv.txt", "clean_label_kv.txt"
# Each part's list of pictures and the file of its labels.
PARTS = {
    "train": ("noisy_train_key_list.txt", NOISY),
    "validation": ("clean_val_key_list.txt", CLEAN),
    "test": ("clean_test_key_list.txt", CLEAN),
}
NAMES = "category_names_eng.txt"
MOST_BYTES = 2**29  # of a list: ten times that of a million pictures


class Listed(NamedTuple):
    """A part as the lists have it, right or wrong."""

    keys: list[bytes]  # N relative paths
    labels: np.ndarray  # int64 [N]; NO_LABEL where the file of labels has none


def lists_folder(folder: Path) -> Path | None:
    """Where the lists of a Clothing1M tree lie; None if this is no such tree."""
    for place in (folder, folder / "annotations"):
        if any((place / name).is_file() for pair in PARTS.values() for name in pair):
            return place
    return None


def clothing1m_parts(folder: str | Path) -> Parts:
    """Train (noisy labels), validation and test (clean labels) of the tree."""
    folder = Path(folder)
    place = lists_folder(folder)
    if place is None:
        raise InputError(f"{folder} is no Clothing1M tree; it has no {PARTS['train'][0]}")
    missing = missing_lists(place)
    if missing:
        raise InputError(f"{place} lacks {', '.join(missing)}; Clothing1M comes with it")
    if not (folder / "images").is_dir():
        raise InputError(f"{folder} has no folder images; unpack the pictures of Clothing1M there")
    classes = class_names(place)
    parts = {
        name: _checked(name, listed, folder, classes) for name, listed in read_lists(place).items()
    }
    return Parts(
        "clothing1m", classes, parts["train"], parts["validation"], parts["test"], is_known=True
    )


def missing_lists(place: Path) -> list[str]:
    """Names of the files that are needed and not there."""
    needed = dict.fromkeys(name for pair in PARTS.values() for name in pair)
    return [name for name in needed if not (place / name).is_file()]


def class_names(place: Path) -> tuple[str, ...]:
    """As the tree names its classes; the published names where it does not."""
    path = place / NAMES
    if not path.is_file():
        return CLASSES
    try:
        lines = read_file(path, MOST_BYTES).decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text: {error}") from None
    names = tuple(name for line in lines if (name := line.strip()))
    if len(set(names)) < len(names) or not names:
        raise InputError(f"{path} must hold one name in each line, each once; got {list(names)}")
    return names


def read_lists(place: Path) -> dict[str, Listed]:
    """The parts whose two files are there."""
    found, labels_of = {}, {}
    for part, (keys_name, labels_name) in PARTS.items():
        if not (place / keys_name).is_file() or not (place / labels_name).is_file():
            continue
        if labels_name not in labels_of:
            labels_of[labels_name] = _read_labels(place / labels_name)
        labels, keys = labels_of[labels_name], _read_keys(place / keys_name)
        numbers = (labels.get(key, NO_LABEL) for key in keys)
        found[part] = Listed(keys, np.fromiter(numbers, np.int64, len(keys)))
    return found


def _read_keys(path: Path) -> list[bytes]:
    keys = _lines(path)
    whole = b"\n" + b"\n".join(keys)
    # One look at the whole: only a list with such marks in it is worth a million looks.
    if any(mark in whole for mark in (b"\n/", b"..", b"\\", b"\0")):
        for number, key in enumerate(keys, start=1):
            if _leads_out(key):
                raise InputError(
                    f"{path}: line {number} is {_text(key)!r}; paths must lead down from the folder"
                )
    return [key for key in keys if key]


def _read_labels(path: Path) -> dict[bytes, int]:
    labels = {}
    for number, line in enumerate(_lines(path), start=1):
        words = line.rsplit(None, 1)
        if len(words) == 2 and words[1].isdigit() and len(words[1]) < 10:
            labels[words[0]] = int(words[1])
        elif words:
            raise InputError(
                f"{path}: line {number} must be a path and the number of a class, "
                f"got {_text(line)!r}"
            )
    return labels


def _lines(path: Path) -> list[bytes]:
    return [line.strip() for line in read_file(path, MOST_BYTES).splitlines()]


def _leads_out(key: bytes) -> bool:
    return key.startswith(b"/") or b"\\" in key or b"\0" in key or b".." in key.split(b"/")


def _checked(name: str, listed: Listed, folder: Path, classes: Sequence[str]) -> Part:
    """Raise InputError unless every picture has a label, and one of the classes."""
    keys_name, labels_name = PARTS[name]
    if not listed.keys:
        raise InputError(f"{keys_name} names no pictures; {name} needs some")
    for wrong, what in (
        (listed.labels == NO_LABEL, f"have no label in {labels_name}"),
        (
            listed.labels >= len(classes),
            f"have a label beyond 0 to {len(classes) - 1} in {labels_name}",
        ),
    ):
        if wrong.any():
            first = _text(listed.keys[int(wrong.argmax())])
            raise InputError(
                f"{wrong.sum()} of the {len(wrong)} pictures of {keys_name} {what} "
                f"(first: {first}); look at the whole tree with `mlnt data check {folder}`"
            )
    return Part(PathTable.of(folder, listed.keys), torch.from_numpy(listed.labels))


def _text(line: bytes) -> str:
    return line[:80].decode(errors="replace")
