"""`mlnt.predict`: what the model of a run says of other data."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.encoding import Encoder, encoder_from_json, encoder_to_json
from mlnt.data.sources import NAMED, Source, read
from mlnt.device import pick_device
from mlnt.errors import InputError
from mlnt.evaluation import accuracy, predict_probabilities
from mlnt.models import build_model
from mlnt.runs import CONFIG, RunFolder


@dataclass(frozen=True)
class Prediction:
    classes: tuple[str, ...]
    predicted: list[str]
    probabilities: Tensor  # [N, C]
    accuracy: float | None  # percent, where the data has labels


def predict(
    folder: str | Path,
    data: Source,
    *,
    label_column: str | None = None,
    text_column: str | None = None,
    device: str = "auto",
) -> Prediction:
    """What the best model of a run says of other data (of a named data set: its test part)."""
    run = RunFolder.open(folder)
    config = run.read_json(CONFIG)
    encoder, classes, model = load_model(run)
    names: list[str] | None
    if isinstance(data, str) and data in NAMED:
        dataset = NAMED[data]()
        if encoder_to_json(dataset.encoder) != config["data"]["encoder"] or dataset.test is None:
            raise InputError(f"{folder} was not trained on {data}; give a file")
        inputs = dataset.test.inputs
        names = [dataset.classes[i] for i in dataset.test.labels.tolist()]
    else:
        raw = read(data, label_column, text_column)
        if raw.kind != encoder.kind:
            raise InputError(f"{folder} was trained on {encoder.kind} data, this is {raw.kind}")
        columns = getattr(encoder, "columns", ())
        if raw.columns and raw.kind == "table" and raw.columns != columns:
            raise InputError(
                f"the columns must be those of the training data ({', '.join(columns)}), "
                f"got {', '.join(raw.columns)}"
            )
        inputs, names = encoder.encode(raw.samples), raw.labels
    target = pick_device(device)
    dtype = next(model.parameters()).dtype
    inputs = inputs.to(dtype) if inputs.is_floating_point() else inputs
    probabilities_NC = predict_probabilities(model.to(target), inputs).cpu()
    correct = None
    if names is not None and set(names) <= set(classes):
        labels = torch.tensor([classes.index(name) for name in names])
        correct = float(accuracy(probabilities_NC, labels))
    predicted = [classes[i] for i in probabilities_NC.argmax(dim=1).tolist()]
    return Prediction(classes, predicted, probabilities_NC, correct)


def load_model(run: RunFolder, name: str = "best") -> tuple[Encoder, tuple[str, ...], nn.Module]:
    """The encoder, the class names and a model of a run: best, student or teacher."""
    config = run.read_json(CONFIG)
    try:
        encoder = encoder_from_json(config["data"]["encoder"])
        classes = tuple(config["data"]["classes"])
        settings = Settings(**config["settings"])
    except (KeyError, TypeError) as error:
        raise InputError(f"{run.file(CONFIG)} is not a configuration of mlnt: {error}") from None
    if config["own_model"]:
        raise InputError(
            f"{run.path} was trained with your own network ({config['own_model']}); build it and "
            f"load {name}.safetensors with safetensors.torch.load_model"
        )
    network = build_model(settings.model, encoder, len(classes))
    return encoder, classes, run.load_into(network.to(getattr(torch, settings.precision)), name)
