"""`mlnt bench` as it is called: one program at a time, with no option that it does not read."""

import inspect
import itertools
import re
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock, create_autospec

import pytest
import typer

from mlnt import bench, cli
from mlnt.cli_bench import PROGRAMS, flag_of, readers_of

ROOT = Path(__file__).parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMAND = re.compile(r"`(mlnt bench\b[^`]*)`|^ +(mlnt bench\b.*)$", flags=re.MULTILINE)
OPTIONS = {
    "accuracy": [],
    "led": ["lr=0.4"],
    "issues": [],
    "exactness": [],
    "profile": [],
    "scaling": [],
    "device": ["cpu"],
    "model": ["small_conv"],
    "batch_size": ["4"],
    "sets": ["2"],
    "steps": ["3"],
    "quick": [],
    "data": ["DATA"],
    "minutes": ["1.5"],
    "noise": ["none"],
    "labels": ["FILE:KEY"],
    "seeds": ["5"],
    "preset": ["image"],
    "epochs": ["6"],
    "json": ["f.json"],
    "plot": ["p.png"],
}
TRAINED = {"batch_size": 4, "preset": "image", "epochs": 6, "device": "cpu", "data": "DATA"}
# What each program is called with where all is given that it reads, but for `tell`.
CALLS: dict[str, tuple[str, dict[str, Any]]] = {
    "": (
        "run_bench",
        {"device": "cpu", "model": "small_conv", "batch_size": 4, "sets": 2, "steps": 3}
        | {"quick": True},
    ),
    "accuracy": ("run_accuracy", {**TRAINED, "sets": (2,), "minutes": 1.5, "noise": "none"}),
    "led": ("run_led", {**TRAINED, "trials": ["lr=0.4"], "sets": 2, "seeds": 5, "noise": "none"}),
    "issues": ("run_issues", {**TRAINED, "sets": 2, "seeds": 5, "noises": ["none"]}),
    "exactness": ("run_exactness", {"device": "cpu", "seeds": 5, "epochs": 6}),
    "profile": ("run_profile", {"device": "cpu", "batch_size": 4, "sets": 2}),
    "scaling": ("run_scaling", {"steps": 3}),
}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Mock]:
    """The functions of `mlnt.bench`, which do nothing but take the arguments that they know."""
    monkeypatch.chdir(tmp_path)
    nothing = SimpleNamespace(to_rich=list, to_json=lambda: "{}\n")
    stubs = {}
    for name in (*(function for function, _ in CALLS.values()), "write_plot"):
        stubs[name] = create_autospec(getattr(bench, name), return_value=nothing)
        monkeypatch.setattr(bench, name, stubs[name])
    return stubs


def words(*options: str) -> list[str]:
    return ["bench", *(word for name in options for word in (flag_of(name), *OPTIONS[name]))]


def arguments(stub: Mock) -> dict[str, Any]:
    """Of its one call, by name, but for `tell`."""
    (call,) = stub.call_args_list
    found = dict(inspect.signature(stub).bind(*call.args, **call.kwargs).arguments)
    found.pop("tell", None)
    return {**found.pop("settings", {}), **found}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_gets_all_that_it_reads(
    name: str, called: dict[str, Mock], tmp_path: Path
) -> None:
    program = PROGRAMS[name]
    given = [option for option in program.reads if option not in ("labels", name)]
    assert cli.run(words(*([name] if name else []), *given)) == 0
    function, expected = CALLS[name]
    found = arguments(called.pop(function))
    if program.goes_on:
        assert found.pop("done") == Path("f.json")
    assert (tmp_path / "f.json").exists() != program.goes_on
    assert found.pop("labels", None) is None
    assert found == expected
    assert called.pop("write_plot").called == ("plot" in program.reads)
    assert not any(stub.called for stub in called.values()), "one program at a time"


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_not_given_is_left_to_the_program(name: str, called: dict[str, Mock]) -> None:
    needed = ["data"] if name == "accuracy" else []
    assert cli.run(words(*([name] if name else []), *needed)) == 0
    function, _ = CALLS[name]
    own = inspect.signature(getattr(bench, function)).parameters
    for argument, value in arguments(called[function]).items():
        if argument not in ("trials", *needed):
            usual = {"data": "digits"}.get(argument, own[argument].default)
            assert value == usual, argument


