"""Baselines and ablations: numbers by hand, brute force, and that each of them learns."""

import copy
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.testing import assert_close

import mlnt
from mlnt import recipes
from mlnt.config import SINGLE_STAGE, Settings, fields_by_name, make_settings
from mlnt.data.batches import Batch
from mlnt.data.dataset import Dataset
from mlnt.data.prepare import prepare
from mlnt.methods import (
    CNNCRF,
    MLNT,
    Clean,
    Contrastive,
    CrossEntropy,
    Forward,
    Iterative,
    JointOptimization,
    MeanTeacher,
    Method,
    Rates,
    SoftCrossEntropy,
    estimate_transition,
    single_stage,
    true_transition,
)
from mlnt.methods.cnn_crf import Field, expected_log_joint, fit_auxiliary, log_joint, posterior
from mlnt.methods.elr import ELR, averaged, early_learning_loss
from mlnt.methods.forward import forward_loss
from mlnt.methods.gce import generalized_cross_entropy
from mlnt.methods.joint_optimization import mean_entropy, prior_loss, soft_label_loss
from mlnt.networks import SmallConv
from mlnt.reproduce.experiments import METHODS, Line
from mlnt.reproduce.tables import label
from mlnt.steps import Steps
from mlnt.training import Stage, StageResult, Trainer

RATES = Rates(lr=0.1, eta=0.2, gamma=0.9, lam=0.5)
PLAIN = make_settings("digits", momentum=0.0, weight_decay=0.0, eta=0.4, epochs=10)


def batch_of(inputs: Tensor, labels: Tensor) -> Batch:
    return Batch(torch.arange(len(labels)), inputs, labels)


class TestForward:
    transition = torch.tensor([[0.8, 0.2], [0.3, 0.7]])

    def test_loss_and_gradient_by_hand(self) -> None:
        logits = torch.zeros(1, 2, requires_grad=True)
        loss = forward_loss(logits, torch.tensor([0]), self.transition)
        # p(ỹ=0) = 0.5·0.8 + 0.5·0.3 = 0.55; the class that explains the label better gains.
        assert loss.item() == pytest.approx(-math.log(0.55))
        (gradient,) = torch.autograd.grad(loss, logits)
        assert_close(gradient, torch.tensor([[0.5 - 0.4 / 0.55, 0.5 - 0.15 / 0.55]]))

    def test_under_noise_the_minimum_is_the_clean_posterior(self) -> None:
        # A clean posterior of (0.9, 0.1) gives noisy labels of 0.9·0.8 + 0.1·0.3 = 0.75 and 0.25.
        logits = torch.tensor([[0.9, 0.1]]).log().requires_grad_()
        both = [forward_loss(logits, torch.tensor([c]), self.transition) for c in (0, 1)]
        (gradient,) = torch.autograd.grad(0.75 * both[0] + 0.25 * both[1], logits)
        assert_close(gradient, torch.zeros(1, 2))
        (biased,) = torch.autograd.grad(
            F.cross_entropy(logits, torch.tensor([[0.75, 0.25]])), logits
        )
        assert_close(biased, torch.tensor([[0.15, -0.15]]))

    def test_training_on_noisy_labels_finds_the_clean_posterior(self) -> None:
        torch.manual_seed(0)
        model = nn.Linear(1, 2)
        batch = batch_of(torch.ones(20, 1), torch.tensor([0] * 15 + [1] * 5))
        method = Forward(model, PLAIN, self.transition)
        for _ in range(300):
            losses = method.step(batch, batch, dataclasses.replace(RATES, lr=1.0))
        found = model(torch.ones(1, 1)).softmax(dim=1)
        assert_close(found, torch.tensor([[0.9, 0.1]]), rtol=0, atol=1e-3)
        assert losses["train"].item() == 75

    def test_a_zero_in_the_matrix_leaves_loss_and_gradient_finite(self) -> None:
        logits = torch.tensor([[80.0, -80.0]], requires_grad=True)
        loss = forward_loss(logits, torch.tensor([1]), torch.eye(2))
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(loss)
        assert torch.isfinite(gradient).all()

    def test_estimate_takes_the_row_of_the_anchor(self) -> None:
        first = torch.tensor([0.1, 0.95, 0.4, 0.8, 0.3])
        probabilities = torch.stack([first, 1 - first], dim=1)
        assert_close(
            estimate_transition(probabilities, quantile=1.0),
            torch.tensor([[0.95, 0.05], [0.1, 0.9]]),
        )
        # Of five samples the 97 % quantile is the second surest.
        assert_close(estimate_transition(probabilities), torch.tensor([[0.8, 0.2], [0.3, 0.7]]))

    def test_true_matrix_by_hand(self) -> None:
        truth = torch.tensor([0, 0, 0, 0, 1, 1])
        noisy = torch.tensor([0, 0, 0, 1, 1, 2])
        expected = torch.tensor([[0.75, 0.25, 0], [0, 0.5, 0.5], [0, 0, 1]], dtype=torch.double)
        assert_close(true_transition(noisy, truth, 3), expected)

    @pytest.mark.parametrize(
        ("matrix", "complaint"),
        [
            (torch.ones(2, 3) / 3, r"must be square, \[C, C\], got \[2, 3\]"),
            (torch.tensor([[1.2, -0.2], [0.0, 1.0]]), "must not be negative, .* got -0.2"),
            (torch.tensor([[1.0, 0.0], [0.8, 0.1]]), "row 1 sums to 0.9"),
        ],
    )
    def test_bad_matrices(self, matrix: Tensor, complaint: str) -> None:
        with pytest.raises(mlnt.InputError, match=complaint):
            Forward(nn.Linear(2, 2), PLAIN, matrix)
        with pytest.raises(mlnt.InputError, match=r"quantile must lie in \[0, 1\], got 97"):
            estimate_transition(matrix, quantile=97)


