"""What a data set is: encoded samples and labels of train, validation and test."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mlnt.data.encoding import Encoder
from mlnt.data.image_files import ImageFiles
from mlnt.data.pictures import PathTable


@dataclass(frozen=True)
class Split:
    """Samples of one part of a data set: train, validation or test."""

    inputs: Tensor | ImageFiles  # [N, ...], encoded
    labels: Tensor  # LongTensor [N], as given
    true_labels: Tensor | None = None  # LongTensor [N], where an experiment knows them
    texts: Sequence[str] | None = None  # what a person would recognise the sample by
    # LongTensor [N], as given, where `labels` were put right for validation
    given_labels: Tensor | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    def to(self, device: torch.device, dtype: torch.dtype) -> "Split":
        """On a device; floating inputs in this type (numbers of words stay what they are)."""
        others = {
            name: None if (values := getattr(self, name)) is None else values.to(device)
            for name in ("true_labels", "given_labels")
        }
        return replace(
            self,
            inputs=self.inputs.to(device, dtype if self.inputs.is_floating_point() else None),
            labels=self.labels.to(device),
            **others,
        )

    def take(self, indices: Tensor) -> "Split":
        return Split(
            self.inputs[indices],
            self.labels[indices],
            None if self.true_labels is None else self.true_labels[indices],
            _take_texts(self.texts, indices),
        )


@dataclass(frozen=True)
class Dataset:
    """A data set ready for training."""

    name: str
    classes: tuple[str, ...]
    encoder: Encoder
    train: Split
    validation: Split | None = None
    test: Split | None = None
    # Which of the samples as they came were kept for training and which held out; None: all kept.
    train_indices: Tensor | None = None
    held_out_indices: Tensor | None = None
    came: int | None = None  # how many, where those without a label were left out
    usual_confusions: Mapping[int, int] | None = None  # for asymmetric noise
    label_column: str | None = None  # of a table, where the user named it
    labels_from: str | None = None  # the column of a table that holds them, named or found
    text_column: str | None = None  # of a table of texts
    notes: tuple[str, ...] = ()  # what the user should know of the data
    is_known: bool = False  # the set that mlnt knows by this name, not a file called so

    @property
    def kind(self) -> str:
        return self.encoder.kind

    @property
    def held_out(self) -> Split | None:
        """Validation data that came among the training data."""
        return None if self.held_out_indices is None else self.validation

    @property
    def rows(self) -> Tensor:
        """LongTensor [N + H]: where each training sample, then each held out stood as it came."""
        kept = self.train_indices
        rows_N = torch.arange(len(self.train)) if kept is None else kept
        held_out = self.held_out_indices
        return rows_N if held_out is None else torch.cat([rows_N, held_out])


def _take_texts(texts: Sequence[str] | None, indices: Tensor) -> Sequence[str] | None:
    if texts is None or isinstance(texts, PathTable):
        return texts if texts is None else texts.take(indices)
    return [texts[i] for i in indices.tolist()]
