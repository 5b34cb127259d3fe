"""`mlnt.predict`: what the model of a run says of other data."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import settings_from
from mlnt.data.cifar10 import find_cifar10
from mlnt.data.encoding import Encoder, encoder_from_json
from mlnt.data.fashion_mnist import has_idx_files
from mlnt.data.folders import SPLITS
from mlnt.data.given_labels import named_as
from mlnt.data.huggingface import is_saved_dataset
from mlnt.data.image_files import ImageFiles
from mlnt.data.known import NAMED
from mlnt.data.oddities import only_some, other_range
from mlnt.data.other_forms import part_in
from mlnt.data.picture_sets import pictures_to_predict
from mlnt.data.pictures import NO_LABEL, printable
from mlnt.data.raw import Source
from mlnt.data.reading import read_new
from mlnt.data.saved_splits import open_splits
from mlnt.data.tables import is_table
from mlnt.data.text_encoding import TextEncoder
from mlnt.device import pick_device, weight_type
from mlnt.errors import InputError
from mlnt.evaluation import accuracy, predict_probabilities, readable
from mlnt.models import OwnModel, build_model, first_width, is_imported, new_of
from mlnt.runs import CONFIG, RunFolder, load_into


@dataclass(frozen=True)
class Prediction:
    classes: tuple[str, ...]
    predicted: list[str]
    probabilities: Tensor  # [N, C]
    accuracy: float | None  # percent of those with a label, where all labels are classes of the run
    samples: list[str] | None = None  # of pictures: their paths
    faults: Mapping[str, str] = field(default_factory=dict)  # pictures not read: path and reason
    unknown: tuple[str, ...] = ()  # labels of the data that are no class of the run, each once
    notes: tuple[str, ...] = ()  # what is odd about the data
    part: str = ""  # of divided data the one that was predicted: test, or train


def predict(
    folder: str | Path,
    data: Source,
    *,
    label_column: str | None = None,
    text_column: str | None = None,
    device: str = "auto",
    model: OwnModel | str | None = None,
) -> Prediction:
    """What the best model of a run says of other data (of a named data set: its test part).

    Columns are found as in training unless named again. `model` is the network of a run that was
    trained with one's own: the module, a function that gives it, or "package.module:function".
    """
    run = RunFolder.open(folder)
    encoder, classes, network = load_model(run, model=model)
    with run.expect_intact():
        trained = run.read_json(CONFIG)["data"]
        label_column = label_column or trained["label_column"]
        text_column = text_column or trained["text_column"]
        if not all(isinstance(name, str | None) for name in (label_column, text_column)):
            raise ValueError("the names of columns must be texts")
    labels: Tensor | None = None
    samples: list[str] | None = None
    unknown: tuple[str, ...] = ()
    inputs: Tensor | ImageFiles
    pictures, notes = None, list[str]()
    if isinstance(data, str | Path) and (encoder.kind == "image" or not is_table(Path(data))):
        # A table is read by the columns of the training data, whatever pictures stand beside them.
        pictures = pictures_to_predict(Path(data), encoder, classes, label_column, text_column)
    if pictures is not None:
        split, unknown = pictures
        inputs = split.inputs
        samples = [printable(text) for text in split.texts or ()]
        labels = None if unknown else split.labels
    else:
        raw, notes_of_it = read_new(data, encoder, label_column, text_column)
        notes += notes_of_it
        inputs = encoder.encode(raw.samples)
        given = named_as(raw.labels or (), classes)
        unknown = tuple(name for name in dict.fromkeys(given) if name and name not in classes)
        if raw.labels is not None and not unknown:
            labels = torch.tensor([classes.index(name) if name else NO_LABEL for name in given])
    probabilities_NC = predict_probabilities(network.to(pick_device(device)), inputs).cpu()
    counted = readable(inputs)
    correct = None
    notes += other_range(inputs, encoder, "these")
    if isinstance(encoder, TextEncoder) and isinstance(inputs, Tensor):
        notes += encoder.note_unread(inputs, "texts")
    if labels is not None:
        given_N, answers_NC = labels[counted], probabilities_NC[counted]
        labelled = given_N != NO_LABEL
        if labelled.any():
            correct = float(accuracy(answers_NC[labelled], given_N[labelled]))
            notes += only_some(int(labelled.sum()), len(labelled))
    predicted = [classes[i] for i in probabilities_NC.argmax(dim=1).tolist()]
    faults = {}
    if isinstance(inputs, ImageFiles):
        faults = dict(inputs.faults.found)
        for index in inputs.unreadable():  # an empty picture was judged in their place
            predicted[index], probabilities_NC[index] = "", math.nan
    part = _part_of(data, samples or ())
    return Prediction(
        classes, predicted, probabilities_NC, correct, samples, faults, unknown, tuple(notes), part
    )


def _part_of(data: Source, samples: Sequence[str]) -> str:
    """Of data that is divided, the part that was read: test, or train where it has none."""
    if not isinstance(data, str | Path):
        return ""
    path = Path(data)
    if data in NAMED or find_cifar10(path) is not None or has_idx_files(path):
        return "test"
    if not path.is_dir():
        return part_in(path, "test") if path.suffix.lower() == ".npz" else ""
    if is_saved_dataset(path):
        splits, _ = open_splits(path)
        return "" if len(splits) == 1 else "test" if "test" in splits else "train"
    folders = {entry.name for entry in path.iterdir() if entry.is_dir()} & SPLITS.keys()
    read = {Path(sample).parts[0] for sample in samples}
    is_one_of_several = len(folders) > 1 and len(read) == 1 and read <= folders
    return SPLITS[read.pop()] if is_one_of_several else ""


def load_model(
    run: RunFolder, name: str = "best", model: OwnModel | str | None = None
) -> tuple[Encoder, tuple[str, ...], nn.Module]:
    """The encoder, the class names and a model of a run: best, student or teacher.

    A run of the user's own network does not say what to run; that is `model`, as in `predict`.
    """
    with run.expect_intact():
        config = run.read_json(CONFIG)
        encoder = encoder_from_json(config["data"]["encoder"])
        classes = _checked_classes(config["data"]["classes"])
        settings = settings_from(config["settings"])
        own_model = config["own_model"]
    if model is None and own_model:
        raise InputError(
            f"{run.path} was trained with your own network ({own_model}); give it again with "
            "model=, or with --model package.module:function"
        )
    if model is not None and not own_model and not is_imported(settings.model):
        raise InputError(f"{run.path} has a network of mlnt's, {settings.model}; give no other")
    state = run.load_state(name)
    if model is None:
        inputs = first_width(settings.model, encoder)
        _check_sizes(f"{name}.safetensors of {run.path}", state, inputs, len(classes))
        network = build_model(settings.model, encoder, len(classes))
    elif isinstance(model, str):
        network = build_model(model, encoder, len(classes), may_import=True)
    else:
        network = new_of(model)
    return encoder, classes, load_into(network.to(weight_type(settings)), state, name)


def _checked_classes(names: Any) -> tuple[str, ...]:
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("the classes must be a list of names")
    if len(names) < 2 or len(set(names)) < len(names):
        raise ValueError("there must be two classes or more, each once")
    for name in names:
        name.encode("utf-8")  # raises where no file of text can hold it
    return tuple(names)


def _check_sizes(file: str, state: dict[str, Tensor], inputs: int, classes: int) -> None:
    """Raise InputError where config.json claims sizes that no tensor of the run has.

    It may be a stranger's: a network for a billion classes would take all memory before its
    weights were found not to fit. A tensor takes as much of the file as its shape says.
    """
    found = {size for tensor in state.values() for size in tensor.shape}
    for size, what in ((classes, "classes"), (inputs, "inputs")):
        if size not in found:
            raise InputError(f"{file} has no layer for the {size:,} {what} of {CONFIG}")