class TestJointOptimization:
    # s = (0.5, 0.5) and (0.9, 0.1), their mean (0.7, 0.3).
    logits = torch.tensor([[0.5, 0.5], [0.9, 0.1]], dtype=torch.double).log()
    soft = torch.tensor([[1.0, 0.0], [0.5, 0.5]], dtype=torch.double)
    prior = torch.tensor([0.5, 0.5], dtype=torch.double)

    def test_losses_by_hand(self) -> None:
        expected = (math.log(2) + 0.5 * math.log(0.5 / 0.9) + 0.5 * math.log(0.5 / 0.1)) / 2
        assert soft_label_loss(self.soft, self.logits).item() == pytest.approx(expected)
        expected = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.3)
        assert prior_loss(self.prior, self.logits).item() == pytest.approx(expected)
        expected = (math.log(2) - 0.9 * math.log(0.9) - 0.1 * math.log(0.1)) / 2
        assert mean_entropy(self.logits).item() == pytest.approx(expected)
        labels = torch.tensor([0, 1])
        hard = F.one_hot(labels, 2).double()
        assert_close(soft_label_loss(hard, self.logits), F.cross_entropy(self.logits, labels))

    def test_gradients_by_hand(self) -> None:
        logits = self.logits.clone().requires_grad_()
        # −s_k (g_k − Σ_c g_c s_c) / 2 with g = p / mean s = (5/7, 5/3)
        (found,) = torch.autograd.grad(prior_loss(self.prior, logits), logits)
        first, second = 0.25 * (25 / 21 - 5 / 7), 0.45 * (17 / 21 - 5 / 7)
        assert_close(found, torch.tensor([[first, -first], [second, -second]]).double())
        # −s_k (log s_k + H) / 2; nothing where all classes are alike
        (found,) = torch.autograd.grad(mean_entropy(logits), logits)
        entropy = -0.9 * math.log(0.9) - 0.1 * math.log(0.1)
        second = -0.45 * (math.log(0.9) + entropy)
        assert_close(found, torch.tensor([[0.0, 0.0], [second, -second]]).double())

    def test_one_step_by_hand(self) -> None:
        torch.manual_seed(0)
        model, labels = nn.Linear(3, 2).double(), torch.tensor([0, 1, 0, 0])
        batch = batch_of(torch.randn(4, 3).double(), labels)
        method = JointOptimization(model, PLAIN, labels, 2, alpha=1.2, beta=0.8)
        twin = copy.deepcopy(model)
        s = twin(batch.inputs).softmax(dim=1)
        given = -s[torch.arange(4), labels].log().mean()
        towards_prior = (0.5 * (0.5 / s.mean(dim=0)).log()).sum()
        entropy = -(s * s.log()).sum(dim=1).mean()
        (given + 1.2 * towards_prior + 0.8 * entropy).backward()
        losses = method.step(batch, batch, RATES)
        assert_close(model.weight, twin.weight - 0.1 * twin.weight.grad)
        assert_close(model.bias, twin.bias - 0.1 * twin.bias.grad)
        assert_close(losses["class_loss"], given.detach())
        assert_close(losses["prior_loss"], towards_prior.detach())
        assert_close(losses["entropy"], entropy.detach())
        assert_close(method.latest_NC, s.detach())

    def test_labels_become_the_mean_of_the_last_epochs(self) -> None:
        labels = torch.tensor([0, 1])
        given = torch.eye(2)
        method = JointOptimization(nn.Linear(1, 2), PLAIN, labels, 2, start=0.4, window=3)
        assert method.start_epoch == 4
        for epoch, first in enumerate([0.1, 0.2, 0.3, 0.7, 0.8], start=1):
            # Sample 1 is never drawn: its label stays.
            method.latest_NC[0] = torch.tensor([first, 1 - first])
            method.epoch_ends(epoch)
            if epoch < 4:
                assert_close(method.soft_labels_NC, given)
            if epoch == 4:
                assert_close(method.soft_labels_NC, torch.tensor([[0.4, 0.6], [0.0, 1.0]]))
        assert_close(method.soft_labels_NC, torch.tensor([[0.6, 0.4], [0.0, 1.0]]))

    def test_a_short_schedule_averages_the_epochs_there_were(self) -> None:
        method = JointOptimization(nn.Linear(1, 2), PLAIN, torch.tensor([0]), 2, start=0.2)
        for epoch, first in enumerate([0.2, 0.4], start=1):
            method.latest_NC[0] = torch.tensor([first, 1 - first])
            method.epoch_ends(epoch)
        assert_close(method.soft_labels_NC, torch.tensor([[0.3, 0.7]]))

    def test_second_stage_learns_from_the_soft_labels(self) -> None:
        model = nn.Linear(1, 2)
        soft = torch.tensor([[0.7, 0.3]])
        batch = batch_of(torch.ones(1, 1), torch.tensor([1]))
        method = SoftCrossEntropy(model, PLAIN, soft)
        for _ in range(200):
            method.step(batch, batch, dataclasses.replace(RATES, lr=1.0))
        assert_close(model(batch.inputs).softmax(dim=1), soft, rtol=0, atol=1e-3)


