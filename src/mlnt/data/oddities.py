"""What is odd about names of classes and columns: said before a training, for the user to judge."""

import shlex
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mlnt.data.columns import Column
from mlnt.data.dataset import Dataset
from mlnt.data.encoding import Encoder, ImageEncoder, TableEncoder
from mlnt.data.image_files import ImageFiles
from mlnt.data.wordy_columns import MISSING, as_number
from mlnt.texts import counted

FEWEST_ROWS = 10  # of fewer anything may be chance
NAMED, IN_FULL = 5, 5
OTHER_SCALE = 10  # times the spread of the training data, or less than a tenth of it
BLANK = 1e-5  # of this spread images have no scale


def span(names: Sequence[str]) -> str:
    """`a, b, c`; of many the first and the last: `f0 … f5`."""
    return ", ".join(names) if len(names) <= IN_FULL else f"{names[0]} … {names[-1]}"


def few_of(names: Sequence[str]) -> str:
    """The first few, and how many more there are."""
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


def odd_classes(classes: Sequence[str]) -> Iterator[str]:
    """Notes of names that may mean the same class, or none."""
    alike: dict[str, list[str]] = {}
    for name in classes:
        alike.setdefault(" ".join(name.split()).casefold(), []).append(name)
    pairs = [" and ".join(repr(n) for n in names) for names in alike.values() if len(names) > 1]
    if pairs:
        yield f"{few_of(pairs)} differ in case or white space only: one class?"
    yield from _odd_numbers(classes)
    missing = [repr(name) for name in classes if name.strip().casefold() in MISSING]
    if missing:
        yield f"a class is called {few_of(missing)}: are these samples without label?"


def _odd_numbers(classes: Sequence[str]) -> Iterator[str]:
    """Notes of one number written in several ways, and of numbers that may be measurements."""
    equal: dict[float, list[str]] = {}
    for name in classes:
        if (value := as_number(name)) is not None:
            equal.setdefault(value, []).append(name)
    pairs = [" and ".join(repr(n) for n in names) for names in equal.values() if len(names) > 1]
    if pairs:
        yield f"{few_of(pairs)} are the same number: one class?"
    fractions = [names[0] for value, names in equal.items() if not value.is_integer()]
    if fractions and sum(map(len, equal.values())) == len(classes):
        yield f"classes are numbers with fractions ({few_of(fractions)}): or measurements?"


def row_counters(rows: np.ndarray, columns: Sequence[str]) -> Iterator[str]:
    """Notes of columns of consecutive whole numbers, all different, in any order."""
    rows = np.asarray(rows, dtype=np.float64)
    if len(rows) < FEWEST_ROWS:
        return
    low, high = rows.min(axis=0), rows.max(axis=0)
    for i in ((high - low == len(rows) - 1) & (low == np.floor(low))).nonzero()[0]:
        if np.array_equal(np.sort(rows[:, i]), low[i] + np.arange(len(rows))):
            yield (
                f"column {columns[i]!r} counts the rows ({low[i]:.0f} … {high[i]:.0f}); "
                f"leave it out unless it means more: --drop-columns {shlex.quote(columns[i])}"
            )


def far_values(rows: np.ndarray, encoder: TableEncoder) -> Iterator[str]:
    """A note of the columns that are bent, with the value farthest out in the first of them."""
    names = [name for name, bent in zip(encoder.columns, encoder.bent, strict=False) if bent]
    if not names:
        return
    i = encoder.columns.index(names[0])
    values = np.asarray(rows[:, i], dtype=np.float64)
    far = float(values[np.abs(values - encoder.mean[i]).argmax()])
    yield (
        f"some values of {few_of([repr(name) for name in names])} lie far beyond the rest "
        f"({far:.6g} in {names[0]!r}); they are drawn in by asinh; does one stand for a missing "
        "value?"
    )


def without_label(count: int) -> Iterator[str]:
    if count:
        yield f"{counted(count, 'row')} without a label left out"


