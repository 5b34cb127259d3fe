"""Label noise for experiments, and the rate that really came out.

Every function takes labels as a tensor or an array and returns the same kind.
"""

import io
import operator
import re
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from mlnt.arguments import as_tensor, check_generator, in_one_line, is_count
from mlnt.errors import InputError, check_share, did_you_mean
from mlnt.files import read_file

MOST_BYTES = 2**26  # of a transition matrix
SUM_TOLERANCE = 1e-4  # of a row of it, that a network estimated in float32 or a person wrote
CLASS_NUMBERS = (
    "one row of class numbers (names become such by np.unique(names, return_inverse=True)[1])"
)

Labels = TypeVar("Labels", Tensor, np.ndarray)


def symmetric_noise(
    labels: Labels, rate: float, classes: int, generator: torch.Generator | None = None
) -> Labels:
    """With probability `rate` a label becomes a uniformly random class, its own included.

    So a rate of r makes r·(C − 1)/C of the labels wrong on average.
    """
    check_share("noise rate", rate)
    check_generator(generator)
    labels_N = _checked(labels, classes)
    # The device is named, for torch.set_default_device may have set another.
    replaced_N = torch.rand(len(labels_N), generator=generator, device="cpu") < rate
    random_N = torch.randint(classes, (len(labels_N),), generator=generator, device="cpu")
    return _like(labels, torch.where(replaced_N, random_N, labels_N))


def asymmetric_noise(
    labels: Labels,
    rate: float,
    mapping: Mapping[int, int],
    generator: torch.Generator | None = None,
) -> Labels:
    """With probability `rate` a label of a class in `mapping` becomes the class it maps to."""
    check_share("noise rate", rate)
    check_generator(generator)
    targets = _targets(mapping)
    labels_N = _checked(labels)
    target_C = torch.arange(1 + int(labels_N.max()) if len(labels_N) else 0, device="cpu")
    for source, target in targets.items():
        target_C[source : source + 1] = target  # of no label, if it lies beyond them
    replaced_N = torch.rand(len(labels_N), generator=generator, device="cpu") < rate
    return _like(labels, torch.where(replaced_N, target_C[labels_N], labels_N))


def transition_noise(
    labels: Labels, matrix: Any, generator: torch.Generator | None = None
) -> Labels:
    """A label i becomes j with probability matrix[i, j]; each row must sum to 1."""
    check_generator(generator)
    matrix_CC = as_tensor(matrix, "a transition matrix").cpu().double()
    check_transition(matrix_CC)
    labels_N = _checked(labels, len(matrix_CC))
    if len(labels_N) == 0:
        return _like(labels, labels_N)
    noisy_N = torch.multinomial(matrix_CC[labels_N], 1, generator=generator).squeeze(1)
    return _like(labels, noisy_N)


def check_transition(transition_CC: Tensor) -> None:
    """Raise InputError unless it holds probabilities [C, C], of which each row sums to 1."""
    shape = list(transition_CC.shape)
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 0:
        raise InputError(f"a transition matrix must be square, [C, C], got {shape}")
    is_bad_CC = (transition_CC < 0) | ~transition_CC.isfinite()
    if is_bad_CC.any():
        raise InputError(
            "a transition matrix must not be negative, NaN or infinite, "
            f"got {float(transition_CC[is_bad_CC][0]):g}"
        )
    sums_C = transition_CC.double().sum(dim=1)
    row = int((sums_C - 1).abs().argmax())
    if abs(float(sums_C[row]) - 1) > SUM_TOLERANCE:
        raise InputError(
            "every row of a transition matrix must sum to 1, "
            f"row {row} sums to {float(sums_C[row]):g}"
        )


@dataclass(frozen=True)
class Noise:
    """A kind of noise as the user wrote it, ready to be applied to labels."""

    text: str
    apply: Callable[[Tensor, torch.Generator], Tensor]


def parse_noise(
    text: str, classes: Sequence[str], usual_confusions: Mapping[int, int] | None = None
) -> Noise:
    """`none`, `symmetric:RATE`, `asymmetric:RATE[:a>b,c>d]` or `matrix:FILE`.

    `usual_confusions` is the mapping of the data set for asymmetric noise without one.
    """
    kind, _, rest = text.partition(":")
    if kind == "none":
        return Noise(text, lambda labels_N, generator: labels_N.clone())
    if kind == "symmetric":
        rate = _rate(rest, text)
        return Noise(text, lambda labels, g: symmetric_noise(labels, rate, len(classes), g))
    if kind == "asymmetric":
        rate_text, _, pairs = rest.partition(":")
        rate = _rate(rate_text, text)
        mapping = _mapping(pairs, classes) if pairs else usual_confusions
        if not mapping:
            raise InputError(
                f"this data set has no usual confusions; name them as in {_example(rate, classes)}"
            )
        return Noise(text, lambda labels, g: asymmetric_noise(labels, rate, mapping, g))
    if kind == "matrix":
        matrix = _read_matrix(Path(rest), len(classes))
        return Noise(text, lambda labels, g: transition_noise(labels, matrix, g))
    kinds = ("none", "symmetric", "asymmetric", "matrix")
    raise InputError(
        f"noise must be none, symmetric:RATE, asymmetric:RATE or matrix:FILE, got {text!r}"
        f"{did_you_mean(kind, kinds)}"
    )


def wrong_share(labels_N: Tensor, true_labels_N: Tensor) -> float:
    """The noise rate that really came out: the share of labels that differ from the true ones."""
    return float((labels_N != true_labels_N).double().mean())


