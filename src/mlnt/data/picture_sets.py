"""Data sets of pictures that stay on disk: Clothing1M's, a folder for each class, or a table."""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from mlnt.data.cifar10 import find_cifar10
from mlnt.data.clothing1m import clothing1m_parts, lists_folder
from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import Encoder, ImageEncoder
from mlnt.data.fashion_mnist import has_idx_files
from mlnt.data.folders import SPLITS, holds_runs, image_folder_parts, pictures_below
from mlnt.data.huggingface import holds_pictures, is_saved_dataset, read_saved_pictures
from mlnt.data.image_files import IMAGENET_MEAN, IMAGENET_STD, FaultLog, ImageFiles
from mlnt.data.label_files import classes_of
from mlnt.data.oddities import span, without_label
from mlnt.data.picture_tables import read_picture_paths
from mlnt.data.pictures import (
    EXTENSIONS,
    NO_LABEL,
    InGrey,
    Part,
    Parts,
    PathTable,
    read_picture,
)
from mlnt.data.tables import is_table
from mlnt.errors import InputError
from mlnt.files import exists


def find_pictures(
    path: str | Path,
    label_column: str | None = None,
    text_column: str | None = None,
    further: bool = False,
    beside: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Parts | None:
    """Of a Clothing1M tree, an image folder, a table of paths or a saved data set; None of others.

    Where a column of texts is named, nobody asks for the pictures beside it. `further`, `beside`
    and `drop` as in `read_picture_paths`.
    """
    path = Path(path)
    if not exists(path):
        return None
    if is_saved_dataset(path):
        has_any = text_column is None and holds_pictures(path)
        return read_saved_pictures(path, label_column, drop) if has_any else None
    if path.is_dir():
        if not _may_hold_pictures(path):
            return None
        return clothing1m_parts(path) if lists_folder(path) else image_folder_parts(path)
    if path.suffix.lower() in EXTENSIONS:
        raise InputError(f"{path} is a single picture; give a folder with one folder per class")
    if not is_table(path) or text_column is not None:
        return None
    return table_parts(path, label_column, further, beside, drop)


def _may_hold_pictures(folder: Path) -> bool:
    """Whether it is none of a data set known by its layout."""
    is_known = find_cifar10(folder) is not None or has_idx_files(folder)
    return not is_known and not is_saved_dataset(folder)


def table_parts(
    path: Path,
    label_column: str | None,
    further: bool = False,
    beside: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Parts | None:
    """Paths are below the table's folder; a row without a label has NO_LABEL. None where it names
    no pictures."""
    found = read_picture_paths(path, label_column, further, beside, drop)
    if found is None:
        return None
    paths, labels = _below(path, list(found.samples)), found.labels
    for row, name in enumerate(paths, start=1):
        if "://" in name:
            raise InputError(
                f"{path}: row {row} has an address ({name[:80]!r}); fetch the pictures and write "
                "their paths below the table's folder"
            )
        if os.path.isabs(name) or ".." in Path(name).parts or "\0" in name:
            raise InputError(f"{path}: row {row} leads out of its folder ({name[:80]!r})")
        if "\\" in name and os.sep == "/" and not exists(path.parent / name):
            raise InputError(
                f"{path}: row {row} has a path as Windows writes it ({name[:80]!r}); write "
                f"{name.replace(chr(92), '/')[:80]!r}"
            )
    table = PathTable.of(path.resolve().parent, paths)
    notes = (f"passing over {span(found.passed_over)}",) if found.passed_over else ()
    notes = (*notes, *without_label(found.unlabelled))
    if labels is None:
        return Parts(path.stem, (), _unlabelled(table), notes=notes)
    classes = classes_of([name for name in labels if name])
    number = {name: index for index, name in enumerate(classes)}
    train = Part(table, torch.tensor([number.get(name, NO_LABEL) for name in labels]))
    return Parts(path.stem, classes, train, notes=notes, labelled=found.labelled)


def _below(path: Path, names: Sequence[str]) -> list[str]:
    """Paths relative to the table's folder, where they lie in it though they begin at the root."""
    inside = tuple(
        f"{folder}{os.sep}" for folder in (path.absolute().parent, path.resolve().parent)
    )
    found = ((name, next((f for f in inside if name.startswith(f)), "")) for name in names)
    return [name.removeprefix(folder) for name, folder in found]


def from_pictures(parts: Parts) -> Dataset:
    """Pictures stay on disk; ImageNet's statistics spare a pass over all of them."""
    found = [part for part in (parts.train, parts.validation, parts.test) if part is not None]
    faults = FaultLog.of(sum(len(part.paths) for part in found))

    def split(part: Part | None) -> Split | None:
        if part is None:
            return None
        files = ImageFiles(part.paths, faults, read=parts.read or read_picture)
        return Split(files, part.labels, texts=part.paths)

    train = split(parts.train)
    assert train is not None
    mean, std = (tuple(255 * v for v in values) for values in (IMAGENET_MEAN, IMAGENET_STD))
    encoder = ImageEncoder(tuple(train.inputs.shape[1:]), mean, std, (0.0, 255.0), from_files=True)
    return Dataset(
        parts.name,
        parts.classes,
        encoder,
        train,
        split(parts.validation),
        split(parts.test),
        notes=parts.notes,
        is_known=parts.is_known,
    )


def as_read(dataset: Dataset, image_size: int, workers: int | str = "auto") -> Dataset:
    """The data set with its pictures, if they lie on disk, read in this size by so many workers."""
    if not isinstance(dataset.train.inputs, ImageFiles):
        return dataset
    assert isinstance(dataset.encoder, ImageEncoder)
    count = None if isinstance(workers, str) else workers

    def sized(split: Split) -> Split:
        assert isinstance(split.inputs, ImageFiles)
        return replace(split, inputs=split.inputs.read_as(image_size, count))

    return replace(
        dataset,
        encoder=replace(dataset.encoder, shape=(3, image_size, image_size)),
        train=sized(dataset.train),
        validation=None if dataset.validation is None else sized(dataset.validation),
        test=None if dataset.test is None else sized(dataset.test),
    )


def further_pictures(
    path: Path,
    encoder: Encoder,
    classes: tuple[str, ...],
    label_column: str | None = None,
    wanted: str = "test",
) -> Split | None:
    """Other labelled pictures for a network of these classes: the part that is wanted, validation
    or test; all of train where there is no such part. None where these are no pictures."""
    parts = find_pictures(path, label_column, further=True)
    if parts is None:
        return None
    split, unknown = _further(parts, path, encoder, classes, wanted)
    if unknown:
        raise InputError(
            f"{path} holds pictures of {unknown[0]!r}, which is not a class of the training data "
            f"({', '.join(classes)})"
        )
    return split


def _further(
    parts: Parts, path: Path, encoder: Encoder, classes: tuple[str, ...], wanted: str = "test"
) -> tuple[Split, tuple[str, ...]]:
    """Further pictures, with NO_LABEL where it is none of the classes; and which are none."""
    part = getattr(parts, wanted) or parts.train
    unknown = tuple(name for name in parts.classes if name not in classes)
    number = {name: place for place, name in enumerate(classes)}
    # The last is that of NO_LABEL, which counts from the end.
    to_number = torch.tensor([*(number.get(name, NO_LABEL) for name in parts.classes), NO_LABEL])
    labelled = Part(part.paths, to_number[part.labels])
    return _as_trained(labelled, encoder, path, parts.read or read_picture), unknown


def pictures_to_predict(
    path: Path,
    encoder: Encoder,
    classes: tuple[str, ...],
    label_column: str | None = None,
    text_column: str | None = None,
) -> tuple[Split, tuple[str, ...]] | None:
    """A picture, a table of them, or all in a folder; NO_LABEL where a label is not known.

    Also the folders, or labels of a table, that are no class; where there are such folders, labels
    are not known of any picture. None where there are no pictures.
    """
    if not exists(path):
        return None
    if path.is_dir() and _may_hold_pictures(path):
        folders = _folders_with_pictures(path)
        unknown = tuple(name for name in folders if name not in {*classes, *SPLITS})
        if (unknown or not folders) and lists_folder(path) is None:
            found = sorted(os.path.relpath(file, path) for file in pictures_below(path, path))
            if not found:
                raise InputError(f"{path} holds no pictures ({', '.join(EXTENSIONS)})")
            return _as_trained(_unlabelled(PathTable.of(path, found)), encoder, path), unknown
    elif not path.is_dir() and path.suffix.lower() in EXTENSIONS:
        only = _unlabelled(PathTable.of(path.parent, [path.name]))
        return _as_trained(only, encoder, path), ()
    parts = find_pictures(path, label_column, text_column, further=True)
    return None if parts is None else _further(parts, path, encoder, classes)


def _folders_with_pictures(path: Path) -> list[str]:
    """Names of folders in a folder, less links, hidden ones, runs and those without a picture."""
    return sorted(
        entry.name
        for entry in path.iterdir()
        if entry.is_dir()
        and not entry.is_symlink()
        and not entry.name.startswith(".")
        and not holds_runs(entry)
        and next(pictures_below(entry, path), None) is not None
    )


def _unlabelled(paths: PathTable) -> Part:
    return Part(paths, torch.full((len(paths),), NO_LABEL))


def _as_trained(
    part: Part,
    encoder: Encoder,
    path: Path,
    read: Callable[[str, int, int], np.ndarray] = read_picture,
) -> Split:
    if not isinstance(encoder, ImageEncoder):
        raise InputError(f"{path} holds pictures, but the training data is {encoder.kind}")
    faults = FaultLog.of(len(part.paths))
    if encoder.from_files:
        files = ImageFiles(part.paths, faults, read=read).read_as(encoder.shape[1], None)
    else:
        _check_comparable(encoder, path)
        side, white = encoder.shape[1], encoder.black_white[1]
        read = InGrey(read) if encoder.shape[0] == 1 else read
        values = encoder.mean, encoder.std, white
        files = ImageFiles(part.paths, faults, side, side, *values, read=read)
    return Split(files, part.labels, texts=part.paths)


def _check_comparable(encoder: ImageEncoder, path: Path) -> None:
    """Raise InputError where pictures on disk cannot become what the arrays trained on were."""
    channels, height, width = encoder.shape
    if channels not in (1, 3) or height != width:
        raise InputError(
            f"{path} holds pictures, which are read as squares, grey or RGB, but the training data "
            f"is arrays of {channels} × {height} × {width} (channels, height, width); give arrays"
        )
    if not encoder.black_white:
        raise InputError(
            f"{path} holds pictures, but this run does not say what is white in the arrays it was "
            "trained on, as later ones do; give arrays, or train it again"
        )
    black, white = encoder.black_white
    if black != 0:
        raise InputError(
            f"{path} holds pictures, of values from 0 to 255, but the training data is arrays of "
            f"values from {black:.6g} to {white:.6g}; give arrays of these"
        )