class TestGeneralizedCrossEntropy:
    logits = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]], dtype=torch.double).log()
    labels = torch.tensor([0, 1])

    def test_loss_and_gradient_by_hand(self) -> None:
        logits = self.logits.clone().requires_grad_()
        loss = generalized_cross_entropy(logits, self.labels, 0.7)
        assert loss.item() == pytest.approx(((1 - 0.5**0.7) + (1 - 0.1**0.7)) / 0.7 / 2)
        (found,) = torch.autograd.grad(loss, logits)
        # p_y^q (p_k − [k = y]) / 2: that of cross entropy, less where the label is doubted.
        expected = torch.tensor([[-0.5, 0.3, 0.2], [0.1, -0.9, 0.8]], dtype=torch.double) / 2
        assert_close(found, expected * torch.tensor([[0.5**0.7], [0.1**0.7]]).double())

    def test_between_cross_entropy_and_the_mean_error(self) -> None:
        near_0 = generalized_cross_entropy(self.logits, self.labels, 1e-9)
        assert_close(near_0, F.cross_entropy(self.logits, self.labels), rtol=1e-6, atol=0)
        assert generalized_cross_entropy(self.logits, self.labels, 1.0).item() == pytest.approx(0.7)

    def test_a_label_that_is_ruled_out_leaves_the_gradient_finite(self) -> None:
        logits = torch.tensor([[300.0, -300.0]], requires_grad=True)
        loss = generalized_cross_entropy(logits, torch.tensor([1]), 0.7)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert loss.item() == pytest.approx(1 / 0.7)
        assert torch.isfinite(gradient).all()


