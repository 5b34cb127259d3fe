"""What a mentor's filter takes from some classes more than from others is made good in the loss."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import mlnt
from mlnt.config import make_settings
from mlnt.data.batches import Batch
from mlnt.distributed import ALL_ALONE
from mlnt.iterations import MOST_WEIGHT, restoring_weights
from mlnt.meta import passes
from mlnt.methods import MLNT, Iterative, MeanTeacher, Method
from mlnt.methods.base import Rates
from mlnt.networks import PreActResNet32
from mlnt.training import StageResult


class TestSharesRestored:
    def test_by_hand(self) -> None:
        # 6 of 10 kept labels are of class 0, 3 of class 1, 1 of class 2; 4, 4 and 2 of 10 samples.
        kept_labels = torch.tensor([0] * 6 + [1] * 3 + [2])
        weights_C = restoring_weights(kept_labels, torch.tensor([0.4, 0.4, 0.2]))
        assert_close(weights_C, torch.tensor([4 / 6, 4 / 3, 2.0]).double(), atol=1e-6, rtol=0)
        assert float(weights_C[kept_labels].mean()) == pytest.approx(1)

    def test_what_was_kept_alike_counts_alike(self) -> None:
        kept_labels = torch.tensor([0] * 30 + [1] * 10)
        found = restoring_weights(kept_labels, torch.tensor([0.75, 0.25]))
        assert found.tolist() == pytest.approx([1, 1])

    def test_a_class_of_which_nothing_was_kept_is_nothing_to_the_others(self) -> None:
        found = restoring_weights(torch.tensor([0, 0, 1]), torch.tensor([0.25, 0.25, 0.5]))
        assert_close(found, torch.tensor([0.75, 1.5, 1.0]).double())

    def test_few_labels_do_not_count_for_a_class(self) -> None:
        # Half of all would be 50 times its share of the kept ones; 97 hundredths are left to the
        # 99 others.
        found = restoring_weights(torch.tensor([0] * 99 + [1]), torch.tensor([0.5, 0.5]))
        assert_close(found, torch.tensor([97 / 99, MOST_WEIGHT]).double())


def weighted(logits_BC: Tensor, labels_B: Tensor, weights_C: Tensor) -> Tensor:
    each_B = -logits_BC.log_softmax(1)[torch.arange(len(labels_B)), labels_B]
    return (weights_C[labels_B] * each_B).sum() / weights_C[labels_B].sum()


@pytest.mark.parametrize("by_rules", [False, True])
def test_gradient_of_the_weighted_mean(by_rules: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model = PreActResNet32(3, 4).double()
    inputs, labels = torch.randn(6, 3, 8, 8).double(), torch.tensor([0, 1, 2, 3, 0, 1])
    weights_C = torch.tensor([0.5, 1.0, 2.0, 0.7]).double()
    plain = copy.deepcopy(model).train()
    loss = weighted(plain(inputs), labels, weights_C)
    loss.backward()
    if by_rules:
        monkeypatch.setattr(passes, "_fast_run", passes._run_by_rules)
    found, _, gradients = passes.class_gradient(model.train(), inputs, labels, ALL_ALONE, weights_C)
    assert_close(found, loss.detach(), rtol=1e-10, atol=0)
    for name, parameter in plain.named_parameters():
        assert_close(gradients[name], parameter.grad, rtol=1e-8, atol=1e-11, msg=name)


PLAIN = make_settings("table", momentum=0.0, weight_decay=0.0)
MAKERS: dict[str, Callable[[nn.Module], Method]] = {
    "mlnt": lambda model: MLNT(model, PLAIN, torch.randn(6, 2).double()),
    "mean_teacher": lambda model: MeanTeacher(model, PLAIN, weight=0.0),
    "iterative": lambda model: Iterative(model, PLAIN),
}


@pytest.mark.parametrize("name", MAKERS)
def test_methods_that_are_led_learn_by_it(name: str) -> None:
    torch.manual_seed(0)
    model, weights_C = nn.Linear(3, 3).double(), torch.tensor([0.5, 1.0, 2.0]).double()
    labels = torch.tensor([0, 1, 2, 0, 1, 1])
    batch = Batch(torch.arange(6), torch.randn(6, 3).double(), labels)
    plain, start = copy.deepcopy(model), copy.deepcopy(model)
    weighted(plain(batch.inputs), labels, weights_C).backward()
    assert plain.weight.grad is not None
    method = MAKERS[name](model)
    assert method.tensors() == {}
    method.class_weights = weights_C
    assert torch.equal(method.tensors()["class_weights"], weights_C), "resuming needs them"
    losses = method.step(batch, batch, Rates(lr=0.1, eta=0.0, gamma=0.9, lam=0.0))
    assert_close(losses["class_loss"], weighted(start(batch.inputs), labels, weights_C).detach())
    assert_close(model.weight.detach(), plain.weight.detach() - 0.1 * plain.weight.grad)


def overlapping(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Three classes, each as often as the others, that cannot always be told apart."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[1.5, 0.0], [0.0, 1.5], [-1.2, -1.2]])
    return centres[labels] + torch.randn(count, 2, generator=generator), labels


def test_a_class_that_lost_labels_is_expected_as_often_as_it_comes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A third of class 1 is called 0. The filter drops those, and of class 1 little is left."""
    quick = {
        "epochs": 12,
        "iterations": 2,
        "sets": 2,
        "lr": 0.1,
        "batch_size": 64,
        "validation": "clean",  # noisy labels would rather have the first iteration
        "prove_filter": False,  # and no filter
    }
    # Students differ from epoch to epoch by more than what is looked for.
    monkeypatch.setattr(StageResult, "best_name", property(lambda self: list(self.results)[-1]))

    def train(seed: int, **changed: Any) -> tuple[dict[str, float] | None, Tensor]:
        """The weights, and how often each class is the last teacher's answer."""
        rows, truth = overlapping(1500, seed)
        is_moved = torch.rand(1500, generator=torch.Generator().manual_seed(100 + seed)) < 0.35
        given = torch.where((truth == 1) & is_moved, 0, truth)
        arguments: dict[str, Any] = {**quick, "seed": seed, **changed}
        training = mlnt.train((rows, given), true_labels=truth, **arguments)
        chosen = training.summary["chosen"]
        assert changed or (chosen["iteration"], chosen["model"]) == (2, "teacher")
        test_rows, _ = overlapping(3000, seed=1000 + seed)
        answers_N = training.predict_probabilities(test_rows.numpy()).argmax(1)
        weights = training.summary["filters"][0].get("class_weights")
        return weights, answers_N.bincount(minlength=3) / len(answers_N)

    with_weights = [train(seed) for seed in (0, 1)]
    for weights, shares_C in with_weights:
        assert weights is not None
        assert weights["1"] > 1.2 > 1 > weights["0"]
        assert float((shares_C - 1 / 3).abs().max()) < 0.1
    assert train(0, tau=0.4)[0] is None, "without the noise model nobody knows the shares"
    monkeypatch.setattr("mlnt.iterations.restoring_weights", lambda _, shares_C: shares_C**0)
    without = [train(seed) for seed in (0, 1)]
    gains = [a_C[1] - b_C[1] for (_, a_C), (_, b_C) in zip(with_weights, without, strict=True)]
    assert float(sum(gains)) / len(gains) > 0.01
