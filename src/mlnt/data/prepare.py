"""From a data set as it came to what a run trains on: validation held out, noise injected."""

import itertools
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from mlnt.config import Settings
from mlnt.data.dataset import Dataset, Split
from mlnt.data.noise import Noise, parse_noise, wrong_share
from mlnt.data.repetitions import (
    first_of_each,
    held_together,
    keys_of,
    note_repetitions,
    note_trained_on,
    number_inputs,
    numbered,
)
from mlnt.data.sources import check_dataset
from mlnt.errors import InputError


@dataclass(frozen=True)
class Seeds:
    """Independent seeds for the parts of a run, all from the one the user gives."""

    training: int
    weights: int
    split: int
    noise: int

    @classmethod
    def of(cls, seed: int) -> "Seeds":
        return cls(*np.random.SeedSequence(seed).generate_state(4, np.uint32).tolist())


def prepare(dataset: Dataset, settings: Settings) -> tuple[Dataset, dict[str, Any]]:
    """Hold out validation data, inject noise; returns the data and the noise that came out."""
    seeds = Seeds.of(settings.seed)
    number_N, notes = _repetitions(dataset)
    dataset = replace(dataset, notes=(*dataset.notes, *notes))
    if dataset.validation is None:
        generator = torch.Generator().manual_seed(seeds.split)
        dataset = hold_out(dataset, settings.validation_share, generator, number_N)
    noise = parse_noise(settings.noise, dataset.classes, dataset.usual_confusions)
    train, validation = dataset.train, dataset.validation
    assert validation is not None
    if settings.noise != "none":
        generator = torch.Generator().manual_seed(seeds.noise)
        train = _corrupt(train, noise, generator)
        validation = _corrupt(validation, noise, generator)
    if dataset.held_out_indices is not None or settings.noise != "none":
        validation = replace(validation, given_labels=validation.labels)
    if settings.validation == "clean" and validation.given_labels is not None:
        if validation.true_labels is None:
            raise InputError("validation='clean' needs the true labels of the data, or clean data")
        validation = replace(validation, labels=validation.true_labels)
    dataset = replace(dataset, train=train, validation=validation)
    check_dataset(dataset)
    record: dict[str, Any] = {"asked": settings.noise}
    for name, part in (("train", train), ("validation", validation)):
        if part.true_labels is not None:
            record[f"wrong_in_{name}"] = 100 * wrong_share(part.labels, part.true_labels)
    return dataset, record


def _repetitions(dataset: Dataset) -> tuple[torch.Tensor, list[str]]:
    """The numbers of the training inputs, equal where these are, and what to say of the data."""
    given = {} if dataset.is_known else {"validation": dataset.validation, "test": dataset.test}
    others = {name: split for name, split in given.items() if split is not None}
    keys, *keys_of_others = keys_of(dataset.train, *others.values())
    number_N = numbered(keys)
    trained_on = note_trained_on(keys, dict(zip(others, keys_of_others, strict=True)))
    return number_N, [*trained_on, *note_repetitions(number_N, dataset.train.labels)]


def hold_out(
    dataset: Dataset,
    share: float,
    generator: torch.Generator,
    number_N: torch.Tensor | None = None,
) -> Dataset:
    """Move a share of each class from train to validation, repetitions together."""
    labels_N = dataset.train.labels
    if number_N is None:
        number_N = number_inputs(dataset.train)
    chosen = _draw(labels_N, held_together(number_N, share), share, generator)
    if not chosen.any():  # every class is one input, again and again
        chosen = _draw(labels_N, torch.arange(len(labels_N)), share, generator)
    train, held_out = ((~chosen).nonzero().squeeze(1), chosen.nonzero().squeeze(1))
    if len(held_out) == 0 or len(train) == 0:
        kinds = len(labels_N.unique())
        hint = "; are the labels measurements?" if 2 * kinds > len(labels_N) else ""
        raise InputError(
            f"{len(labels_N)} samples of {kinds} classes are too few to hold out {share:.0%} of "
            f"them for validation; give validation data, or another validation_share{hint}"
        )
    return replace(
        dataset,
        train=dataset.train.take(train),
        validation=dataset.train.take(held_out),
        train_indices=dataset.rows[train],
        held_out_indices=dataset.rows[held_out],
    )


def _draw(
    labels_N: torch.Tensor, unit_N: torch.Tensor, share: float, generator: torch.Generator
) -> torch.Tensor:
    """BoolTensor [N]: a share of the units of each class, drawn.

    A unit, which is all samples of a number, has the label of its first. Where it is more than the
    share of all samples, it stays in train.
    """
    labels_U = labels_N[first_of_each(unit_N)]
    may_go_U = unit_N.bincount() <= max(1, share * len(labels_N))
    chosen_U = torch.zeros(len(labels_U), dtype=torch.bool)
    for number, count in enumerate(_shares(torch.bincount(labels_U).tolist(), share)):
        members = ((labels_U == number) & may_go_U).nonzero().squeeze(1)
        order = torch.randperm(len(members), generator=generator)
        chosen_U[members[order[:count]]] = True
    return chosen_U[unit_N]


def held_out_of_each(dataset: Dataset, share: float) -> list[int]:
    """How many samples of each class `hold_out` takes, about so many where some repeat others."""
    counts = torch.bincount(dataset.train.labels, minlength=len(dataset.classes)).tolist()
    return _shares(counts, share)


def _shares(counts: list[int], share: float) -> list[int]:
    """The share of each, rounded. Where that is none of any, as of many small classes, one of every
    few classes, so many that it is the share of all; never a class's only sample.
    """
    of_each = [round(share * count) for count in counts]
    if any(of_each):
        return of_each
    several = [count if count > 1 else 0 for count in counts]
    ends = [round(share * total) for total in itertools.accumulate(several, initial=0)]
    return [after - before for before, after in itertools.pairwise(ends)]


def _corrupt(split: Split, noise: Noise, generator: torch.Generator) -> Split:
    truth = split.labels if split.true_labels is None else split.true_labels
    return replace(split, labels=noise.apply(split.labels, generator), true_labels=truth)