class TestEarlyLearning:
    def test_two_steps_by_an_independent_formula(self) -> None:
        """Of samples 3 and 1, in the order of the batch; others are not touched."""
        torch.manual_seed(0)
        model, labels = nn.Linear(3, 4).double(), torch.tensor([2, 0])
        batch = Batch(torch.tensor([3, 1]), 3 * torch.randn(2, 3).double(), labels)
        method, twin = ELR(model, PLAIN, 5, 4), copy.deepcopy(model)
        remembered = {3: [0.0] * 4, 1: [0.0] * 4}
        for _ in range(2):
            losses = method.step(batch, batch, RATES)
            scores = twin(batch.inputs)
            loss = torch.zeros((), dtype=torch.double)
            for row, (sample, given) in enumerate(zip((3, 1), (2, 0), strict=True)):
                p = scores[row].exp() / scores[row].exp().sum()
                kept = [min(max(value, 1e-4), 0.9999) for value in p.tolist()]
                remembered[sample] = [
                    0.7 * old + 0.3 * new / sum(kept)
                    for old, new in zip(remembered[sample], kept, strict=True)
                ]
                inner = sum(p[c] * remembered[sample][c] for c in range(4))
                loss = loss + (-p[given].log() + 3.0 * (1 - inner).log()) / 2
            for parameter, gradient in zip(
                twin.parameters(), torch.autograd.grad(loss, list(twin.parameters())), strict=True
            ):
                parameter.data -= 0.1 * gradient
            assert_close(losses["class_loss"], loss.detach(), rtol=1e-9, atol=0)
            assert_close(model.weight, twin.weight, rtol=1e-9, atol=1e-12)
            assert_close(model.bias, twin.bias, rtol=1e-9, atol=1e-12)
            for sample in range(5):
                expected = torch.tensor(remembered.get(sample, [0.0] * 4), dtype=torch.double)
                assert_close(method.targets_NC[sample], expected, rtol=1e-9, atol=1e-12)

    def test_probabilities_stay_away_from_0_and_1(self) -> None:
        logits = torch.tensor([[200.0, 0.0, 0.0]], requires_grad=True)
        target = averaged(torch.tensor([[1.0, 0.0, 0.0]]), logits.detach())
        loss = early_learning_loss(logits, torch.tensor([1]), target)
        agreement = 0.9999 * (0.7 + 0.3 * 0.9999 / 1.0001) + 1e-4 * 2 * 0.3 * 1e-4 / 1.0001
        assert loss.item() == pytest.approx(200 + 3 * math.log(1 - agreement), rel=1e-3)
        (gradient,) = torch.autograd.grad(loss, logits)
        assert torch.isfinite(gradient).all()


