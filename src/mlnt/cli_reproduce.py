"""`mlnt reproduce` and `mlnt results`: run experiments again, write down what came out."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mlnt import reproduce
from mlnt.config import named_values
from mlnt.errors import InputError
from mlnt.interruption import Interruption
from mlnt.terminal import PlainConsole, TerminalProgress

console = PlainConsole()


def reproduce_command(
    what: Annotated[str, typer.Argument(help=" | ".join(reproduce.EXPERIMENTS))],
    seeds: Annotated[int, typer.Option(min=1, help="runs with seeds 0, 1, …")] = 5,
    data: Annotated[
        Path | None,
        typer.Option(
            help="folder of the data; cifar10, with --download for the first time; or digits: the "
            "same in miniature"
        ),
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="fetch --data cifar10 where it is not here")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="folder for the runs \\[runs/WHAT]")] = None,
    fast: Annotated[bool, typer.Option("--fast", help="a short schedule")] = False,
    cells: Annotated[
        list[str] | None,
        typer.Option(
            help="run only some, whose names it is part of: mlnt, symmetric:0.5, 'mlnt/*/seed-0'; "
            "several with commas, or given again"
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(min=0, help="stop after so many; 0: only show what is there")
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda")] = "auto",
    change: Annotated[
        list[str] | None,
        typer.Option("--set", help="another value of a setting, for all cells: model=resnet18"),
    ] = None,
) -> None:
    """Run a table or figure of the paper again, over several seeds.

    Each cell (method, noise, seed) is a run folder of its own. The same command goes on where an
    earlier one was stopped. Shows mean ± standard error beside the paper's figure.
    """
    folder = out or Path("runs") / what
    with Interruption() as interruption:
        outcome = reproduce.run_experiment(
            what,
            seeds,
            data,
            folder,
            device,
            [interruption],
            download=download,
            fast=fast,
            cells=cells,
            minutes=minutes,
            show=lambda: TerminalProgress(console),
            tell=lambda line: console.print(line, style="bold", soft_wrap=True),
            **_changes(change or []),
        )
    # Into a file or a pipe as wide as it is; a terminal shows what fits.
    wide = console if console.is_terminal else PlainConsole(width=120)
    wide.print(outcome.table.to_rich())
    console.print(f"written: {', '.join(map(str, outcome.files))}", soft_wrap=True)
    for name, reason in outcome.failed.items():
        console.print(f"{name} failed: {reason}", style="yellow", soft_wrap=True)
    if outcome.finished < outcome.asked:
        console.print(
            f"{outcome.finished} of {outcome.asked} runs are finished; "
            "the same command goes on with the others",
            soft_wrap=True,
        )
    if interruption.status or outcome.failed:
        raise typer.Exit(interruption.status or 1)


def results_command(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="run folders, or the --out of reproduce; none: only the page anew"),
    ] = None,
    to: Annotated[Path, typer.Option(help="folder that keeps the results")] = Path("results"),
    replace: Annotated[
        bool, typer.Option("--replace", help="take the place of a run with other settings")
    ] = False,
) -> None:
    """Write finished runs down: their small files, summary.csv and RESULTS.md, without weights.

    RESULTS.md lies beside the folder of the results, and is made from what is in it alone.
    """
    record = reproduce.write_results(folders or [], to, replace)
    for folder, reason in record.left_out.items():
        console.print(f"{reason}, left out: {folder}", style="yellow", soft_wrap=True)
    for folder in record.copied:
        console.print(f"run: {folder}", soft_wrap=True)
    if record.files:
        pictures = [path for path in record.files if path.suffix == ".png"]
        texts = [str(path) for path in record.files if path not in pictures]
        drawn = f"; pictures beside the runs: {len(pictures)}" if pictures else ""
        words = f"written: {', '.join(texts)}{drawn}"
    else:
        words = f"nothing is recorded in {to}, nothing written; give folders of finished runs"
    console.print(words, soft_wrap=True)


def _changes(texts: list[str]) -> dict[str, Any]:
    changes = named_values(texts, "--set")
    if "device" in changes:
        raise InputError("the device has an option of its own: --device")
    return changes