def _rate(word: str, text: str) -> float:
    try:
        rate = float(word)
    except ValueError:
        raise InputError(f"noise {text!r} needs a rate, as in {text.split(':')[0]}:0.4") from None
    check_share("noise rate", rate)
    return rate


def _mapping(text: str, classes: Sequence[str]) -> dict[int, int]:
    """{3: 5} from "cat>dog", by class names or numbers; names may hold commas and arrows too."""
    numbers_of = _numbers_by_word(classes)
    pieces = text.split(",")
    longest = 1 + 2 * max(name.count(",") for name in classes)  # pieces of one pair
    # From the last piece to the first: the pairs that all pieces from there on spell, if they do.
    spelt: list[dict[int, int] | None] = [None] * len(pieces) + [{}]
    for start in reversed(range(len(pieces))):
        for end in range(start + 1, min(start + longest, len(pieces)) + 1):
            pair = _pair(",".join(pieces[start:end]), numbers_of)
            rest = spelt[end]
            if pair is not None and rest is not None:
                spelt[start] = {**pair, **rest}
                break
    found = spelt[0]
    if found is None:
        raise InputError(_what_is_wrong_with(pieces, numbers_of, classes))
    return found


def _numbers_by_word(classes: Sequence[str]) -> dict[str, int]:
    """Classes by what they may be called: a name comes before a number."""
    return {
        **{str(number): number for number in range(len(classes))},
        **{name.strip(): number for number, name in enumerate(classes)},
    }


def _pair(text: str, numbers_of: Mapping[str, int]) -> dict[int, int] | None:
    """{3: 5} from "cat>dog", at whichever arrow there is a class on both sides."""
    for arrow in (place for place, sign in enumerate(text) if sign == ">"):
        source, target = text[:arrow].strip(), text[arrow + 1 :].strip()
        if source in numbers_of and target in numbers_of:
            return {numbers_of[source]: numbers_of[target]}
    return None


def _what_is_wrong_with(
    pieces: Sequence[str], numbers_of: Mapping[str, int], classes: Sequence[str]
) -> str:
    pair = next(piece for piece in pieces if _pair(piece, numbers_of) is None)
    source, arrow, target = (word.strip() for word in pair.partition(">"))
    if not arrow:
        return f"a confusion is written as class>class, got {pair!r}"
    word = target if source in numbers_of else source
    known = ", ".join(classes[:20])
    return f"unknown class {word!r}{did_you_mean(word, classes)} (known: {known})"


def _example(rate: float, classes: Sequence[str]) -> str:
    """Asymmetric noise as one may type it into a shell, where > alone would write to a file."""
    numbers_of = _numbers_by_word(classes)

    def spelt(number: int) -> str:
        name = classes[number]
        is_plain = re.fullmatch(r"[\w.-]+( [\w.-]+)*", name)
        return name if is_plain or numbers_of[str(number)] != number else str(number)

    return shlex.quote(f"asymmetric:{rate:g}:{spelt(0)}>{spelt(len(classes) - 1)}")


def _read_matrix(path: Path, classes: int) -> np.ndarray:
    try:
        if not path.is_file():
            raise InputError(f"no transition matrix at {path}; it is a CSV of numbers")
        # Not by loadtxt itself, which would unpack archives.
        text = read_file(path, MOST_BYTES).decode("utf-8-sig")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of an empty file: its shape is wrong as well
            matrix = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2)
    except ValueError as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path} is not a CSV of numbers: {error}") from None
    if matrix.shape != (classes, classes):
        raise InputError(
            f"the transition matrix must be {classes} × {classes} for {classes} classes, "
            f"got {matrix.shape[0]} × {matrix.shape[1]}"
        )
    return matrix


def _targets(mapping: Any) -> dict[int, int]:
    """What it says, be it a dict or a Series of pandas, in whole numbers."""
    if not hasattr(mapping, "items"):
        got = in_one_line(mapping)
        raise InputError(f"mapping must be pairs of classes such as {{3: 5, 5: 3}}, got {got}")
    pairs = list(mapping.items())
    named = [number for pair in pairs for number in pair]
    if not named:
        raise InputError("mapping is empty; give pairs such as {3: 5, 5: 3}")
    for number in named:
        try:
            operator.index(number)
        except TypeError:
            raise InputError(
                f"mapping holds class numbers such as {{3: 5}}, got {number!r}"
            ) from None
    if min(named) < 0:
        raise InputError(f"mapping holds classes, which start at 0, got {min(named)}")
    return {operator.index(source): operator.index(target) for source, target in pairs}


def _checked(labels: Any, classes: int | None = None) -> Tensor:
    if classes is not None and not is_count(classes):
        raise InputError(f"classes must be a whole number from 1 on, got {classes!r}")
    labels_N = as_tensor(labels, "labels", CLASS_NUMBERS).cpu()
    if labels_N.shape == (0,):  # of no type that would tell anything
        return labels_N.long()
    if labels_N.ndim != 1 or labels_N.is_floating_point() or labels_N.is_complex():
        raise InputError(
            f"labels must be one row of class numbers, got {labels_N.dtype} of shape "
            f"{tuple(labels_N.shape)}"
        )
    labels_N = labels_N.long()
    if len(labels_N) and int(labels_N.min()) < 0:
        raise InputError(f"labels must be class numbers from 0 on, got {int(labels_N.min())}")
    if classes is not None and len(labels_N) and int(labels_N.max()) >= classes:
        raise InputError(
            f"labels must lie in [0, {classes - 1}] for {classes} classes, "
            f"got {int(labels_N.max())}"
        )
    return labels_N


def _like(original: Labels, labels_N: Tensor) -> Labels:
    if isinstance(original, Tensor):
        return labels_N.to(original.device)
    return labels_N.numpy()
