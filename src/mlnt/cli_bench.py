"""`mlnt bench`: one command of several programs. Which options each of them reads stands in
PROGRAMS; the help says so too, and an option that a program does not read is refused."""

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from mlnt import bench
from mlnt.errors import InputError
from mlnt.terminal import PlainConsole

console = PlainConsole()

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Program:
    """`run` gets those of its options that were given, but for --json and --plot.

    What goes on in the file of --json gets that as `done`; all else must have a new one.
    """

    run: Callable[..., Any]
    options: str
    goes_on: bool = False

    @property
    def reads(self) -> list[str]:
        return self.options.split()


def run_accuracy(
    tell: Tell, data: str | None = None, sets: int | None = None, **given: Any
) -> bench.AccuracyResult:
    if data is None:
        raise InputError("--accuracy needs --data FOLDER, for example that of CIFAR-10")
    several = bench.SETS if sets is None else (sets,)
    return bench.run_accuracy(data, sets=several, tell=tell, **one_noise("--accuracy", given))


def run_led(tell: Tell, led: Sequence[str], data: str = "digits", **given: Any) -> bench.LedResult:
    return bench.run_led(data, led, tell=tell, **one_noise("--led", given))


def run_issues(
    tell: Tell, noise: Sequence[str] = (), labels: str | None = None, **given: Any
) -> bench.IssuesResult:
    if noise and labels is not None:
        raise InputError("--labels are noisy, --noise makes clean ones so; give one of the two")
    noises = noise or bench.NOISES
    return bench.run_issues(noises=noises, labels=labels, tell=tell, **given)


def one_noise(flag: str, given: dict[str, Any]) -> dict[str, Any]:
    """Of the --noise that can be given several times, which only --issues has a use for."""
    noises = given.pop("noise", [])
    if len(noises) > 1:
        raise InputError(f"{flag} takes one --noise; give the others to runs of their own")
    return {**given, "noise": noises[0]} if noises else given


# By the option that asks for it; without any, step times.
PROGRAMS = {
    "": Program(
        lambda tell, **given: bench.run_bench(tell=tell, **given),
        "device model batch_size sets steps quick json plot",
    ),
    "accuracy": Program(
        run_accuracy, "data device minutes sets batch_size noise preset epochs json", goes_on=True
    ),
    "led": Program(
        run_led, "led data device sets batch_size noise seeds preset epochs json", goes_on=True
    ),
    "issues": Program(
        run_issues,
        "data device sets batch_size noise labels seeds preset epochs json",
        goes_on=True,
    ),
    "exactness": Program(
        lambda tell, **given: bench.run_exactness(**given), "device seeds epochs json"
    ),
    "profile": Program(
        lambda tell, **given: bench.run_profile(**given), "device batch_size sets json"
    ),
    "scaling": Program(lambda tell, **given: bench.run_scaling(tell=tell, **given), "steps json"),
}


