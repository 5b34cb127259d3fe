"""How good a model is, how much noise it has memorised, how well wrong labels are found."""

from contextlib import closing

import torch
from torch import Tensor, nn

from mlnt.data.image_files import ImageFiles
from mlnt.data.streaming import batches
from mlnt.distributed import ALL_ALONE, World
from mlnt.errors import InputError
from mlnt.meta.features import logits_and_features

EVALUATION_BATCH = 1024


@torch.no_grad()
def predict_probabilities(
    model: nn.Module, inputs_N: Tensor | ImageFiles, world: World = ALL_ALONE
) -> Tensor:
    """Class probabilities [N, C] in eval mode; each process computes some, and all have all."""
    model.eval()
    weight = next(model.parameters())
    dtype = weight.dtype if inputs_N.is_floating_point() else None
    rows = world.divide(len(inputs_N))
    with closing(batches(inputs_N[rows.own], EVALUATION_BATCH, weight.device, dtype)) as own:
        logits = torch.cat([model(x) for x in own]).to(weight.dtype)
    if isinstance(inputs_N, ImageFiles):
        inputs_N.faults.share(world)
    return rows.gather(logits).softmax(dim=1)


@torch.no_grad()
def extract_features(
    model: nn.Module, inputs_N: Tensor | ImageFiles, world: World = ALL_ALONE
) -> Tensor:
    """Penultimate features [N, D] in eval mode; each process computes some, and all have all."""
    model.eval()
    rows = world.divide(len(inputs_N))
    with closing(batches(inputs_N[rows.own], EVALUATION_BATCH)) as own:
        features = torch.cat([logits_and_features(model, x)[1] for x in own])
    if isinstance(inputs_N, ImageFiles):
        inputs_N.faults.share(world)
    return rows.gather(features.to(next(model.parameters()).dtype))


def readable(inputs_N: Tensor | ImageFiles) -> Tensor | slice:
    """The rows that a figure may count: in place of a picture that could not be read an empty one
    was judged. InputError where none is left."""
    if not isinstance(inputs_N, ImageFiles) or not (unreadable := inputs_N.unreadable()):
        return slice(None)
    if len(unreadable) == len(inputs_N):
        path = inputs_N.paths.full(0)
        raise InputError(
            f"none of the {len(inputs_N)} pictures can be read; the first: {path} "
            f"({inputs_N.faults.found[path]})"
        )
    readable_N = torch.ones(len(inputs_N), dtype=torch.bool)
    readable_N[unreadable] = False
    return readable_N


def accuracy(probabilities_NC: Tensor, labels_N: Tensor) -> Tensor:
    """Percent of samples whose most probable class is the label, as a tensor on its device."""
    hits_N = probabilities_NC.argmax(dim=1) == labels_N.to(probabilities_NC.device)
    return 100 * hits_N.double().mean()


def accuracy_by_class(probabilities_NC: Tensor, labels_N: Tensor) -> list[float | None]:
    """The accuracy on the samples of each class; None of a class that has none."""
    found_N, labels_N = probabilities_NC.argmax(dim=1).cpu(), labels_N.cpu()
    count = probabilities_NC.shape[1]
    of_class_C = labels_N.bincount(minlength=count).tolist()
    found_C = labels_N[found_N == labels_N].bincount(minlength=count).tolist()
    return [
        100 * found / number if number else None
        for found, number in zip(found_C, of_class_C, strict=True)
    ]


def memorised_noise(probabilities_NC: Tensor, labels_N: Tensor, true_N: Tensor) -> float:
    """Percent of the wrong labels that the model predicts all the same; NaN if none is wrong."""
    wrong_N = labels_N != true_N
    return float(accuracy(probabilities_NC[wrong_N], labels_N[wrong_N]))


def found_errors(suspicion_N: Tensor, wrong_N: Tensor) -> dict[str, float | None]:
    """AUROC and average precision of a suspicion score; None unless both kinds of label occur."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    wrong, suspicion = wrong_N.cpu().numpy(), suspicion_N.cpu().numpy()
    if wrong.all() or not wrong.any():
        return {"auroc": None, "ap": None}
    return {
        "auroc": float(roc_auc_score(wrong, suspicion)),
        "ap": float(average_precision_score(wrong, suspicion)),
    }
