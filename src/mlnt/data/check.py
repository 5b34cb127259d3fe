"""Is a tree of pictures complete? `mlnt data check PATH` says so within a minute.

lists -> folders listed: what is named and not there? -> pictures at random, until time is over
"""

import os
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from mlnt.data import clothing1m
from mlnt.data.dataset import Dataset
from mlnt.data.folders import image_folder_parts
from mlnt.data.huggingface import is_saved_dataset, read_saved
from mlnt.data.image_files import CROP, SIZE
from mlnt.data.label_files import sorted_classes
from mlnt.data.picture_sets import find_pictures, from_pictures
from mlnt.data.pictures import NO_LABEL, Parts, PathTable, PictureError, read_picture
from mlnt.data.sources import open_dataset
from mlnt.data.tables import is_table
from mlnt.errors import InputError
from mlnt.files import exists

CONFIDENCE = 0.95
LISTING_SHARE = 2 / 3  # of the time at most: some is left for looking into pictures
SHOWN = 3  # examples of each kind of fault
CLOTHING1M = {"train": 1_000_000, "validation": 14_313, "test": 10_526}  # as published

Read = Callable[[str, int, int], np.ndarray]  # of a path, size and crop makes the pixels


@dataclass(frozen=True)
class PartCount:
    """What a part should hold, by its list or its folders."""

    name: str
    pictures: int
    per_class: list[int]
    without_label: int = 0
    out_of_range: int = 0


@dataclass
class Report:
    """What was found. `ok`: nothing is wrong with what was looked at."""

    path: Path
    kind: str
    classes: tuple[str, ...]
    parts: list[PartCount]
    problems: list[str] = field(default_factory=list)  # besides those counted below
    notes: list[str] = field(default_factory=list)
    looked_for: int = 0  # pictures whose folder was listed
    missing: list[str] = field(default_factory=list)
    decoded: int = 0  # pictures tried, drawn at random from those not missing
    unreadable: dict[str, str] = field(default_factory=dict)  # path: reason
    seconds: float = 0.0
    things: str = "pictures"
    dataset: Dataset | None = None  # what a training would be of, where there may be one

    @property
    def pictures(self) -> int:
        return sum(part.pictures for part in self.parts)

    @property
    def unreadable_share(self) -> float:
        return len(self.unreadable) / max(1, self.decoded)

    @property
    def upper_bound(self) -> float:
        """The share of unreadable pictures is below this, with 95 % confidence."""
        if self.decoded >= self.pictures - len(self.missing):
            return self.unreadable_share  # all have been tried
        return upper_bound(len(self.unreadable), self.decoded)

    @property
    def faults(self) -> list[str]:
        """All that is wrong, one line each."""
        lines = list(self.problems)
        for part in self.parts:
            if part.without_label:
                lines.append(f"{part.without_label:,} {self.things} of {part.name} have no label")
            if part.out_of_range:
                lines.append(
                    f"{part.out_of_range:,} {self.things} of {part.name} have a label beyond "
                    f"0 to {len(self.classes) - 1}"
                )
        if self.missing:
            lines.append(
                f"{len(self.missing):,} of {self.looked_for:,} {self.things} are missing "
                f"({_examples(self.missing)})"
            )
        if self.unreadable:
            named = (f"{path}: {reason}" for path, reason in self.unreadable.items())
            lines.append(
                f"{len(self.unreadable):,} of {self.decoded:,} {self.things} cannot be read "
                f"({_examples(named)})"
            )
        if not self.pictures and not lines:
            lines.append(f"there are no {self.things}")
        return lines

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def verdict(self) -> str:
        faults = self.faults
        if faults:
            more = f" and {len(faults) - 1} more faults" if len(faults) > 1 else ""
            return f"not complete: {faults[0]}{more}"
        there = f"{self.pictures:,} {self.things} are there"
        if self.looked_for < self.pictures:
            there = f"of {self.pictures:,} pictures {self.looked_for:,} looked for, all there"
        if self.decoded == self.pictures:
            return f"complete: {there}, and all can be read"
        return (
            f"complete: {there}; {self.decoded:,} drawn at random can be read "
            f"(with 95 % confidence, fewer than {100 * self.upper_bound:.2g} % cannot)"
        )

    def to_rich(self) -> list[Table | str]:
        """For the terminal: counts by class, all faults and notes, the verdict."""
        table = Table(title=f"{self.kind}: {self.path}")
        table.add_column("class")
        for part in self.parts:
            table.add_column(part.name, justify="right")
        for number, name in enumerate(self.classes):
            table.add_row(name, *(f"{part.per_class[number]:,}" for part in self.parts))
        table.add_section()
        table.add_row("all", *(f"{part.pictures:,}" for part in self.parts))
        lines = [*(f"note: {note}" for note in self.notes), *(f"fault: {f}" for f in self.faults)]
        return [table, *lines, f"{self.verdict}  [{self.seconds:.0f} s]"]