class TestField:
    """Three classes, two hidden units: 36 states, all of them written out."""

    states = tuple(itertools.product(range(3), range(3), (0, 1), (0, 1)))  # ŷ, y, h
    alpha = torch.tensor(1.7, dtype=torch.double)

    @pytest.fixture(autouse=True)
    def _fields(self) -> None:
        torch.manual_seed(0)

        def field() -> Field:
            shapes = ((3,), (2,), (3, 3), (3, 2), (3, 2))
            return Field(*(torch.randn(*shape).double().requires_grad_() for shape in shapes))

        self.field, self.auxiliary = field(), field()
        self.logits = torch.randn(4, 3).double().requires_grad_()
        self.noisy = torch.tensor([0, 1, 2, 1])

    def scores(self, field: Field, bias_C: Tensor) -> Tensor:
        """−E of the 36 states."""
        b, c, pair, clean_hidden, noisy_hidden = field
        return torch.stack(
            [
                bias_C[i] + b[j] + pair[i, j] + sum(
                    h[n] * (c[n] + clean_hidden[i, n] + noisy_hidden[j, n]) for n in (0, 1)
                )
                for i, j, *h in self.states
            ]
        )  # fmt: skip

    def where(self, **wanted: int) -> Tensor:
        places = {"clean": 0, "noisy": 1, "h0": 2, "h1": 3}
        return torch.tensor(
            [all(s[places[n]] == value for n, value in wanted.items()) for s in self.states]
        )

    def log_p(self, sample: int) -> tuple[Tensor, Tensor]:
        """log p of the 36 states given x, and log Z."""
        without_x = self.scores(self.field, torch.zeros(3))
        kappa = [without_x[self.where(clean=i)].logsumexp(0) for i in range(3)]
        scores = self.scores(self.field, self.logits[sample] - torch.stack(kappa))
        return scores - scores.logsumexp(0), scores.logsumexp(0)

    def test_partition_and_marginals(self) -> None:
        found = log_joint(self.logits, self.noisy, self.field)
        for sample, noisy in enumerate(self.noisy.tolist()):
            log_p, log_partition = self.log_p(sample)
            assert_close(log_partition, self.logits[sample].logsumexp(0))
            of_clean = [log_p[self.where(clean=i)].exp().sum() for i in range(3)]
            assert_close(torch.stack(of_clean), self.logits[sample].softmax(0), rtol=0, atol=1e-9)
            pair = [log_p[self.where(clean=i, noisy=noisy)].logsumexp(0) for i in range(3)]
            assert_close(found[sample], torch.stack(pair), rtol=0, atol=1e-9)

    def q(self, sample: int) -> Tensor:
        """(p(ŷ, h | y, x) · p_aux(ŷ, h | y)^α)^(1/(1+α)) of the 36 states, normalised."""
        possible = self.where(noisy=int(self.noisy[sample]))
        log_p, _ = self.log_p(sample)
        log_aux = self.scores(self.auxiliary, torch.zeros(3))
        log_p = log_p - log_p[possible].logsumexp(0)
        log_aux = log_aux - log_aux[possible].logsumexp(0)
        product = ((log_p + self.alpha * log_aux) / (1 + self.alpha)).exp() * possible
        return (product / product.sum()).detach()

    def test_posterior_of_the_e_step(self) -> None:
        q_BC, hidden_CKH = posterior(
            self.logits, self.noisy, self.field, self.auxiliary, self.alpha
        )
        for sample, noisy in enumerate(self.noisy.tolist()):
            q = self.q(sample)
            for i in range(3):
                both = q[self.where(clean=i)].sum()
                assert_close(q_BC[sample, i], both, rtol=0, atol=1e-9)
                for n in (0, 1):
                    mean = q[self.where(clean=i, **{f"h{n}": 1})].sum() / both
                    assert_close(hidden_CKH[i, noisy, n], mean, rtol=0, atol=1e-9)

    def test_objective_and_gradient_of_the_m_step(self) -> None:
        expected = sum(
            (self.q(n)[possible] * self.log_p(n)[0][possible]).sum()
            for n in range(4)
            for possible in [self.where(noisy=int(self.noisy[n]))]
        )
        with torch.no_grad():
            q_BC, hidden_CKH = posterior(
                self.logits, self.noisy, self.field, self.auxiliary, self.alpha
            )
        found = (q_BC * expected_log_joint(self.logits, self.noisy, self.field, hidden_CKH)).sum()
        assert_close(found, expected, rtol=0, atol=1e-9)
        ours = torch.autograd.grad(found, [self.logits, *self.field])
        for mine, theirs in zip(
            ours, torch.autograd.grad(expected, [self.logits, *self.field]), strict=True
        ):
            assert_close(mine, theirs, rtol=0, atol=1e-9)

    def test_without_the_auxiliary_it_climbs_the_likelihood_of_the_noisy_labels(self) -> None:
        with torch.no_grad():
            zero = torch.zeros((), dtype=torch.double)
            q_BC, hidden_CKH = posterior(self.logits, self.noisy, self.field, self.auxiliary, zero)
        found = (q_BC * expected_log_joint(self.logits, self.noisy, self.field, hidden_CKH)).sum()
        likelihood = log_joint(self.logits, self.noisy, self.field).logsumexp(dim=1).sum()
        ours = torch.autograd.grad(found, [self.logits, *self.field])
        theirs = torch.autograd.grad(likelihood, [self.logits, *self.field])
        for mine, other in zip(ours, theirs, strict=True):
            assert_close(mine, other, rtol=0, atol=1e-9)

    def test_auxiliary_by_hand(self) -> None:
        truth, noisy = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 0, 1, 1])
        field = fit_auxiliary(truth, noisy, 2, 2, torch.zeros(1))
        # Counts [[2, 1], [0, 1]] and half a sample more in each of the four.
        assert_close(field.pair_CK.exp(), torch.tensor([[2.5, 1.5], [0.5, 1.5]]) / 6)
        assert all(not part.any() for part in field if part is not field.pair_CK)

    def test_alpha_falls(self) -> None:
        clean = Clean(torch.randn(4, 3), torch.tensor([0, 1] * 2), torch.tensor([0, 1] * 2))
        method = CNNCRF(
            nn.Linear(3, 2), PLAIN, clean, 2, torch.Generator(), alpha_first=8.0, alpha_last=2.0
        )
        alphas = [method.alpha.item()]
        for epoch in range(1, 8):
            method.epoch_ends(epoch)
            alphas.append(method.alpha.item())
        assert alphas == pytest.approx([8.0, 6.8, 5.6, 4.4, 3.2, 2.0, 2.0, 2.0])


