"""Stages that several runs have in common, trained by the first of them and kept for the others.

Features without labels and cross entropy come before a method's own stages, and nothing of the
method is in them: `mlnt reproduce` trains them once for all methods on the same labels. Who takes
one goes on as if it had trained it: the state of every random generator comes along, and its
seconds count.
"""

import hashlib
import json
from dataclasses import fields
from pathlib import Path
from typing import Any

from mlnt.checkpoints import Checkpoints
from mlnt.config import Settings
from mlnt.training import Stage

# Groups of settings that no stage before the first iteration depends on; the machine it does.
LATER = ("Meta update", "Mentor")
OWN = ("method", "iterations", "checkpoint_minutes")


class Shelf:
    """Of the runs whose `config` agrees in all that decides their first stages."""

    def __init__(self, folder: Path, config: dict[str, Any]) -> None:
        self.checkpoints = Checkpoints(folder)
        self.prefix = digest_of_beginning(config)[:16]

    def take(self, stage: Stage) -> dict[str, Any] | None:
        """What another run came to; None if none has finished this stage yet."""
        return self.checkpoints.load(self._name(stage)) if stage.iteration == 0 else None

    def put(self, stage: Stage, content: dict[str, Any]) -> None:
        """Keep a finished stage; OSError if that cannot be done."""
        self.checkpoints.save(self._name(stage), content)

    def lacks(self, stage: Stage) -> bool:
        """Whether it is one that belongs here, and is not here yet."""
        return stage.iteration == 0 and self.checkpoints.find(self._name(stage)) is None

    def _name(self, stage: Stage) -> str:
        return f"{self.prefix}-{stage.file_name}"


def digest_of_beginning(config: dict[str, Any]) -> str:
    """Of what decides a run up to its first iteration: data, settings, code and machine."""
    later = {f.name for f in fields(Settings) if f.metadata["group"] in LATER} | {*OWN}
    settings = {k: v for k, v in config["settings"].items() if k not in later}
    places = ("mlnt", "torch", "python", "own_model", "data", "noise", "machine", "commit")
    beginning = {"settings": settings, **{name: config[name] for name in places}}
    return hashlib.sha256(json.dumps(beginning, sort_keys=True).encode()).hexdigest()
