"""Stages that several runs have in common, trained by the first of them and kept for the others.

Features without labels and cross entropy come before a method's own stages, and nothing of the
method is in them: `mlnt reproduce` trains them once for all methods on the same labels. Who takes
one goes on as if it had trained it: the state of every random generator comes along, and its
seconds count. A shelf only saves time: what goes wrong with it ends no run.
"""

import functools
import hashlib
import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

from mlnt.checkpoints import Checkpoints
from mlnt.config import Settings
from mlnt.errors import StorageError, first_line
from mlnt.training import Stage

# Groups of settings that no stage before the first iteration depends on, and single ones.
LATER = ("Meta update", "Mentor")
OWN = {"method", "iterations", "last_epochs", "checkpoint_minutes"}
SHOWN = {"eta", "lam"}  # in the lines of every stage, whether it depends on them or not

log = logging.getLogger("mlnt")


class Shelf:
    """Of the runs whose `config` agrees in all that decides their first stages."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.checkpoints = Checkpoints(folder)
        self.prefix = digest_of_beginning(config)[:16]

    def take(self, stage: Stage) -> dict[str, Any] | None:
        """What another run came to; None if none has finished this stage yet."""
        if not self._belongs_here(stage):
            return None
        try:
            return self.checkpoints.load(self._name(stage))
        except (OSError, StorageError) as error:
            self._warn(error)
            return None

    def put(self, stage: Stage, content: dict[str, Any]) -> None:
        """Keep a finished stage for others."""
        try:
            self.checkpoints.save(self._name(stage), content)
        except (OSError, StorageError) as error:
            self._warn(error)

    def lacks(self, stage: Stage) -> bool:
        return self._belongs_here(stage) and self.checkpoints.find(self._name(stage)) is None

    def _belongs_here(self, stage: Stage) -> bool:
        return stage.iteration == 0

    def _name(self, stage: Stage) -> str:
        return f"{self.prefix}-{stage.file_name}"

    def _warn(self, error: Exception) -> None:
        log.warning("%s is of no use (%s)", self.checkpoints.folder, first_line(error))


def clear(folder: Path) -> None:
    """Remove a shelf that nobody needs any more."""
    Checkpoints(folder).remove()


def digest_of_beginning(config: dict[str, Any]) -> str:
    """Of what decides a run up to its first iteration: data, settings, code and machine."""
    later = {f.name for f in fields(Settings) if f.metadata["group"] in LATER}
    left_out = (later - SHOWN) | OWN
    settings = {k: v for k, v in config["settings"].items() if k not in left_out}
    places = ("torch", "python", "data", "noise", "machine", "commit")
    beginning = {
        "settings": settings,
        "code": _digest_of_code(),
        **{name: config[name] for name in places},
    }
    return hashlib.sha256(json.dumps(beginning, sort_keys=True).encode()).hexdigest()


@functools.cache
def _digest_of_code() -> str:
    """Of a tree with changes the commit says too little."""
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()