class TestTeachers:
    def setup_method(self) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(3, 2).double()
        self.batch = batch_of(torch.randn(4, 3).double(), torch.tensor([0, 1, 0, 0]))

    def test_mean_teacher_by_hand(self) -> None:
        method = MeanTeacher(self.model, PLAIN, weight=3.0)
        with torch.no_grad():
            method.teacher.weight.add_(0.5)  # a teacher of another opinion
        student, teacher = copy.deepcopy(self.model), copy.deepcopy(method.teacher)
        t, s = teacher(self.batch.inputs).softmax(dim=1), student(self.batch.inputs).softmax(dim=1)
        given = -s[torch.arange(4), self.batch.labels].log().mean()
        towards_teacher = (t * (t / s).log()).sum(dim=1).mean()
        (given + 1.5 * towards_teacher).backward()  # η is half way up its ramp
        weight = student.weight.detach() - 0.1 * student.weight.grad
        losses = method.step(self.batch, self.batch, RATES)
        assert_close(self.model.weight.detach(), weight)
        assert_close(method.teacher.weight, 0.9 * teacher.weight + 0.1 * weight)
        assert_close(losses["class_loss"], given.detach())
        assert_close(losses["consistency"], towards_teacher.detach())

    def test_iterative_is_cross_entropy_with_a_teacher_beside_it(self) -> None:
        plain = CrossEntropy(copy.deepcopy(self.model), PLAIN)
        start = self.model.weight.detach().clone()
        method = Iterative(self.model, PLAIN)
        assert method.step(self.batch, self.batch, RATES) == plain.step(
            self.batch, self.batch, RATES
        )
        assert torch.equal(self.model.weight, plain.models["student"].weight)
        assert_close(method.teacher.weight, 0.9 * start + 0.1 * self.model.weight.detach())

    @pytest.mark.parametrize("method", [MeanTeacher, Iterative])
    def test_buffers_that_are_no_statistics_become_the_models(self, method: type) -> None:
        self.model.register_buffer("temperature", torch.ones(()))
        teachers = method(self.model, PLAIN)
        self.model.temperature.fill_(2.0)
        teachers.step(self.batch, self.batch, RATES)
        assert teachers.teacher.temperature == 2


@pytest.fixture(scope="module")
def digits() -> Dataset:
    """Half of the labels drawn anew; validation by clean labels."""
    settings = learning_settings()
    return prepare(mlnt.open_dataset("digits"), settings)[0]


def learning_settings(**changes: Any) -> Settings:
    usual = {"noise": "symmetric:0.5", "validation": "clean", "epochs": 12, "seed": 1}
    return make_settings("digits", **{**usual, **changes})


def clean_part(dataset: Dataset) -> Clean:
    train = dataset.train
    assert train.true_labels is not None
    return Clean(train.inputs[:130], train.true_labels[:130], train.labels[:130])


def weighted(
    kind: Any, model: nn.Module, settings: Settings, data: Dataset, generator: torch.Generator
) -> Method:
    """As a mentor's filter would leave it."""
    labels_N = data.train.labels
    features_ND = F.one_hot(labels_N, 10).float()
    more = [features_ND, None, generator] if kind is MLNT else []
    method = kind(model, settings, *more)
    method.class_weights = torch.linspace(0.5, 1.5, 10, device=labels_N.device)
    return method


def of_one_stage(
    kind: Any, model: nn.Module, settings: Settings, data: Dataset, generator: torch.Generator
) -> Method:
    return kind(model, settings, len(data.train), 10)


Maker = Callable[[nn.Module, Settings, Dataset, torch.Generator], Method]

