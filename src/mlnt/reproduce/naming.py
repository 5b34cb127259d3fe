"""What a run is called where results are written down: its data, its noise, its schedule.

cifar10, symmetric:0.5, "" (the fast schedule), "paper", or what differs from either: "sets=10"
"""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from mlnt.config import PRESETS, Settings, make_settings, settings_from
from mlnt.journal import MACHINE
from mlnt.reproduce.places import HUMAN_LABELS
from mlnt.schedule import ITERATED, has_last

PAPER = "paper"
FAST_AND_PAPER = ("cifar10-fast", "cifar10")  # presets; the first is the one without a name
RANDOM_WEIGHTS = "random weights"
MOST_DIFFERENCES = 4  # of a schedule that is named by them
NAMES = {"cifar10": "CIFAR-10", "cifar10n": "CIFAR-10N"}
TITLES = {**NAMES, "train_clean_noisy_labels": "Hausa news"}  # by the name of its file


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
    preset, found = nearest_preset(data, settings)
    parts = [PAPER] if data in NAMES and preset == "cifar10" else []
    if len(found) > MOST_DIFFERENCES:
        return ",".join([*parts, f"settings={digest_of(settings)[:8]}"])
    return ",".join([*parts, *found])


def nearest_preset(data: str, settings: Settings) -> tuple[str, list[str]]:
    """The preset that the settings differ least from, and in what they do."""
    found = {preset: differences(preset, settings) for preset in _presets_for(data)}
    return min(found.items(), key=lambda item: len(item[1]))


def _presets_for(data: str) -> tuple[str, ...]:
    return FAST_AND_PAPER if data in NAMES else (data,) if data in PRESETS else tuple(PRESETS)


def preset_of(data: str, schedule: str) -> str | None:
    """That which a run was recorded under; None of data without a preset of its own."""
    if data in NAMES:
        return FAST_AND_PAPER[schedule.split(",")[0] == PAPER]
    return data if data in PRESETS else None


def preset_and_changes(data: str, schedule: str, settings: Settings) -> tuple[str, list[str]]:
    """That preset, and in what settings differ from it as it is today; it may have changed."""
    if (preset := preset_of(data, schedule)) is not None:
        return preset, differences(preset, settings)
    return nearest_preset(data, settings)


def untold(changes: Sequence[str], schedule: str) -> list[str]:
    """Those that the name of the schedule does not tell."""
    told = schedule.split(",")
    is_digest = any(part.startswith("settings=") for part in told)
    return [] if is_digest else [change for change in changes if change not in told]


def changes_words(changes: Sequence[str]) -> list[str]:
    """["60 epochs a stage", "led_lr=same"] from epochs=60, last_epochs=same and led_lr=same."""
    by_name = dict(change.split("=", 1) for change in changes)
    words = []
    if by_name.get("last_epochs") == "same" and "epochs" in by_name:
        words.append(f"{by_name.pop('epochs')} epochs a stage")
        del by_name["last_epochs"]
    if by_name.get("weights") == "none":
        words.insert(0, RANDOM_WEIGHTS)
        del by_name["weights"]
    return [*words, *(f"{name}={value}" for name, value in by_name.items())]


def schedule_words(data: str, schedule: str) -> str:
    """`fast`; `the paper's schedule, sets=5`; of data without these two what differs alone."""
    parts = [part for part in schedule.split(",") if part]
    if data not in NAMES:
        return ", ".join(parts)
    is_paper = parts[:1] == [PAPER]
    return ", ".join(["the paper's schedule" if is_paper else "fast", *parts[is_paper:]])


def differences(preset: str, settings: Settings) -> list[str]:
    """["epochs=3", "sets=2"], in what counts."""
    # Validation is clean where noise is put in, as in the paper, and nowhere else.
    validation = "noisy" if settings.noise == "none" else "clean"
    usual = asdict(make_settings(preset, validation=validation))
    return [
        f"{name}={_text(value)}"
        for name, value in what_counts(settings).items()
        if value != usual[name]
    ]


def _text(value: Any) -> str:
    """Short, but what can be read back."""
    if not isinstance(value, float):
        return without_folders(str(value))
    return short if float(short := f"{value:g}") == value else repr(value)


def what_counts(settings: Settings) -> dict[str, Any]:
    """The settings that a schedule consists of.

    Not those of a mentor where the method has none, nor how long to learn features that it has not.
    """
    others = {*MACHINE, "method", "noise", "seed"}
    if settings.weights != "self":
        others.add("self_epochs")
    if not has_last(settings):
        others.add("last_epochs")
    if settings.method not in ITERATED:
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
    # What it was begun with, for its command; a network from Python has none.
    source = {} if config.get("own_model") else config.get("source", {})
    return without_folders(
        {
            "cell": {"data": named, "noise": noise, "schedule": schedule_of(named, settings)},
            "settings": asdict(settings),
            "data": {name: data[name] for name in ("name", "samples", "fingerprint")},
            "source": {name: value for name, value in source.items() if value is not None},
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
