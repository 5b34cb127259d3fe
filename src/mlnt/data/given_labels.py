"""Labels that are given beside the data, in files or as arrays: `--labels`, `--true-labels`."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mlnt.data.dataset import Dataset
from mlnt.data.label_files import classes_of, known_truth, label_names, read_label_file
from mlnt.data.label_tables import GivenLabels
from mlnt.data.labels_by_id import by_shared_column
from mlnt.data.labels_by_name import by_name, in_their_order, says_the_same
from mlnt.data.oddities import few_of
from mlnt.data.wordy_columns import whole_names
from mlnt.errors import InputError, did_you_mean
from mlnt.texts import counted


def read_given(labels: Any, label_column: str | None, source: Any) -> GivenLabels:
    """Labels of FILE, FILE:KEY or a sequence, for the data of this source."""
    if isinstance(labels, str | Path):
        return by_shared_column(read_label_file(labels, label_column), source)
    return GivenLabels(label_names(labels))


def with_labels(given: GivenLabels, dataset: Dataset) -> Dataset:
    """Other labels to train on."""
    names, dataset = _as_many(given, dataset, "labels")
    if not dataset.classes:
        names = whole_names(names)
        dataset = replace(dataset, classes=classes_of(names))
    dataset = _noting_numbers(names, dataset, "labels")
    train = replace(dataset.train, labels=_numbered(names, dataset, "labels"))
    return replace(dataset, train=train, labels_from=None)


def with_true_labels(given: GivenLabels, dataset: Dataset) -> Dataset:
    names, dataset = _as_many(given, dataset, "true_labels")
    dataset = _noting_numbers(names, dataset, "true_labels")
    truth = _numbered(names, dataset, "true_labels")
    return replace(dataset, train=replace(dataset.train, true_labels=truth))


def class_numbers(names: Sequence[str], classes: Sequence[str], what: str) -> Tensor:
    """Names of classes as their places; InputError where one is no class."""
    number = {name: index for index, name in enumerate(classes)}
    names = named_as(names, classes)
    for row, name in enumerate(names):
        if name not in number:
            shown = ", ".join(classes[:20]) + (", …" if len(classes) > 20 else "")
            raise InputError(
                f"{what}: label {name!r} (at index {row}) is not a class"
                f"{did_you_mean(name, classes)} (classes: {shown})"
            )
    return torch.tensor([number[name] for name in names], dtype=torch.long)


def named_as(names: Sequence[str], classes: Sequence[str]) -> list[str]:
    """Labels 0.0, 1.0 as 0, 1 where the classes are called so; one that is missing stays ""."""
    whole = whole_names(list(names))
    return whole if set(filter(None, whole)) <= set(classes) else list(names)


def _as_many(given: GivenLabels, dataset: Dataset, what: str) -> tuple[list[str], Dataset]:
    """As many labels as the training data has samples, or as it came with, in their order; and the
    data with notes of how they were found.

    Where a column names the samples, by that. One that numbers them says the same, or it would be
    left to chance whose labels are taken.
    """
    dataset = _noting(given.notes, dataset)
    if given.numbers is None:
        named = by_name(given, dataset, what)
        if named is not None:
            return named, dataset
        notes = in_their_order(given, dataset, what)
        return _by_place(given, dataset, what), _noting(notes, dataset)
    placed = _by_place(given, dataset, what)
    if not says_the_same(given, placed, dataset):
        raise InputError(
            f"{what}: {given.column} says other labels than the one that names the samples; take "
            "one of both columns out"
        )
    return placed, dataset


def _by_place(given: GivenLabels, dataset: Dataset, what: str) -> list[str]:
    rows, count = dataset.train_indices, len(given.names)
    if rows is not None and count == dataset.came:
        names = given.in_order()
        return [names[row] for row in rows.tolist()]
    if count != len(dataset.train):
        of_them = f"{given.column} gives " if given.column else ""
        raise InputError(
            f"{what}: {of_them}{counted(count, 'label')} for "
            f"{counted(len(dataset.train), 'training sample')}; they must be as many"
        )
    return given.in_order(None if rows is None else rows.tolist())


def _numbered(names: Sequence[str], dataset: Dataset, what: str) -> Tensor:
    classes = dataset.classes
    if _are_places(names, classes):
        classes = tuple(str(place) for place in range(len(classes)))
    return class_numbers(names, classes, what)


def _are_places(names: Sequence[str], classes: Sequence[str]) -> bool:
    """Whole numbers for classes that have names, as in CIFAR-10N.

    Where the classes are numbers themselves, others are not their places but other classes.
    """
    if not all(name.isdigit() for name in names) or any(name in classes for name in names):
        return False
    return not all(re.fullmatch(r"-?[0-9]+", name) for name in classes)


def _noting_numbers(names: Sequence[str], dataset: Dataset, what: str) -> Dataset:
    """The data set with a note of which class each number was taken for."""
    # The order of a published data set is published with it.
    if dataset.is_known or not _are_places(names, dataset.classes):
        return dataset
    numbers = few_of([str(place) for place in range(len(dataset.classes))])
    note = f"{what}: {numbers} are taken for {few_of(dataset.classes)}, in this order"
    return _noting([note], dataset)


def _noting(notes: Iterable[str], dataset: Dataset) -> Dataset:
    return replace(dataset, notes=(*dataset.notes, *notes))


def with_truth_of(labels: Any, dataset: Dataset) -> Dataset:
    """The clean labels that a file holds beside noisy ones: taken, or compared with known ones."""
    clean = known_truth(labels) if isinstance(labels, str | Path) else None
    if clean is None:
        return dataset
    names, _ = _as_many(GivenLabels(clean), dataset, "clean labels")
    truth = _numbered(names, dataset, "clean labels")
    own = dataset.train.true_labels
    if own is not None and not torch.equal(own, truth):
        raise InputError(
            f"the clean labels of {labels} differ from those of {dataset.name} in "
            f"{int((own != truth).sum())} of {len(own)} samples; its order is another"
        )
    return replace(dataset, train=replace(dataset.train, true_labels=truth))
