"""The commands: parse, call, print."""

import csv
import dataclasses
import inspect
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from mlnt import api, bench, prediction, reproduce
from mlnt.config import PRESETS, fields_by_name, kinds_of
from mlnt.errors import InputError, TrainingError
from mlnt.label_issues import harmless, read_label_issues
from mlnt.report import write_report
from mlnt.runs import CURVES, LABEL_ISSUES, REPORT, RunFolder
from mlnt.terminal import TerminalProgress, issues_table, result_table

app = typer.Typer(
    help="Train classifiers on data whose labels are partly wrong, and find the wrong labels.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Console(markup=False, highlight=False)  # what it prints may come from the data
# Typer's base class of all mistakes on the command line, under the name each version has for it.
CommandLineError: type[Exception] = typer.BadParameter.__mro__[2]

Data = Annotated[str, typer.Argument(help="digits, a CSV or TSV, an .npz, or cifar-10-batches-bin")]
RunPath = Annotated[Path, typer.Argument(help="a run folder")]


def _setting_option(field: dataclasses.Field) -> inspect.Parameter:
    """The command-line option of one setting, all of it read from config."""
    rule, kinds = field.metadata, kinds_of(field)
    symbol = f"{rule['symbol']}: " if rule["symbol"] else ""
    allowed = f" ({' | '.join(rule['choices'])})" if rule["choices"] else ""
    default = f"{field.default:.3g}" if isinstance(field.default, float) else str(field.default)
    kind: type = str if len(kinds) > 1 else kinds[0]
    option = typer.Option(
        None,
        help=f"{symbol}{rule['meaning']}{allowed} \\[{default}]",
        rich_help_panel=rule["group"],
        show_default=False,
    )
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=option,
        annotation=kind | None,
    )


def _with_settings(command: Any) -> Any:
    """Give a command one option per setting, in place of its `**settings`."""
    signature = inspect.signature(command)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    options = [_setting_option(field) for field in fields_by_name().values()]
    command.__signature__ = signature.replace(parameters=[*own, *options])
    command.__annotations__ = {p.name: p.annotation for p in (*own, *options)}
    return command


