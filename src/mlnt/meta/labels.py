"""Synthetic labels: random neighbour label transfer within a batch.

Axes: M sets, B batch, R some rows of it, K neighbours, D features.
"""

import math
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from mlnt.arguments import as_tensor, check_generator, is_count
from mlnt.config import Settings
from mlnt.errors import InputError, check_share

# B²D, the differences that take a few milliseconds. Up to here, as in the paper's batches, nothing
# is to be gained, and a training goes on to the bit as it always did.
FEW = 2**24
MOST_PAIRS = 2**24  # of samples, whose distances are kept at a time: 128 MiB of float64
LEAVE_OUT = "leave samples without a label out of the batch"
LEAST, MOST = 1e-12, 1e15  # of features, whose squares float32 has room for


def nearest_others(features_BD: Tensor, neighbours: int) -> Tensor:
    """The K nearest other samples of each sample by Euclidean distance, LongTensor [B, K].

    K = min(neighbours, B − 1): a sample is never its own neighbour, not even among duplicates.
    """
    features_BD = features_BD.flatten(1)
    if features_BD.dtype not in (torch.float32, torch.float64):
        features_BD = features_BD.float()
    count = min(neighbours, len(features_BD) - 1)
    if features_BD.device.type == "cpu":
        features_BD = _within_range(features_BD)
        if len(features_BD) * features_BD.numel() > FEW:
            found_BK = _nearest_by_products(features_BD, count)
            if found_BK is not None:
                return found_BK
    return _nearest_by_differences(features_BD, count)


def _nearest_by_differences(features_BD: Tensor, count: int) -> Tensor:
    """Of every pair: in float32 the order of close neighbours is lost by inner products."""
    found_BK = []
    for begin, some_RD in _in_parts(features_BD):
        distances_RB = torch.cdist(
            some_RD, features_BD, compute_mode="donot_use_mm_for_euclid_dist"
        )
        distances_RB.clamp_(max=torch.finfo(distances_RB.dtype).max)  # infinite to itself alone
        distances_RB.diagonal(begin).fill_(math.inf)
        found_BK.append(distances_RB.topk(count, largest=False).indices)
    return torch.cat(found_BK)


def _nearest_by_products(features_BD: Tensor, count: int) -> Tensor | None:
    """By ‖x‖² + ‖y‖² − 2⟨x, y⟩ in float64, about the mean: on a CPU several times as fast.

    None where that could miss a neighbour: if some K-th one is so near that rounding, some units in
    the last place of ‖x‖², is more than a millionth of its squared distance.
    """
    centred_BD = features_BD.double()
    centred_BD = centred_BD - centred_BD.mean(dim=0)
    squares_B = centred_BD.square().sum(dim=1)
    rounding = 4 * features_BD.shape[1] * torch.finfo(torch.float64).eps * squares_B.max()
    found_BK = []
    for begin, some_RD in _in_parts(centred_BD):
        squares_R1 = squares_B[begin : begin + len(some_RD), None]
        distances_RB = torch.addmm(squares_R1 + squares_B, some_RD, centred_BD.T, alpha=-2)
        distances_RB.diagonal(begin).fill_(math.inf)
        nearest_RK, found_RK = distances_RB.topk(count, largest=False)
        if not rounding <= 1e-6 * nearest_RK[:, -1].min():
            return None
        found_BK.append(found_RK)
    return torch.cat(found_BK)


def _in_parts(features_BD: Tensor) -> Iterator[tuple[int, Tensor]]:
    """(where it begins, some of the rows), of which all distances to all have room."""
    rows = max(1, MOST_PAIRS // len(features_BD))
    for begin in range(0, len(features_BD), rows):
        yield begin, features_BD[begin : begin + rows]


def _within_range(features_BD: Tensor) -> Tensor:
    """In parts of the largest where squares would overflow or vanish, else as they are."""
    largest = float(features_BD.abs().max()) if features_BD.numel() else 0.0
    if largest == 0 or LEAST < largest < MOST:
        return features_BD
    return features_BD.double() / largest


def synthetic_labels(
    labels: Tensor | np.ndarray | Sequence[int],
    features: Tensor | np.ndarray | Sequence[Sequence[float]],
    sets: int = Settings.sets,
    rho: float = Settings.rho,
    neighbours: int = Settings.neighbours,
    generator: torch.Generator | None = None,
) -> Tensor:
    """M sets of synthetic labels for one batch, LongTensor [M, B].

    In each set ⌊ρB⌋ samples, chosen uniformly without replacement, take the label of one of
    their K nearest others in the batch, chosen uniformly. All others keep their label. (The
    paper's counts for a batch of 128, 13, 26, 39, 51 and 64, follow no one way of rounding.)
    """
    labels_B = as_tensor(labels, "labels", "class numbers")
    features_BD = as_tensor(features, "features").to(labels_B.device)
    _check(labels_B, features_BD, sets, rho, neighbours)
    check_generator(generator)
    batch = len(labels_B)
    labels_MB = labels_B.long().repeat(sets, 1)
    replaced = math.floor(rho * batch + 1e-9)  # 0.29 * 100 is 28.999… in floating point
    if replaced == 0 or batch == 1:
        return labels_MB
    neighbours_BK = nearest_others(features_BD, neighbours)

    device = labels_B.device if generator is None else generator.device
    order_MB = torch.rand(sets, batch, generator=generator, device=device).argsort(dim=1)
    chosen_MR = order_MB[:, :replaced].to(labels_B.device)
    count = neighbours_BK.shape[1]
    pick_MR = torch.randint(count, (sets, replaced), generator=generator, device=device)
    source_MR = neighbours_BK[chosen_MR, pick_MR.to(labels_B.device)]
    return labels_MB.scatter_(1, chosen_MR, labels_B.long()[source_MR])


def _check(labels_B: Tensor, features: Tensor, sets: int, rho: float, neighbours: int) -> None:
    if labels_B.ndim != 1:
        raise InputError(
            f"labels must have one axis, got shape {tuple(labels_B.shape)}{_one_axis(labels_B)}"
        )
    if features.ndim < 2:
        raise InputError(f"features must be [B, D], got shape {tuple(features.shape)}")
    if labels_B.is_floating_point():
        raise InputError(f"labels must be class numbers, got {labels_B.dtype}")
    if len(features) != len(labels_B):
        raise InputError(
            f"features and labels must belong to the same batch, got {len(features)} rows of "
            f"features for {len(labels_B)} labels"
        )
    # Only where looking costs no wait for a GPU.
    if labels_B.device.type == "cpu" and len(labels_B) and int(labels_B.min()) < 0:
        raise InputError(
            f"labels must be class numbers from 0 on, got {int(labels_B.min())}; {LEAVE_OUT}"
        )
    if features.device.type == "cpu" and not features.isfinite().all():
        raise InputError("features must be finite: of NaN or infinity nobody is a neighbour")
    check_share("rho", rho)
    if not (is_count(sets) and is_count(neighbours)):
        raise InputError(
            f"sets and neighbours must be whole numbers and at least 1, got {sets!r} and "
            f"{neighbours!r}"
        )


def _one_axis(labels: Tensor) -> str:
    """What to do about labels of another shape."""
    if labels.ndim == 2 and labels.shape[1] > 1:
        return "; of one-hot ones give labels.argmax(1); several labels a sample are not taken"
    return "; give labels.flatten()" if labels.ndim == 2 else ""