def check_tree(
    path: str | Path,
    seconds: float = 60,
    label_column: str | None = None,
    text_column: str | None = None,
    drop_columns: str | None = None,
) -> Report:
    """Look at a Clothing1M tree, an image folder, a saved data set or a table for about so long."""
    began, path = time.monotonic(), Path(path)
    columns: dict[str, Any] = {
        "label_column": label_column,
        "text_column": text_column,
        "drop_columns": drop_columns,
    }
    read: Read = read_picture
    if exists(path) and not path.is_dir():
        report, tables = _file_report(path, columns)
        _look_for(report, tables, began + LISTING_SHARE * seconds)
        _decode_some(report, tables, read, lambda: time.monotonic() - began < seconds)
        report.seconds = time.monotonic() - began
        return report
    if not exists(path):
        raise InputError(
            f"no folder or file at {path}; give a CSV, a TSV or an .npz, a Clothing1M tree, an "
            "image folder or a saved data set"
        )
    _refuse_other_kinds(path)
    place = clothing1m.lists_folder(path)
    if is_saved_dataset(path):
        report, tables, read = _saved_report(path, columns)
    elif place is not None:
        report, tables = _clothing1m_report(path, place)
        _look_for(report, tables, began + LISTING_SHARE * seconds)
    else:
        report, tables = _folder_report(path)
        report.looked_for = report.pictures  # they come from listing
    _decode_some(report, tables, read, lambda: time.monotonic() - began < seconds)
    report.seconds = time.monotonic() - began
    return report


def upper_bound(bad: int, tried: int, confidence: float = CONFIDENCE) -> float:
    """Clopper and Pearson: the share p at which so few bad ones have the probability 1 − c."""
    from scipy.stats import beta

    return 1.0 if bad >= tried else float(beta.ppf(confidence, bad + 1, tried - bad))


def _refuse_other_kinds(path: Path) -> None:
    names = {entry.name for entry in os.scandir(path)}
    for kind, mark in (("CIFAR-10", "data_batch_1"), ("Fashion-MNIST", "idx3-ubyte")):
        if any(mark in name for name in names):
            raise InputError(
                f"{path} is not a picture tree: it holds {kind} in a few large files, which "
                "`mlnt train` checks as it reads them"
            )


def _clothing1m_report(path: Path, place: Path) -> tuple[Report, list[PathTable]]:
    classes = clothing1m.class_names(place)
    problems = [f"{name} is missing" for name in clothing1m.missing_lists(place)]
    if not (path / "images").is_dir():
        problems.append("the folder images is missing")
    counts, tables = [], []
    for name, (keys, labels) in clothing1m.read_lists(place).items():
        inside = labels[(labels >= 0) & (labels < len(classes))]
        counts.append(
            PartCount(
                name,
                pictures=len(keys),
                per_class=np.bincount(inside, minlength=len(classes)).tolist(),
                without_label=int((labels == NO_LABEL).sum()),
                out_of_range=int((labels >= len(classes)).sum()),
            )
        )
        tables.append(PathTable.of(path, keys))
    notes = [
        f"{part.name} has {part.pictures:,} pictures, {CLOTHING1M[part.name]:,} were published"
        for part in counts
        if part.pictures != CLOTHING1M[part.name]
    ]
    return Report(path, "Clothing1M", classes, counts, problems, notes), tables


def _folder_report(path: Path) -> tuple[Report, list[PathTable]]:
    return _report_of(image_folder_parts(path), path, "image folder")


