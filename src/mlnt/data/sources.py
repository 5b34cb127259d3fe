"""`open_dataset`: data sets known by name, CSV/TSV, .npz and arrays.

name or path or (X, y) -> raw samples and labels -> encoder fitted on train -> Dataset
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder
from mlnt.data.folders import check_not_nested
from mlnt.data.frames import may_be_labels
from mlnt.data.given_labels import (
    class_numbers,
    read_given,
    with_labels,
    with_true_labels,
    with_truth_of,
)
from mlnt.data.huggingface import (
    RawParts,
    is_saved_dataset,
    only_labelled,
    read_saved,
)
from mlnt.data.image_files import ImageFiles
from mlnt.data.known import find_known
from mlnt.data.label_files import (
    check_name,
    classes_of,
)
from mlnt.data.oddities import (
    far_values,
    few_of,
    label_once_more,
    made_columns,
    other_range,
    row_counters,
)
from mlnt.data.picture_sets import find_pictures, from_pictures, further_pictures
from mlnt.data.pictures import NO_LABEL, Parts, are_picture_paths
from mlnt.data.raw import Known, Raw, Source
from mlnt.data.reading import fitting, has_columns, is_npz, read, read_arrays, read_new
from mlnt.data.table_rows import names_to_drop
from mlnt.data.tables import check_labelled
from mlnt.data.text_encoding import TextEncoder
from mlnt.errors import InputError
from mlnt.files import exists

ARRAYS = "arrays"  # as data is called that has no name


def open_dataset(
    source: Source,
    *,
    labels: str | Path | Sequence | np.ndarray | None = None,
    true_labels: str | Path | Sequence | np.ndarray | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    label_column: str | None = None,
    text_column: str | None = None,
    drop_columns: str | Sequence[str] | None = None,
    download: bool = False,
) -> Dataset:
    """Open a data set by name, path or as arrays.

    source        `digits`, `cifar10`, `fashion-mnist`; a CSV or TSV with a label column beside
                  numeric columns, one text column or paths of pictures; an .npz with X and y; a
                  folder of pictures by class, or of CIFAR-10, Fashion-MNIST or Clothing1M; (X, y);
                  a data frame with a label column
    labels        other labels for the training data: FILE, FILE.npz:KEY, FILE.pt:KEY, a sequence
    true_labels   the correct labels, where an experiment knows them; for the report, and
                  for the methods that are told them: forward_true, cnn_crf, joint_optimization
    validation, test  further data in any of these forms
    drop_columns  columns of a table, a data frame or a saved data set to leave out: "id,date" or a
                  list of names
    """
    drop = names_to_drop(drop_columns)
    if drop and not has_columns(source):
        raise InputError(
            f"{_name_of(source)} has no named columns to leave out ({', '.join(drop)}); that is "
            "for tables, data frames and data sets saved by Hugging Face"
        )
    given = None if labels is None else read_given(labels, label_column, source)
    beside = None if given is None else given.names
    known = find_known(source, download)
    if known is not None:
        dataset = _from_known(known)
    elif isinstance(source, str | Path) and is_saved_dataset(source):
        saved = only_labelled(read_saved(source, label_column, text_column, drop))
        dataset = _from_saved(saved, need_labels=labels is None)
        dataset = replace(dataset, label_column=label_column)
    elif isinstance(source, str | Path) and is_npz(Path(source)) and exists(Path(source)):
        saved = only_labelled(read_arrays(Path(source)))
        dataset = _from_saved(saved, need_labels=labels is None)
        dataset = replace(dataset, label_column=label_column)
    elif isinstance(source, str | Path) and (
        parts := find_pictures(source, label_column, text_column, beside=beside, drop=drop)
    ):
        if Path(source).is_dir() and len(parts.classes) == 1:
            check_not_nested(Path(source), parts.classes[0])
        if not parts.classes and labels is None:
            raise InputError(f"{parts.name} has no labels; training needs a column of them")
        dataset = _of_labelled(from_pictures(parts), parts.labelled)
        dataset = replace(dataset, label_column=label_column)
    else:
        raw = read(source, label_column, text_column, beside=beside, drop=drop)
        dataset = _from_raw(raw, _name_of(source), need_labels=labels is None)
        dataset = replace(dataset, label_column=label_column)
    if given is not None:
        dataset = with_labels(given, dataset)
    if labels is not None and true_labels is None:
        dataset = with_truth_of(labels, dataset)
    if true_labels is not None:
        truth = read_given(true_labels, dataset.label_column, source)
        dataset = with_true_labels(truth, dataset)
    if validation is not None:
        split, notes = _further(validation, dataset, "validation")
        dataset = replace(dataset, validation=split, notes=(*dataset.notes, *notes))
    if test is not None:
        split, notes = _further(test, dataset, "test")
        dataset = replace(dataset, test=split, notes=(*dataset.notes, *notes))
    check_dataset(dataset)
    return replace(dataset, notes=(*dataset.notes, *label_once_more(dataset), *_ranges(dataset)))


def _ranges(dataset: Dataset) -> Iterator[str]:
    for what, split in (("validation", dataset.validation), ("test", dataset.test)):
        if split is not None:
            yield from other_range(split.inputs, dataset.encoder, what)


def _name_of(source: Source) -> str:
    return Path(source).stem if isinstance(source, str | Path) else ARRAYS


def _from_known(known: Known) -> Dataset:
    encoder = ImageEncoder.fit(known.train.samples)

    def split(raw: Raw) -> Split:
        labels = class_numbers(raw.labels or (), known.classes, known.name)
        truth = labels if known.labels_are_true else None
        return Split(encoder.encode(raw.samples), labels, truth)

    return Dataset(
        known.name,
        known.classes,
        encoder,
        train=split(known.train),
        test=split(known.test),
        usual_confusions=known.usual_confusions,
        is_known=True,
    )


def _from_saved(saved: Parts | RawParts, need_labels: bool) -> Dataset:
    if isinstance(saved, Parts):
        if not saved.classes and need_labels:
            raise InputError(f"{saved.name} has no labels; training needs a column of them")
        return from_pictures(saved)
    dataset = _from_raw(saved.train, saved.name, need_labels, saved.classes)
    validation, test = (
        None if raw is None else _encoded(raw, dataset, what)
        for raw, what in ((saved.validation, "validation"), (saved.test, "test"))
    )
    notes = (*dataset.notes, *saved.notes)
    return replace(dataset, validation=validation, test=test, notes=notes)


def _from_raw(
    raw: Raw, name: str, need_labels: bool = True, classes: tuple[str, ...] = ()
) -> Dataset:
    if raw.labels is None and need_labels:
        raise InputError(f"{name} has no labels; {_where_labels_may_be(raw, name)}")
    encoder: Encoder
    notes = raw.notes
    if len(raw.samples) == 0:
        raise InputError(f"{name} holds no samples")
    if raw.kind == "text":
        _check_texts(raw, name)
        encoder = TextEncoder.fit(raw.samples)
    elif raw.kind == "table":
        encoder = TableEncoder.fit(raw.samples, raw.columns, raw.made_of)
        notes = (*notes, *made_columns(raw.made_of))
        odd = (row_counters(raw.samples, encoder.columns), far_values(raw.samples, encoder))
        notes = (*notes, *chain.from_iterable(odd))
    else:
        encoder = ImageEncoder.fit(raw.samples)
    inputs = encoder.encode(raw.samples)
    own = [label for label in raw.labels or () if label]
    if own:
        classes = classes or classes_of(own)
    if need_labels:
        labels = class_numbers(raw.labels or (), classes, name)
    else:  # they come from elsewhere
        labels = torch.full((len(inputs),), NO_LABEL)
    train = Split(inputs, labels, texts=raw.texts)
    text_column = raw.columns[0] if raw.kind == "text" and raw.columns else None
    dataset = Dataset(
        name,
        classes,
        encoder,
        train,
        notes=notes,
        text_column=text_column,
        labels_from=raw.label if raw.labels is not None else None,
    )
    return _of_labelled(dataset, raw.labelled)


def _of_labelled(dataset: Dataset, labelled: np.ndarray | None) -> Dataset:
    """The data set with the places that its samples had among the others; `labelled` as in Raw."""
    if labelled is None:
        return dataset
    rows_N = torch.from_numpy(labelled.nonzero()[0])
    return replace(dataset, train_indices=rows_N, came=len(labelled))


def _where_labels_may_be(raw: Raw, name: str) -> str:
    """What to do where none of the columns has the name of labels."""
    if not raw.columns:
        return "training needs an array of them, y beside X"
    columns = [column.name for column in raw.made_of] or raw.columns
    if name == ARRAYS:
        meant = may_be_labels(columns)
        is_it = (
            "" if meant is None else f"are they in {meant!r}? Then label_column={meant!r}; else "
        )
        return (
            f'{is_it}name their column with label_column, or give (df.drop(columns="label"), '
            f'df["label"]) (columns: {few_of(columns)})'
        )
    if len(raw.columns) == 1:
        return (
            f"its only column is {raw.columns[0][:80]!r}; are columns separated by a comma, a "
            "semicolon or a tab?"
        )
    return f"name their column with --label-column NAME (columns: {few_of(columns)})"


def _check_texts(raw: Raw, name: str) -> None:
    if are_picture_paths(raw.samples):
        column = f" of {raw.columns[0]!r}" if raw.columns else ""
        raise InputError(
            f"{name}: the texts{column} are names of pictures ({raw.samples[0][:80]!r}), of which "
            "words say nothing; to learn from the pictures, name no text column and give a table "
            "of their paths, or a folder"
        )


def _further(source: Source, dataset: Dataset, what: str) -> tuple[Split, list[str]]:
    """Validation or test data, whichever `what` says, in the encoding of the training data; and
    what to say of it."""
    if isinstance(dataset.train.inputs, ImageFiles):
        split, column = None, dataset.label_column
        if isinstance(source, str | Path):
            split = further_pictures(Path(source), dataset.encoder, dataset.classes, column, what)
        if split is None:
            raise InputError(f"{what} data must be pictures on disk as the training data is")
        is_labelled = split.labels != NO_LABEL
        if not is_labelled.any():
            raise InputError(f"{what} data has no labels")
        check_labelled(is_labelled.tolist(), f"{what} data")
        return split, []
    label, text = dataset.label_column, dataset.text_column
    raw, notes = read_new(source, dataset.encoder, label, text, what, what)
    split = _encoded(raw, dataset, what)
    # Of other data that comes twice it is said how much: whoever gives that may mean it.
    if what == "validation" and dataset.is_known and _are_same(split, dataset.train):
        raise InputError(
            f"the validation data is what {dataset.name} is trained on, for it has no part for "
            "validation; name none, and a share of the training data is held out, or give other "
            "data"
        )
    return split, [f"{what} data: {note}" for note in notes]


def _are_same(split: Split, other: Split) -> bool:
    inputs, others = split.inputs, other.inputs
    return isinstance(inputs, Tensor) and isinstance(others, Tensor) and torch.equal(inputs, others)


def _encoded(raw: Raw, dataset: Dataset, what: str) -> Split:
    raw = fitting(raw, dataset.encoder, what)
    if raw.labels is None:
        column = dataset.label_column
        where = "" if column is None else f"; they are looked for in a column {column!r}"
        raise InputError(f"{what} data has no labels{where}")
    if len(raw.samples) == 0:
        raise InputError(f"{what} data holds no samples")
    check_labelled(raw.labels, f"{what} data")
    labels = class_numbers(raw.labels, dataset.classes, what)
    return Split(dataset.encoder.encode(raw.samples), labels, texts=raw.texts)


def check_dataset(dataset: Dataset) -> None:
    """Raise InputError unless there is something to tell apart, by names that can be written."""
    for name in dataset.classes:
        check_name(name, "the name of a class")
    present = dataset.train.labels.unique()
    if len(present) < 2:
        raise InputError(
            f"{dataset.name} has one class only ({dataset.classes[int(present[0])]!r}); "
            "a classifier needs at least two"
        )
