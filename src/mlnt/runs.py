"""Run folders: what lies where in them, written whole or not at all.

The rows of label_issues.csv, gallery.jsonl and filtered.csv are the business of the modules called
so.

config.json           settings, data and versions: enough to build the model again
metrics.jsonl         one line per evaluation
summary.json          final figures of every model and iteration
best.safetensors      the chosen model; student and teacher: after the last epoch
checkpoints/          of each stage all it takes to go on; until the end (see checkpoints.py)
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
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

try:
    import fcntl
except ImportError:  # not on this system: there nobody is kept out
    fcntl = None  # type: ignore[assignment]

from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from mlnt.checkpoints import Checkpoints
from mlnt.errors import Busy, InputError, StorageError
from mlnt.files import MOST_JSON, parse_json, read_file
from mlnt.storage import flush_folder, is_running, reason, write_aside, write_bytes

CONFIG = "config.json"
METRICS = "metrics.jsonl"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"
LABEL_ISSUES = "label_issues.csv"
FAULTS = "faults.csv"
FILTERED = "filtered.csv"
REPORT = "report.html"
CURVES = "curves.png"
LOCK = ".lock"
PATIENCE = 5.0  # seconds for the helpers of a killed process to end, which share its lock


class RunFolder:
    """One run on disk. Files appear whole or not at all."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.checkpoints = Checkpoints(self.path / CHECKPOINTS)

    @classmethod
    def reserve(cls, path: str | Path, may_exist: bool = False) -> "RunFolder":
        """A folder for a new run, not made yet; one that holds a run only if it `may_exist`."""
        run = cls(path)
        try:
            run.check_own()
            if run.file(CONFIG).exists() and may_exist:
                return run
            if run.file(CONFIG).exists():
                raise InputError(holds_a_run(path))
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
            flush_folder(self.path.parent)
            self.write_json(CONFIG, config)  # first: a folder without it is no run
            self.write_text(METRICS, "")
        except (OSError, ValueError) as error:
            raise InputError(f"cannot write to {self.path}: {error}") from None

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Nobody else trains into this folder. The lock of a process that died is none."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = self._lock()
        except OSError as error:
            raise InputError(f"cannot write to {self.path}: {reason(error)}") from None
        try:
            yield
        finally:
            # While it is still ours; a folder that is gone or read-only keeps nobody out.
            with contextlib.suppress(OSError):
                self.file(LOCK).unlink()
            os.close(descriptor)

    def _lock(self) -> int:
        """The descriptor of the lock file, locked, and still the one that has its name."""
        given_up = time.monotonic() + PATIENCE
        while True:
            descriptor = os.open(self.file(LOCK), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if fcntl is not None:
                    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                holder = os.read(descriptor, 20).decode(errors="replace")
                os.close(descriptor)
                if is_running(holder) or time.monotonic() > given_up:
                    known = f" ({holder})" if holder.isdigit() else ""
                    message = f"another process{known} is training into {self.path}"
                    raise Busy(message) from None
                time.sleep(0.05)
                continue
            # Its last holder may have removed it after it was opened here; then another process
            # may hold a new one.
            with contextlib.suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.stat(self.file(LOCK))):
                    os.ftruncate(descriptor, 0)
                    os.write(descriptor, str(os.getpid()).encode())
                    return descriptor
            os.close(descriptor)

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
    @contextlib.contextmanager
    def next_free(cls, parent: Path, name: str) -> Iterator[Path]:
        """parent/name-001, or the next number not yet taken: made here, so that nobody else takes
        it; gone at the end where no run has begun in it."""
        is_new = not parent.exists()
        path = _make_numbered(parent, name)
        try:
            yield path
        finally:
            with contextlib.suppress(OSError):  # it is not empty, as it should be
                path.rmdir()
                if is_new:
                    parent.rmdir()

    @classmethod
    def of_job(cls, parent: Path, name: str, job: str | None) -> Path | None:
        """The run that an earlier start of the same job began; None if it began none."""
        found = sorted(parent.glob(f"{name}-[0-9][0-9][0-9]"), reverse=True)
        return next((path for path in found if cls(path).is_of(job)), None)

    def is_of(self, job: str | None) -> bool:
        """Whether this job, which torchrun has started again, began this run."""
        has_config = self.file(CONFIG).is_file()
        return job is not None and has_config and self.read_json(CONFIG).get("job") == job

    def file(self, name: str) -> Path:
        return self.path / name

    def write_json(self, name: str, value: Any) -> None:
        text = json.dumps(plain(value), indent=2, ensure_ascii=False, allow_nan=False)
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
        except (InputError, OSError, StorageError):
            raise
        except Exception as error:  # a stranger's file may make any step of it go wrong
            what = f"{type(error).__name__}: {error}"
            raise InputError(f"the files of {self.path} are damaged ({what})") from None

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Inside, what the disk refuses is a `StorageError`."""
        try:
            yield
        except OSError as error:
            raise StorageError(f"cannot write to {self.path}: {reason(error)}") from None

    def write_text(self, name: str, text: str) -> None:
        self.write(name, lambda path: path.write_text(text, encoding="utf-8"))

    def write(self, name: str, writer: Callable[[Path], Any]) -> None:
        """Let `writer` fill a file aside, then put it in place in one move."""
        write_aside(self.file(name), writer)

    def append_metrics(self, row: dict[str, Any]) -> None:
        with self.file(METRICS).open("a", encoding="utf-8") as file:
            file.write(_line(row))

    def rewrite_metrics(self, rows: list[dict[str, Any]]) -> None:
        self.write_text(METRICS, "".join(_line(row) for row in rows))

    def read_metrics(self) -> list[dict[str, Any]]:
        """All whole lines: the last may be torn, where a process was killed as it wrote it."""
        if not self.file(METRICS).is_file():
            return []
        try:
            lines = read_file(self.file(METRICS), MOST_JSON).split(b"\n")[:-1]
            return [parse_json(line) for line in lines]
        except ValueError as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"{self.file(METRICS)} cannot be read: {error}") from None

    def save_state(self, name: str, state: dict[str, Tensor]) -> None:
        """Weights as NAME.safetensors. Tied weights are stored under each of their names."""
        copies = {key: value.detach().cpu().clone().contiguous() for key, value in state.items()}
        self.write(f"{name}.safetensors", lambda path: write_bytes(path, save(copies)))

    def load_state(self, name: str) -> dict[str, Tensor]:
        path = self.file(f"{name}.safetensors")
        try:
            return load_file(path)
        except FileNotFoundError:
            raise InputError(f"{self.path} has no {path.name}; the run has no model yet") from None
        except (OSError, SafetensorError) as error:
            raise InputError(f"{path} cannot be read: {error}") from None


def load_into(model: nn.Module, state: dict[str, Tensor], name: str) -> nn.Module:
    """The model with the weights of NAME.safetensors, ready to be asked."""
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        first = str(error).splitlines()[-1].strip()
        raise InputError(f"{name}.safetensors does not fit the model: {first}") from None
    for key, value in state.items():  # training stops before it writes down such weights
        if not value.isfinite().all():
            raise InputError(f"{name}.safetensors is damaged: {key} is not finite")
    return model.eval()


def holds_a_run(path: str | Path) -> str:
    return f"{path} already holds a run; choose another folder with --out"


def _make_numbered(parent: Path, name: str) -> Path:
    try:
        parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            path = parent / f"{name}-{number:03d}"
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
            number += 1
    except (OSError, ValueError) as error:
        raise InputError(f"cannot write to {parent}: {error}") from None


def _holds_anything(folder: Path) -> bool:
    """Besides what a run leaves that was killed before it had written its first file."""
    return any(not entry.name.startswith(".") for entry in folder.iterdir())


def _line(row: dict[str, Any]) -> str:
    return json.dumps(plain(row), allow_nan=False) + "\n"


def plain(value: Any) -> Any:
    """JSON has no NaN or infinity: they become null."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
