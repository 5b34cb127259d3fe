"""What tells the data of one run from those of another."""

import hashlib
from pathlib import Path

from mlnt.data.dataset import Dataset, Split
from mlnt.data.image_files import ImageFiles
from mlnt.files import exists

SIZED_PICTURES = 1000  # whose sizes tell one tree of pictures from another of the same names


def other_fingerprints(dataset: Dataset) -> dict[str, str]:
    """Of validation and test data, by which models are chosen and measured."""
    splits = {"validation": dataset.validation, "test": dataset.test}
    return {name: fingerprint(split) for name, split in splits.items() if split is not None}


def fingerprint(split: Split) -> str:
    """Of labels and inputs in their order; of pictures on disk the names, and the sizes of some."""
    digest = hashlib.sha256(split.labels.numpy().tobytes())
    if split.given_labels is not None:  # of validation data alone
        digest.update(split.given_labels.numpy().tobytes())
    _add_inputs(digest, split)
    return digest.hexdigest()


def fingerprint_of_inputs(split: Split) -> str:
    """Whatever their labels are."""
    digest = hashlib.sha256()
    _add_inputs(digest, split)
    return digest.hexdigest()


def _add_inputs(digest: "hashlib._Hash", split: Split) -> None:
    inputs = split.inputs
    if not isinstance(inputs, ImageFiles):
        digest.update(inputs.contiguous().numpy().data.cast("B"))
        return
    for name in inputs.paths:
        digest.update(name.encode("utf-8", "surrogatepass"))
    for index in range(0, len(inputs), max(1, len(inputs) // SIZED_PICTURES)):
        file = Path(inputs.paths.full(index))
        digest.update(str(file.stat().st_size if exists(file) else None).encode())
