"""The commands: parse, call, print."""

import contextlib
import csv
import math
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Annotated, Any

import typer

from mlnt import api, prediction
from mlnt.cli_bench import bench_command, new_file
from mlnt.cli_data import check_command
from mlnt.cli_reproduce import reproduce_command, results_command
from mlnt.cli_settings import with_settings
from mlnt.config import PRESETS
from mlnt.data.known import NAMED
from mlnt.data.oddities import few_of
from mlnt.device import is_out_of_memory
from mlnt.distributed import ProcessLost, join
from mlnt.errors import InputError, Stopped, TrainingError
from mlnt.export import FORMATS, export_model
from mlnt.farewell import end_together, explain, only_the_first_speaks, wait_for_others
from mlnt.interruption import Interruption
from mlnt.journal import MACHINE, going_on
from mlnt.label_issues import COLUMNS as ISSUE_COLUMNS
from mlnt.label_issues import read_label_issues
from mlnt.launcher import job, restarted
from mlnt.report import write_report
from mlnt.runs import CONFIG, CURVES, FAULTS, LABEL_ISSUES, REPORT, SUMMARY, RunFolder
from mlnt.terminal import (
    WIDEST,
    PlainConsole,
    TerminalProgress,
    chosen_line,
    doubts,
    issues_table,
    noise_line,
    result_table,
)
from mlnt.texts import harmless, one_line, visible

app = typer.Typer(
    help="Train classifiers on data whose labels are partly wrong, and find the wrong labels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
data_app = typer.Typer(help="Look at data before training on it.", no_args_is_help=True)
app.add_typer(data_app, name="data")
console = PlainConsole()
# Typer's base class of all mistakes on the command line, under the name each version has for it.
CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

DATA_HELP = (
    f"a folder of pictures by class; a CSV or TSV of numbers, texts or paths of pictures; an .npz; "
    f"a data set saved by Hugging Face; a folder of CIFAR-10, Fashion-MNIST or Clothing1M; or a "
    f"name: {', '.join(NAMED)}"
)
Data = Annotated[str, typer.Argument(help=DATA_HELP)]
PLACES = {"labels", "true_labels", "validation_data", "test_data"}  # that may move with DATA
RunPath = Annotated[Path, typer.Argument(help="a run folder")]
OwnNetwork = Annotated[
    str | None,
    typer.Option(help="package.module:function, where the run was trained with your own network"),
]


@app.command()
@with_settings
def train(
    data: Annotated[str | None, typer.Argument(help=DATA_HELP)] = None,
    *,
    out: Annotated[Path | None, typer.Option(help="run folder \\[runs/NAME-001, …]")] = None,
    resume: Annotated[
        Path | None,
        typer.Option(
            help="go on with this unfinished run; nothing else is needed, but DATA if it has moved"
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="stop after so many minutes; --resume goes on later")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"starting values: {', '.join(PRESETS)} \\[by the data]")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="other training labels: FILE, FILE.npz:KEY or FILE.pt:KEY")
    ] = None,
    true_labels: Annotated[
        str | None,
        typer.Option(
            help="correct labels, if known: for the report, and for methods that are told them "
            "(forward_true, cnn_crf, joint_optimization) and --validation clean"
        ),
    ] = None,
    validation_data: Annotated[str | None, typer.Option(help="validation data")] = None,
    test_data: Annotated[str | None, typer.Option(help="test data")] = None,
    label_column: Annotated[str | None, typer.Option(help="column of the labels")] = None,
    text_column: Annotated[str | None, typer.Option(help="column of the texts")] = None,
    drop_columns: Annotated[
        str | None, typer.Option(help="columns of a table to leave out: id,date")
    ] = None,
    download: Annotated[
        bool,
        typer.Option(
            "--download",
            help="fetch a data set known by name, or a library's weights, where they are not here",
        ),
    ] = False,
    **settings: Any,
) -> None:
    """Train on DATA, whose labels may be wrong.

    Trains a cross-entropy network first, then MLNT in three iterations, and writes a run folder:
    the best model, figures, suspicious labels and a report. The default of each setting stands in
    \\[brackets]; presets change some of them for small data.
    """
    given = _set(settings)
    deadline = math.inf if minutes is None else time.monotonic() + 60 * minutes
    others: dict[str, Any] = {
        "labels": labels,
        "true_labels": true_labels,
        "validation_data": validation_data,
        "test_data": test_data,
        "label_column": label_column,
        "text_column": text_column,
        "drop_columns": drop_columns,
        "preset": preset,
    }
    chosen = _folder_of_run(data, out, resume, {**given, **_set(others)})
    with chosen as own, Interruption(join()) as interruption:
        folder = Path(join().share(str(own)))
        try:
            with TerminalProgress(console, given) as progress:
                watchers = [progress, interruption]
                if resume is not None:
                    moved = _set({"data": data, **others})
                    named = api.read_by_resuming(folder, moved)
                    reads = ", ".join(f"{name}={place}" for name, place in named.items())
                    console.print(one_line(f"going on with {folder}: {reads}"), soft_wrap=True)
                    training = api.resume_run(folder, deadline, watchers, moved, **given)
                else:
                    assert data is not None  # see _folder_of_run
                    training = api.train(
                        data,
                        out=folder,
                        download=download,
                        deadline=deadline,
                        watchers=watchers,
                        **others,
                        **given,
                    )
        except ProcessLost as lost:
            lost.advice = f"; go on with: {going_on(folder, given.get('model', ''))}"
            raise
        except Stopped as stop:
            command = going_on(folder, given.get("model", ""))
            console.print(f"{stop}; go on with: {command}", soft_wrap=True)
            wait_for_others(join())
            raise typer.Exit(interruption.status) from None
    if join().leads:
        _show_result(training.summary, folder)


