"""Run folders: the only reader and writer of them.

config.json           settings, data and versions: enough to build the model again
metrics.jsonl         one line per evaluation
summary.json          final figures of every model and iteration
best.safetensors      the chosen model; student and teacher: after the last epoch
checkpoints/          of each stage all it takes to go on after its last good epoch; until the end
label_issues.csv      every training label, most suspicious first
gallery.jsonl         what the most suspicious samples look like, for the report
filtered.csv          what the last mentor left out, and what it took it for
faults.csv            pictures that could not be read, if any
curves.png, report.html  to look at
"""

import contextlib
import json
import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on this system: there nobody is kept out
    fcntl = None  # type: ignore[assignment]

from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from mlnt.errors import InputError
from mlnt.files import MOST_JSON, parse_json, read_file
from mlnt.packing import Tensors, pack, unpack

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
LABEL_ISSUES = "label_issues.csv"
FAULTS = "faults.csv"
FILTERED = "filtered.csv"
REPORT = "report.html"
CURVES = "curves.png"


class RunFolder:
    """One run on disk. Files appear whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    @classmethod
    def reserve(cls, path: str | Path, may_exist: bool = False) -> "RunFolder":
        """A folder for a new run, not made yet; one that holds a run only if it `may_exist`."""
        run = cls(path)
        try:
            run.check_own()
            if run.file(CONFIG).exists() and may_exist:
                return run
            if run.file(CONFIG).exists():
                raise InputError(f"{path} already holds a run; choose another folder with --out")
            if run.path.exists() and (not run.path.is_dir() or _holds_anything(run.path)):
                raise InputError(f"{path} is not an empty folder; choose another with --out")
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot write to {path}: {error}") from None
        return run

    def create(self, config: dict[str, Any]) -> None:
        """Make the folder; one that cannot be written to is found out before any training."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self.write_json(CONFIG, config)  # first: a folder without it is no run
            self.write_text(METRICS, "")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write to {self.path}: {error}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains into this folder. The lock of a process that died is none."""
        self.path.mkdir(parents=True, exist_ok=True)
        with self.file(".lock").open("w") as file:
            if fcntl is not None:
                try:
                    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except OSError:
                    raise InputError(f"another process is training into {self.path}") from None
            try:
                yield
            finally:
                self.file(".lock").unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | Path) -> "RunFolder":
        """An existing run folder."""
        run = cls(path)
        if not run.file(CONFIG).is_file():
            raise InputError(f"{path} is not a run folder: it has no {CONFIG}")
        run.check_own()
        return run

    def check_own(self) -> None:
        """Raise InputError where the folder holds links, pipes or devices.

        It may be a stranger's: through a link it could have another file read, or overwritten.
        """
        for folder in (self.path, self.file(CHECKPOINTS)):
            if not folder.is_dir():
                continue
            with os.scandir(folder) as entries:
                found = list(entries)
            for entry in found:
                is_own = entry.is_file(follow_symlinks=False) or entry.is_dir(follow_symlinks=False)
                if not is_own:
                    raise InputError(
                        f"{entry.path} is a link or no ordinary file; a run folder must hold its "
                        "files itself"
                    )

    @classmethod
    def next_free(cls, parent: Path, name: str) -> Path:
        """parent/name-001, or the next number not yet taken."""
        number = 1
        while (parent / f"{name}-{number:03d}").exists():
            number += 1
        return parent / f"{name}-{number:03d}"

    def file(self, name: str) -> Path:
        return self.path / name

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(_plain(value), indent=2, ensure_ascii=False, allow_nan=False)
        self.write_text(name, text + "\n")

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            if not self.file(name).exists():
                raise InputError(f"{self.path} has no {name}; the run has not come that far")
            value = parse_json(read_file(self.file(name), MOST_JSON).decode("utf-8"))
        except (OSError, ValueError) as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.file(name)} cannot be read: {error}") from None
        if not isinstance(value, dict):
            raise InputError(f"{self.file(name)} is damaged: it must hold a JSON object")
        return value

    @contextlib.contextmanager
    def expect_intact(self) -> Iterator[None]:
        """Inside, the files are taken at their word; where they are not as they should, say so."""
        try:
            yield
        except (InputError, OSError):
            raise
        except Exception as error:  # a stranger's file may make any step of it go wrong
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"the files of {self.path} are damaged ({what})") from None

    def write_text(self, name: str, text: str) -> None:
        self.write(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write(self, name: str, writer: Callable[[Path], Any]) -> None:
        """Let `writer` fill a file aside, then put it in place in one move."""
        final = self.file(name)
        aside = final.with_name(f".{final.name}.part{final.suffix}")
        aside.unlink(missing_ok=True)  # never through what lies there
        writer(aside)
        os.replace(aside, final)

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self.file(METRICS).open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rewrite_metrics(self, rows: list[dict[str, Any]]) -> None:
        self.write_text(METRICS, "".join(_line(row) for row in rows))

    def read_metrics(self) -> list[dict[str, Any]]:
        if not self.file(METRICS).is_file():
            return []
        try:
            text = read_file(self.file(METRICS), MOST_JSON).decode("utf-8")
            return [parse_json(line) for line in text.splitlines()]
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.file(METRICS)} cannot be read: {error}") from None

    def save_state(self, name: str, state: dict[str, Tensor]) -> None:
        """Weights as NAME.safetensors. Tied weights are stored under each of their names."""
        copies = {key: value.detach().cpu().clone().contiguous() for key, value in state.items()}
        self.write(f"{name}.safetensors", lambda path: save_file(copies, path))

    def load_state(self, name: str) -> dict[str, Tensor]:
        path = self.file(f"{name}.safetensors")
        try:
            return load_file(path)
        except FileNotFoundError:
            raise InputError(f"{self.path} has no {path.name}; the run has no model yet") from None
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None

    def checkpoint(self, name: str) -> Path:
        return self.file(f"{CHECKPOINTS}/{name}.safetensors")

    def save_checkpoint(self, name: str, content: dict[str, Any]) -> None:
        """Anything nested of tensors and plain values, in one file, which appears whole."""
        tensors: Tensors = {}
        text = json.dumps(pack(content, tensors))
        self.file(CHECKPOINTS).mkdir(exist_ok=True)
        self.write(
            f"{CHECKPOINTS}/{name}.safetensors",
            lambda path: save_file(tensors, path, metadata={"content": text}),
        )

    def load_checkpoint(self, name: str) -> dict[str, Any] | None:
        """What `save_checkpoint` was given; None if there is none of that name."""
        path = self.checkpoint(name)
        if not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                text = file.metadata()["content"]
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            return unpack(parse_json(text), tensors)
        except (
            OSError,
            SafetensorError,
            LookupError,
            TypeError,
            ValueError,
            RecursionError,
        ) as error:
            raise InputError(f"{path} cannot be read: {error}") from None

    def remove_checkpoints(self) -> None:
        """A run that has come to its end needs them no more."""
        shutil.rmtree(self.file(CHECKPOINTS), ignore_errors=True)

    def load_into(self, model: nn.Module, name: str = "best") -> nn.Module:
        state = self.load_state(name)
        try:
            model.load_state_dict(state)
        except RuntimeError as error:
            first = str(error).splitlines()[-1].strip()
            raise InputError(f"{name}.safetensors does not fit the model: {first}") from None
        for key, value in state.items():  # training stops before it writes down such weights
            if not value.isfinite().all():
                raise InputError(f"{name}.safetensors is damaged: {key} is not finite")
        return model.eval()


def _holds_anything(folder: Path) -> bool:
    """Besides what a run leaves that was killed before it had written its first file."""
    return any(not entry.name.startswith(".") for entry in folder.iterdir())


def _line(row: dict[str, Any]) -> str:
    return json.dumps(_plain(row), allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
