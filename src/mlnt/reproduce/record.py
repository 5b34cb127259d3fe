"""Finished runs written down: their small files into the folder of results, then the page anew.

What would be mixed up there is refused before anything is written.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from mlnt.config import settings_from
from mlnt.errors import InputError
from mlnt.files import read_file
from mlnt.reproduce.experiments import EXPERIMENTS
from mlnt.reproduce.figures import PROGRESS, draw_stages, read_rows
from mlnt.reproduce.naming import (
    data_of,
    folder_of,
    noise_of,
    stripped,
    what_counts,
    without_folders,
)
from mlnt.reproduce.page import COLUMNS, OPENING, PAGE, TABLE, to_csv, to_markdown
from mlnt.reproduce.recorded import Group, check_figures, grouped, had_test_data, read_recorded
from mlnt.reproduce.sheet import SHEET
from mlnt.runs import CONFIG, SUMMARY, RunFolder
from mlnt.storage import write_aside

MOST_PICTURE = 2**20  # bytes
DPI = 90


@dataclass(frozen=True)
class Record:
    """What `write_results` did."""

    copied: tuple[Path, ...]
    left_out: dict[Path, str]  # and why
    files: tuple[Path, ...]


@dataclass(frozen=True)
class _Found:
    """A finished run, as it will be written down."""

    source: Path
    target: Path
    config: dict[str, Any]
    summary: dict[str, Any]
    metrics: list[dict[str, Any]]


def write_results(folders: Sequence[Path], results: Path, replace: bool = False) -> Record:
    """Copy the finished runs in `folders`; make RESULTS.md and summary.csv from all there are.

    folders  run folders, or what `mlnt reproduce` wrote; none: only make the page anew
    results  the folder they are kept in; RESULTS.md lies beside it
    replace  a run may take the place of one with other settings
    """
    if results.name in ("", ".."):
        results = results.resolve()  # "." and ".." have something beside them too
    _check_ours(results.parent / PAGE, OPENING)
    _check_ours(results / TABLE, ",".join(COLUMNS) + "\n")
    finished, left_out = _find_runs(folders)
    read = {path: _read(path, results) for path in finished}
    left_out |= {path: "had no test data" for path, found in read.items() if found is None}
    incoming = [found for found in read.values() if found is not None]
    _check_targets(incoming)
    if not replace:
        _check_places(incoming)
    _check_seeds(incoming)
    pictures = _read_figures(folders, incoming, results)
    for found in incoming:
        _write(found)
    for path, content in pictures.items():
        write_aside(path, partial(Path.write_bytes, data=content))
    written = list(pictures)
    runs = read_recorded(results)
    if not runs:
        return Record((), left_out, ())
    changed = {found.target.parent for found in incoming}
    for group in grouped(runs):
        written += _draw_group(group, changed)
    with RunFolder(results).expect_intact():
        table, page = to_csv(runs), to_markdown(runs, results)
    RunFolder(results).write_text(TABLE, table)
    RunFolder(results.parent).write_text(PAGE, page)
    files = (*written, results / TABLE, results.parent / PAGE)
    return Record(tuple(found.target for found in incoming), left_out, files)


def _check_ours(path: Path, opening: str) -> None:
    """Raise InputError where a file that somebody else wrote would be written over."""
    if not path.exists():
        return
    with path.open(encoding="utf-8", errors="replace") as file:
        begins = file.read(len(opening))
    if begins != opening:
        raise InputError(
            f"{path} was not written by `mlnt results`; move it elsewhere, or choose another "
            "folder with --to"
        )


def _find_runs(folders: Iterable[Path]) -> tuple[list[Path], dict[Path, str]]:
    """Those that have come to their end, and the others."""
    finished: list[Path] = []
    left_out: dict[Path, str] = {}
    for folder in folders:
        runs = sorted(path.parent for path in folder.rglob(CONFIG))
        if not runs:
            raise InputError(f"{folder} holds no run; give run folders, or an --out of `reproduce`")
        for run in runs:
            if (run / SUMMARY).is_file():
                finished.append(run)
            else:
                left_out[run] = "not finished"
    return finished, left_out


def _read(folder: Path, results: Path) -> _Found | None:
    """A run, as it will be written down; None if it has no figures of test data."""
    run = RunFolder.open(folder)
    with run.expect_intact():
        config, summary = run.read_json(CONFIG), run.read_json(SUMMARY)
        if "cell" in config:
            raise InputError(f"{folder} is written down already; give the folders of the runs")
        if not had_test_data(summary):
            return None
        noise = noise_of(config, folder)
        check_figures(summary)
        kept = stripped(config, noise)
        settings, schedule = settings_from(config["settings"]), kept["cell"]["schedule"]
        target = results / folder_of(data_of(config), settings, noise, schedule)
        return _Found(folder, target, kept, without_folders(summary), run.read_metrics())


def _check_targets(incoming: Iterable[_Found]) -> None:
    """No two runs may be written into one place."""
    by_target: dict[Path, Path] = {}
    for found in incoming:
        other = by_target.setdefault(found.target, found.source)
        if other != found.source:
            raise InputError(
                f"{other} and {found.source} are both {found.target}; give one of them"
            )


def _check_places(incoming: Iterable[_Found]) -> None:
    """A run may only take the place of one that was made alike."""
    for found in incoming:
        if (found.target / CONFIG).is_file():
            with RunFolder(found.target).expect_intact():
                was = RunFolder.open(found.target).read_json(CONFIG)
                difference = _difference(was, found.config)
            if difference:
                raise InputError(
                    f"{found.target} holds another run ({difference} in {found.source}); "
                    "--replace puts this one in its place"
                )


def _check_seeds(incoming: Iterable[_Found]) -> None:
    """Seeds are averaged: but for the seed, those of a cell must be alike once all is written."""
    new = {found.target: found.config for found in incoming}
    others = {path.parent for target in new for path in target.parent.glob(f"seed-*/{CONFIG}")}
    configs = {path: RunFolder.open(path).read_json(CONFIG) for path in sorted(others - set(new))}
    configs |= new
    first: dict[Path, Path] = {}
    for path, config in configs.items():
        sibling = first.setdefault(path.parent, path)
        with RunFolder(path).expect_intact():
            difference = _difference(configs[sibling], config, is_same_seed=False)
        if difference:
            raise InputError(
                f"{path} and {sibling} would be averaged, but differ ({difference}); record all "
                f"seeds anew at once, or remove {sibling}"
            )


def _difference(was: dict[str, Any], now: dict[str, Any], is_same_seed: bool = True) -> str:
    """`epochs=22, now 30`; empty where two runs are of the same data and settings."""
    before, after = (what_counts(settings_from(config["settings"])) for config in (was, now))
    for name, value in after.items():
        if before.get(name) != value:
            return f"{name}={before.get(name)}, now {value}"
    # Which labels are wrong and which are held out follows from the seed.
    names = ("samples", "fingerprint") if is_same_seed else ("samples",)
    return next((f"other {n} of the data" for n in names if was["data"][n] != now["data"][n]), "")


def _write(found: _Found) -> None:
    run = RunFolder(found.target)
    try:
        run.path.mkdir(parents=True, exist_ok=True)
        run.write_json(CONFIG, found.config)
        run.rewrite_metrics(found.metrics)
        run.write_json(SUMMARY, found.summary)
    except OSError as error:
        raise InputError(f"cannot write to {run.path}: {error}") from None


def _read_figures(
    folders: Iterable[Path], incoming: Sequence[_Found], results: Path
) -> dict[Path, bytes]:
    """What `mlnt reproduce` drew: sheets beside their cell, figures of an experiment by data."""
    sources = {found.target.parent / SHEET: found.source / SHEET for found in reversed(incoming)
               if (found.source / SHEET).is_file()}  # fmt: skip
    for folder in folders:
        data = {found.target.relative_to(results).parts[0] for found in incoming
                if found.source.is_relative_to(folder)}  # fmt: skip
        drawn = [folder / f"{what}.png" for what in EXPERIMENTS]
        if len(data) == 1:
            own = results / data.pop()
            sources |= {own / path.name: path for path in drawn if path.is_file()}
    return {target: _read_picture(source) for target, source in sorted(sources.items())}


def _read_picture(path: Path) -> bytes:
    content = read_file(path, MOST_PICTURE)
    if not content.startswith(b"\x89PNG"):
        raise InputError(f"{path} is no PNG")
    return content


def _draw_group(group: Group, changed: set[Path]) -> list[Path]:
    """The curves of MLNT, where runs came to it or the picture is missing."""
    runs = group.of("mlnt")
    folders = sorted({run.folder.parent for run in runs})
    if not runs or not (folders[0] in changed or not (folders[0] / PROGRESS).is_file()):
        return []
    metrics = [read_rows(RunFolder(run.folder)) for run in runs]
    path = folders[0] / PROGRESS
    with RunFolder(path.parent).expect_intact():
        paper = next((row.paper for row in reversed(group.rows()) if row.method == "mlnt"), None)
    figure = draw_stages(metrics, group.title, paper)
    write_aside(path, lambda aside: figure.savefig(aside, dpi=DPI))
    return [path]
