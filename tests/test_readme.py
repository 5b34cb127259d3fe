"""What the README shows really runs."""

import re
import shlex
import textwrap
from pathlib import Path

import pytest
import typer

from mlnt import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCED = re.compile(r"^ *```(\w*)\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)
BLOCK = re.compile(r"^( *)```python\n(.*?)^ *```", flags=re.DOTALL | re.MULTILINE)


@pytest.mark.parametrize(
    "page", [p for p in PAGES if BLOCK.search(p.read_text(encoding="utf-8"))], ids=lambda p: p.name
)
def test_python_examples_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for _, indented in BLOCK.findall(page.read_text(encoding="utf-8")):
        block = textwrap.dedent(indented)
        # Shown with the sizes one would use, run with small ones.
        names: dict[str, object] = {}
        exec(re.sub(r"epochs=\d+", "epochs=2", block), names)
        if "test_accuracy" in names:
            assert names["test_accuracy"] > 60


def test_commands_exist(capsys: pytest.CaptureFixture[str]) -> None:
    commands = set(re.findall(r"^mlnt (\w+)", README, flags=re.MULTILINE))
    assert {"train", "predict", "issues"} <= commands
    for command in commands:
        assert cli.run([command, "--help"]) == 0
    of_torchrun = {"--nproc-per-node", "--max-restarts"}
    options = set(re.findall(r"(--[a-z][a-z-]+)", README)) - of_torchrun
    capsys.readouterr()
    for command in ("train", "predict", "issues", "reproduce", "bench"):
        cli.run([command, "--help"])
    known = capsys.readouterr().out
    for option in options:
        assert option in known, option


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_commands_of_the_pages_can_be_given(page: Path) -> None:
    """Each has the arguments that it is shown with: an option of another command is none."""
    commands = typer.main.get_command(cli.app).commands  # type: ignore[attr-defined]
    blocks = FENCED.findall(page.read_text(encoding="utf-8"))
    for block in (text for language, text in blocks if not language):
        for line in re.findall(r"^(?:.* -m )?mlnt (.+?)(?: +#.*)?$", block, flags=re.MULTILINE):
            name, *arguments = shlex.split(line.replace("WHAT", "table1"))
            commands[name].make_context(name, arguments)


def test_pictures_are_there() -> None:
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", README)
    assert pictures
    for picture in pictures:
        assert (ROOT / picture).is_file(), picture


def test_nothing_is_left_to_fill_in() -> None:
    assert not re.search(r"@[A-Z]+@|TBD", README)
