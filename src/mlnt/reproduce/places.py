"""Where an experiment's data lies: the paper's data, or the digits as its miniature."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mlnt.data.array_files import read_npz
from mlnt.data.cifar10 import fetch_cifar10, find_cifar10
from mlnt.data.clothing1m import lists_folder
from mlnt.data.folders import image_folder_parts
from mlnt.data.label_files import read_pt
from mlnt.errors import InputError
from mlnt.reproduce.annotators import annotated_digits
from mlnt.reproduce.experiments import Experiment

MINIATURE = "digits"
BY_NAME = Path("cifar10")  # where `mlnt train cifar10` has it
CIFAR10N_FILES = ("cifar10n.npz", "CIFAR-10_human.pt")  # ours, its authors'
HUMAN_LABELS = {"aggregate": "aggre_label", "random1": "random_label1", "worst": "worse_label"}
# What --fast changes where there is no fast preset: enough to see the form, not the figures.
FAST_DIGITS = {"epochs": 8, "sets": 1}
FAST_CLOTHING1M = {"epochs": 1, "sets": 2}


@dataclass(frozen=True)
class Place:
    name: str  # for headings
    preset: str
    noises: tuple[str, ...]
    arguments: Callable[[str], dict[str, Any]]  # what `mlnt.train` gets for a noise
    fast: Mapping[str, Any] = field(default_factory=dict)  # settings changed by --fast
    miniature: bool = False


def find_place(
    what: str, experiment: Experiment, data: Path | None, fast: bool, download: bool = False
) -> Place:
    """The data of an experiment; a folder that does not hold it is refused."""
    if data == BY_NAME and not data.exists():
        fetched = fetch_cifar10(download=download)
        data = fetched.parent if fetched.is_file() else fetched  # the same the next time
    if experiment.data == "digits" or (data == Path(MINIATURE) and what != "hausa-news"):
        return _digits(experiment, fast)
    if data is None:
        miniature = "" if what == "hausa-news" else f" (or --data {MINIATURE}: in miniature)"
        raise InputError(f"{what} needs the folder of its data: --data FOLDER{miniature}")
    if experiment.data == "hausa-news":
        if fast:
            raise InputError("hausa-news has no fast schedule; it takes minutes as it is")
        return Place("Hausa news", "text", experiment.noises, lambda noise: _hausa_news(data))
    is_cifar10 = find_cifar10(data) is not None
    if experiment.data == "clothing1m" or (experiment.data == "images" and not is_cifar10):
        return _clothing1m(data, fast)
    if not is_cifar10:
        raise InputError(f"{data} holds no CIFAR-10 (data_batch_1.bin and so on)")
    preset = "cifar10-fast" if fast else "cifar10"
    if experiment.data == "cifar10n":
        return _cifar10n(experiment, data, preset)
    return Place("CIFAR-10", preset, experiment.noises, lambda noise: _injected(data, noise))


def is_injected(noise: str) -> bool:
    """Whether the labels are made wrong by us; else they came so."""
    return noise.partition(":")[0] in ("symmetric", "asymmetric")


def _injected(data: str | Path, noise: str) -> dict[str, Any]:
    """Noise put in by us; validation stays clean, as in the paper."""
    return {"data": data, "noise": noise, "validation": "clean"}


def _digits(experiment: Experiment, fast: bool) -> Place:
    def arguments(noise: str) -> dict[str, Any]:
        if is_injected(noise):
            return _injected(MINIATURE, noise)
        # The sellers' texts of Clothing1M are wrong about as often as the worst annotators.
        labels = annotated_digits("worst" if noise == "real" else noise)
        return {"data": MINIATURE, "labels": labels, "validation": "clean"}

    miniature = experiment.data != "digits"
    quick = FAST_DIGITS if fast else {}
    return Place(MINIATURE, "digits", experiment.noises, arguments, quick, miniature)


def _hausa_news(folder: Path) -> dict[str, Any]:
    return {
        "data": folder / "train_clean_noisy_labels.tsv",
        "true_labels": folder / "train_clean.tsv",
        "validation_data": folder / "dev.tsv",
        "test_data": folder / "test.tsv",
    }


def _clothing1m(folder: Path, fast: bool) -> Place:
    """Clothing1M; or another folder of pictures by class in its place, with noise put in by us."""
    quick = FAST_CLOTHING1M if fast else {}
    if lists_folder(folder) is None:
        if image_folder_parts(folder).test is None:
            raise InputError(f"{folder} has no test part; put pictures of each class into test/")
        return Place(
            folder.name,
            "clothing1m",
            ("symmetric:0.4",),
            lambda noise: _injected(folder, noise),
            quick,
        )

    def arguments(noise: str) -> dict[str, Any]:
        return {"data": folder, "validation": "clean"}

    return Place("Clothing1M", "clothing1m", ("real",), arguments, quick)


def _cifar10n(experiment: Experiment, data: Path, preset: str) -> Place:
    file = next((f for name in CIFAR10N_FILES if (f := data / name).is_file()), None)
    if file is None:
        names = " or ".join(CIFAR10N_FILES)
        raise InputError(f"{data} holds no labels by people; put {names} into it")
    sets = read_npz(file) if file.suffix == ".npz" else read_pt(file)
    noises = tuple(noise for noise in experiment.noises if HUMAN_LABELS[noise] in sets)
    if not noises or "clean_label" not in sets:
        wanted = ", ".join(["clean_label", *HUMAN_LABELS.values()])
        raise InputError(f"{file} must hold {wanted}, it holds {', '.join(sets)}")

    def arguments(noise: str) -> dict[str, Any]:
        labels = f"{file}:{HUMAN_LABELS[noise]}"
        # Nobody has clean labels where people have labelled: validation keeps theirs as well.
        return {"data": data, "labels": labels, "validation": "noisy"}

    return Place("CIFAR-10N", preset, noises, arguments)
