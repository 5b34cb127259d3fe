"""`mlnt data check`: is it complete, and what would a training say of it?"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import torch
import typer

from mlnt.data.check import check_tree
from mlnt.data.dataset import Dataset
from mlnt.data.prepare import prepare
from mlnt.defaults import choose_settings
from mlnt.errors import InputError
from mlnt.terminal import PlainConsole, problems


def check_command(
    path: Annotated[
        Path,
        typer.Argument(
            help="a folder of pictures by class, Clothing1M's, a saved set, a table or an .npz"
        ),
    ],
    seconds: Annotated[float, typer.Option(min=1, help="time to spend")] = 60,
    label_column: Annotated[str | None, typer.Option(help="of a table")] = None,
    text_column: Annotated[str | None, typer.Option(help="of a table")] = None,
    drop_columns: Annotated[str | None, typer.Option(help="of a table, left out: id,date")] = None,
) -> None:
    """Say whether data is complete, and what is odd about it; status 1 if it is not complete."""
    console = PlainConsole()
    found = check_tree(path, seconds, label_column, text_column, drop_columns)
    if found.dataset is not None:
        found.notes += [note for note in _notes(found.dataset) if note not in found.notes]
    for part in found.to_rich():
        console.print(part, soft_wrap=isinstance(part, str))
    if not found.ok:
        raise typer.Exit(1)


def _notes(dataset: Dataset) -> Iterator[str]:
    """What `mlnt train` says of it before it begins, by its own means."""
    try:
        settings = choose_settings(dataset, torch.device("cpu"), None, {}).settings
        prepared, _ = prepare(dataset, settings)
    except InputError as error:
        yield f"`mlnt train` refuses it: {error}"
        return
    counts = torch.bincount(prepared.train.labels, minlength=len(prepared.classes)).tolist()
    yield from problems(prepared, sorted(zip(counts, prepared.classes, strict=True), reverse=True))
