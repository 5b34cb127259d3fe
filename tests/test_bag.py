"""The network for texts: what of a text counts, what it learns, runs from before there was one."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import Tensor

import mlnt
from mlnt.data.text_encoding import PAD, UNKNOWN, TextEncoder
from mlnt.meta.features import penultimate
from mlnt.models import build_model
from mlnt.networks import BAG_SCALE, Bag

SUN, RAIN = ("sun", "warm", "light", "sky"), ("rain", "cold", "cloud", "grey")
OF_BOTH = ("the", "a", "of", "today", "and")


@pytest.fixture
def bag() -> Bag:
    torch.manual_seed(0)
    return Bag(6, 3, (1.0, 2.0, 3.0, 4.0), width=5).eval()


def words(*texts: list[int]) -> Tensor:
    return torch.tensor(texts)


def test_features_by_hand(bag: Bag) -> None:
    """Rarities 1 and 2 of the words 2 and 3, divided by √(1 + 4)."""
    word = bag.embedding.weight
    expected = BAG_SCALE * (1 * word[2] + 2 * word[3]) / math.sqrt(5)
    features = penultimate(bag, words([2, 3]))
    torch.testing.assert_close(features, expected[None].detach())
    torch.testing.assert_close(bag(words([2, 3])), bag.head(features))


def test_only_known_words_count_in_any_order(bag: Bag) -> None:
    expected = bag(words([2, 5, 3]))
    assert expected.shape == (1, 3)
    for text in ([2, 5, 3, PAD, PAD], [UNKNOWN, 2, UNKNOWN, 5, 3], [3, 2, 5, PAD]):
        torch.testing.assert_close(bag(words(text)), expected)
    assert not torch.allclose(bag(words([2, 5, 5, 3])), expected), "a word may count twice"


def test_a_text_of_unknown_words_alone(bag: Bag) -> None:
    """It says what is usual, and nothing is divided by zero."""
    logits = bag(words([UNKNOWN, PAD], [2, 3]))
    torch.testing.assert_close(logits[0], bag.head.bias)
    logits.sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in bag.parameters() if p.grad is not None)
    assert bag.embedding.weight.grad[:2].abs().sum() == 0


@pytest.mark.parametrize("vocabulary", [("a", "b"), ()])
def test_without_rarities_all_words_weigh_alike(vocabulary: tuple[str, ...]) -> None:
    model = build_model("auto", TextEncoder(vocabulary, 4), 2)
    assert isinstance(model, Bag)
    assert model.rarity_V.tolist() == [0.0, 0.0, *(1.0 for _ in vocabulary)]
    assert model(torch.tensor([[UNKNOWN, PAD, PAD, PAD]])).shape == (1, 2)


def weather(count: int, seed: int) -> tuple[list[str], np.ndarray]:
    """Texts of which three words in eight tell whether the sun shines."""
    draw = np.random.default_rng(seed)
    labels = draw.integers(0, 2, count)
    texts = [
        " ".join([*draw.choice((SUN, RAIN)[label], 3), *draw.choice(OF_BOTH, 5)])
        for label in labels
    ]
    return texts, labels


def test_it_learns_in_spite_of_wrong_labels() -> None:
    (texts, labels), (new, truth) = weather(400, 0), weather(200, 1)
    draw = np.random.default_rng(2)
    given = np.where(draw.random(400) < 0.35, 1 - labels, labels)
    found = mlnt.train((texts, given))
    assert isinstance(found.model, Bag)
    assert (found.predict_probabilities(new).argmax(1).numpy() == truth).mean() > 0.95
    wrong = torch.from_numpy(given != labels)[found.label_issues.positions]
    scores = found.label_issues.score
    assert scores[wrong].mean() > 0.8 > 0.2 > scores[~wrong].mean()


def test_features_tell_classes_apart() -> None:
    texts, labels = weather(200, 0)
    training = mlnt.train((texts, labels), epochs=8, iterations=1)
    features = penultimate(training.model, training.encoder.encode(texts)).numpy()
    assert features.shape == (200, 64)
    assert LogisticRegression(C=100).fit(features, labels).score(features, labels) > 0.95


def test_a_run_from_before_rarities_predicts_as_it_did(tmp_path: Path) -> None:
    texts, labels = weather(80, 0)
    options = {"epochs": 1, "iterations": 1, "out": tmp_path / "run"}
    training = mlnt.train((texts, labels), model="gru", **options)
    path = tmp_path / "run" / "config.json"
    config = json.loads(path.read_text())
    del config["data"]["encoder"]["rarities"]
    path.write_text(json.dumps(config))
    found = mlnt.predict(tmp_path / "run", (texts, None)).probabilities
    torch.testing.assert_close(found, training.predict_probabilities(texts))


def test_resuming_gives_the_same_model(tmp_path: Path) -> None:
    data = weather(120, 0)
    options = {"epochs": 3, "iterations": 1, "seed": 3}
    whole = mlnt.train(data, **options)
    with pytest.raises(mlnt.Stopped):
        mlnt.train(data, out=tmp_path / "run", deadline=-math.inf, **options)
    again = mlnt.train(data, out=tmp_path / "run", resume=True, **options)
    torch.testing.assert_close(
        again.predict_probabilities(data[0]), whole.predict_probabilities(data[0])
    )
