"""Samples and labels as they come: of files, arrays and data frames, for training or beside it.

file, arrays or frame -> raw samples and names of classes, by the columns that training had
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
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
from mlnt.data.encoding import Encoder, TableEncoder, unnamed
from mlnt.data.frames import is_frame, labelled_alone, part_frame
from mlnt.data.huggingface import (
    RawParts,
    is_saved_dataset,
    read_saved_rows,
)
from mlnt.data.known import NAMED, find_known
from mlnt.data.label_files import (
    as_array,
    as_texts,
    label_names,
)
from mlnt.data.oddities import (
    few_of,
    filled_cells,
    named_as_labels,
    span,
    without_label,
)
from mlnt.data.other_forms import check_no_dataset, parts_in, way_out
from mlnt.data.raw import Raw, Source
from mlnt.data.table_rows import places_left
from mlnt.data.tables import LABEL_NAMES, is_table, known_columns, read_table
from mlnt.errors import InputError, did_you_mean
from mlnt.files import exists
from mlnt.texts import counted


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
    if path.is_dir() or not (is_table(path) or is_npz(path)):
        expected = "expected a CSV, a TSV, an .npz, or a folder of a known data set"
        raise InputError(f"cannot read {path}: {way_out(path) or expected}")
    if is_npz(path):
        arrays = read_arrays(path)
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


def has_columns(source: Source) -> bool:
    if not isinstance(source, str | Path):
        return is_frame(source)
    return is_table(Path(source)) or is_saved_dataset(source)


def is_npz(path: Path) -> bool:
    return path.suffix.lower() == ".npz"


def read_arrays(path: Path) -> RawParts:
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


def read_new(
    source: Source,
    encoder: Encoder,
    label_column: str | None,
    text_column: str | None,
    what: str = "this",
    wanted: str = "test",
) -> tuple[Raw, Iterator[str]]:
    """Data beside that of the training, by the columns that this had, and what to say of it.

    Of a table or a data frame, missing cells are filled with what training knows of their column.
    """
    as_trained = AsTrained()
    if isinstance(encoder, TableEncoder):
        as_trained = AsTrained(encoder.table_columns, encoder.with_gaps)
    raw = fitting(read(source, label_column, text_column, as_trained, wanted), encoder, what)
    if not isinstance(encoder, TableEncoder) or not raw.columns:
        return raw, iter(())
    rows_ND = np.asarray(raw.samples, np.float64)
    notes = filled_cells(encoder.columns, np.isnan(rows_ND), encoder.made_of)
    return replace(raw, samples=encoder.filled(rows_ND)), notes


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
        if is_frame(samples) and not needs_columns(samples):
            # As it comes, flags beside numbers would be objects, and nullable numbers too.
            samples = samples.to_numpy("float64")
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
