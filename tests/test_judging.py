"""Who says what is similar where labels are judged."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlnt
from mlnt import judging
from mlnt.data.dataset import Split
from mlnt.evaluation import predict_probabilities
from mlnt.judging import Judge
from mlnt.noise_model import Judgement


def network(first: list[list[float]]) -> nn.Module:
    """Two classes; its features are the inputs times `first`."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2))
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor(first))
    return model.eval()


def similarity(
    describer: nn.Module | None, model: nn.Module, is_led: bool, monkeypatch: pytest.MonkeyPatch
) -> list[list[list[float]]]:
    """The features by which the labels of four samples, one of them held out, are judged."""
    seen: list[Tensor] = []
    real = judging.judge

    def watched(labels_N: Tensor, probabilities_NC: Tensor, features: Any, *rest: Any) -> Any:
        seen.extend(features)
        return real(labels_N, probabilities_NC, features, *rest)

    monkeypatch.setattr(judging, "judge", watched)
    inputs, labels = torch.tensor([[3.0, 4.0], [1.0, 0.0], [0.0, 2.0]]), torch.tensor([0, 1, 1])
    train = Split(inputs, labels)
    held_out = Split(inputs[:1], labels[:1], given_labels=labels[:1])
    judge = Judge(train, held_out, describer=describer)
    judged = judge(model, predict_probabilities(model, inputs), is_led)
    assert isinstance(judged, Judgement)
    assert len(judged.wrong) == 4
    return [features_ND.tolist() for features_ND in seen]


SAME, SWAPPED = [[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]


class TestWhatIsSimilar:
    def test_two_networks_say_it_of_one_that_nobody_led(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = similarity(network(SAME), network(SWAPPED), False, monkeypatch)
        assert found == [[[3, 4], [1, 0], [0, 2], [3, 4]], [[4, 3], [0, 1], [2, 0], [4, 3]]]

    def test_a_copy_of_the_same_network_says_nothing_new(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        torch.manual_seed(0)
        describer = network(SWAPPED)
        found = similarity(describer, copy.deepcopy(describer), False, monkeypatch)
        assert found == [[[4, 3], [0, 1], [2, 0], [4, 3]]]

    @pytest.mark.parametrize("sees_more", [False, True])
    def test_a_led_one_is_asked_if_it_sees_more(
        self, sees_more: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        compared = []

        def comparison(*arguments: Any) -> bool:
            compared.append([[f.tolist() for f in some] for some in arguments[2:4]])
            return sees_more

        monkeypatch.setattr(judging, "says_more", comparison)
        found = similarity(network(SAME), network(SWAPPED), True, monkeypatch)
        of_describer, of_model = [[3, 4], [1, 0], [0, 2], [3, 4]], [[4, 3], [0, 1], [2, 0], [4, 3]]
        assert compared == [[[of_describer], [of_describer, of_model]]]
        assert found == ([of_describer, of_model] if sees_more else [of_describer])

    def test_one_held_out_label_shows_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        found = similarity(network(SAME), network(SWAPPED), True, monkeypatch)
        assert found == [[[3, 4], [1, 0], [0, 2], [3, 4]]]

    @pytest.mark.parametrize("is_led", [False, True])
    def test_without_another_network_each_says_it_itself(
        self, is_led: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        found = similarity(None, network(SWAPPED), is_led, monkeypatch)
        assert found == [[[4, 3], [0, 1], [2, 0], [4, 3]]]


@pytest.mark.parametrize(
    ("iterations", "asked"), [(1, [False]), (3, [False, True, True])], ids=["one", "three"]
)
def test_who_was_led_in_a_run(
    iterations: int, asked: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The mentors of the second and third iteration, then the model that is deployed."""
    found = []
    real = Judge.__call__

    def watched(self: Judge, model: nn.Module, answers_NC: Tensor, is_led: bool) -> Any:
        found.append(is_led)
        return real(self, model, answers_NC, is_led)

    monkeypatch.setattr(Judge, "__call__", watched)
    training = mlnt.train("digits", noise="symmetric:0.4", epochs=4, iterations=iterations, seed=1)
    assert training.summary["chosen"]["iteration"] == iterations
    assert found == asked