def _show_result(summary: dict[str, Any], folder: Path) -> None:
    console.print(result_table(summary))
    console.print(chosen_line(summary), soft_wrap=True)
    found = summary.get("found_errors", {})
    if found.get("auroc") is not None:
        console.print(
            f"wrong labels found: AUROC {found['auroc']:.3f}, AP {found['ap']:.3f}", soft_wrap=True
        )
    company = ", beside others on the GPU" if summary.get("shared_gpu") else ""
    console.print(
        f"{noise_line(summary)}; {summary['seconds']:.0f} s in all{company} "
        f"({summary['checkpoints']['percent']:.1f} % for checkpoints)",
        soft_wrap=True,
    )
    for line in doubts(summary, RunFolder.open(folder).read_json(CONFIG)):
        console.print(one_line(line), soft_wrap=True)
    if unreadable := summary.get("unreadable_pictures"):
        pictures = "picture" if unreadable == 1 else "pictures"
        words = f"{unreadable:,} {pictures} could not be read: see {FAULTS}"
        console.print(words, soft_wrap=True)
    drawn = " and ".join(name for name in (REPORT, CURVES) if (folder / name).is_file())
    look = f"  (look at {drawn} in it)" if drawn else ""
    console.print(f"run folder: {folder}{look}", soft_wrap=True)


def _folder_of_run(
    data: str | None, out: Path | None, resume: Path | None, given: dict[str, Any]
) -> AbstractContextManager[Path]:
    """The folder to train into; a new run needs DATA, one that goes on nothing but its folder,
    and places of data that have moved.

    Of several processes the first says which; only it makes a new one.
    """
    if resume is None and data is None:
        raise InputError("give DATA to train on, or --resume RUN to go on with a run")
    if resume is None:
        runs, name = Path("runs"), _name_of(data or "")
        begun = RunFolder.of_job(runs, name, job()) if restarted() else None
        if out is None and begun is None and join().leads:
            return RunFolder.next_free(runs, name)
        return contextlib.nullcontext(out or begun or runs)
    allowed = {"model", *MACHINE} | (PLACES if data is not None else set())
    if out is not None or given.keys() - allowed:
        raise InputError("--resume goes on with the data and settings of its run; give no others")
    return contextlib.nullcontext(resume)


def _name_of(data: str) -> str:
    """What runs on the data are called: `.` and `..` are called like the folder they stand for."""
    path = Path(data)
    return (path.resolve().name if path.name in ("", "..") else path.stem) or "data"


def _set(options: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in options.items() if value is not None}


@app.command()
def predict(
    run: RunPath,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="CSV to write \\[standard output]")] = None,
    label_column: Annotated[str | None, typer.Option(help="column of the labels")] = None,
    text_column: Annotated[str | None, typer.Option(help="column of the texts")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    model: OwnNetwork = None,
) -> None:
    """Classify DATA with the best model of RUN: a CSV of class and probabilities."""
    result = prediction.predict(
        run,
        data,
        label_column=label_column,
        text_column=text_column,
        device=device,
        model=model,
    )
    target = sys.stdout if out is None else new_file(out)
    writer = csv.writer(target)
    cell = _shown_cell if target.isatty() else harmless
    samples = result.samples
    heading = ["index", *(["sample"] if samples else []), "predicted"]
    writer.writerow([*heading, *(cell(f"p({name})") for name in result.classes)])
    for index, (name, row) in enumerate(
        zip(result.predicted, result.probabilities.tolist(), strict=True)
    ):
        sample = [cell(samples[index])] if samples else []
        values = [f"{value:.6f}" if value == value else "" for value in row]
        writer.writerow([index, *sample, cell(name), *values])
    if out is not None:
        target.close()
        unread = result.predicted.count("")
        less = f", {unread} not read," if unread else ""
        words = f"{len(result.predicted) - unread} predictions{less} in {out}"
        console.print(words, soft_wrap=True)
    errors = PlainConsole(stderr=True)
    if result.part:
        words = f"of {data} the part {result.part} alone was predicted"
        errors.print(one_line(words), soft_wrap=True)
    for path, reason in result.faults.items():
        errors.print(one_line(f"not read: {path} ({reason})"), soft_wrap=True)
    if result.accuracy is not None:
        errors.print(f"agrees with the labels of the data: {result.accuracy:.2f} %", soft_wrap=True)
    if result.unknown:
        name = visible(one_line(result.unknown[0]))
        words = f"not compared with the labels of the data: {name!r} is no class of this run"
        errors.print(words, soft_wrap=True)
    if marked := [name for name in result.classes if harmless(name) != name]:
        words = (
            f"note: a quote mark stands before {few_of(marked)}, which a spreadsheet would take "
        )
        words += "for a formula; take it off to compare the classes with those of the data"
        errors.print(one_line(words), soft_wrap=True)
    for note in result.notes:
        errors.print(f"note: {one_line(note)}", soft_wrap=True)


