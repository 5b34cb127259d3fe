"""The labels of a data set as they came, the held-out ones in their places, and what is to be said.

Axes: N samples, C classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mlnt.data.dataset import Dataset, Split
from mlnt.data.image_files import ImageFiles
from mlnt.data.pictures import printable
from mlnt.noise_model import Judgement
from mlnt.recipes import Result


@dataclass(frozen=True)
class Judged:
    """All labels the data came with, held-out ones too, in the order they came."""

    labels: Tensor  # [N]
    judgement: Judgement
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
        return Judged(train.labels, _of(result.judgement, places, [train]), kept, texts)
    # Nobody trained on the held-out labels, so the model's opinion of them is worth as much.
    order = torch.cat([dataset.train_indices, dataset.held_out_indices]).argsort()
    everything = [*kept, *[None] * len(held_out)]
    all_texts = [*(train.texts or ()), *(held_out.texts or ())]
    return Judged(
        labels=torch.cat([train.labels, _as_given(held_out)])[order],
        judgement=_of(result.judgement, order, [train, held_out]),
        kept=[everything[i] for i in order.tolist()],
        texts=[printable(all_texts[i]) for i in order.tolist()] if all_texts else None,
    )


def _of(judgement: Judgement, places: Tensor, splits: Sequence[Split]) -> Judgement:
    """The judgement of the samples at these places, where pictures that nobody saw are innocent."""
    posterior_NC, wrong_N = judgement.posterior.cpu().clone(), judgement.wrong.cpu().clone()
    start = 0
    for split in splits:
        if isinstance(split.inputs, ImageFiles):
            for index in split.inputs.unreadable():
                posterior_NC[start + index] = 0.0
                posterior_NC[start + index, _as_given(split)[index]] = 1.0
                wrong_N[start + index] = 0.0
        start += len(split)
    return replace(
        judgement,
        posterior=posterior_NC[places],
        wrong=wrong_N[places],
        transition=judgement.transition.cpu(),
    )


def _as_given(split: Split) -> Tensor:
    return split.labels if split.given_labels is None else split.given_labels
