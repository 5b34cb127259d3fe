"""Stages that several runs have in common, trained by the first of them and kept for the others.

Features without labels and cross entropy come before a method's own stages, and nothing of the
method is in them: `mlnt reproduce` trains them once for all methods on the same labels, and the
former once for all labels of the same samples. Who takes one goes on as if it had trained it: the
state of every random generator comes along, and its seconds count. A shelf only saves time: what
goes wrong with it ends no run.
"""

import functools
import hashlib
import json
import logging
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch

from mlnt.checkpoints import Checkpoints
from mlnt.config import Settings
from mlnt.errors import StorageError, first_line
from mlnt.packing import Tensors, pack
from mlnt.training import Stage

# Groups of settings that no stage before the first iteration depends on, and single ones.
LATER = ("Meta update", "Mentor")
OWN = {"method", "iterations", "last_epochs", "checkpoint_minutes"}
SHOWN = {"eta", "lam"}  # in the lines of every stage, whether it depends on them or not
OF_LABELS = {"noise", "validation"}

log = logging.getLogger("mlnt")


class Shelf:
    """Of the runs whose `config` agrees in all that decides their first stages.

    inputs: a fingerprint of the training samples without their labels
    """

    def __init__(self, folder: Path, config: dict[str, Any], inputs: str) -> None:
        self.checkpoints = Checkpoints(folder)
        self.with_labels = digest_of_beginning(config)
        self.without_labels = digest_of_beginning(config, inputs)
        self.so_far = ""  # of what the stages gone through came to

    def takes(self, stage: Stage) -> bool:
        """Whether other runs may have it in common."""
        return stage.iteration == 0

    def take(self, stage: Stage) -> dict[str, Any] | None:
        """What another run came to; None if none has finished this stage yet."""
        if not self.takes(stage):
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
        return self.checkpoints.find(self._name(stage)) is None

    def follow(self, content: dict[str, Any]) -> None:
        """What is taken or put from now on has come of this: another's, on a GPU, may differ."""
        tensors: Tensors = {}
        pack(content["steps"], tensors)
        digest = hashlib.sha256(self.so_far.encode())
        for tensor in tensors.values():
            digest.update(tensor.view(-1).view(torch.uint8).numpy().data)
        self.so_far = digest.hexdigest()

    def _name(self, stage: Stage) -> str:
        digest = self.with_labels if stage.learns_labels else self.without_labels
        digest = hashlib.sha256((digest + self.so_far).encode()).hexdigest()
        return f"{digest[:16]}-{stage.file_name}"

    def _warn(self, error: Exception) -> None:
        log.warning("%s is of no use (%s)", self.checkpoints.folder, first_line(error))


def clear(folder: Path) -> None:
    """Remove a shelf that nobody needs any more."""
    Checkpoints(folder).remove()


def digest_of_beginning(config: dict[str, Any], inputs: str | None = None) -> str:
    """Of what decides a run up to its first iteration: data, settings, code and machine.

    inputs: of what decides it as long as no label is learnt, of samples with this fingerprint
    """
    later = {f.name for f in fields(Settings) if f.metadata["group"] in LATER}
    left_out = (later - SHOWN) | OWN
    places = {name: config[name] for name in ("torch", "python", "machine")}
    if inputs is None:
        places |= {"data": config["data"], "noise": config["noise"]}
    else:
        left_out |= OF_LABELS
        # A last layer is made, if not trained: as many weights are drawn as there are classes.
        places |= {"inputs": inputs, "classes": len(config["data"]["classes"])}
        places |= {name: config["data"][name] for name in ("name", "encoder")}
    settings = {k: v for k, v in config["settings"].items() if k not in left_out}
    # Which says more than the commit: files may be changed, or only documents since.
    beginning = {"settings": settings, "code": _digest_of_code(), **places}
    return hashlib.sha256(json.dumps(beginning, sort_keys=True).encode()).hexdigest()


@functools.cache
def _digest_of_code() -> str:
    digest = hashlib.sha256()
    package = Path(__file__).parent
    for path in sorted(package.rglob("*.py")):
        digest.update(str(path.relative_to(package)).encode() + path.read_bytes())
    return digest.hexdigest()