def _shown_cell(text: str) -> str:
    """On a terminal control characters would be carried out."""
    return visible(harmless(text))


@app.command()
def export(
    run: RunPath,
    to: Annotated[str, typer.Option(help=" | ".join(FORMATS))],
    out: Annotated[Path | None, typer.Option(help="file to write \\[in RUN]")] = None,
    model: OwnNetwork = None,
) -> None:
    """Write the best model of RUN as one file that runs without mlnt.

    It takes raw inputs and gives class probabilities; class names and what else it takes to use it
    are inside. Before it appears it is read back and compared with the model of RUN.
    """
    path = export_model(run, to, out, model)
    console.print(f"{path}  ({path.stat().st_size / 1000:,.0f} kB)", soft_wrap=True)


@app.command()
def issues(
    run: RunPath,
    top: Annotated[int, typer.Option(min=1, help="how many to show")] = 20,
    out: Annotated[
        Path | None, typer.Option(help="CSV to write them into, with all columns")
    ] = None,
) -> None:
    """Show the most suspicious labels of RUN, worst first: of those that are flagged."""
    folder = RunFolder.open(run)
    with folder.expect_intact():
        summary = folder.read_json(SUMMARY)
        flagged = summary["label_issues"]["flagged"]
        rows = read_label_issues(folder.file(LABEL_ISSUES), top)[:flagged]
        table = issues_table(rows, f"most suspicious labels of {run}")
        lines = [noise_line(summary), *doubts(summary, folder.read_json(CONFIG))]
    if out is not None:
        with new_file(out) as file:
            writer = csv.DictWriter(file, ISSUE_COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
        lines.insert(0, f"{len(rows):,} {'label' if len(rows) == 1 else 'labels'} in {out}")
    elif rows:
        (console if console.is_terminal else PlainConsole(width=WIDEST)).print(table)
    if len(rows) < top:
        more = "no other label" if rows else "no label"
        lines.insert(0, f"{more} is more probably wrong than right; {LABEL_ISSUES} ranks all")
    for line in lines:
        console.print(one_line(line), soft_wrap=True)


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="run folders")]) -> None:
    """Make report.html and curves.png of each RUN again from its files."""
    for run in runs:
        folder = RunFolder.open(run)
        write_report(folder)
        console.print(str(folder.file(REPORT)), soft_wrap=True)


data_app.command(name="check")(check_command)
app.command(name="reproduce")(reproduce_command)
app.command(name="results")(results_command)
app.command(name="bench")(bench_command)


def main() -> None:
    """Run the command line; a user's mistake is one line and exit status 2."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    try:
        if join().size > 1 and arguments[:1] != ["train"]:
            raise InputError("torchrun is for `mlnt train` alone; start other commands without it")
        only_the_first_speaks(join())
        status = app(arguments or ["--help"], prog_name="mlnt", standalone_mode=False)
        console.file.flush()  # here, where it is known what to do if nobody reads it
    except CommandLineError as error:
        return _fail(error.format_message())  # type: ignore[attr-defined]
    except BrokenPipeError:
        return _end_unread()
    except SystemExit as ending:
        # So typer and rich end, with status 1, when the reader of what they print leaves.
        if not isinstance(ending.__context__, BrokenPipeError):
            raise
        return _end_unread()
    except (InputError, OSError) as error:
        return _fail(str(error))
    except ProcessLost as lost:
        return _fail(explain(lost), 1)
    except TrainingError as error:
        return _fail(f"training stopped: {error}", 1)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("stopped", 130)
    except (MemoryError, RuntimeError) as error:
        if not is_out_of_memory(error):
            raise
        return _fail(f"out of memory ({str(error) or type(error).__name__})", 1)
    return status if isinstance(status, int) else 0


def _end_unread() -> int:
    """The reader of our output left (`| head -1`): no mistake, and nothing to say to it."""
    PlainConsole().on_broken_pipe()
    return 0


def _fail(message: str, status: int = 2) -> int:
    """One line, whatever the message holds: names and texts in it may come from the data."""
    errors = PlainConsole(stderr=True)
    return end_together(
        status, message, lambda line: errors.print(f"mlnt: {one_line(line)}", soft_wrap=True)
    )