MAKERS: dict[str, Maker] = {
    "forward": lambda model, settings, data, generator: Forward(
        model, settings, true_transition(data.train.labels, data.train.true_labels, 10)
    ),
    "joint_optimization": lambda model, settings, data, generator: JointOptimization(
        model, settings, data.train.labels, 10
    ),
    "soft_cross_entropy": lambda model, settings, data, generator: SoftCrossEntropy(
        model, settings, F.one_hot(data.train.labels, 10).float()
    ),
    "cnn_crf": lambda model, settings, data, generator: CNNCRF(
        model, settings, clean_part(data), 10, generator
    ),
    "mean_teacher": lambda model, settings, data, generator: MeanTeacher(model, settings),
    "iterative": lambda model, settings, data, generator: Iterative(model, settings),
    "contrastive": lambda model, settings, data, generator: Contrastive(
        model, settings, data.train.inputs[:2], generator
    ),
    **{name: functools.partial(of_one_stage, single_stage(name)) for name in SINGLE_STAGE},
    **{
        f"{kind.__name__}, classes weighted": functools.partial(weighted, kind)
        for kind in (MLNT, MeanTeacher, Iterative)
    },
}


def learn(dataset: Dataset, settings: Settings, method: Method, generator: Any) -> StageResult:
    splits = (dataset.train, dataset.validation, dataset.test)
    trainer = Trainer(*splits, settings, generator)
    return trainer.run(Stage("baseline", 0), method)


# Cross entropy at its best epoch: about 91 %; once it has memorised the noise: about 60 %.
@pytest.mark.parametrize("name", ["forward", "cnn_crf", "mean_teacher", "iterative", *SINGLE_STAGE])
def test_learns_digits(name: str, digits: Dataset) -> None:
    settings, generator = learning_settings(), torch.Generator().manual_seed(1)
    torch.manual_seed(1)
    method = MAKERS[name](SmallConv(1, 10), settings, digits, generator)
    result = learn(digits, settings, method, generator)
    for model in result.results.values():
        assert model.best is not None
        assert model.best > 84
    assert all(math.isfinite(row["class_loss"]) for row in result.history)


def test_every_method_has_stages_a_name_and_a_place_in_the_tables() -> None:
    choices = fields_by_name()["method"].metadata["choices"]
    assert set(choices) == {*recipes.RECIPES, *SINGLE_STAGE}
    assert set(choices) == set(METHODS)
    for name in SINGLE_STAGE:
        assert label(Line(name, "student", 1), short=True) == SINGLE_STAGE[name]
    with pytest.raises(mlnt.InputError, match="no stages are written down for 'x'"):
        recipes.Recipe.led_by(None, "x")  # type: ignore[arg-type]


def test_what_holds_against_noise_ends_above_cross_entropy(digits: Dataset) -> None:
    """After the last epoch of a schedule long enough to learn wrong labels by heart."""
    settings = learning_settings(epochs=30)
    last = {}
    makers = {"cross_entropy": lambda model, *_: CrossEntropy(model, settings), **MAKERS}
    for name in ("cross_entropy", "gce", "elr"):
        generator = torch.Generator().manual_seed(1)
        torch.manual_seed(1)
        method = makers[name](SmallConv(1, 10), settings, digits, generator)
        last[name] = learn(digits, settings, method, generator).best.last
    assert last["gce"] > last["cross_entropy"] + 5
    assert last["elr"] > last["cross_entropy"] + 5


def test_joint_optimization_corrects_the_labels_of_the_digits(digits: Dataset) -> None:
    settings, generator = learning_settings(), torch.Generator().manual_seed(1)
    constant = dataclasses.replace(settings, lr=0.1, fall="step", fall_at=1.0)
    torch.manual_seed(1)
    first = MAKERS["joint_optimization"](SmallConv(1, 10), constant, digits, generator)
    assert isinstance(first, JointOptimization)
    learn(digits, constant, first, generator)
    right = (first.soft_labels_NC.argmax(dim=1) == digits.train.true_labels).double().mean()
    assert right > 0.9, "55 % were right as given"
    second = SoftCrossEntropy(SmallConv(1, 10), settings, first.soft_labels_NC)
    result = learn(digits, settings, second, generator)
    assert result.best.last > 88, "nothing wrong left to memorise"