@app.command()
@_with_settings
def train(
    data: Data,
    *,
    out: Annotated[Path | None, typer.Option(help="run folder [runs/NAME-001, …]")] = None,
    preset: Annotated[
        str | None, typer.Option(help=f"starting values: {', '.join(PRESETS)} [by the data]")
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="other training labels: FILE or FILE.npz:KEY")
    ] = None,
    true_labels: Annotated[
        str | None, typer.Option(help="correct labels, if known; only for the report")
    ] = None,
    validation_data: Annotated[str | None, typer.Option(help="validation data")] = None,
    test_data: Annotated[str | None, typer.Option(help="test data")] = None,
    label_column: Annotated[str | None, typer.Option(help="column of the labels")] = None,
    text_column: Annotated[str | None, typer.Option(help="column of the texts")] = None,
    **settings: Any,
) -> None:
    """Train on DATA, whose labels may be wrong.

    Trains a cross-entropy network first, then MLNT in three iterations, and writes a run folder:
    the best model, figures, suspicious labels and a report. The default of each setting stands in
    \\[brackets]; presets change some of them for small data.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    folder = out or RunFolder.next_free(Path("runs"), Path(data).stem)
    with TerminalProgress(console) as progress:
        training = api.train(
            data,
            out=folder,
            preset=preset,
            labels=labels,
            true_labels=true_labels,
            validation_data=validation_data,
            test_data=test_data,
            label_column=label_column,
            text_column=text_column,
            watchers=[progress],
            **given,
        )
    summary = training.summary
    console.print(result_table(summary))
    found = summary.get("found_errors", {})
    if found.get("auroc") is not None:
        console.print(
            f"wrong labels found: AUROC {found['auroc']:.3f}, AP {found['ap']:.3f}", soft_wrap=True
        )
    console.print(
        f"{summary['labels_flagged']} of {summary['labels']} labels look "
        f"wrong; {summary['seconds']:.0f} s in all",
        soft_wrap=True,
    )
    console.print(f"run folder: {folder}  (look at {REPORT} and {CURVES} in it)", soft_wrap=True)


@app.command()
def predict(
    run: RunPath,
    data: Data,
    out: Annotated[Path | None, typer.Option(help="CSV to write [standard output]")] = None,
    label_column: Annotated[str | None, typer.Option(help="column of the labels")] = None,
    text_column: Annotated[str | None, typer.Option(help="column of the texts")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
) -> None:
    """Classify DATA with the best model of RUN: a CSV of class and probabilities."""
    result = prediction.predict(
        run, data, label_column=label_column, text_column=text_column, device=device
    )
    target = sys.stdout if out is None else _new_file(out)
    writer = csv.writer(target)
    writer.writerow(["index", "predicted", *(f"p({name})" for name in result.classes)])
    for index, (name, row) in enumerate(
        zip(result.predicted, result.probabilities.tolist(), strict=True)
    ):
        writer.writerow([index, harmless(name), *(f"{value:.6f}" for value in row)])
    if out is not None:
        target.close()
        console.print(f"{len(result.predicted)} predictions in {out}", soft_wrap=True)
    if result.accuracy is not None:
        Console(stderr=True).print(
            f"agrees with the labels of the data: {result.accuracy:.2f} %", soft_wrap=True
        )


@app.command()
def issues(
    run: RunPath,
    top: Annotated[int, typer.Option(min=1, help="how many to show")] = 20,
) -> None:
    """Show the most suspicious labels of RUN, worst first."""
    folder = RunFolder.open(run)
    with folder.expect_intact():
        rows = read_label_issues(folder.file(LABEL_ISSUES), top)
        table = issues_table(rows, f"most suspicious labels of {run}")
    console.print(table)


@app.command()
def report(runs: Annotated[list[Path], typer.Argument(help="run folders")]) -> None:
    """Make report.html and curves.png of each RUN again from its files."""
    for run in runs:
        folder = RunFolder.open(run)
        write_report(folder)
        console.print(str(folder.file(REPORT)), soft_wrap=True)


@app.command(name="reproduce")
def reproduce_command(
    what: Annotated[str, typer.Argument(help=" | ".join(reproduce.EXPERIMENTS))],
    seeds: Annotated[int, typer.Option(min=1, help="runs with seeds 0, 1, …")] = 5,
    data: Annotated[Path | None, typer.Option(help="folder of the data, where needed")] = None,
    out: Annotated[Path | None, typer.Option(help="folder for the runs [runs/WHAT]")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
) -> None:
    """Repeat an experiment over several seeds: mean ± standard error of every model."""
    folder = out or Path("runs") / what
    with TerminalProgress(console) as progress:
        table = reproduce.run_experiment(what, seeds, data, folder, device, [progress])
    console.print(table.to_rich())
    console.print(f"written: {folder / 'table.md'}, {folder / 'table.csv'}", soft_wrap=True)


@app.command(name="bench")
def bench_command(
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    model: Annotated[
        str | None, typer.Option(help=" | ".join(bench.SHAPES) + " \\[by the device]")
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, help="samples per batch [128, on a CPU 32]")
    ] = None,
    sets: Annotated[int | None, typer.Option(min=1, help="M [10, on a CPU 5]")] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="timed steps of each row [50, on a CPU 10]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="no other M or batch size, no ResNet-50")
    ] = False,
    accuracy: Annotated[
        bool, typer.Option("--accuracy", help="instead: accuracy after equal minutes for each M")
    ] = False,
    minutes: Annotated[float, typer.Option(min=0.01, help="for each M of --accuracy")] = 4.0,
    data: Annotated[
        Path | None, typer.Option(help="folder of CIFAR-10, or another data set, for --accuracy")
    ] = None,
    exactness: Annotated[
        bool, typer.Option("--exactness", help="instead: the fast paths against the plain ones")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="instead: the GPU kernels of a step, by kind")
    ] = False,
    json: Annotated[
        Path | None, typer.Option(help="also write the figures here (--accuracy: or go on there)")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="also draw them into this PNG")] = None,
) -> None:
    """Time a step of MLNT against cross entropy and the authors' way, in one process."""
    for path in (None if accuracy else json, plot):
        _check_new(path)
    result: bench.AccuracyResult | bench.ExactnessResult | bench.ProfileResult | bench.BenchResult
    with console.status("") as status:
        if accuracy:
            if data is None:
                raise InputError("--accuracy needs --data FOLDER, for example that of CIFAR-10")
            result = bench.run_accuracy(
                data,
                device,
                minutes,
                (sets,) if sets else bench.SETS,
                done=json,
                tell=status.update,
            )
        elif exactness:
            result = bench.run_exactness(device)
        elif profile:
            result = bench.run_profile(device, batch_size or 128, sets or 10)
        else:
            result = bench.run_bench(device, model, batch_size, sets, steps, quick, status.update)
    for part in result.to_rich():
        console.print(part, soft_wrap=isinstance(part, str))
    if json is not None and not accuracy:
        with _new_file(json) as file:
            file.write(result.to_json())
    if plot is not None and isinstance(result, bench.BenchResult):
        bench.write_plot(result, plot)


def _check_new(path: Path | None) -> None:
    """Better now than after minutes of work."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if path is not None and path.exists():
        raise InputError(f"{path} exists already; choose another name")


def _new_file(path: Path) -> Any:
    if path.exists():
        raise InputError(f"{path} exists already; choose another name")
    try:
        return path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def main() -> None:
    """Run the command line; a user's mistake is one line and exit status 2."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    errors = Console(stderr=True, highlight=False)
    try:
        status = app(arguments or ["--help"], prog_name="mlnt", standalone_mode=False)
    except CommandLineError as error:
        message = error.format_message()  # type: ignore[attr-defined]
        errors.print(f"mlnt: {message}", markup=False, soft_wrap=True)
        return 2
    except InputError as error:
        errors.print(f"mlnt: {error}", markup=False, soft_wrap=True)
        return 2
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            sys.stderr.close()  # the reader of our output left: nothing to say to it
            return 0
        errors.print(f"mlnt: {error}", markup=False, soft_wrap=True)
        return 2
    except TrainingError as error:
        errors.print(f"mlnt: training stopped: {error}", markup=False, soft_wrap=True)
        return 1
    except (KeyboardInterrupt, typer.Abort):
        errors.print("mlnt: stopped")
        return 130
    return status if isinstance(status, int) else 0