def flag_of(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def readers_of(option: str) -> list[str]:
    return [name for name, program in PROGRAMS.items() if option in program.reads]


def named(programs: Iterable[str]) -> str:
    """`step times, --profile`."""
    return ", ".join(flag_of(name) if name else "step times" for name in programs)


GOING_ON = named(name for name, program in PROGRAMS.items() if program.goes_on)


def with_readers(command: Any) -> Any:
    """Say in the help of each option which programs read it."""
    for name, parameter in inspect.signature(command).parameters.items():
        readers = readers_of(name)
        others = [program for program in PROGRAMS if program not in readers]
        if name in PROGRAMS or not others:
            continue
        (option,) = parameter.annotation.__metadata__
        use = f"not for {named(others)}" if len(others) == 1 else f"for {named(readers)}"
        option.help = f"{option.help} ({use})"
    return command


def instead(meaning: str, *flags: str) -> Any:
    """The option that asks for a program."""
    return typer.Option(*flags, help=meaning, rich_help_panel="Instead of step times")


@with_readers
def bench_command(
    accuracy: Annotated[
        bool, instead("accuracy after equal minutes for each M", "--accuracy")
    ] = False,
    led: Annotated[
        list[str] | None,
        instead(
            "a led iteration with these settings, 'lr=0.4 eta=0.8', by validation alone; again "
            "for others, '' for none"
        ),
    ] = None,
    issues: Annotated[bool, instead("wrong labels found, against cleanlab", "--issues")] = False,
    exactness: Annotated[
        bool, instead("the fast paths against the plain ones", "--exactness")
    ] = False,
    profile: Annotated[bool, instead("the GPU kernels of a step, by kind", "--profile")] = False,
    scaling: Annotated[
        bool, instead("1, 2 and 4 processes on the CPU's cores", "--scaling")
    ] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda \\[auto]")] = None,
    model: Annotated[
        str | None, typer.Option(help=" | ".join(bench.SHAPES) + " \\[by the device]")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(
            min=2, help=f"samples per batch \\[128, on a CPU 32; {GOING_ON}: by the preset]"
        ),
    ] = None,
    sets: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="M \\[10, on a CPU 5; --accuracy: 1, 2, 5 and 10; --led, --issues: by the preset]",
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="timed steps of each row \\[50, on a CPU 10]")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="no other M or batch size, no ResNet-50")
    ] = False,
    data: Annotated[
        str | None, typer.Option(help="data set \\[digits; --accuracy: needs one]")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.01, help="for each M \\[4]")] = None,
    noise: Annotated[
        list[str] | None,
        typer.Option(
            help="one, of --issues several \\[none, symmetric:0.4, asymmetric:0.4; --led: "
            "asymmetric:0.4; --accuracy: symmetric:0.5]"
        ),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="FILE:KEY of noisy labels instead of noise")
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="trainings with seeds 0, 1, … \\[1; --exactness: 3, on a CPU 1]"),
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="starting values \\[by the data; --accuracy: cifar10-fast]")
    ] = None,
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="of --accuracy those of cross entropy \\[by the preset; --exactness: 20, on a "
            "CPU 2]",
        ),
    ] = None,
    json: Annotated[
        Path | None,
        typer.Option(help=f"also write the figures here ({GOING_ON}: or go on there)"),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="also draw the step times into this PNG")
    ] = None,
) -> None:
    """Time a step of MLNT against cross entropy and the authors' way, in one process.

    Or measure something else, by an option of the last box. The others have
    their usual values in \\[brackets]; what reads them stands at the end.
    """
    # All of the options above, by name, and nothing else yet.
    run_program({name: value for name, value in locals().items() if value not in (None, False, [])})


def run_program(given: dict[str, Any]) -> None:
    name = program_of(given)
    program = PROGRAMS[name]
    own = {option: given[option] for option in program.reads if option in given}
    json, plot = own.pop("json", None), own.pop("plot", None)
    check_new(json, may_exist=program.goes_on)
    check_new(plot)
    if program.goes_on:
        own["done"] = json
    with console.status("") as status:
        result = program.run(status.update, **own)
    for part in result.to_rich():
        console.print(part, soft_wrap=isinstance(part, str))
    if json is not None and not program.goes_on:
        with new_file(json) as file:
            file.write(result.to_json())
    if plot is not None:
        bench.write_plot(result, plot)


def program_of(given: dict[str, Any]) -> str:
    """The one that is asked for; InputError where that are two, or it does not read all."""
    asked = [name for name in PROGRAMS if name in given]
    if len(asked) > 1:
        raise InputError(f"{named(asked)} measure different things; give one of them at a time")
    name = asked[0] if asked else ""
    reads = PROGRAMS[name].reads
    unread = [
        f"{flag_of(option)} (for {named(readers_of(option))})"
        for option in given
        if option not in (name, *reads)
    ]
    if unread:
        command = f"`mlnt bench {flag_of(name)}`" if name else "`mlnt bench` alone"
        raise InputError(
            f"{command} does not read {', '.join(unread)}; it reads "
            f"{', '.join(map(flag_of, reads))}"
        )
    return name


def check_new(path: Path | None, may_exist: bool = False) -> None:
    """Better now than after minutes of work."""
    if path is not None and not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    if path is not None and not may_exist and path.exists():
        raise InputError(f"{path} exists already; choose another name")


def new_file(path: Path) -> Any:
    if path.exists():
        raise InputError(f"{path} exists already; choose another name")
    try:
        return path.open("w", encoding="utf-8", newline="")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