def _file_report(path: Path, columns: dict[str, Any]) -> tuple[Report, list[PathTable]]:
    """Of a CSV, a TSV or an .npz, opened as for a training; pictures that a table names are looked
    for later."""
    if parts := find_pictures(path, columns["label_column"], columns["text_column"]):
        return _report_of(parts, path.resolve().parent, f"pictures of {path.name}")
    data = open_dataset(path, **columns)
    counts = [
        PartCount(name, len(split), split.labels.bincount(minlength=len(data.classes)).tolist())
        for name in ("train", "validation", "test")
        if (split := getattr(data, name)) is not None
    ]
    things = "rows" if is_table(path) else "samples"
    notes = list(data.notes)
    report = Report(path, data.kind, data.classes, counts, notes=notes, things=things, dataset=data)
    report.looked_for = report.decoded = report.pictures
    return report, []


def _report_of(parts: Parts, path: Path, kind: str) -> tuple[Report, list[PathTable]]:
    counts, tables = [], []
    for name in ("train", "validation", "test"):
        part = getattr(parts, name)
        if part is not None:
            labelled = part.labels[part.labels >= 0]
            per_class = labelled.bincount(minlength=len(parts.classes)).tolist()
            without = len(part.labels) - len(labelled)
            counts.append(PartCount(name, len(part.labels), per_class, without))
            tables.append(part.paths)
    dataset = from_pictures(parts) if parts.classes and not counts[0].without_label else None
    notes = list(parts.notes)
    return Report(path, kind, parts.classes, counts, notes=notes, dataset=dataset), tables


def _saved_report(path: Path, columns: dict[str, Any]) -> tuple[Report, list[PathTable], Read]:
    """Of pictures some are tried later; texts and numbers are all read here."""
    kind, found = "data set saved by Hugging Face", read_saved(path)
    if isinstance(found, Parts):
        report, tables = _report_of(found, path, kind)
        report.looked_for = report.pictures
        return report, tables, found.read or read_picture
    classes = found.classes or sorted_classes(found.train.labels or ())
    counts = []
    for name in ("train", "validation", "test"):
        raw = getattr(found, name)
        if raw is not None:
            by_name = Counter(raw.labels or ())
            rows, labelled = len(raw.samples), sum(by_name[name] for name in classes)
            counts.append(PartCount(name, rows, [by_name[n] for n in classes], rows - labelled))
    report = Report(path, kind, classes, counts, notes=list(found.notes), things="rows")
    report.looked_for = report.decoded = report.pictures
    if classes and report.ok:
        try:
            report.dataset = open_dataset(path, **columns)
        except InputError as error:
            report.notes.append(f"`mlnt train` refuses it: {error}")
    return report, [], read_picture


def _look_for(report: Report, tables: list[PathTable], until: float) -> None:
    """Which pictures are missing: each folder is listed once, a million files asked for never."""
    wanted: dict[str, list[str]] = defaultdict(list)
    for table in tables:
        for path in table:
            folder, _, name = path.rpartition("/")
            wanted[folder].append(name)
    folders = list(wanted)
    # At random, so that what time allows says something of the rest.
    for number in np.random.default_rng(0).permutation(len(folders)).tolist():
        if time.monotonic() > until:
            report.notes.append("listing took too long; only a part of the folders was looked at")
            break
        folder = folders[number]
        try:
            with os.scandir(report.path / folder) as entries:
                there = {entry.name for entry in entries}
        except OSError:
            there = set()
        names = wanted[folder]
        report.looked_for += len(names)
        report.missing += [f"{folder}/{name}" for name in names if name not in there]


def _decode_some(
    report: Report, tables: list[PathTable], read: Read, go_on: Callable[[], bool]
) -> None:
    """Read pictures in random order until time is over."""
    missing = set(report.missing)
    starts = np.cumsum([0, *map(len, tables)])
    for number in np.random.default_rng(1).permutation(int(starts[-1])).tolist():
        if not go_on():
            break
        part = int(np.searchsorted(starts, number, side="right")) - 1
        table, index = tables[part], number - int(starts[part])
        if table[index] in missing:
            continue
        report.decoded += 1
        try:
            read(table.full(index), SIZE, CROP)
        except PictureError as error:
            report.unreadable[table[index]] = str(error)


def _examples(names: Iterable[str]) -> str:
    names = list(names)
    return ", ".join(names[:SHOWN]) + (", …" if len(names) > SHOWN else "")
