"""CSV and TSV files: numeric columns or one text column, and labels."""

import shlex
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path

import numpy as np

from mlnt.data.columns import (
    AsTrained,
    Column,
    are_plain,
    fit_columns,
    names_of,
    numbers_of,
    parsed,
)
from mlnt.data.encoding import unnamed
from mlnt.data.oddities import few_of
from mlnt.data.table_rows import first_row_as_names, read_rows, unknown_column, without
from mlnt.data.wordy_columns import (
    are_categories,
    check_numbers,
    explain,
    is_number,
    raise_words,
    whole_names,
)
from mlnt.errors import InputError
from mlnt.texts import counted

LABEL_NAMES = ("label", "labels", "class", "target", "y")
SAVED_INDEX = "Unnamed: 0"  # as pandas calls a column without a name once it has read it


@dataclass(frozen=True)
class Table:
    kind: str  # table, text or paths
    samples: np.ndarray | list[str]
    labels: list[str] | None = None
    columns: tuple[str, ...] = ()
    passed_over: tuple[str, ...] = ()  # columns beside one of texts or of paths
    label: str | None = None  # the column that the labels came from
    labelled: np.ndarray | None = None  # as in Raw
    made_of: tuple[Column, ...] = ()  # as in Raw
    odd: tuple[str, ...] = ()  # what the user should know of it

    @property
    def unlabelled(self) -> int:
        """Rows that were left out, as they had no label."""
        return 0 if self.labelled is None else int((~self.labelled).sum())


def is_table(path: Path) -> bool:
    return path.suffix.lower() in (".csv", ".tsv")


def named_columns(header: list[str], features: Sequence[str] = ()) -> list[int]:
    """All columns but those without a name; a saved index has but the one that pandas gives."""
    begin = 1 if header[:1] == [SAVED_INDEX] and SAVED_INDEX not in features else 0
    return [i for i in range(begin, len(header)) if header[i]]


def read_table(
    path: Path,
    label_column: str | None,
    text_column: str | None,
    as_trained: AsTrained | None = None,
    beside: Sequence[str] | None = None,
    drop: Sequence[str] = (),
) -> Table:
    """Read a table with a header. A column without a name (a saved row index) is passed over.

    as_trained  how data beside that of the training is read; None: this is for training
    beside      labels that are given beside the table, in the place of its own; these may then be
                missing, but are counted: others may be given for the labelled rows alone
    drop        columns that are left out, for training
    """
    header, rows = without(*read_rows(path), drop, path)
    label = find_label(header, label_column, path, as_trained)
    lost = "" if as_trained is not None else first_row_as_names(header)
    if lost and label is None and beside is None:
        raise InputError(f"{path}: {lost}")
    if label is not None and label_column is None and as_trained is None:
        label = _checked_label(path, header, rows, label, beside)
    labelled = None
    if label is not None and as_trained is None:
        rows, labelled = with_label(rows, label, beside)
    may_lack = as_trained is not None or beside is not None
    labels = labels_of(rows, label, path, may_lack)
    if labels is not None and as_trained is None:
        labels = whole_names(labels)
    body = _Body(path, header, rows, label, as_trained, beside)
    table = body.of_known_columns() or body.samples(text_column)
    found = None if label is None else header[label]
    # The name of a label column is one of its labels where it is none.
    is_of_a_row = label is None or (label_column is not None and header[label] in (labels or ()))
    odd = (lost,) if lost and is_of_a_row else ()
    return replace(table, labels=labels, label=found, labelled=labelled, odd=odd)


