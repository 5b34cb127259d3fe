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

    rows: Tensor  # [N] of the data, counting those without a label
    labels: Tensor  # [N]
    judgement: Judgement
    seen: Tensor  # [N] bool: not of pictures that nobody could read
    kept: list[bool | None]  # by the last mentor; None where none was asked
    texts: list[str] | None


def judge_all_labels(result: Result, dataset: Dataset) -> Judged:
    train, held_out = dataset.train, dataset.held_out
    kept: list[bool | None] = [None] * len(train)
    if result.kept is not None:
        kept = [False] * len(train)
        for index in result.kept.indices.tolist():
            kept[index] = True
    labels_N, seen_N, texts = train.labels, seen(train), [*(train.texts or ())]
    if held_out is not None:
        # Nobody trained on these labels, so the model's opinion of them is worth as much.
        labels_N = torch.cat([labels_N, _as_given(held_out)])
        seen_N = torch.cat([seen_N, seen(held_out)])
        kept += [None] * len(held_out)
        texts += held_out.texts or ()
    order = dataset.rows.argsort()
    return Judged(
        rows=dataset.rows[order],
        labels=labels_N[order],
        judgement=_of(result.judgement, order),
        seen=seen_N[order],
        kept=[kept[i] for i in order.tolist()],
        texts=[printable(texts[i]) for i in order.tolist()] if texts else None,
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
