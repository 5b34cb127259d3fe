"""The noise model: its parts by hand, the whole on data whose truth is known."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

import mlnt
from mlnt import noise_model, similar
from mlnt.noise_model import (
    anchors,
    believed,
    doubt_is_noise,
    fit_transition,
    judge,
    learnt_by_heart,
    noise_rate,
    says_more,
    unmix,
)
from mlnt.similar import mean_of, most_similar


class TestParts:
    def test_most_similar_by_direction_and_never_oneself(self) -> None:
        features_ND = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        assert most_similar([features_ND], 1).squeeze(1).tolist() == [1, 0, 3, 2]
        assert most_similar([features_ND], 9).shape == (4, 3)

    def test_most_similar_in_the_eyes_of_two_networks(self) -> None:
        # To the first sample the second is like in the first network, the third in the second, and
        # the last nearly in both; how long a vector is does not count.
        first_ND = torch.tensor([[1.0, 0.0], [9.0, 0.0], [0.0, 1.0], [0.8, 0.6]])
        second_ND = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, 5.0], [0.6, 0.8]])
        assert most_similar([first_ND], 1)[0].tolist() == [1]
        assert most_similar([second_ND], 1)[0].tolist() == [2]
        assert most_similar([first_ND, second_ND], 1)[0].tolist() == [3]  # 0.8 + 0.8, not 1 + 0

    def test_most_similar_in_full_precision_whatever_training_computes_in(self) -> None:
        features_ND = torch.randn(500, 64, generator=torch.Generator().manual_seed(0))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            found_NK = most_similar([features_ND], 30)
        assert torch.equal(found_NK, most_similar([features_ND], 30))

    def test_most_similar_among_those_searched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(similar, "SEARCHED", 20)
        monkeypatch.setattr(similar, "CHUNK", 16)
        angles_N = torch.rand(50, generator=torch.Generator().manual_seed(0)).double()
        found_NK = most_similar([torch.stack([angles_N.cos(), angles_N.sin()], 1)], 19)
        searched = found_NK.unique().tolist()
        assert len(searched) == 20
        for place, found in enumerate(found_NK.tolist()):
            others = [other for other in searched if other != place]
            others.sort(key=lambda other: abs(float(angles_N[other] - angles_N[place])))
            assert set(found[:5]) == set(others[:5]), place
            assert place not in found

    def test_most_similar_of_some(self, monkeypatch: pytest.MonkeyPatch) -> None:
        features_ND = torch.randn(40, 3, generator=torch.Generator().manual_seed(1))
        asked_N = torch.tensor([30, 2, 7])
        expected = most_similar([features_ND], 5)[asked_N]
        assert torch.equal(most_similar([features_ND], 5, asked_N), expected)
        monkeypatch.setattr(similar, "SEARCHED", 10)  # 30 or 2 or 7 may not be among them
        expected = most_similar([features_ND], 5)[asked_N]
        assert torch.equal(most_similar([features_ND], 5, asked_N), expected)

    def test_of_more_samples_fewer_are_searched(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """At most 20, and 20² / 50 = 8 among 50; 5 at least."""
        monkeypatch.setattr(similar, "SEARCHED", 20)
        monkeypatch.setattr(similar, "FEWEST_SEARCHED", 5)
        features_ND = torch.randn(200, 3, generator=torch.Generator().manual_seed(1))
        for count, searched in ((20, 20), (50, 8), (200, 5)):
            found_NK = most_similar([features_ND[:count]], 4)
            assert len(found_NK.unique()) == searched

    def test_mean_over_places(self) -> None:
        values_NC = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.5]])
        found = mean_of(values_NC, torch.tensor([[1, 2], [0, 2], [0, 1]]))
        torch.testing.assert_close(found, torch.tensor([[0.25, 0.75], [0.75, 0.25], [0.5, 0.5]]))

    def test_an_anchor_is_the_mean_of_the_better_half(self) -> None:
        # Ten labels of class 0 at 0.6 and ten at 0.2: the better half is the former. Ten labels
        # are trusted 10² / (10² + 5²) = 0.8, and "surely 0" gets the rest.
        given = torch.tensor([0.6] * 10 + [0.2] * 10, dtype=torch.float64)
        found = anchors(torch.stack([given, 1 - given], 1), torch.zeros(20).long())
        by_hand = torch.tensor([[0.8 * 0.6 + 0.2, 0.8 * 0.4], [0.0, 1.0]], dtype=torch.float64)
        torch.testing.assert_close(found, by_hand)

    def test_an_anchor_of_a_class_most_of_whose_labels_are_wrong(self) -> None:
        # Of forty labels of class 0 ten are at 0.4, thirty at 0.1, as samples of other labels are:
        # the ten are nearer to the best tenth, trusted 10² / (10² + 5²). Where a rival takes so
        # much that all forty are at 0.3, they are alike, and half of them speak.
        for given, count, mean in ([0.4] * 10 + [0.1] * 30, 10, 0.4), ([0.3] * 40, 20, 0.3):
            own = torch.tensor(given + [0.1] * 60, dtype=torch.float64)
            labels_N = (torch.arange(100) >= 40).long()
            found = anchors(torch.stack([own, 1 - own], 1), labels_N)
            trust = count**2 / (count**2 + 5**2)
            assert float(found[0, 0]) == pytest.approx(trust * mean + 1 - trust)

    def test_an_anchor_of_a_class_that_the_model_does_not_know_is_none(self) -> None:
        # Of the best labels of class 2 it says 0.5 and 0.4 for class 0. Of as many labels that is
        # enough; of a class with twice as many it takes 1.25 · 0.4 = 0.5, which 0.49 is not.
        alike_CC = torch.tensor([[0.7, 0.3, 0], [0.3, 0.7, 0], [0.4, 0.1, 0.5]]).double()
        rarer_CC = torch.tensor([[0.7, 0.3, 0], [0.3, 0.7, 0], [0.4, 0.11, 0.49]]).double()
        even_N, uneven_N = torch.tensor([0, 1, 2] * 4), torch.tensor([0] * 4 + [1] * 4 + [2] * 2)
        assert torch.equal(believed(alike_CC, even_N), alike_CC)
        assert torch.equal(believed(rarer_CC, even_N), rarer_CC)
        assert torch.equal(believed(rarer_CC, uneven_N)[:2], rarer_CC[:2])
        assert believed(rarer_CC, uneven_N)[2].tolist() == [0, 0, 1]
        # Nor is one of which it says another class, however many labels that has.
        other_CC = torch.tensor([[0.4, 0.6, 0], [0, 1, 0], [0, 0, 1]]).double()
        assert believed(other_CC, torch.tensor([0, 0, 1, 2]))[0].tolist() == [1, 0, 0]

    def test_what_was_learnt_by_heart(self) -> None:
        # It agrees with all four training labels and with one of the two held out.
        own_NC = torch.eye(2)[torch.tensor([0, 1, 1, 0, 0, 0])]
        labels_N, held_out_N = torch.tensor([0, 1, 1, 0, 0, 1]), torch.arange(6) > 3
        assert learnt_by_heart(own_NC, labels_N, held_out_N) == 1.0
        assert learnt_by_heart(own_NC, labels_N, torch.ones(6).bool()) == 0.0
        wrong_once_N = torch.tensor([1, 1, 1, 0, 0, 1])  # 3/4 against 1/2
        assert learnt_by_heart(own_NC, wrong_once_N, held_out_N) == pytest.approx(0.5)

    def test_held_out_labels_overrule_all_when_they_are_sure(self) -> None:
        sure_NC = torch.tensor([[1.0, 0.0]], dtype=torch.float64).repeat(2000, 1)
        labels_N, held_out_N = torch.zeros(2000).long(), torch.arange(2000) >= 1000
        labels_N[1000:1300] = 1  # wrong: 0 % of what was learnt, 30 % of what was not
        found = noise_rate(sure_NC.clamp(1e-6, 1), labels_N, held_out_N, 0.5)
        # 4 · 0.3 · 0.7 / 1000 = 0.00084 of the difference of 0.15, squared 0.0225, is 0.0056.
        assert found == pytest.approx(0.3 - 0.15 * 0.00084 / 0.0225, abs=0.002)

    def test_unmixing_finds_what_was_mixed(self) -> None:
        anchors_CC = torch.tensor([[0.6, 0.4], [0.1, 0.9]], dtype=torch.float64)
        weights_NC = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
        found = unmix(weights_NC @ anchors_CC, anchors_CC, 30)
        torch.testing.assert_close(found, weights_NC, atol=0.05, rtol=0)

    def test_unmixing_takes_its_time_where_the_anchors_are_nearly_alike(self) -> None:
        eye_CC = torch.eye(4, dtype=torch.float64)
        for share, most_off in ((0.9, 0.03), (0.1, 0.25)):  # of the label distribution: the class
            anchors_CC = share * eye_CC + (1 - share) / 4
            found = unmix(anchors_CC, anchors_CC, 30)
            assert (found - eye_CC).abs().max() < most_off

    def test_unmixing_takes_its_time_for_samples_of_rivals_alone(self) -> None:
        # Of a sure cat (1) the network says cat with 0.6 and dog (2) with 0.4; of dogs the reverse.
        apart_CC = torch.eye(3, dtype=torch.float64)
        rivals_CC = torch.tensor([[1, 0, 0], [0, 0.6, 0.4], [0, 0.4, 0.6]], dtype=torch.float64)
        # A step can tell them by 0.4 / 0.6, so it takes 1 / (1 − 2/3) = 3 times as many.
        steps_N = noise_model._lengthened(6, rivals_CC, rivals_CC)
        assert steps_N.tolist() == pytest.approx([6, 18, 18])
        assert noise_model._lengthened(6, rivals_CC, apart_CC).tolist() == [6, 6, 6]
        # After 6 steps a cat would be one with 0.65, after 18 it is with 0.77.
        assert float(unmix(rivals_CC, rivals_CC, 6)[1, 1]) == pytest.approx(0.767, abs=0.001)
        # Each sample takes its own time, whoever is beside it; the last step may be a part of one.
        anchors_CC = torch.tensor([[0.9, 0.1, 0], [0, 0.6, 0.4], [0, 0.4, 0.6]]).double()
        mixed_NC = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.5, 0.4], [0.3, 0.3, 0.4]]).double()
        alone = [unmix(row_1C, anchors_CC, 6) for row_1C in mixed_NC.split(1)]
        assert noise_model._lengthened(6, mixed_NC, anchors_CC).unique().numel() == 3
        torch.testing.assert_close(unmix(mixed_NC, anchors_CC, 6), torch.cat(alone))

    def test_how_far_it_gets_hardly_depends_on_the_last_digits(self) -> None:
        rough_NC = torch.rand(200, 3, generator=torch.Generator().manual_seed(0)).softmax(1)
        rivals_CC = torch.tensor([[1, 0, 0], [0, 0.6, 0.4], [0, 0.4, 0.6]], dtype=torch.float64)
        exact_NC = unmix(rough_NC.double(), rivals_CC, 6)
        off_NC = unmix(rough_NC.double() + 1e-7, rivals_CC, 6)
        torch.testing.assert_close(off_NC, exact_NC, atol=1e-5, rtol=0)

    def test_classes_that_cannot_be_told_apart_take_no_longer_than_hardly_alike_ones(self) -> None:
        same_CC = torch.tensor([[0.5, 0.5], [0.5, 0.5]], dtype=torch.float64)
        rivalry_alone = noise_model._lengthened(6, torch.eye(4).double()[:1], _pair(0.5))
        assert rivalry_alone.tolist() == pytest.approx([30])  # 1 / (1 − 0.8)
        assert unmix(same_CC, same_CC, 6).tolist() == [[0.5, 0.5], [0.5, 0.5]]
        assert len(unmix(torch.empty(0, 2).double(), same_CC, 6)) == 0

    def test_transition_of_known_classes_is_counted(self) -> None:
        truth = torch.tensor([0] * 9 + [1] * 4)
        labels_N = torch.tensor([0] * 6 + [1] * 3 + [1] * 4)
        found = fit_transition(torch.eye(2, dtype=torch.float64)[truth], labels_N)
        # One more right label of each class: (6 + 1) / 10, (4 + 1) / 5.
        by_hand = torch.tensor([[0.7, 0.3], [0.0, 1.0]], dtype=torch.float64)
        torch.testing.assert_close(found, by_hand)


def _pair(own: float) -> Tensor:
    """Anchors of four classes, the first two of which are rivals."""
    anchors_CC = torch.eye(4, dtype=torch.float64)
    anchors_CC[:2, :2] = torch.tensor([[own, 1 - own], [1 - own, own]])
    return anchors_CC


def noisy(count: int, classes: int, rate: float, seed: int) -> tuple[Tensor, Tensor]:
    """True classes, and labels of which a share was moved to the next class."""
    generator = torch.Generator().manual_seed(seed)
    truth_N = torch.randint(classes, (count,), generator=generator)
    moved_N = torch.rand(count, generator=generator) < rate
    return truth_N, torch.where(moved_N, (truth_N + 1) % classes, truth_N)


def opinions(truth_N: Tensor, classes: int, seed: int, sure: float = 4.0) -> Tensor:
    """Of a model that knows the truth fairly well and was never told these labels."""
    logits_NC = torch.randn(
        len(truth_N), classes, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    logits_NC[torch.arange(len(truth_N)), truth_N] += sure
    return logits_NC.softmax(1)


class TestWhole:
    @pytest.mark.parametrize("rate", [0.0, 0.1, 0.4])
    @pytest.mark.parametrize("sharpness", [0.3, 1.0, 3.0])
    def test_rate_and_matrix_of_a_model_too_sure_or_not_sure_enough(
        self, rate: float, sharpness: float
    ) -> None:
        truth_N, labels_N = noisy(2000, 5, rate, seed=1)
        found = judge(labels_N, (opinions(truth_N, 5, 2).log() * sharpness).softmax(1))
        wrong_N = labels_N != truth_N
        assert found.noise_rate == pytest.approx(float(wrong_N.double().mean()), abs=0.025)
        low, high = found.noise_interval
        assert low - 0.001 <= float(wrong_N.double().mean()) <= high
        for number in range(5):
            own = labels_N[truth_N == number]
            share = float((own == (number + 1) % 5).double().mean())
            assert float(found.transition[number, (number + 1) % 5]) == pytest.approx(
                share, abs=0.05
            )

    def test_probabilities_mean_something(self) -> None:
        truth_N, labels_N = noisy(20_000, 3, 0.3, seed=3)
        found = judge(labels_N, opinions(truth_N, 3, 4, sure=2.0))
        wrong_N = (labels_N != truth_N).double()
        assert float(found.wrong.mean()) == pytest.approx(found.noise_rate, abs=1e-6)
        assert found.noise_interval[0] < float(wrong_N.mean()) < found.noise_interval[1]
        of_fifth = [
            float(wrong_N[(found.wrong >= low) & (found.wrong < low + 0.2)].mean())
            for low in (0.0, 0.2, 0.4, 0.6, 0.8)
        ]
        assert of_fifth == sorted(of_fifth)
        assert of_fifth[0] < 0.1
        assert of_fifth[-1] > 0.85

    @pytest.mark.parametrize("people", [False, True])
    def test_noise_that_rises_with_doubt_is_told_from_noise_that_does_not(
        self, people: bool
    ) -> None:
        generator = torch.Generator().manual_seed(1)
        truth_N = torch.randint(4, (20_000,), generator=generator)
        clarity_N = 8 * torch.rand(20_000, generator=generator).double()
        logits_NC = torch.randn(20_000, 4, generator=generator).double()
        logits_NC[torch.arange(20_000), truth_N] += clarity_N
        rate_N = 0.6 * (1 - clarity_N / 8) if people else torch.full((20_000,), 0.3)
        moved_N = torch.rand(20_000, generator=generator) < rate_N
        # People choose what it looks like next; a program does not look.
        second_N = logits_NC.scatter(1, truth_N[:, None], -torch.inf).argmax(1)
        labels_N = torch.where(moved_N, second_N if people else (truth_N + 1) % 4, truth_N)

        found = judge(labels_N, logits_NC.softmax(1))
        everything_N = torch.ones(20_000).bool()
        lean = doubt_is_noise(logits_NC.softmax(1), found.wrong, everything_N, found.noise_rate)
        assert lean > 0.95 if people else lean < 0.05
        true_rate = float((labels_N != truth_N).double().mean())
        assert found.noise_rate == pytest.approx(true_rate, abs=0.03)

    def test_where_nothing_is_held_out_doubt_may_be_either(self) -> None:
        truth_N, labels_N = noisy(100, 3, 0.3, seed=1)
        wrong_N, nothing_N = (truth_N != labels_N).double(), torch.zeros(100).bool()
        lean = doubt_is_noise(opinions(truth_N, 3, 2), wrong_N, nothing_N, 0.3)
        assert lean == 0.5

    def test_neighbours_speak_where_the_model_has_learnt_every_label_by_heart(self) -> None:
        truth_N, labels_N = noisy(1000, 4, 0.3, seed=5)
        generator = torch.Generator().manual_seed(6)
        features_ND = 3 * torch.eye(4)[truth_N] + 0.3 * torch.randn(1000, 4, generator=generator)
        by_heart_NC = 0.97 * torch.eye(4)[labels_N] + 0.01 * (1 - torch.eye(4)[labels_N])
        found = judge(labels_N, by_heart_NC, [features_ND], torch.zeros(1000).bool())
        wrong_N = labels_N != truth_N
        assert ((found.wrong > 0.5) == wrong_N).double().mean() > 0.98
        without = judge(labels_N, by_heart_NC)
        assert without.noise_rate < 0.01, "by itself such a model says that all is well"

    @pytest.mark.parametrize(
        ("lift", "spread"), [(0.6, 0.05), (1.5, 0.5), (4.4, 0.5)], ids=["vague", "fair", "sure"]
    )
    def test_most_labels_of_a_rare_class_are_wrong(self, lift: float, spread: float) -> None:
        """One sample in twenty, and one label in ten wrong: two in three labels of the class are.

        A network that hardly tells the class apart still finds them; that it is vague must not turn
        the ranking round.
        """
        generator = torch.Generator().manual_seed(0)
        truth_N = (torch.rand(3000, generator=generator) < 0.05).long()
        is_wrong_N = torch.rand(3000, generator=generator) < 0.1
        labels_N = torch.where(is_wrong_N, 1 - truth_N, truth_N)
        noise_N = torch.randn(3000, generator=generator, dtype=torch.float64)
        rare_N = torch.sigmoid(-2.2 + lift * truth_N + spread * noise_N)
        found = judge(labels_N, torch.stack([1 - rare_N, rare_N], 1))
        assert roc_auc_score(is_wrong_N, found.wrong) > 0.99
        if lift > 1:
            assert found.noise_rate == pytest.approx(0.103, abs=0.03)

    def test_labels_of_a_rare_class_that_a_weak_model_doubts_are_not_excused(self) -> None:
        """One in ten is rare, and 40 % of the labels are any: most that say "rare" are wrong."""
        generator = torch.Generator().manual_seed(0)
        truth_N = (torch.rand(3000, generator=generator) < 0.1).long()
        labels_N = mlnt.symmetric_noise(truth_N, 0.4, 2, generator)
        seen_N = 1.2 * truth_N + torch.randn(3000, generator=generator).double()
        true_N = torch.sigmoid(1.2 * seen_N - 0.5 * 1.2**2 + np.log(1 / 9))  # that it is rare
        rare_N = 0.2 + 0.6 * true_N  # that it is called so
        found = judge(labels_N, torch.stack([1 - rare_N, rare_N], 1))
        wrong_N = labels_N != truth_N
        by_label_N = torch.where(labels_N == 1, 1 - rare_N, rare_N)
        best = average_precision_score(wrong_N, by_label_N)  # where noise asks for no class
        assert average_precision_score(wrong_N, found.wrong) > best - 0.02
        assert found.noise_rate == pytest.approx(float(wrong_N.double().mean()), abs=0.05)

    def test_clean_labels_raise_no_alarm(self) -> None:
        truth_N, _ = noisy(3000, 10, 0.0, seed=7)
        issues = mlnt.find_label_issues(truth_N, opinions(truth_N, 10, 8, sure=6.0))
        assert issues.noise_rate < 0.005
        assert int(issues.flagged.sum()) <= 3

    @pytest.mark.parametrize("count", [1, 3, 5])
    def test_a_few_right_labels_held_out_prove_nothing(self, count: int) -> None:
        true_N = torch.arange(300) % 3
        labels_N = torch.where(torch.arange(300) < 60, (true_N + 1) % 3, true_N)  # 20 % wrong
        probabilities_NC = 0.97 * torch.eye(3)[true_N] + 0.01
        found = judge(labels_N, probabilities_NC, held_out_N=torch.arange(300) >= 300 - count)
        assert found.noise_rate == pytest.approx(0.2, abs=0.02)
        assert found.noise_interval[0] < 0.2 < found.noise_interval[1]
        assert (found.wrong > 0.5).nonzero().squeeze(1).tolist() == list(range(60))

    def test_few_labels_are_ranked_by_the_model_alone(self) -> None:
        probabilities = [[0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.4, 0.35, 0.25]]
        issues = mlnt.find_label_issues([0, 1, 0], torch.tensor(probabilities))
        assert issues.positions.tolist() == [1, 2, 0]
        assert issues.suggested.tolist() == [0, 0, 0]
        assert issues.flagged.tolist() == [True, False, False]
        torch.testing.assert_close(issues.score + issues.given_probability, torch.ones(3).double())

    def test_one_label(self) -> None:
        issues = mlnt.find_label_issues([1], [[0.2, 0.8]], features=[[1.0]])
        assert issues.flagged.tolist() == [False]

    def test_a_class_without_labels(self) -> None:
        truth_N, labels_N = noisy(300, 3, 0.1, seed=9)
        found = judge(labels_N, torch.cat([opinions(truth_N, 3, 1), torch.zeros(300, 1)], 1))
        assert found.posterior[:, 3].max() < 1e-3
        assert found.noise_rate == pytest.approx(0.1, abs=0.04)

    @pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
    @pytest.mark.gpu
    def test_the_same_on_a_gpu(self) -> None:
        truth_N, labels_N = noisy(5000, 6, 0.3, seed=2)
        probabilities_NC, features_ND = opinions(truth_N, 6, 3), torch.eye(6)[truth_N]
        features_ND = features_ND + 0.1 * torch.randn(5000, 6)
        here = judge(labels_N, probabilities_NC, [features_ND])
        there = judge(labels_N.cuda(), probabilities_NC.cuda(), [features_ND.cuda()])
        torch.testing.assert_close(there.wrong.cpu(), here.wrong, atol=0.02, rtol=0)
        assert there.noise_rate == pytest.approx(here.noise_rate, abs=1e-3)


class TestWhoSeesMore:
    """2,000 samples of four classes, 30 % of the labels wrong, the last 500 held out."""

    truth_N, labels_N = noisy(2000, 4, 0.3, seed=12)
    held_out_N = torch.arange(2000) >= 1500
    answers_NC = opinions(truth_N, 4, 13, sure=3.0)

    def features(self, spread: float, of_N: Tensor | None = None, seed: int = 14) -> Tensor:
        """In four groups, those of the true classes unless `of_N` says others."""
        drawn_ND = torch.randn(2000, 4, generator=torch.Generator().manual_seed(seed))
        return torch.eye(4)[self.truth_N if of_N is None else of_N] + spread * drawn_ND

    def asked(self, one: Tensor, other: Tensor, held_out_N: Tensor | None = None) -> bool:
        held_out_N = self.held_out_N if held_out_N is None else held_out_N
        return says_more(self.labels_N, self.answers_NC, [one], [other], held_out_N)

    def test_who_tells_the_classes_apart(self) -> None:
        clear_ND, blurred_ND = self.features(0.2), self.features(1.5)
        assert self.asked(blurred_ND, clear_ND)
        assert not self.asked(clear_ND, blurred_ND)

    def test_nobody_who_is_as_good(self) -> None:
        one_ND, other_ND = self.features(0.5), self.features(0.5, seed=15)
        assert not self.asked(one_ND, one_ND)
        assert not self.asked(one_ND, other_ND)
        assert not self.asked(other_ND, one_ND)

    def test_not_who_groups_all_labels_as_they_are_given(self) -> None:
        """By heart, where it was trained on them; of held-out samples it sees the truth."""
        seen_N = torch.where(self.held_out_N, self.truth_N, self.labels_N)
        assert not self.asked(self.features(0.8), self.features(0.2, seen_N))

    def test_half_of_the_labels_wrong_do_not_speak_for_who_is_unsure(self) -> None:
        """Found by T: taken as they are, sure answers would cost more the clearer they are."""
        truth_N, labels_N = noisy(2000, 4, 0.5, seed=16)
        sure_NC = 0.996 * torch.eye(4)[truth_N] + 0.001
        clear_ND, blurred_ND = (self.features(spread, truth_N) for spread in (0.2, 0.7))
        assert says_more(labels_N, sure_NC, [blurred_ND], [clear_ND], self.held_out_N)
        assert not says_more(labels_N, sure_NC, [clear_ND], [blurred_ND], self.held_out_N)

    def test_one_label_that_nobody_expected_does_not_decide(self) -> None:
        labels_N = self.truth_N.clone()
        labels_N[-1] = (labels_N[-1] + 1) % 4
        arguments = labels_N, torch.eye(4)[self.truth_N]
        clear_ND, blurred_ND = self.features(0.2), self.features(1.0)
        assert says_more(*arguments, [blurred_ND], [clear_ND], self.held_out_N)

    def test_few_held_out_labels_do_not_tell(self) -> None:
        better = self.features(1.5), self.features(0.2)
        for held_out in (0, 1, 2, 29, 2000):
            assert not self.asked(*better, torch.arange(2000) >= 2000 - held_out), held_out
        assert self.asked(*better, torch.arange(2000) >= 1900)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"features": np.zeros((3, 2))}, "features of 2 samples, got 3"),
        ({"features": np.full((2, 2), np.nan)}, "finite features"),
        ({"features": np.zeros(2)}, "finite features"),
        ({"held_out": [True]}, "held_out of 2 samples, got 1"),
        ({"held_out": [[True], [False]]}, r"held_out \[N\]"),
        ({"held_out": True}, r"held_out \[N\]"),
        ({"held_out": np.array([1, 2])}, r"true or false .*\[1, 2\]\); of positions .* np.isin"),
        ({"held_out": [0.0, np.nan]}, "true or false for each label"),
    ],
)
def test_nonsense_beside_the_probabilities(more: dict, message: str) -> None:
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.find_label_issues([0, 1], [[0.5, 0.5]] * 2, **more)


@pytest.mark.parametrize("kind", [bool, int, float])
def test_held_out_labels_as_any_zeros_and_ones(kind: type) -> None:
    labels_N, held_out_N = torch.tensor([0, 1] * 20), np.array([False, True] * 20)
    probabilities_NC = torch.full((40, 2), 0.5)
    features_ND = torch.randn(40, 2, generator=torch.Generator().manual_seed(0))
    arguments = (labels_N, probabilities_NC, features_ND)
    found = mlnt.find_label_issues(*arguments, held_out_N.astype(kind))
    assert torch.equal(found.score, mlnt.find_label_issues(*arguments, held_out_N).score)


def test_probabilities_that_are_none() -> None:
    for scores, total in (
        ([[0.5, 0.9], [0.5, 0.5]], "index 0 sum to 1.4"),
        ([[0.5, 0.5], [0, 0]], "index 1 sum to 0"),
    ):
        with pytest.raises(mlnt.InputError, match=f"must sum to 1; those at {total}"):
            mlnt.find_label_issues([0, 1], scores)
    mlnt.find_label_issues([0, 1], np.array([[0.3333, 0.6667]] * 2, dtype=np.float16))


def test_a_model_with_features_may_have_been_trained_on_any_of_the_labels() -> None:
    generator = torch.Generator().manual_seed(0)
    truth_N = torch.randint(4, (400,), generator=generator)
    features_ND = F.one_hot(truth_N, 4) + 0.2 * torch.randn(400, 4, generator=generator)
    labels_N = mlnt.symmetric_noise(truth_N, 0.5, 4, generator)
    by_heart_NC = 0.9 * F.one_hot(labels_N, 4) + 0.025
    usual = mlnt.find_label_issues(labels_N, by_heart_NC, features_ND)
    told = mlnt.find_label_issues(labels_N, by_heart_NC, features_ND, torch.zeros(400))
    assert torch.equal(usual.score, told.score)
    wrong_share = float((labels_N != truth_N).double().mean())
    assert usual.noise_rate == pytest.approx(wrong_share, abs=0.05)


def test_interval_reaches_what_held_out_labels_tell_of_a_network_that_learnt_by_heart() -> None:
    generator = torch.Generator().manual_seed(0)
    truth_N = torch.randint(3, (400,), generator=generator)
    labels_N = mlnt.symmetric_noise(truth_N, 0.4, 3, generator)
    held_out_N = torch.arange(400) < 60
    said_N = torch.where(held_out_N, truth_N, labels_N)
    features_ND = F.one_hot(said_N, 3) + 0.1 * torch.randn(400, 3, generator=generator)
    probabilities_NC = 0.94 * F.one_hot(said_N, 3) + 0.02
    with pytest.warns(UserWarning, match="it is too sure"):  # of labels it was not trained on
        found = mlnt.find_label_issues(labels_N, probabilities_NC, features_ND, held_out_N)
    of_held_out = float((labels_N != truth_N)[held_out_N].double().mean())
    assert found.noise_rate < 0.8 * of_held_out
    assert found.noise_interval[1] > of_held_out


def test_arrays_of_any_make() -> None:
    labels, probabilities = np.array([0, 1, 1, 0]), np.array([[0.9, 0.1], [0.2, 0.8]] * 2)
    usual = mlnt.find_label_issues(labels, probabilities)
    turned = mlnt.find_label_issues(labels[::-1][::-1], probabilities[::-1][::-1])
    assert torch.equal(turned.score, usual.score)
    for kind, other in ((">i8", ">f8"), (object, object), ("u1", np.longdouble)):
        found = mlnt.find_label_issues(labels.astype(kind), probabilities.astype(other))
        assert torch.equal(found.score, usual.score)
    with pytest.raises(mlnt.InputError, match="of 2 or more classes"):
        mlnt.find_label_issues([0, 0], [[1.0], [1.0]])
    with pytest.raises(mlnt.InputError, match="must be class numbers"):
        mlnt.find_label_issues([0.5, 1.5], [[0.5, 0.5]] * 2)


def test_classes_that_the_model_hardly_knows() -> None:
    probabilities_NC = torch.tensor([[0.9, 0.05, 0.05]] * 60 + [[0.05, 0.9, 0.05]] * 40)
    labels_N = torch.tensor([0] * 50 + [2] * 10 + [1] * 40)
    found = mlnt.find_label_issues(labels_N, probabilities_NC)
    assert found.in_words(["cat", "dog", "skirt"])["hardly_learnt"] == ["skirt"]
