"""Who is similar in the eyes of one or several networks, and what is said of those on average.

Axes: N samples, R searched for neighbours, K neighbours, C classes, D features.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

# Samples among which neighbours are sought: all, up to the first number. Of more samples fewer, so
# that the time for all grows no further, but enough of them (docs/label-issues.md).
SEARCHED, FEWEST_SEARCHED = 50_000, 10_000
CHUNK = 4_096


def most_similar(
    features: Sequence[Tensor], neighbours: int, asked_N: Tensor | None = None
) -> Tensor:
    """The places [N, K] of the most similar others, the nearest first: by cosine, or by the sum of
    cosines where several networks describe the samples. Of the places `asked_N`, or of all."""
    count, device = len(features[0]), features[0].device
    most = min(SEARCHED, max(FEWEST_SEARCHED, SEARCHED**2 // count))
    searched_R = some_places(count, most).to(device)
    neighbours = min(neighbours, len(searched_R) - 1)
    searched_RD = _unit(features, searched_R)
    asked_N = torch.arange(count, device=device) if asked_N is None else asked_N.to(device)
    found = []
    for part_N in asked_N.split(CHUNK):
        # In bfloat16 hundreds would be equally near.
        with torch.autocast(device.type, enabled=False):
            similar_NR = _unit(features, part_N) @ searched_RD.T
        # Where each would stand among the searched: that is itself.
        place_N = torch.searchsorted(searched_R, part_N).clamp(max=len(searched_R) - 1)
        itself_N = (searched_R[place_N] == part_N).nonzero().squeeze(1)
        similar_NR[itself_N, place_N[itself_N]] = -torch.inf
        found.append(searched_R[similar_NR.topk(neighbours, dim=1).indices])
    return torch.cat(found)


def _unit(features: Sequence[Tensor], places: Tensor) -> Tensor:
    """Those of all networks side by side, as long as 1 each."""
    normalize = torch.nn.functional.normalize
    return torch.cat([normalize(f_ND[places].float(), dim=1) for f_ND in features], dim=1)


def mean_of(values_NC: Tensor, places_NK: Tensor) -> Tensor:
    """Mean over K of values[places[i, k]]."""
    total_NC = values_NC.new_zeros(len(places_NK), values_NC.shape[1])
    for places_N in places_NK.unbind(1):  # K small sums instead of one of N × K × C numbers
        total_NC += values_NC[places_N]
    return total_NC / places_NK.shape[1]


def some_places(count: int, most: int) -> Tensor:
    """All places, or a fixed random choice of so many, in their order."""
    if count <= most:
        return torch.arange(count)
    generator = torch.Generator().manual_seed(0)
    return torch.randperm(count, generator=generator)[:most].sort().values
