"""`open_dataset`: data sets known by name, CSV/TSV, .npz and arrays.

name or path or (X, y) -> raw samples and labels -> encoder fitted on train -> Dataset
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from mlnt.data.array_files import read_npz
from mlnt.data.columns import (
    AsTrained,
    cells_of,
    fit_columns,
    names_of,
    needs_columns,
    numbers_of,
)
from mlnt.data.dataset import Dataset, Split
from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder, TextEncoder, unnamed
from mlnt.data.folders import check_not_nested
from mlnt.data.frames import is_frame, labelled_alone, part_frame
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
    read_saved_rows,
)
from mlnt.data.image_files import ImageFiles
from mlnt.data.known import NAMED, Known, Raw, Source, exists, find_known
from mlnt.data.label_files import (
    as_array,
    as_texts,
    check_name,
    classes_of,
    label_names,
)
from mlnt.data.oddities import (
    far_values,
    few_of,
    filled_cells,
    label_once_more,
    made_columns,
    named_as_labels,
    other_range,
    row_counters,
    span,
    without_label,
)
from mlnt.data.other_forms import check_no_dataset, parts_in, way_out
from mlnt.data.picture_sets import find_pictures, from_pictures, further_pictures
from mlnt.data.pictures import NO_LABEL, Parts, are_picture_paths
from mlnt.data.table_rows import names_to_drop, places_left
from mlnt.data.tables import (
    LABEL_NAMES,
    check_labelled,
    is_table,
    known_columns,
    read_table,
)
from mlnt.errors import InputError, did_you_mean
from mlnt.texts import counted

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
    if drop and not _has_columns(source):
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
    elif isinstance(source, str | Path) and _is_npz(Path(source)) and exists(Path(source)):
        saved = only_labelled(_read_arrays(Path(source)))
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
        dataset = replace(dataset, validation=_further(validation, dataset, "validation"))
    if test is not None:
        dataset = replace(dataset, test=_further(test, dataset, "test"))
    check_dataset(dataset)
    return replace(dataset, notes=(*dataset.notes, *label_once_more(dataset), *_ranges(dataset)))


def _ranges(dataset: Dataset) -> Iterator[str]:
    for what, split in (("validation", dataset.validation), ("test", dataset.test)):
        if split is not None:
            yield from other_range(split.inputs, dataset.encoder, what)


def read(
    source: Source,
    label_column: str | None = None,
    text_column: str | None = None,
    as_trained: AsTrained | None = None,
    wanted: str = "test",
    beside: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Raw:
    """Samples and labels (None if there are none) of a file or a pair of arrays.

    Of data that is divided: the part that is wanted, validation or test; train where it has no such
    part. `as_trained`, `beside` and `drop` are as in `read_table`.
    """
    check_no_dataset(source)
    if isinstance(source, TensorDataset):
        source = source.tensors
    if isinstance(source, torch.utils.data.Dataset | DataLoader):
        raise InputError(
            f"a {type(source).__name__} gives samples one after another; give (X, y), arrays or "
            "tensors of all of them"
        )
    if isinstance(source, tuple):
        if len(source) != 2:
            got = counted(len(source), "value")
            raise InputError(f"arrays are given as a pair (X, y), got {got}")
        return _from_arrays(*source, as_trained)
    if is_frame(source):
        frame: Any = source
        if drop:
            header = [str(name) for name in frame.columns]
            frame = frame.iloc[:, places_left(header, drop, "the data frame")]
        samples, given = part_frame(frame, label_column, text_column, as_trained)
        if as_trained is not None:
            return replace(_from_arrays(samples, None, as_trained), labels=given)
        labelled = None
        if given is not None:
            samples, given, labelled = labelled_alone(samples, given, beside)
        lacking = 0 if labelled is None else int((~labelled).sum())
        raw = replace(_from_arrays(samples, None), labels=given, labelled=labelled)
        return replace(raw, notes=tuple(without_label(lacking)))
    if not isinstance(source, str | Path):
        return _from_arrays(source, None)
    known = find_known(source)
    if known is not None:
        return known.test if wanted == "test" else known.train
    path = Path(source)
    if not exists(path):
        names = ", ".join(NAMED)
        hint = did_you_mean(str(source), NAMED)
        raise InputError(
            f"no data set {str(source)!r}{hint} (known: {names}; or a path to a CSV, TSV or .npz)"
        )
    if is_saved_dataset(path):
        saved = read_saved_rows(path, label_column, text_column, as_trained)
        return getattr(saved, wanted) or saved.train
    if path.is_dir() or not (is_table(path) or _is_npz(path)):
        expected = "expected a CSV, a TSV, an .npz, or a folder of a known data set"
        raise InputError(f"cannot read {path}: {way_out(path) or expected}")
    if _is_npz(path):
        arrays = _read_arrays(path)
        return getattr(arrays, wanted) or arrays.train
    table = read_table(path, label_column, text_column, as_trained, beside, drop)
    notes = (f"passing over {span(table.passed_over)}",) if table.passed_over else ()
    notes = (*notes, *table.odd, *without_label(table.unlabelled))
    if beside is not None and table.label is None:
        notes = (*notes, *named_as_labels(table.columns, LABEL_NAMES))
    return Raw(
        table.kind,
        table.samples,
        table.labels,
        columns=table.columns,
        notes=notes,
        label=table.label,
        made_of=table.made_of,
        labelled=table.labelled,
    )


def _has_columns(source: Source) -> bool:
    if not isinstance(source, str | Path):
        return is_frame(source)
    return is_table(Path(source)) or is_saved_dataset(source)


def _is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def _read_arrays(path: Path) -> RawParts:
    """The parts of an .npz; one part alone, whatever its name, is train."""
    arrays = read_npz(path)
    found = parts_in(arrays)
    if not found:
        raise InputError(
            f"{path} must hold arrays X and y (or X_train, y_train, X_test and y_test), it holds "
            f"{', '.join(arrays)}"
        )
    raw = {
        part: _from_arrays(arrays[X], None if y is None else arrays[y])
        for part, (X, y) in found.items()
    }
    train = raw.pop("train") if "train" in raw else raw.popitem()[1]
    notes = tuple(f"{X} is the data for {part}" for part, (X, _) in found.items() if part in raw)
    return RawParts(path.stem, (), train, raw.get("validation"), raw.get("test"), notes)


def read_further(
    source: Source,
    encoder: Encoder,
    label_column: str | None,
    text_column: str | None,
    wanted: str = "test",
) -> Raw:
    """Data beside that of the training, by the columns that this had."""
    as_trained = AsTrained()
    if isinstance(encoder, TableEncoder):
        as_trained = AsTrained(encoder.table_columns, encoder.made_of)
    return read(source, label_column, text_column, as_trained, wanted)


def read_new(
    source: Source, encoder: Encoder, label_column: str | None, text_column: str | None
) -> tuple[Raw, Iterator[str]]:
    """Data to predict, by the columns that the training data had, and what to say of it.

    Of a table or a data frame, missing cells are filled with what training knows of their column.
    """
    as_trained = AsTrained()
    if isinstance(encoder, TableEncoder):
        as_trained = AsTrained(encoder.table_columns, encoder.with_gaps)
    raw = fitting(read(source, label_column, text_column, as_trained), encoder, "this")
    if not isinstance(encoder, TableEncoder) or not raw.columns:
        return raw, iter(())
    rows_ND = np.asarray(raw.samples, np.float64)
    notes = filled_cells(encoder.columns, np.isnan(rows_ND))
    return replace(raw, samples=encoder.filled(rows_ND)), notes


def _name_of(source: Source) -> str:
    return Path(source).stem if isinstance(source, str | Path) else ARRAYS


def _from_arrays(samples: Any, labels: Any, as_trained: AsTrained | None = None) -> Raw:
    names = None if labels is None else label_names(labels)
    columns = _names_of_columns(samples)
    made = () if as_trained is None else as_trained.made_of
    if is_frame(samples) and (made or (_may_be_made(samples) and as_trained is None)):
        header, what = [str(name) for name in samples.columns], "the data frame"
        places = None
        if _names_of_columns(samples):  # numbers are no names: such columns go by their order
            places = known_columns(header, [column.name for column in made], what)
        cells = cells_of(samples if places is None else samples.iloc[:, places])
        made = made or fit_columns(header, cells, what)
        samples, columns = numbers_of(made, cells, what), names_of(made)
    else:
        made = ()
    if (texts := as_texts(samples, "features")) is not None:
        kind, samples, count = "text", texts, len(texts)
    else:
        samples = as_array(samples, "features")
        if samples.dtype.kind in "US":
            return _from_arrays(samples.reshape(-1).tolist(), labels)
        if samples.dtype.kind not in "biuf":
            raise InputError(f"features must be numbers or texts, got an array of {samples.dtype}")
        if samples.ndim not in (2, 3, 4):
            raise InputError(
                f"features must be rows [N, D] or images [N, H, W] or [N, C, H, W], "
                f"got shape {samples.shape}"
            )
        kind, count = ("table" if samples.ndim == 2 else "image"), len(samples)
    if names is not None and len(names) != count:
        raise InputError(
            f"{counted(count, 'sample')} but {counted(len(names), 'label')}; they must be as many"
        )
    return Raw(kind, samples, names, columns, made_of=made)


def _may_be_made(frame: Any) -> bool:
    """Whether it holds more than numbers, and is no column of texts."""
    return needs_columns(frame) and (frame.shape[1] > 1 or as_texts(frame, "features") is None)


def _names_of_columns(samples: Any) -> tuple[str, ...]:
    """Of a data frame, or of one of its columns, if they are names."""
    one = (getattr(samples, "name", None),) if hasattr(samples, "iloc") else ()
    columns = list(getattr(samples, "columns", one))
    return tuple(columns) if all(isinstance(name, str) for name in columns) else ()


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
    if name == ARRAYS:
        return (
            'name their column with label_column, or give (df.drop(columns="label"), df["label"]) '
            f"(columns: {few_of(raw.columns)})"
        )
    if len(raw.columns) == 1:
        return (
            f"its only column is {raw.columns[0][:80]!r}; are columns separated by a comma, a "
            "semicolon or a tab?"
        )
    return f"name their column with --label-column NAME (columns: {few_of(raw.columns)})"


def _check_texts(raw: Raw, name: str) -> None:
    if are_picture_paths(raw.samples):
        column = f" of {raw.columns[0]!r}" if raw.columns else ""
        raise InputError(
            f"{name}: the texts{column} are names of pictures ({raw.samples[0][:80]!r}), of which "
            "words say nothing; to learn from the pictures, name no text column and give a table "
            "of their paths, or a folder"
        )


def _further(source: Source, dataset: Dataset, what: str) -> Split:
    """Validation or test data, whichever `what` says, in the encoding of the training data."""
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
        return split
    label, text = dataset.label_column, dataset.text_column
    raw = read_further(source, dataset.encoder, label, text, what)
    split = _encoded(raw, dataset, what)
    # Of other data that comes twice it is said how much: whoever gives that may mean it.
    if what == "validation" and dataset.is_known and _are_same(split, dataset.train):
        raise InputError(
            f"the validation data is what {dataset.name} is trained on, for it has no part for "
            "validation; name none, and a share of the training data is held out, or give other "
            "data"
        )
    return split


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


def fitting(raw: Raw, encoder: Encoder, what: str) -> Raw:
    """The data with the columns of the training data, found by their names; InputError where some
    are missing, or it is of another kind."""
    if raw.kind != encoder.kind:
        raise InputError(f"{what} data is {raw.kind}, but the training data is {encoder.kind}")
    if not isinstance(encoder, TableEncoder) or raw.columns in ((), encoder.columns):
        return raw
    if encoder.columns == unnamed(len(raw.columns)):
        return raw  # they can only go by their order
    if encoder.columns == unnamed(len(encoder.columns)):
        raise InputError(
            f"{what} data has {counted(len(raw.columns), 'column')} ({few_of(raw.columns)}), the "
            f"training data had {len(encoder.columns)}, without names"
        )
    places = known_columns(raw.columns, encoder.columns, f"{what} data")
    if places is None:
        raise InputError(
            f"{what} data has two columns of one name ({few_of(raw.columns)}); which is that of "
            "the training data?"
        )
    return replace(raw, samples=np.asarray(raw.samples)[:, places], columns=encoder.columns)


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
