"""Random neighbour label transfer."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_matrix
from scipy.stats import chisquare
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import mlnt
from mlnt.meta import labels as of_labels
from mlnt.meta.labels import nearest_others


def brute_force_neighbours(features_BD: Tensor, count: int) -> list[set[int]]:
    features = features_BD.double().numpy()
    found = []
    for i, row in enumerate(features):
        distances = np.sqrt(((features - row) ** 2).sum(axis=1))
        distances[i] = np.inf
        found.append(set(np.argsort(distances, kind="stable")[:count].tolist()))
    return found


def test_neighbours_are_the_nearest_others() -> None:
    features_BD = torch.randn(60, 8, generator=torch.Generator().manual_seed(0))
    neighbours_BK = nearest_others(features_BD, 10)
    assert neighbours_BK.shape == (60, 10)
    for mine, expected in zip(
        neighbours_BK.tolist(), brute_force_neighbours(features_BD, 10), strict=True
    ):
        assert set(mine) == expected


def test_neighbours_far_from_the_origin_keep_their_order() -> None:
    """Inner products in float32 cannot tell these apart; differences can."""
    features_BD = 1000 + torch.arange(20.0)[:, None] * torch.tensor([[0.01, 0.0]])
    neighbours_BK = nearest_others(features_BD, 2)
    assert set(neighbours_BK[10].tolist()) == {9, 11}


@given(
    batch=st.integers(2, 40),
    width=st.integers(1, 6),
    scale=st.sampled_from([1e-30, 1e-3, 1.0, 1e10, 1e25]),
    offset=st.sampled_from([0.0, 1.0, 1e3, 1e6]),
    outlier=st.sampled_from([0.0, 1e4, 1e9]),
    copies=st.integers(0, 20),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=200, deadline=None)
def test_products_find_neighbours_as_near_as_differences(
    batch: int,
    width: int,
    scale: float,
    offset: float,
    outlier: float,
    copies: int,
    dtype: torch.dtype,
    seed: int,
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features_BD = torch.randn(batch, width, generator=generator, dtype=torch.float64) + offset
    features_BD[:copies] = features_BD[0].clone()
    features_BD[-1] += outlier
    features_BD = (scale * features_BD).to(dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_labels, "FEW", 0)  # by products, if they are sure
        neighbours_BK = nearest_others(features_BD, 5)
    itself_B1 = torch.arange(batch)[:, None]
    assert (neighbours_BK != itself_B1).all()
    assert all(len(set(row)) == len(row) for row in neighbours_BK.tolist())
    exact_BD = features_BD.double() / features_BD.double().abs().max()
    exact_BB = (exact_BD[:, None] - exact_BD).square().sum(dim=2).sqrt()
    distances_BK = exact_BB.gather(1, neighbours_BK).sort(dim=1).values
    exact_BB.fill_diagonal_(torch.inf)
    nearest_BK = exact_BB.sort(dim=1).values[:, : neighbours_BK.shape[1]]
    torch.testing.assert_close(distances_BK, nearest_BK, rtol=2e-6, atol=0)


def test_large_batches_have_the_neighbours_that_differences_find() -> None:
    generator = torch.Generator().manual_seed(0)
    features_BD = 1000 + 0.01 * torch.randn(512, 80, generator=generator)
    assert len(features_BD) * features_BD.numel() > of_labels.FEW
    expected_BK = of_labels._nearest_by_differences(features_BD.double(), 10).sort(dim=1).values
    assert torch.equal(nearest_others(features_BD, 10).sort(dim=1).values, expected_BK)


@given(batch=st.integers(2, 40), pairs=st.integers(1, 2000), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_neighbours_are_the_same_searched_in_parts(batch: int, pairs: int, seed: int) -> None:
    features_BD = torch.randn(batch, 3, generator=torch.Generator().manual_seed(seed))
    for few in (0, 2**24):  # by products, by differences
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(of_labels, "FEW", few)
            expected_BK = nearest_others(features_BD, 5)
            patch.setattr(of_labels, "MOST_PAIRS", pairs)
            assert torch.equal(nearest_others(features_BD, 5), expected_BK)


@pytest.mark.parametrize("search", ["_nearest_by_products", "_nearest_by_differences"])
def test_distances_of_large_batches_are_not_kept_all_at_once(
    search: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(of_labels, "MOST_PAIRS", 2**12)
    features_BD = torch.randn(300, 3)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        getattr(of_labels, search)(features_BD, 10)
    largest = max(event.cpu_memory_usage for event in seen.events())
    assert largest < 8 * 300 * 300 / 2


def test_four_thousand_samples_are_one_part() -> None:
    """So that their neighbours are to the bit those of a search that knows no parts."""
    assert len(list(of_labels._in_parts(torch.zeros(4096, 1)))) == 1
    assert len(list(of_labels._in_parts(torch.zeros(20_000, 1)))) == 24


@given(
    batch=st.integers(1, 40),
    sets=st.integers(1, 6),
    rho=st.floats(0, 1),
    neighbours=st.integers(1, 15),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=80, deadline=None)
def test_each_set_replaces_as_many_as_asked_by_a_neighbours_label(
    batch: int, sets: int, rho: float, neighbours: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # Every sample its own label: a label then names the sample it came from.
    labels_B = torch.arange(batch)
    features_BD = torch.randn(batch, 3, generator=generator)
    labels_MB = mlnt.synthetic_labels(labels_B, features_BD, sets, rho, neighbours, generator)
    assert labels_MB.shape == (sets, batch)
    assert labels_MB.dtype == torch.long
    allowed = brute_force_neighbours(features_BD, min(neighbours, batch - 1))
    expected = int(rho * batch + 1e-9) if batch > 1 else 0
    for row in labels_MB.tolist():
        changed = [i for i, label in enumerate(row) if label != i]
        assert len(changed) == expected
        assert all(row[i] in allowed[i] for i in changed)


@pytest.mark.parametrize(
    ("rho", "batch", "count"), [(0.5, 128, 64), (0.29, 100, 29), (0.1, 128, 12)]
)
def test_share_is_rounded_down(rho: float, batch: int, count: int) -> None:
    labels_MB = mlnt.synthetic_labels(torch.arange(batch), torch.randn(batch, 2), 5, rho)
    assert ((labels_MB != torch.arange(batch)).sum(dim=1) == count).all()


def test_samples_and_neighbours_are_chosen_uniformly() -> None:
    batch, sets, neighbours = 12, 20_000, 4
    features_BD = torch.randn(batch, 3, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(2)
    labels_MB = mlnt.synthetic_labels(
        torch.arange(batch), features_BD, sets, 0.5, neighbours, generator
    )
    changed_MB = labels_MB != torch.arange(batch)
    # Six of twelve per set without replacement: counts vary less than the test assumes, so its
    # p-value is only too lenient for single samples; pairs below show independence.
    assert chisquare(changed_MB.sum(dim=0).numpy()).pvalue > 1e-3
    together = torch.stack([changed_MB[:, 0] & changed_MB[:, j] for j in range(1, batch)])
    assert chisquare(together.sum(dim=1).numpy()).pvalue > 1e-3
    assert together.float().mean() == pytest.approx(0.5 * 5 / 11, abs=0.01)
    for sample in range(batch):
        sources = labels_MB[changed_MB[:, sample], sample].numpy()
        _, counts = np.unique(sources, return_counts=True)
        assert len(counts) == neighbours
        assert chisquare(counts).pvalue > 1e-4


def test_duplicates_are_neighbours_but_never_the_sample_itself() -> None:
    features_BD = torch.zeros(15, 4)
    labels_MB = mlnt.synthetic_labels(torch.arange(15), features_BD, 200, 1.0, 10)
    assert (labels_MB != torch.arange(15)).all()


@pytest.mark.parametrize("batch", [1, 2, 5, 11])
def test_small_batches(batch: int) -> None:
    labels_B = torch.arange(batch)
    labels_MB = mlnt.synthetic_labels(labels_B, torch.randn(batch, 2), 50, 1.0, 10)
    if batch == 1:
        assert torch.equal(labels_MB, torch.zeros(50, 1, dtype=torch.long))
    else:
        assert (labels_MB != labels_B).all()
        assert labels_MB.max() < batch


def test_same_generator_same_labels_and_no_global_seed() -> None:
    labels_B, features_BD = torch.randint(3, (20,)), torch.randn(20, 4)
    before = torch.get_rng_state()
    first, second = (
        mlnt.synthetic_labels(labels_B, features_BD, generator=torch.Generator().manual_seed(4))
        for _ in "ab"
    )
    assert torch.equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)
    assert first.shape == (10, 20)


def test_arrays_and_lists_are_taken_as_tensors_are() -> None:
    labels_B, features_BD = torch.randint(3, (20,)), torch.randn(20, 4)

    def drawn(labels: Any, features: Any) -> Tensor:
        generator = torch.Generator().manual_seed(4)
        return mlnt.synthetic_labels(labels, features, generator=generator)

    expected_MB = drawn(labels_B, features_BD)
    assert torch.equal(drawn(labels_B.numpy(), features_BD.numpy()), expected_MB)
    assert torch.equal(drawn(labels_B.tolist(), features_BD.tolist()), expected_MB)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rho": "0.5"}, r"rho must be one number in \[0, 1\], got '0.5'"),
        ({"rho": None}, "rho must be one number .* got None"),
        ({"rho": 50}, r"rho must lie in \[0, 1\], got 50; did you mean 0.5"),
        ({"features": torch.zeros(3, 2)}, "3 rows of features for 8 labels"),
        ({"labels": torch.zeros(8, 2)}, r"one axis, got shape \(8, 2\); of one-hot ones give lab"),
        ({"labels": torch.zeros(8, 1)}, r"one axis, got shape \(8, 1\); give labels.flatten"),
        ({"labels": torch.zeros(())}, r"one axis, got shape \(\)$"),
        ({"labels": torch.tensor([-100] + 7 * [1])}, "from 0 on, got -100; leave samples without"),
        ({"sets": True}, "at least 1, got True"),
        ({"features": csr_matrix(np.eye(8))}, r"must be dense, got csr_matrix; give .toarray\(\)"),
        ({"features": torch.eye(8).to_sparse()}, r"must be dense, got Tensor; give .to_dense\(\)"),
        ({"sets": 0}, "at least 1"),
        ({"sets": 2.5}, "whole numbers and at least 1, got 2.5"),
        ({"neighbours": "3"}, "whole numbers and at least 1, got 10 and '3'"),
        ({"labels": ["a"] * 8}, "labels must be class numbers, got"),
        ({"features": torch.full((8, 2), float("nan"))}, "features must be finite"),
        ({"generator": 0}, r"torch.Generator\(\).manual_seed\(0\)"),
    ],
)
def test_bad_arguments(arguments: dict, message: str) -> None:
    usual = {"labels": torch.zeros(8, dtype=torch.long), "features": torch.zeros(8, 2)}
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.synthetic_labels(**{**usual, **arguments})
