"""Data sets of pictures that stay on disk: Clothing1M's tree, or a folder for each class."""

from dataclasses import replace
from pathlib import Path

import torch

from mlnt.data.clothing1m import clothing1m_parts, lists_folder
from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import Encoder, ImageEncoder
from mlnt.data.folders import image_folder_parts
from mlnt.data.image_files import IMAGENET_MEAN, IMAGENET_STD, FaultLog, ImageFiles
from mlnt.data.known import exists, find_known
from mlnt.data.pictures import Part, Parts
from mlnt.errors import InputError


def is_picture_folder(path: str | Path) -> bool:
    """Whether the path is a folder, and none of a data set that is known by its layout."""
    return exists(Path(path)) and Path(path).is_dir() and find_known(path) is None


def picture_parts(folder: Path) -> Parts:
    """Of a Clothing1M tree or of an image folder."""
    return clothing1m_parts(folder) if lists_folder(folder) else image_folder_parts(folder)


def from_pictures(parts: Parts) -> Dataset:
    """Pictures stay on disk; ImageNet's statistics spare a pass over all of them."""
    found = [part for part in (parts.train, parts.validation, parts.test) if part is not None]
    faults = FaultLog.of(sum(len(part.paths) for part in found))

    def split(part: Part | None) -> Split | None:
        if part is None:
            return None
        return Split(ImageFiles(part.paths, faults), part.labels, texts=part.paths)

    train = split(parts.train)
    assert train is not None
    mean, std = (tuple(255 * v for v in values) for values in (IMAGENET_MEAN, IMAGENET_STD))
    encoder = ImageEncoder(tuple(train.inputs.shape[1:]), mean, std)
    return Dataset(
        parts.name, parts.classes, encoder, train, split(parts.validation), split(parts.test)
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


def further_pictures(folder: Path, encoder: Encoder, classes: tuple[str, ...]) -> Split:
    """Other pictures for a network trained on these classes: the test part if there is one."""
    assert isinstance(encoder, ImageEncoder)
    parts = picture_parts(folder)
    part = parts.test or parts.train
    number = {name: index for index, name in enumerate(classes)}
    unknown = [name for name in parts.classes if name not in number]
    if unknown:
        raise InputError(
            f"{folder} holds pictures of {unknown[0]!r}, which is not a class of the training data "
            f"({', '.join(classes)})"
        )
    to_number = torch.tensor([number[name] for name in parts.classes])
    files = ImageFiles(part.paths, FaultLog.of(len(part.paths)))
    inputs = files.read_as(encoder.shape[1], None)
    return Split(inputs, to_number[part.labels], texts=part.paths)