@pytest.mark.parametrize(
    ("name", "option"),
    [
        (name, option)
        for name, program in PROGRAMS.items()
        for option in OPTIONS
        if option not in PROGRAMS and option not in program.reads
    ],
)
def test_an_option_that_a_program_does_not_read_is_refused(
    name: str, option: str, called: dict[str, Mock], capsys: pytest.CaptureFixture[str]
) -> None:
    # Where nothing else is missing.
    others = [each for each in PROGRAMS[name].reads if each not in ("labels", name)]
    assert cli.run(words(*([name] if name else []), *others, option)) == 2
    (line,) = capsys.readouterr().err.splitlines()
    who = f"`mlnt bench {flag_of(name)}`" if name else "`mlnt bench` alone"
    readers = ", ".join(flag_of(each) if each else "step times" for each in readers_of(option))
    assert line.startswith(f"mlnt: {who} does not read {flag_of(option)} (for {readers}); it reads")
    taken = line.partition("; it reads ")[2].split(", ")
    assert taken == [flag_of(each) for each in PROGRAMS[name].reads]
    assert not any(stub.called for stub in called.values())


def test_all_options_that_are_not_read_are_named(
    called: dict[str, Mock], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words("scaling", "device", "quick")) == 2
    line = capsys.readouterr().err
    assert "does not read --device (for step times, --accuracy" in line
    assert "--quick (for step times); it reads --steps, --json\n" in line


@pytest.mark.parametrize("names", list(itertools.combinations(filter(None, PROGRAMS), 2)))
def test_two_programs_at_once_are_refused(
    names: tuple[str, str], called: dict[str, Mock], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(words(*reversed(names))) == 2
    (line,) = capsys.readouterr().err.splitlines()
    both = ", ".join(map(flag_of, names))
    assert line == f"mlnt: {both} measure different things; give one of them at a time"
    assert not any(stub.called for stub in called.values())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--accuracy"], "--accuracy needs --data FOLDER"),
        (["--accuracy", "--data", "D", *2 * ["--noise", "none"]], "--accuracy takes one --noise"),
        (["--led", "", *2 * ["--noise", "none"]], "--led takes one --noise"),
        (["--issues", "--noise", "none", "--labels", "a:b"], "give one of the two"),
        (["--led", "", "--json", "no/such/f.json"], "there is no folder no/such"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_measured(
    options: list[str], message: str, called: dict[str, Mock], capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.run(["bench", *options]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not any(stub.called for stub in called.values())


def test_a_measurement_goes_on_in_a_file_that_is_there(
    called: dict[str, Mock], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "f.json").write_text("{}", encoding="utf-8")
    assert cli.run(words("issues", "json")) == 0
    assert cli.run(words("exactness", "json")) == 2
    assert "f.json exists already" in capsys.readouterr().err


def test_the_help_says_what_reads_an_option(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = typer.main.get_command(cli.app).commands["bench"]  # type: ignore[attr-defined]
    options = {parameter.name: parameter for parameter in command.params}
    assert set(options) == set(OPTIONS)
    assert set(OPTIONS) == {*PROGRAMS, *(n for p in PROGRAMS.values() for n in p.reads)} - {""}
    ends = {
        "device": "(not for --scaling)",
        "steps": "(for step times, --scaling)",
        "seeds": "(for --led, --issues, --exactness)",
        "plot": "(for step times)",
    }
    for name, end in ends.items():
        assert options[name].help.endswith(f" {end}")
    assert options["json"].help.endswith("(--accuracy, --led, --issues: or go on there)")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERMINAL_WIDTH", "80")
    assert cli.run(["bench", "--help"]) == 0
    shown = capsys.readouterr().out
    assert all(len(line) <= 80 for line in shown.splitlines())
    for name in OPTIONS:
        assert re.search(rf"^│ {flag_of(name)} ", shown, flags=re.MULTILINE), "not cut"


def commands_of(page: Path) -> list[str]:
    found = COMMAND.findall(page.read_text(encoding="utf-8"))
    return [" ".join((quoted or shown).split()) for quoted, shown in found]


def test_commands_are_found_where_they_stand() -> None:
    assert len([command for page in PAGES for command in commands_of(page)]) > 15
    text = "as `mlnt bench\n--quick` shows\n\n    mlnt bench --scaling\n"
    assert COMMAND.findall(text) == [("mlnt bench\n--quick", ""), ("", "mlnt bench --scaling")]


@pytest.mark.parametrize(
    "command", sorted({command for page in PAGES for command in commands_of(page)})
)
def test_commands_of_the_pages_are_taken(command: str, called: dict[str, Mock]) -> None:
    given = shlex.split(command)[1:]
    # What is named without its value, and without the data that it needs.
    given += ["6"] if given[-1] == "--epochs" else []
    given += ["--data", "cifar10"] if "--accuracy" in given and "--data" not in given else []
    assert cli.run(given) == 0
    assert sum(stub.called for stub in called.values()) == 1
