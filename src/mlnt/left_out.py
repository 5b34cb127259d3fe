"""What short trainings of cross entropy say of labels that they did not learn.

Wrong labels lower what any network can agree with, but they favour none: whoever agrees with more
of the labels left out, wrong ones among them, has seen more of the rule. So networks for a table,
and a mentor's filter, can be compared where nobody knows a true label.

Axes: N samples.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from mlnt.config import Settings
from mlnt.data.dataset import Dataset, Split
from mlnt.device import drawing_from, weight_type
from mlnt.evaluation import predict_probabilities
from mlnt.methods import CrossEntropy
from mlnt.models import build_model
from mlnt.schedule import rates_at
from mlnt.steps import Steps

FOLDS = 3
FEWEST, MOST = 300, 6000  # samples: of fewer nothing can be told, more are not needed
FOR_TABLES = ("mlp", "bins8", "bins64")  # the first where nothing can be told


Filter = Callable[[nn.Module, Split], tuple[Tensor, Tensor | None]]


def agreeing(
    new_model: Callable[[], nn.Module],
    train: Split,
    settings: Settings,
    seed: int,
    keep: Filter | None = None,
) -> Tensor:
    """[1 or 2, some N] bool: whether networks that did not learn a label give it.

    Each of three learns two thirds of the samples and is asked about the rest. Which samples these
    are depends on the seed alone. `keep` gives what such a network keeps of its samples, indices
    and weights of the classes: second come networks that learn this alone.
    """
    device = train.labels.device
    generator = torch.Generator().manual_seed(seed)
    order_N = torch.randperm(len(train), generator=generator)[:MOST].to(device)
    found = []
    for fold in range(FOLDS):
        is_out_N = torch.arange(len(order_N), device=device) % FOLDS == fold
        asked, learnt = train.take(order_N[is_out_N]), train.take(order_N[~is_out_N])
        models = [_trained(new_model, learnt, settings, seed)]
        if keep is not None:
            kept, class_weights = keep(models[0], learnt)
            models.append(_trained(new_model, learnt.take(kept), settings, seed, class_weights))
        answers = [predict_probabilities(m, asked.inputs).argmax(dim=1) for m in models]
        found.append(torch.stack(answers).to(device) == asked.labels)
    return torch.cat(found, dim=1)


def _trained(
    new_model: Callable[[], nn.Module],
    train: Split,
    settings: Settings,
    seed: int,
    class_weights: Tensor | None = None,
) -> nn.Module:
    device = train.labels.device
    an_epoch = max(1, len(train) // settings.batch_size)
    steps_in_all = settings.epochs * an_epoch
    with drawing_from(seed, device):
        method = CrossEntropy(new_model(), settings)
        method.class_weights = class_weights
        runner = Steps(train, method, settings, torch.Generator(device).manual_seed(seed))
        for begun in range(0, steps_in_all, an_epoch):
            steps = range(begun, begun + an_epoch)
            runner.run([rates_at(step, steps_in_all, settings, 0) for step in steps])
    return method.models["student"].eval()


def network_for_table(data: Dataset, settings: Settings, seed: int) -> tuple[str, str] | None:
    """(name, reason) of the network that agrees with most labels left out; None: cannot be told.

    On a CPU, which is done with so few small steps before a GPU has recorded its own.
    """
    if len(data.train) < FEWEST or not getattr(data.encoder, "edges", ()):
        return None
    device = torch.device("cpu")
    train = data.train.to(device, weight_type(settings))

    def new_model(name: str) -> nn.Module:
        model = build_model(name, data.encoder, len(data.classes))
        return model.to(device=device, dtype=weight_type(settings))

    found = {
        name: _percent(agreeing(functools.partial(new_model, name), train, settings, seed)[0])
        for name in FOR_TABLES
    }
    best = max(found, key=lambda name: found[name])
    listed = ", ".join(f"{name} {percent:.1f}" for name, percent in found.items())
    return best, f"agrees with most labels that it did not learn: {listed} %"


@dataclass(frozen=True)
class Proof:
    """Of a filter: the share that networks agree with which learn all labels, or the kept alone."""

    all: float  # percent
    kept: float

    @property
    def holds(self) -> bool:
        return self.kept >= self.all

    def to_json(self) -> dict[str, Any]:
        return {"all": self.all, "kept": self.kept}


def proof_of(
    new_model: Callable[[], nn.Module], train: Split, settings: Settings, seed: int, keep: Filter
) -> Proof | None:
    """Whether more of the rule is learnt from what a mentor keeps than from all labels.

    Where doubt is about hard samples rather than wrong labels, a filter takes what was to be
    learnt. None: too few samples to tell.
    """
    if len(train) < FEWEST:
        return None
    of_all, of_kept = map(_percent, agreeing(new_model, train, settings, seed, keep))
    return Proof(of_all, of_kept)


def _percent(agreeing_N: Tensor) -> float:
    return 100 * float(agreeing_N.double().mean())
