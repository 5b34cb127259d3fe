"""What a run is called where results are written down: its data, its noise, its schedule.

cifar10, symmetric:0.5, "" (the fast schedule), "paper", or what differs from either: "sets=10"
"""

import hashlib
import json
import re
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mlnt.config import PRESETS, Settings, make_settings, settings_from
from mlnt.journal import MACHINE
from mlnt.reproduce.experiments import LED
from mlnt.reproduce.places import HUMAN_LABELS

PAPER = "paper"
FAST_AND_PAPER = ("cifar10-fast", "cifar10")  # presets; the first is the one without a name
MOST_DIFFERENCES = 4  # of a schedule that is named by them
NAMES = {"cifar10": "CIFAR-10", "cifar10n": "CIFAR-10N"}


def data_of(config: dict[str, Any]) -> str:
    """cifar10n is CIFAR-10 with labels by people."""
    name = str(config["data"]["name"])
    if name in (*NAMES, *PRESETS) and not config["data"]["is_known"]:
        return f"{name} (a file of this name)"
    return "cifar10n" if name == "cifar10" and _human_labels(config) else name


def noise_of(config: dict[str, Any], folder: Path) -> str:
    """As in an experiment: what was put in, else the set of labels that was given."""
    settings = config["settings"]
    if settings["noise"] != "none":
        return without_folders(str(settings["noise"]))
    if human := _human_labels(config):
        return human
    # A cell whose labels came from Python is called after them: cells/mlnt/worst/seed-0.
    parts = folder.resolve().parts
    for place in range(len(parts) - 3):
        if parts[place : place + 2] == ("cells", settings["method"]):
            return parts[place + 2]
    return "none"


def _human_labels(config: dict[str, Any]) -> str:
    """worst, where the labels are those of FILE:worse_label; else nothing."""
    _, _, key = str(config.get("source", {}).get("labels") or "").rpartition(":")
    return next((name for name, column in HUMAN_LABELS.items() if column == key), "")


def schedule_of(data: str, settings: Settings) -> str:
    """Which preset the settings are of, and where they differ from it."""
    presets = FAST_AND_PAPER if data in NAMES else (data,) if data in PRESETS else tuple(PRESETS)
    found = {preset: _differences(preset, settings) for preset in presets}
    preset = min(presets, key=lambda name: len(found[name]))
    parts = [PAPER] if data in NAMES and preset == "cifar10" else []
    if len(found[preset]) > MOST_DIFFERENCES:
        return ",".join([*parts, f"settings={digest_of(settings)[:8]}"])
    return ",".join([*parts, *found[preset]])


def schedule_words(data: str, schedule: str) -> str:
    """`fast`; `the paper's schedule, sets=5`; of data without these two what differs alone."""
    parts = [part for part in schedule.split(",") if part]
    if data not in NAMES:
        return ", ".join(parts)
    is_paper = parts[:1] == [PAPER]
    return ", ".join(["the paper's schedule" if is_paper else "fast", *parts[is_paper:]])


def _differences(preset: str, settings: Settings) -> list[str]:
    # Validation is clean where noise is put in, as in the paper, and nowhere else.
    validation = "noisy" if settings.noise == "none" else "clean"
    usual = asdict(make_settings(preset, validation=validation))
    return [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={without_folders(str(value))}"
        for name, value in what_counts(settings).items()
        if value != usual[name]
    ]


def what_counts(settings: Settings) -> dict[str, Any]:
    """The settings that a schedule consists of.

    Not those of a mentor where the method has none, nor how long to learn features that it has not.
    """
    others = {*MACHINE, "method", "noise", "seed"}
    if settings.weights != "self":
        others.add("self_epochs")
    if settings.method not in LED:
        others |= {field.name for field in fields(settings) if field.metadata["group"] == "Mentor"}
    return {name: value for name, value in asdict(settings).items() if name not in others}


def digest_of(settings: Settings) -> str:
    text = json.dumps(what_counts(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def folder_of(data: str, settings: Settings, noise: str, schedule: str) -> Path:
    """cifar10/mlnt/symmetric-0.5/seed-0, relative to the results."""
    names = (data, settings.method, noise, schedule, f"seed-{settings.seed}")
    return Path(*(_as_file_name(name) for name in names if name))


def _as_file_name(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.,_-]", "-", text).lstrip(".")[:80] or "-"


def stripped(config: dict[str, Any], noise: str) -> dict[str, Any]:
    """Of config.json what tells how a run was made, without what tells of the machine's folders."""
    settings = settings_from(config["settings"])
    data = config["data"]
    kept = ("mlnt", "torch", "python", "noise", "machine", "commit", "continued")
    named = data_of(config)
    return without_folders(
        {
            "cell": {"data": named, "noise": noise, "schedule": schedule_of(named, settings)},
            "settings": asdict(settings),
            "data": {name: data[name] for name in ("name", "samples", "fingerprint")},
            **{name: config[name] for name in kept if name in config},
        }
    )


# An absolute path, its last part left out: /a/b/, C:\a\, ~/a/, \\host\a\.
_FOLDERS = re.compile(r"(^|[^\w.~/\\-])(?:~?/|[A-Za-z]:[\\/]|\\\\)(?:.*[\\/])?", re.DOTALL)


def without_folders(value: Any) -> Any:
    """The same text or JSON; of absolute paths the last part alone."""
    if isinstance(value, dict):
        return {without_folders(name): without_folders(item) for name, item in value.items()}
    if isinstance(value, list):
        return [without_folders(item) for item in value]
    return _FOLDERS.sub(r"\1", value) if isinstance(value, str) else value