@pytest.mark.parametrize("truth_is_known", [True, False])
def test_joint_optimization_is_told_the_true_shares_where_known(
    truth_is_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A third of each class, until half of the first is called the third: 1/6, 1/3, 1/2."""
    told = []

    class Told(JointOptimization):
        def __init__(self, *given: Any, **options: Any) -> None:
            super().__init__(*given, **options)
            told.append(self.prior_C)

    monkeypatch.setattr(recipes, "JointOptimization", Told)
    truth = torch.arange(120) % 3
    given = torch.where((truth == 0) & (torch.arange(120) % 2 == 0), 2, truth)
    rows = F.one_hot(truth, 3) + 0.01 * torch.arange(120)[:, None]
    data = mlnt.open_dataset((rows, given), true_labels=truth if truth_is_known else None)
    mlnt.train(data, method="joint_optimization", epochs=1, validation_share=0.5)
    expected = [1 / 3, 1 / 3, 1 / 3] if truth_is_known else [1 / 6, 1 / 3, 1 / 2]
    assert told[0].tolist() == pytest.approx(expected, abs=0.02)


def steps_of(name: str, dataset: Dataset, **changes: Any) -> Steps:
    settings = learning_settings(batch_size=64, **changes)
    device = dataset.train.labels.device
    torch.manual_seed(0)
    generator = torch.Generator(device).manual_seed(0)
    method = MAKERS[name](SmallConv(1, 10, width=4).to(device), settings, dataset, generator)
    return Steps(dataset.train, method, settings, generator)


@pytest.mark.parametrize("name", MAKERS)
def test_goes_on_alike_after_its_tensors_are_loaded(name: str, digits: Dataset) -> None:
    before, after = steps_of(name, digits), steps_of(name, digits)
    before.run([RATES] * 3)
    for epoch in range(1, 7):  # past the start epoch and into the fall of α
        before.method.epoch_ends(epoch)
    after.load_state(before.state())
    fresh = after.method.tensors()
    for tensor_name, value in before.method.tensors().items():
        assert torch.equal(fresh[tensor_name], value), tensor_name
    expected, found = before.run([RATES] * 3), after.run([RATES] * 3)
    for loss_name, values in expected.items():
        assert torch.equal(found[loss_name], values), loss_name
    for key, value in before.method.models["student"].state_dict().items():
        assert torch.equal(after.method.models["student"].state_dict()[key], value), key


def test_a_checkpoint_from_before_classes_were_weighted_goes_on_without(digits: Dataset) -> None:
    steps = steps_of("MLNT, classes weighted", digits)
    steps.load_state({**steps.state(), "tensors": {}})
    assert steps.method.tensors()["class_weights"].tolist() == [1.0] * 10


@pytest.mark.parametrize("name", MAKERS)
def test_losses_are_full_precision_in_a_bfloat16_step(name: str, digits: Dataset) -> None:
    exact = steps_of(name, digits).run([RATES])
    rough = steps_of(name, digits, precision="bfloat16").run([RATES])
    shown = {"contrast"} if name == "contrastive" else {"class_loss", "train"}
    assert shown <= set(rough)
    for loss_name, values in rough.items():
        assert values.dtype == exact[loss_name].dtype, loss_name
    loss = min(shown)
    assert rough[loss].item() == pytest.approx(exact[loss].item(), rel=0.02)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", MAKERS)
def test_a_recorded_step_is_the_eager_one(name: str, precision: str, digits: Dataset) -> None:
    """Over an end of an epoch, whose changes the recorded step must see."""
    train = digits.train.to(torch.device("cuda"), torch.float32)
    on_gpu = dataclasses.replace(digits, train=train)
    found = []
    for graph in (True, False):
        steps = steps_of(name, on_gpu, graph=graph, precision=precision)
        losses = [steps.run([RATES] * 8)]
        for epoch in range(1, 7):
            steps.method.epoch_ends(epoch)
        losses.append(steps.run([RATES] * 8))
        assert (steps.graph is not None) == graph, "recording failed"
        found.append({key: torch.cat([part[key] for part in losses]) for key in losses[0]})
    for loss_name, values in found[1].items():
        assert_close(found[0][loss_name], values, rtol=0.02, atol=0.02)
