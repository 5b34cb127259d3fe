"""What the command line shows: progress while it trains, tables when it is done."""

import contextlib
import os
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from mlnt.config import Settings
from mlnt.data.dataset import Dataset
from mlnt.data.encoding import unnamed
from mlnt.data.image_files import ImageFiles
from mlnt.data.oddities import few_of, odd_classes, span
from mlnt.data.text_encoding import TextEncoder
from mlnt.defaults import without_effect
from mlnt.report import words
from mlnt.schedule import has_last
from mlnt.texts import one_line, visible
from mlnt.training import Stage, Watcher, model_name

SHOWN_CLASSES = 20
FEW_SAMPLES, FEW_IN_ALL = 10, 200
IMBALANCE = 50
# Characters of a line of progress: what a stage is called, `120/120` and `1:23:45` with four gaps,
# accuracies of two models, and the bar, which gives way on a narrow terminal.
DESCRIPTION, COUNT_AND_TIME, FIGURES, LONGEST_BAR = 17, 18, 39, 20
WIDEST = 10_000  # characters: into a file or a pipe a table goes as wide as it is


class PlainConsole(Console):
    """Prints what may come from the data: no markup, no emoji, no control characters.

    When its reader goes away (`| head -1`), it falls silent: a training goes on without it.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, highlight=False, emoji=False, **options)

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(visible(text), **options)

    def print(self, *objects: Any, **options: Any) -> None:
        try:
            super().print(*objects, **options)
        except BrokenPipeError:  # before 13.8 rich does not call what follows
            self.on_broken_pipe()

    def on_broken_pipe(self) -> None:
        """Rich would end the process."""
        self.quiet = True
        # What is left in Python's buffer must go somewhere when the process ends.
        with contextlib.suppress(OSError), open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), self.file.fileno())


class TerminalProgress(Watcher):
    """A bar per stage: epoch, step time, accuracies of student and teacher, time left.

    Where the output is no terminal, one line per finished stage instead. `asked` are the settings
    that the user named.
    """

    def __init__(self, console: Console, asked: Collection[str] = ()) -> None:
        self.console, self.asked = console, asked
        self.bar = BarColumn(bar_width=LONGEST_BAR)
        self.progress = Progress(
            TextColumn(f"{{task.description:<{DESCRIPTION}}}"),
            self.bar,
            TextColumn("{task.fields[epoch]}/{task.total:.0f}"),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(compact=True),
            console=console,
            disable=not console.is_terminal,
        )
        self.steps = 1
        self.room = FIGURES

    def __enter__(self) -> "TerminalProgress":
        self.progress.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.progress.stop()

    def run_begins(self, dataset: Dataset, settings: Settings, reasons: Mapping[str, str]) -> None:
        for line in describe_data(dataset):
            self._say(line)
        for note in without_effect(dataset, self.asked):
            self._say(f"  note: {note}")
        epochs = f"{_epochs(settings.epochs)} a stage"
        if has_last(settings) and not isinstance(settings.last_epochs, str):
            epochs += f", {settings.last_epochs} in the last"
        if settings.weights == "self" and not isinstance(settings.self_epochs, str):
            epochs = f"{_epochs(settings.self_epochs)} without labels, {epochs}"
        self._say(f"{settings.model}, {epochs}, M={settings.sets}")
        for name, reason in reasons.items():
            self._say(f"  {name} = {getattr(settings, name)}: {reason}", "dim")

    def _say(self, line: str, style: str | None = None) -> None:
        self.console.print(one_line(line), style=style, soft_wrap=True)

    def stage_begins(self, stage: Stage, epochs: int, steps: int, done: int) -> None:
        self.steps, self.stage, self.epochs = steps, stage, epochs
        beside = self.console.width - max(DESCRIPTION, len(stage.name)) - COUNT_AND_TIME
        self.bar.bar_width = min(max(beside - FIGURES, 1), LONGEST_BAR)
        self.room = beside - self.bar.bar_width
        # Counted in epochs, advanced by steps: a long epoch moves too.
        self.task = self.progress.add_task(
            stage.name, total=epochs, completed=done, epoch=done, figures=""
        )
        self.done = done * steps
        if done and not self.console.is_terminal:
            self.console.print(f"{stage.name}: {done} of {_epochs(epochs)} done before")

    def step_ends(self) -> None:
        self.done += 1
        if self.done % max(1, self.steps // 20) == 0:
            self.progress.update(self.task, completed=self.done / self.steps)

    def epoch_ends(self, row: dict[str, Any]) -> None:
        text = f"{row['step_ms']:.0f} ms/step  {_figures(row)}"
        if "waiting_share" in row:
            text += f"  waiting for data {100 * row['waiting_share']:.0f} %"
        # Cut, a line would lose the time left, which stands at its end.
        shown = text if len(text) <= self.room else _figures(row)
        self.done = row["epoch"] * self.steps  # the first epoch may have been under way before
        self.progress.update(self.task, completed=row["epoch"], epoch=row["epoch"], figures=shown)
        if row["epoch"] == self.epochs and not self.console.is_terminal:
            self.console.print(f"{self.stage.name}: {_epochs(self.epochs)}, {text}", soft_wrap=True)

    def filtered(self, report: dict[str, Any]) -> None:
        line = f"mentor keeps {kept_in_words(report)}"
        if "wrong_among_kept" in report:
            line += f"; {report['wrong_among_kept']:.1f} % of them wrong"
        self.console.print(line, style="dim", soft_wrap=True)
        proof = report.get("proof")
        if proof and proof["kept"] < proof["all"]:
            self.console.print(
                "no label is left out: short trainings on what a mentor keeps agree with "
                f"{proof['kept']:.1f} % of labels that they did not learn, those on all labels "
                f"with {proof['all']:.1f} %",
                style="dim",
                soft_wrap=True,
            )
        for name, count in report["rescued"].items():
            self.console.print(
                f"class {name!r} would be nearly empty: its {count} most probable samples stay",
                style="yellow",
                soft_wrap=True,
            )


def _figures(row: dict[str, Any]) -> str:
    """`test: student  91.2 teacher  91.8`; where no labels are learnt, the loss."""
    if "student" not in row:
        return f"contrast {row['contrast']:.2f}"
    part = "test" if "test" in row["student"] else "validation"
    models = [model for model in ("student", "teacher") if model in row]
    return f"{part}: " + " ".join(f"{model} {row[model][part]:5.1f}" for model in models)


def _epochs(count: int) -> str:
    return f"{count} epoch{'' if count == 1 else 's'}"


def kept_in_words(report: dict[str, Any]) -> str:
    """`812 of 1,215 labels (tau 0.34)`; without τ it was the noise model that chose."""
    why = "" if report["tau"] is None else f" (tau {report['tau']:.2f})"
    return f"{report['kept']:,} of {report['of']:,} labels{why}"


def describe_data(dataset: Dataset) -> Iterator[str]:
    """What the data is, how large its classes are, and what is odd about it."""
    things = {"image": "images", "table": "rows of numbers", "text": "texts"}[dataset.kind]
    if isinstance(dataset.train.inputs, ImageFiles):
        things = "pictures on disk"
    parts = [f"{len(dataset.train):,} {things} in {len(dataset.classes)} classes to train on"]
    for name, split in (("validation", dataset.validation), ("test", dataset.test)):
        if split is not None:
            held = (
                ", held out"
                if name == "validation" and dataset.held_out_indices is not None
                else ""
            )
            parts.append(f"{len(split):,} for {name}{held}")
    yield f"{dataset.name}: {'; '.join(parts)}"
    columns = getattr(dataset.encoder, "columns", ())
    if columns != unnamed(len(columns)):
        yield f"  {len(columns):,} column{'s' * (len(columns) > 1)}: {span(columns)}"
    if isinstance(dataset.encoder, TextEncoder):
        yield f"  read as {dataset.encoder.in_words()}"
    counts = torch.bincount(dataset.train.labels, minlength=len(dataset.classes)).tolist()
    sizes = sorted(zip(counts, dataset.classes, strict=True), reverse=True)
    shown = [f"{name} {count:,}" for count, name in sizes]
    if len(shown) > SHOWN_CLASSES:
        half = SHOWN_CLASSES // 2
        shown = [*shown[:half], "…", *shown[-half:]]
    column = f" (column {dataset.labels_from!r})" if dataset.labels_from else ""
    yield f"  labels{column}: {', '.join(shown)}"
    yield from (f"  note: {note}" for note in problems(dataset, sizes))


def problems(dataset: Dataset, sizes: list[tuple[int, str]]) -> list[str]:
    """What may spoil a training, worst first; `sizes` are the classes, largest first."""
    found = [*dataset.notes, *odd_classes(dataset.classes), *_unread(dataset)]
    absent = [name for count, name in sizes if count == 0]
    rare = [f"{name} ({count})" for count, name in reversed(sizes) if 0 < count < FEW_SAMPLES]
    if absent:
        found.append(f"no sample of {few_of(absent)} to train on")
    if rare:
        found.append(f"very few samples of {few_of(rare)}")
    smallest = min((count for count, _ in sizes if count), default=1)
    if sizes[0][0] >= IMBALANCE * smallest:
        found.append(f"the largest class has {sizes[0][0] // smallest} times the smallest")
    if len(dataset.train) < FEW_IN_ALL:
        found.append(f"{len(dataset.train)} samples are few: expect figures that vary by seed")
    return found


def _unread(dataset: Dataset) -> Iterator[str]:
    """Of texts, how many hold nothing that the network can know."""
    encoder = dataset.encoder
    if not isinstance(encoder, TextEncoder):
        return
    parts = (
        ("training", dataset.train),
        ("validation", dataset.validation),
        ("test", dataset.test),
    )
    for name, split in parts:
        if split is not None and isinstance(split.inputs, torch.Tensor):
            yield from encoder.note_unread(split.inputs, f"{name} texts")


def result_table(summary: dict[str, Any]) -> Table:
    """One row per model and iteration: best epoch by validation, and last epoch."""
    caption = None
    if (together := words.epochs_together(summary)) > 1:
        first = summary["filters"][0]["after_iteration"] + 1
        caption = f"validation from iteration {first} on: mean of {together} epochs"
    table = Table(title=_noise_title(summary["noise"]), caption=caption)
    table.add_column("model", no_wrap=True)
    is_tested = any(row["best"] is not None for row in summary["models"])
    tested = ("test (best)", "test (last)") if is_tested else ()
    for heading in ("best epoch", "validation", *tested):
        table.add_column(heading, justify="right")
    chosen = summary["chosen"]
    for row in summary["models"]:
        is_chosen = all(row[key] == chosen[key] for key in ("method", "iteration", "model"))
        table.add_row(
            model_name(row["method"], row["model"], row["iteration"]),
            str(row["best_epoch"]),
            percent(row["validation"]),
            *((percent(row["best"]), percent(row["last"])) if is_tested else ()),
            style="bold green" if is_chosen else None,
        )
    return table


def chosen_line(summary: dict[str, Any]) -> str:
    """Which model `predict` and `export` take, where colours do not show it."""
    chosen = summary["chosen"]
    stages = [(row["method"], row["iteration"]) for row in summary["models"]]
    its_stage, rows = (chosen["method"], chosen["iteration"]), summary["models"]
    of_it = [r["validation"] for r, stage in zip(rows, stages, strict=True) if stage == its_stage]
    is_below = its_stage == stages[-1] and max(row["validation"] for row in rows) > max(of_it)
    why = " (what came last; nothing before is better by more than chance)" if is_below else ""
    return f"chosen: {model_name(chosen['method'], chosen['model'], chosen['iteration'])}{why}"


def doubts(summary: dict[str, Any], config: dict[str, Any]) -> Iterator[str]:
    """What speaks against taking the estimate at its word."""
    if doubt := words.doubt(summary, config):
        yield f"note: {doubt}"
    if names := summary["label_issues"].get("hardly_learnt"):
        yield (
            f"note: nearly all labels of {few_of(names)} are flagged; rather the model has hardly "
            "learnt them, and says little about their labels"
        )


def noise_line(summary: dict[str, Any]) -> str:
    """How many labels are wrong as estimated, and how many can be pointed at."""
    issues = summary["label_issues"]
    flagged = issues["flagged"]
    of_all = f"about {words.noise_in_words(issues)} of the {summary['labels']:,} labels look wrong"
    if flagged == 0:
        some_are = words.are_some_wrong(issues)
        return f"{of_all}{', but none can be pointed at' if some_are else '; none is flagged'}"
    return f"{of_all}; {flagged:,} {'is' if flagged == 1 else 'are'} flagged"


def issues_table(rows: list[dict[str, Any]], title: str) -> Table:
    """Suspicious labels, each class with its probability; what was kept and the samples' names or
    texts where the run has them."""
    table = Table(title=title)
    for heading in ("index", "given (p)", "suggested (p)", "score"):
        table.add_column(heading, overflow="fold")
    rest = [name for name in ("kept", "sample") if any(row[name] for row in rows)]
    for heading in rest:
        table.add_column(heading, overflow="fold")  # cut, two names may look alike
    for row in rows:
        given, suggested, score = (
            float(row[key]) for key in ("given_probability", "suggested_probability", "score")
        )
        table.add_row(
            row["index"],
            f"{row['given']} ({given:.3f})",
            f"{row['suggested']} ({suggested:.3f})",
            f"{score:.3f}",
            *(one_line(row[name]) for name in rest),
        )
    return table


def percent(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _noise_title(noise: dict[str, Any]) -> str:
    if "wrong_in_train" not in noise:
        return "accuracy, %"
    asked = "" if noise["asked"] == "none" else f"noise {noise['asked']}: "
    return f"accuracy, %  ({asked}{noise['wrong_in_train']:.1f} % of the training labels wrong)"