@dataclass(frozen=True)
class _Body:
    """The rows of a table, of which samples are made, and where their label stands."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    label: int | None
    as_trained: AsTrained | None
    beside: Sequence[str] | None

    @property
    def others(self) -> list[int]:
        """All columns beside the label."""
        names = () if self.as_trained is None else self.as_trained.columns
        return [i for i in named_columns(self.header, names) if i != self.label]

    def of_known_columns(self) -> Table | None:
        """Numbers in the columns of the training data; None where these are not known."""
        if self.as_trained is None:
            return None
        names, made = self.as_trained.columns, self.as_trained.made_of
        places = known_columns(self.header, names, str(self.path))
        if places is None and made:
            places = self._by_order(names)
        if places is None:
            return None
        cells = [[row[i] for row in self.rows] for i in places]
        if made:
            return Table("table", numbers_of(made, cells, self.path), columns=names_of(made))
        return Table("table", _numbers(self.path, names, cells), columns=names)

    def _by_order(self, names: Sequence[str]) -> list[int]:
        """All columns, where the training data had no names, or a name twice."""
        header = [self.header[i] for i in self.others]
        if names != unnamed(len(names)) and len(set(names)) == len(names):
            raise InputError(
                f"{self.path} has two columns of one name ({few_of(header)}); which is that of the "
                "training data?"
            )
        return self.others

    def samples(self, text_column: str | None) -> Table:
        """Texts of the column that is named or the only one, else numbers of all columns."""
        if self.as_trained is not None and text_column not in self.header:
            text_column = self._only_words() or text_column
        if text_column is not None:
            return self._texts(self._place_of(text_column))
        if not self.others:
            raise InputError(f"{self.path} has no column but the label; nothing to learn from")
        by_column = list(zip(*self.rows, strict=True))
        numbers = {i: parsed(by_column[i]) for i in self.others}
        wordy = [i for i in self.others if numbers[i] is None]
        is_text = len(wordy) == len(self.others) == 1
        for i in wordy:
            check_numbers(self.path, self.header[i], by_column[i], may_be_text=is_text)
        if is_text:
            return self._texts(wordy[0])
        # Without a label column, one of these may be meant for it.
        meant = wordy if self.label is None else []
        if self.beside is not None:
            self._check_no_labels([i for i in meant if are_categories(by_column[i])])
            meant = []
        strange = [i for i in wordy if i in meant or not are_categories(by_column[i])]
        if strange:
            explain(self.path, self.header, self.rows, strange, self._name_of_label())
        return self._table({i: by_column[i] for i in self.others}, numbers)

    def _only_words(self) -> str | None:
        """The name of the only column, if it holds words."""
        only = self.others[0] if len(self.others) == 1 else None
        if only is None or all(is_number(row[only]) for row in self.rows):
            return None
        return self.header[only]

    def _place_of(self, text_column: str) -> int:
        if text_column not in self.header:
            raise InputError(unknown_column(text_column, self.header, self.path))
        place = self.header.index(text_column)
        if place == self.label:
            raise InputError(f"{text_column!r} cannot be both the text and the label column")
        return place

    def _texts(self, column: int) -> Table:
        passed_over = tuple(self.header[i] for i in self.others if i != column)
        texts = [row[column] for row in self.rows]
        return Table("text", texts, columns=(self.header[column],), passed_over=passed_over)

    def _table(
        self, cells: Mapping[int, Sequence[str]], numbers: Mapping[int, np.ndarray | None]
    ) -> Table:
        """All columns as they are, or for training what becomes of them."""
        names = tuple(self.header[i] for i in cells)
        given = [cells[i] if (values := numbers[i]) is None else values for i in cells]
        made = fit_columns(names, given, self.path) if self.as_trained is None else ()
        if are_plain(made):
            written = list(cells.values())
            values_ND = _numbers(self.path, names, written, numbers.values())
            return Table("table", values_ND, columns=names)
        values_ND = numbers_of(made, given, self.path)
        return Table("table", values_ND, columns=names_of(made), made_of=made)

    def _name_of_label(self) -> str | None:
        """None where it may yet be named: not where labels are given beside the table, or the
        columns of the training data are known."""
        if self.label is not None:
            return self.header[self.label]
        is_known = self.as_trained is not None and self.as_trained.columns
        return "" if is_known or self.beside is not None else None

    def _check_no_labels(self, columns: Sequence[int]) -> None:
        """Raise InputError where one of these columns of words may hold what the labels given
        beside the table replace: learnt from, it would tell them."""
        names = set(self.beside or ())
        for i in columns:
            words = {row[i].strip() for row in self.rows}
            # By numbers nobody can know: they may be the places of these words.
            if not names.isdisjoint(words) or all(name.isdigit() for name in names):
                name = self.header[i]
                raise InputError(
                    f"{self.path}: are the words in {name!r} those that the labels given beside it "
                    f"replace? Then name it: --label-column {shlex.quote(name)}; else leave it "
                    f"out: --drop-columns {shlex.quote(name)}"
                )


def _checked_label(
    path: Path,
    header: list[str],
    rows: list[list[str]],
    label: int,
    beside: Sequence[str] | None,
) -> int | None:
    """The place of a label found by its name alone: a y may be a measurement beside others.

    InputError where nobody can know; None where it is one, as labels are given beside the table.
    """
    if header[label].lower() != "y" or not all(is_number(row[label]) for row in rows):
        return label
    own = set(whole_names([row[label].strip() for row in rows])) - {""}
    if beside is not None and own and own.isdisjoint(whole_names(list(beside))):
        return None
    other = _measurement_beside(header, rows, label)
    if other is None:
        return label
    if beside is not None:
        return None
    raise InputError(
        f"{path}: are the labels in {header[label]!r}? It holds numbers, and there is a column "
        f"{other!r} beside it; name the label column: --label-column NAME"
    )


def _measurement_beside(header: list[str], rows: list[list[str]], label: int) -> str | None:
    """The column beside which y, found by its name alone, may be no label."""
    lowered = [name.lower() for name in header]
    if "x" in lowered:
        return header[lowered.index("x")]
    for i in named_columns(header):
        cells = [row[i].strip() for row in rows]
        if i != label and not any(map(is_number, cells)) and are_categories(cells):
            return header[i]
    return None


def _numbers(
    path: Path,
    names: Sequence[str],
    cells: Sequence[Sequence[str]],
    numbers: Iterable[np.ndarray | None] | None = None,
) -> np.ndarray:
    """The values [N, D] of columns of numbers, of which none may be missing or infinite."""
    found = [parsed(of_it) for of_it in cells] if numbers is None else list(numbers)
    for name, of_it, values in zip(names, cells, found, strict=True):
        if values is None:
            raise_words(path, name, of_it)
    values_ND = np.column_stack([values for values in found if values is not None])
    is_bad = ~np.isfinite(values_ND)
    if is_bad.any():
        row, place = (int(i) for i in np.argwhere(is_bad)[0])
        cell = cells[place][row].strip()[:40]
        bad, rows = int(is_bad.any(axis=1).sum()), counted(len(is_bad), "row")
        remedy = "has a cell that is empty, NaN or infinite: fill it, or remove the row"
        if bad > 1:
            remedy = "have a cell that is empty, NaN or infinite: fill these, or remove the rows"
        raise InputError(
            f"{path}: row {row + 1} has {repr(cell) if cell else 'nothing'} in column "
            f"{names[place]!r}; {bad:,} of {rows} {remedy}"
        )
    return values_ND


def known_columns(header: Sequence[str], features: Sequence[str], what: str) -> list[int] | None:
    """Where the columns of the training data stand.

    None where these have no names, or a name stands twice: then they go by their order.
    """
    if not features or tuple(features) == unnamed(len(features)):
        return None
    times = Counter(header)
    missing = [repr(name) for name in features if name not in times]
    if missing:
        raise InputError(
            f"{what} has not all columns of the training data: {few_of(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing (columns: {few_of(header)})"
        )
    if any(times[name] > 1 for name in features):
        return None
    places = {name: place for place, name in enumerate(header)}
    return [places[name] for name in features]


def with_label(
    rows: list[list[str]], label: int, beside: Sequence[str] | None = None
) -> tuple[list[list[str]], np.ndarray | None]:
    """Those that have one, and which these are; all, and None, where all or none have one, or
    labels are given beside and not as many as these."""
    labelled = np.array([bool(row[label].strip()) for row in rows])
    are_for_these = beside is None or len(beside) == labelled.sum()
    if labelled.all() or not labelled.any() or not are_for_these:
        return rows, None
    return list(compress(rows, labelled)), labelled


def labels_of(
    rows: Sequence[Sequence[str]], label: int | None, path: Path, may_lack: bool = False
) -> list[str] | None:
    """The labels, of which some may lack or not; None where there are none."""
    if label is None:
        return None
    labels = [row[label].strip() for row in rows]
    if may_lack:
        return labels if any(labels) else None
    check_labelled(labels, str(path))
    return labels


def check_labelled(labels: Sequence[str | bool], what: str) -> None:
    """Labels, or whether they are there."""
    row = next((row for row, label in enumerate(labels, start=1) if not label), None)
    if row is not None:
        raise InputError(f"{what}: row {row} has no label")


def find_label(
    header: list[str], wanted: str | None, path: Path, as_trained: AsTrained | None = None
) -> int | None:
    if wanted is not None:
        if wanted in header:
            return header.index(wanted)
        if as_trained is not None:
            return None
        raise InputError(unknown_column(wanted, header, path))
    features = () if as_trained is None else as_trained.columns
    return first_called(["" if name in features else name for name in header], LABEL_NAMES)


def first_called(header: Sequence[str], names: Sequence[str]) -> int | None:
    """Where the first of these names stands, be it in capitals."""
    lowered = [name.lower() for name in header]
    for name in names:
        for among in (header, lowered):
            if name in among:
                return among.index(name)
    return None