def named_as_labels(columns: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """A note of a column that is learnt from, though labels are often called so."""
    for column in columns:
        if column.lower() in names:
            yield (
                f"column {column!r} is learnt from, as labels are given beside the data; if it "
                f"holds some too, name it: --label-column {shlex.quote(column)}"
            )


def only_some(labelled: int, count: int) -> Iterator[str]:
    if labelled < count:
        yield f"{labelled:,} of {count:,} have a label to compare with"


def made_columns(columns: Sequence[Column]) -> Iterator[str]:
    """Notes of columns that were no numbers, or not all of them."""
    if words := [repr(column.name) for column in columns if column.categories]:
        yield f"categories, a column of 0 and 1 for each: {few_of(words)}"
    if filled := [repr(column.name) for column in columns if column.marks]:
        yield (
            f"cells are missing in {few_of(filled)}: filled with the median; a column of 0 and 1 "
            "says where"
        )


def filled_cells(
    columns: Sequence[str], lacks_ND: np.ndarray, made_of: Sequence[Column] = ()
) -> Iterator[str]:
    """A note of cells that were missing in new data, but in none of the training data."""
    words = {column.names[0]: column.name for column in made_of if column.categories}
    counts = dict(zip(columns, lacks_ND.sum(axis=0).tolist(), strict=True))
    by_column = {name: count for name, count in counts.items() if count}
    if not by_column:
        return
    cells, rows, all_rows = int(lacks_ND.sum()), int(lacks_ND.any(axis=1).sum()), len(lacks_ND)
    if by_column.keys() <= words.keys():
        how = "taken for none of the categories"
    elif by_column.keys().isdisjoint(words):
        how = "filled with the middle of the column"
    else:
        how = "filled with the middle of the column, or taken for none of the categories,"
    named = few_of([f"{words.get(name, name)!r} ({n:,})" for name, n in by_column.items()])
    yield (
        f"{counted(cells, 'missing cell')} in {rows:,} of {counted(all_rows, 'row')}, in {named}: "
        f"{how} in the training data, where none was missing"
    )


def other_range(inputs: Tensor | ImageFiles, encoder: Encoder, what: str) -> Iterator[str]:
    """A note where images vary far less or more than those trained on: 0 … 1 for 0 … 255; of
    pictures on disk where it was to be guessed what is white."""
    if isinstance(inputs, ImageFiles) and inputs.white not in (1, 255):
        yield (
            f"white in {what} pictures is taken for {inputs.white:.6g}, the largest value of the "
            "arrays trained on"
        )
    if not isinstance(encoder, ImageEncoder) or not isinstance(inputs, Tensor) or not len(inputs):
        return
    values_CN = inputs.movedim(1, 0).flatten(1)
    spread = float(values_CN.std(dim=1, correction=0).mean())  # of the training data it is 1
    if spread < BLANK or 1 / OTHER_SCALE <= spread <= OTHER_SCALE:
        return
    mean, std = torch.tensor(encoder.mean), torch.tensor(encoder.std)
    low, high = (
        float(pick(pick(values_CN, dim=1) * std + mean)) for pick in (torch.amin, torch.amax)
    )
    if abs(low) < (high - low) / 1000:
        low = 0.0  # but for rounding
    yield (
        f"{what} images have values from {low:.3g} to {high:.3g}, those trained on "
        f"{float(mean.mean()):.3g} ± {float(std.mean()):.3g} (mean ± spread): another scale?"
    )


def label_once_more(dataset: Dataset) -> Iterator[str]:
    """Notes of columns that have one value for each class."""
    inputs, labels = dataset.train.inputs, dataset.train.labels
    if not isinstance(dataset.encoder, TableEncoder) or len(labels) < FEWEST_ROWS:
        return
    assert isinstance(inputs, Tensor)
    left = torch.arange(inputs.shape[1])
    values: list[Tensor] = []
    present = labels.unique()
    if 2 * len(present) > len(labels):  # of classes of one sample each any column tells them
        return
    for number in present:
        rows = inputs[labels == number]
        left = left[(rows[:, left] == rows[0, left]).all(dim=0)]
        values.append(rows[0])
        if len(left) == 0:
            return
    for i in left.tolist():
        if len({float(row[i]) for row in values}) == len(values) > 1:
            name = dataset.encoder.columns[i]
            yield f"column {name!r} alone tells the label of every row: is it the label once more?"
