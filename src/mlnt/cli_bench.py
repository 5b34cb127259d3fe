"""`mlnt bench`: one command, and what it measures instead when asked."""

from pathlib import Path
from typing import Annotated, Any

import typer

from mlnt import bench
from mlnt.errors import InputError
from mlnt.terminal import PlainConsole

console = PlainConsole()


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
    led: Annotated[
        list[str] | None,
        typer.Option(
            help="instead: a led iteration with these settings, 'lr=0.4 eta=0.8', by validation "
            "alone; again for others, '' for none"
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="data set for --accuracy, --led and --issues, such as CIFAR-10's"),
    ] = None,
    issues: Annotated[
        bool, typer.Option("--issues", help="instead: wrong labels found, against cleanlab")
    ] = False,
    noise: Annotated[
        list[str] | None,
        typer.Option(
            help="of --issues \\[none, symmetric:0.4, asymmetric:0.4], one of --led "
            "\\[asymmetric:0.4]"
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="FILE:KEY of noisy labels instead of noise, for --issues")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="of --issues and --led")] = 1,
    preset: Annotated[str | None, typer.Option(help="of --issues, --led \\[by the data]")] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="of --issues, --led \\[by the preset]")
    ] = None,
    exactness: Annotated[
        bool, typer.Option("--exactness", help="instead: the fast paths against the plain ones")
    ] = False,
    profile: Annotated[
        bool, typer.Option("--profile", help="instead: the GPU kernels of a step, by kind")
    ] = False,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="instead: 1, 2 and 4 processes on the CPU's cores")
    ] = False,
    json: Annotated[
        Path | None,
        typer.Option(
            help="also write the figures here (--accuracy, --issues, --led: or go on there)"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="also draw the step times into this PNG")
    ] = None,
) -> None:
    """Time a step of MLNT against cross entropy and the authors' way, in one process."""
    goes_on = accuracy or issues or bool(led)
    given: dict[str, Any] = {} if epochs is None else {"epochs": epochs}
    if plot is not None and (goes_on or exactness or scaling or profile):
        raise InputError("--plot draws step times alone; leave it out here, --json keeps figures")
    for path in (None if goes_on else json, plot):
        check_new(path)
    result: (
        bench.AccuracyResult
        | bench.IssuesResult
        | bench.LedResult
        | bench.ExactnessResult
        | bench.ProfileResult
        | bench.ScalingResult
        | bench.BenchResult
    )
    with console.status("") as status:
        if accuracy:
            if data is None:
                raise InputError("--accuracy needs --data FOLDER, for example that of CIFAR-10")
            result = bench.run_accuracy(
                str(data),
                device,
                minutes,
                (sets,) if sets else bench.SETS,
                done=json,
                tell=status.update,
            )
        elif issues:
            noises = tuple(noise) if noise else bench.NOISES
            place = data or Path("digits")
            result = bench.run_issues(
                place, device, noises, labels, seeds, preset, json, status.update, **given
            )
        elif led:
            if len(noise or ()) > 1:
                raise InputError("--led takes one --noise; give the others to runs of their own")
            if noise:
                given["noise"] = noise[0]
            result = bench.run_led(
                data or Path("digits"), led, device, seeds, preset, json, status.update, **given
            )
        elif exactness:
            result = bench.run_exactness(device)
        elif scaling:
            result = bench.run_scaling(tell=status.update)
        elif profile:
            result = bench.run_profile(device, batch_size or 128, sets or 10)
        else:
            result = bench.run_bench(device, model, batch_size, sets, steps, quick, status.update)
    for part in result.to_rich():
        console.print(part, soft_wrap=isinstance(part, str))
    if json is not None and not goes_on:
        with new_file(json) as file:
            file.write(result.to_json())
    if plot is not None and isinstance(result, bench.BenchResult):
        bench.write_plot(result, plot)


def check_new(path: Path | None) -> None:
    """Better now than after minutes of work."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if path is not None and path.exists():
        raise InputError(f"{path} exists already; choose another name")


def new_file(path: Path) -> Any:
    if path.exists():
        raise InputError(f"{path} exists already; choose another name")
    try:
        return path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
