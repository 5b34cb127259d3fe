"""The labels of a data set as they came, the held-out ones in their places, and what is to be said.

Axes: N samples, C classes.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mlnt.data.dataset import Dataset, Split
from mlnt.data.pictures import printable
from mlnt.judging import seen
from mlnt.noise_model import Judgement
from mlnt.recipes import Result


@dataclass(frozen=True)
class Judged:
    """All labels the data came with, held-out ones too, in the order they came."""

    labels: Tensor  # [N]
    judgement: Judgement
    seen: Tensor  # [N] bool: not of pictures that nobody could read
    kept: list[bool | None]  # by the last mentor; None where none was asked
    texts: list[str] | None


def judge_all_labels(result: Result, dataset: Dataset) -> Judged:
    train, held_out = dataset.train, dataset.validation
    kept: list[bool | None] = [None] * len(train)
    if result.kept is not None:
        kept = [False] * len(train)
        for index in result.kept.indices.tolist():
            kept[index] = True
    if dataset.train_indices is None or dataset.held_out_indices is None or held_out is None:
        texts = None if train.texts is None else [printable(text) for text in train.texts]
        places = torch.arange(len(train))
        judgement = _of(result.judgement, places)
        return Judged(train.labels, judgement, seen(train), kept, texts)
    # Nobody trained on the held-out labels, so the model's opinion of them is worth as much.
    order = torch.cat([dataset.train_indices, dataset.held_out_indices]).argsort()
    everything = [*kept, *[None] * len(held_out)]
    all_texts = [*(train.texts or ()), *(held_out.texts or ())]
    return Judged(
        labels=torch.cat([train.labels, _as_given(held_out)])[order],
        judgement=_of(result.judgement, order),
        seen=torch.cat([seen(train), seen(held_out)])[order],
        kept=[everything[i] for i in order.tolist()],
        texts=[printable(all_texts[i]) for i in order.tolist()] if all_texts else None,
    )


def _of(judgement: Judgement, places: Tensor) -> Judgement:
    """The judgement of the samples at these places."""
    return replace(
        judgement,
        posterior=judgement.posterior.cpu()[places],
        wrong=judgement.wrong.cpu()[places],
        transition=judgement.transition.cpu(),
    )


def _as_given(split: Split) -> Tensor:
    return split.labels if split.given_labels is None else split.given_labels
