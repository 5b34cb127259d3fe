"""A linear layer on features, fitted to labels of which many may be wrong."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor, nn

from mlnt import linear
from mlnt.linear import can_be_fitted, fit_last_layer_, some_of


def drawn(samples: int, wrong: float, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Features of four classes in 40 columns; their labels, and the truth."""
    generator = torch.Generator().manual_seed(seed)
    true_N = torch.randint(4, (samples,), generator=generator)
    centres_CD = torch.randn(4, 40, generator=generator)
    features_ND = centres_CD[true_N] + 2 * torch.randn(samples, 40, generator=generator)
    features_ND = 0.01 * features_ND + 3  # of any scale, about any place
    is_wrong_N = torch.rand(samples, generator=generator) < wrong
    others_N = torch.randint(4, (samples,), generator=generator)
    return features_ND, torch.where(is_wrong_N, others_N, true_N), true_N


def fitted(features_ND: Tensor, labels_N: Tensor, bias: bool = True) -> nn.Linear:
    layer = nn.Linear(features_ND.shape[1], 4, bias=bias, dtype=features_ND.dtype)
    fit_last_layer_(layer, features_ND, labels_N)
    return layer


def fix_decay(patch: pytest.MonkeyPatch, decay: float) -> None:
    patch.setattr(linear, "DECAYS", (decay,))
    patch.setattr(linear, "USUAL", decay)


def percent_right(layer: nn.Linear, features_ND: Tensor, true_N: Tensor) -> float:
    return 100 * float((layer(features_ND).argmax(1) == true_N).double().mean())


@pytest.mark.parametrize("decay", [3.0, 0.03])
def test_is_logistic_regression(decay: float, monkeypatch: pytest.MonkeyPatch) -> None:
    fix_decay(monkeypatch, decay)
    features_ND, labels_N, _ = drawn(500, 0.3)
    features_ND = features_ND.double()
    layer = fitted(features_ND, labels_N)
    centred_ND = features_ND - features_ND.mean(0)
    standard_ND = (centred_ND / centred_ND.square().mean().sqrt()).numpy()
    expected = LogisticRegression(C=1 / (decay * features_ND.shape[1]), tol=1e-8, max_iter=1000)
    expected.fit(standard_ND, labels_N.numpy())
    found_NC = torch.log_softmax(layer(features_ND) / linear.SHARPER, dim=1).detach().numpy()
    np.testing.assert_allclose(found_NC, expected.predict_log_proba(standard_ND), atol=2e-3)


@pytest.mark.parametrize(("wrong", "least"), [(0.0, 95), (0.5, 85), (0.8, 65)])
def test_most_of_the_truth_is_found_behind_wrong_labels(
    wrong: float, least: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    features_ND, labels_N, true_N = drawn(600, wrong)
    found = percent_right(fitted(features_ND, labels_N), features_ND, true_N)
    assert found > least
    if wrong:
        fix_decay(monkeypatch, linear.DECAYS[-1])
        little_decay = percent_right(fitted(features_ND, labels_N), features_ND, true_N)
        assert found > little_decay + 5


def test_the_same_every_time() -> None:
    features_ND, labels_N, _ = drawn(200, 0.3)
    one, other = (fitted(features_ND, labels_N) for _ in range(2))
    assert torch.equal(one.weight, other.weight)
    assert torch.equal(one.bias, other.bias)


def test_without_a_bias() -> None:
    features_ND, labels_N, true_N = drawn(600, 0.2)
    assert percent_right(fitted(features_ND, labels_N, bias=False), features_ND, true_N) > 90


def test_within_a_step_of_low_precision() -> None:
    features_ND, labels_N, _ = drawn(200, 0.3)
    expected = fitted(features_ND, labels_N)
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert torch.equal(fitted(features_ND, labels_N).weight, expected.weight)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_as_on_a_cpu() -> None:
    features_ND, labels_N, _ = drawn(600, 0.5)
    expected = fitted(features_ND, labels_N)
    layer = nn.Linear(features_ND.shape[1], 4, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        fit_last_layer_(layer, features_ND.cuda(), labels_N.cuda())
    torch.testing.assert_close(layer.weight.cpu(), expected.weight, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("samples", [2, 3, 7])
def test_a_few_samples_and_features_that_say_nothing(samples: int) -> None:
    features_ND, labels_N, _ = drawn(samples, 0.0)
    features_ND[:, 3] = 1.0
    layer = fitted(features_ND, labels_N)
    assert torch.isfinite(layer.weight).all()
    assert torch.isfinite(layer.bias).all()


def test_of_very_many_samples_some() -> None:
    layer = nn.Linear(10, 3)
    assert some_of(linear.MOST_SAMPLES, layer) is None
    chosen = some_of(linear.MOST_SAMPLES + 50_000, layer)
    assert chosen is not None
    assert len(set(chosen.tolist())) == linear.MOST_SAMPLES
    assert chosen.min() < 10
    assert chosen.max() > linear.MOST_SAMPLES + 49_000
    of_many_weights = some_of(linear.MOST_SAMPLES, nn.Linear(2048, 1000))
    assert of_many_weights is not None
    assert len(of_many_weights) == linear.LEAST_SAMPLES


def test_only_a_plain_layer_that_may_be_trained_is_fitted() -> None:
    assert can_be_fitted(nn.Linear(3, 2))
    assert can_be_fitted(nn.Linear(3, 2, bias=False))
    frozen = nn.Linear(3, 2)
    frozen.bias.requires_grad_(False)
    assert not can_be_fitted(frozen)
    assert not can_be_fitted(nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)))

    class Cosine(nn.Linear):
        pass

    assert not can_be_fitted(Cosine(3, 2))
