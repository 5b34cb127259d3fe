"""Schedules, filters, golden losses, and that it learns at all."""

import copy
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import mlnt
from mlnt import recipes
from mlnt.config import Settings, make_settings
from mlnt.data.batches import Batch
from mlnt.data.dataset import Split
from mlnt.device import is_shared
from mlnt.evaluation import accuracy, found_errors, memorised_noise, predict_probabilities
from mlnt.iterations import (
    Kept,
    Led,
    best_model,
    choose_stage,
    filter_samples,
    otsu_threshold,
    right_by,
)
from mlnt.judging import Judge
from mlnt.methods import MLNT, CrossEntropy, Method, Rates
from mlnt.networks import SmallConv
from mlnt.progress import Choice, ModelResult, Progress
from mlnt.runs import RunFolder
from mlnt.training import Stage, StageResult, Trainer, rates_at

GOLDEN = Path(__file__).parent / "golden"


class TestRates:
    settings = make_settings("cifar10")

    @pytest.mark.parametrize(
        ("epoch", "iteration", "expected"),
        [
            (0, 1, Rates(lr=0.2, eta=0.0, gamma=0.99, lam=0.0)),
            (10, 1, Rates(lr=0.2, eta=0.2, gamma=0.99, lam=0.5 * 10 / 120)),
            (20, 1, Rates(lr=0.2, eta=0.4, gamma=0.999, lam=0.5 * 20 / 120)),
            (79, 1, Rates(lr=0.2, eta=0.4, gamma=0.999, lam=0.5 * 79 / 120)),
            (80, 1, Rates(lr=0.02, eta=0.4, gamma=0.999, lam=0.5 * 80 / 120)),
            (10, 2, Rates(lr=0.2, eta=0.4, gamma=0.99, lam=0.5 * 10 / 120)),
            (119, 3, Rates(lr=0.02, eta=0.4, gamma=0.999, lam=0.5 * 119 / 120)),
        ],
    )
    def test_of_the_paper(self, epoch: int, iteration: int, expected: Rates) -> None:
        got = rates_at(epoch, 120, self.settings, iteration)
        for name, value in vars(expected).items():
            assert getattr(got, name) == pytest.approx(value), name

    def test_linear_fall_reaches_zero(self) -> None:
        settings = make_settings(fall="linear", fall_at=0.5, lr=1.0, eta=2.0, warmup=0.0)
        assert rates_at(400, 1000, settings, 1).lr == 1.0
        assert rates_at(750, 1000, settings, 1).lr == pytest.approx(0.5)
        assert rates_at(750, 1000, settings, 1).eta == pytest.approx(1.0)
        assert rates_at(999, 1000, settings, 1).lr == pytest.approx(0.002)

    def test_a_led_teacher_forgets_at_the_end(self) -> None:
        settings = make_settings(fall="linear", fall_at=0.0, teacher_settles=True, gamma=0.99)

        def gammas(changed: Settings, is_led: bool) -> list[float]:
            return [rates_at(step, 1000, changed, 2, is_led).gamma for step in (500, 899, 950, 999)]

        assert gammas(settings, is_led=True) == pytest.approx([0.99, 0.99, 0.98, 0.95])
        assert gammas(settings, is_led=False) == [0.99] * 4
        for other in ({"teacher_settles": False}, {"fall": "step"}, {"fall_at": 1.0}):
            assert gammas(replace(settings, **other), is_led=True) == [0.99] * 4

    def test_edges_of_the_shares(self) -> None:
        settings = make_settings(fall="linear", fall_at=1.0, warmup=1.0)
        assert rates_at(500, 1000, settings, 1).eta == pytest.approx(0.2)
        assert rates_at(990, 1000, settings, 1).lr == pytest.approx(0.2)


class TestFilter:
    def test_threshold_between_two_groups(self) -> None:
        values = torch.tensor([0.1] * 50 + [0.9] * 50)
        assert otsu_threshold(values) == pytest.approx(0.5, abs=0.02)
        assert otsu_threshold(torch.full((10,), 0.7)) == 0.0

    def test_keeps_what_is_above_tau(self) -> None:
        given = torch.tensor([0.9, 0.3, 0.31, 0.0])
        probabilities_NC = torch.stack([given, 1 - given], dim=1)
        kept = filter_samples(probabilities_NC, torch.zeros(4).long(), 0.3, 0.0)
        assert kept.indices.tolist() == [0, 2], "at tau itself a sample leaves"
        assert kept.tau == 0.3
        assert kept.rescued == {}

    def test_auto_keeps_what_is_at_least_half_as_sure_as_those_kept(self) -> None:
        labels_N, probabilities_NC = torch.zeros(4).long(), torch.full((4, 10), 0.1)

        def kept(wrong: list[float], least: float = 0.0) -> Kept:
            wrong_N = torch.tensor(wrong, dtype=torch.float64)
            return filter_samples(probabilities_NC, labels_N, "auto", least, wrong_N)

        # Of ten classes 1/10 right says nothing: 0.9, 0.9, 0.5, 0.3 less 0.1 says 8, 8, 4, 2.
        # Squares of sums by number: 64, 128, 400 / 3 = 133, 484 / 4 = 121.
        assert kept([0.1, 0.7, 0.1, 0.5]).indices.tolist() == [0, 2, 3]
        assert kept([0.1, 0.7, 0.1, 0.5]).tau is None
        unsure = kept([0.6, 0.9, 0.6, 0.7])  # 3, 3, 2: 9, 18, 64 / 3 = 21, 16
        assert unsure.indices.tolist() == [0, 2, 3], "though none is more probably right than wrong"
        assert len(kept([0.0, 0.0, 0.0, 0.0]).indices) == 4
        assert kept([0.9, 0.95, 0.99, 0.99]).indices.tolist() == [0]
        assert kept([0.1, 0.7, 0.1, 0.5], least=1.0).rescued == {0: 4}

    def test_otsu_never_drops_the_mentors_own_answer(self) -> None:
        given = torch.cat([torch.full((60,), 0.55), torch.full((60,), 0.99)])
        probabilities_NC = torch.stack([given, 1 - given], dim=1)
        kept = filter_samples(probabilities_NC, torch.zeros(120).long(), "otsu", 0.0)
        assert otsu_threshold(given) > 0.55
        assert len(kept.indices) == 120

    def test_a_class_that_would_vanish_keeps_its_most_probable_samples(self) -> None:
        labels_N = torch.tensor([0] * 10 + [1] * 40)
        given = torch.cat([torch.full((10,), 0.9), torch.linspace(0.0, 0.2, 40)])
        probabilities_NC = torch.zeros(50, 2)
        probabilities_NC[torch.arange(50), labels_N] = given
        kept = filter_samples(probabilities_NC, labels_N, 0.5, 0.05)
        assert kept.indices.tolist() == [*range(10), 48, 49]
        assert kept.rescued == {1: 2}


def finished(validation: dict[str, float], iteration: int = 1) -> StageResult:
    results = {name: ModelResult(validation=value) for name, value in validation.items()}
    return StageResult(Stage("mlnt", iteration), {}, results, [], 0.0)


def answering(*answers: Tensor) -> list[StageResult]:
    """Stages that say so of the validation samples."""
    stages = [finished({"teacher": 0.0}, number) for number in range(1, len(answers) + 1)]
    for stage, said in zip(stages, answers, strict=True):
        stage.results["teacher"].answers = said
    return stages


class TestChoice:
    def test_mentor_is_the_better_of_student_and_teacher_and_on_a_tie_the_teacher(self) -> None:
        assert finished({"student": 71.0, "teacher": 70.0}).best_name == "student"
        assert finished({"student": 70.0, "teacher": 71.0}).best_name == "teacher"
        assert finished({"student": 70.0, "teacher": 70.0}).best_name == "teacher"

    @pytest.mark.parametrize(
        ("samples", "better", "worse", "expected"),
        [
            # The mean gain and its standard error, in points:
            (100, 6, 4, 2),  # 2.0 and 3.2
            (10_000, 600, 400, 1),  # 2.0 and 0.3
            (100, 3, 2, 2),  # 1.0 and 2.2
            (100, 2, 0, 1),  # 2.0 and 1.4: they err on the same samples but for these
            (100, 0, 5, 2),
            (100, 0, 0, 2),
            (1, 1, 0, 2),  # nobody knows the error of one
        ],
    )
    def test_last_iteration_unless_an_earlier_one_is_clearly_better(
        self, samples: int, better: int, worse: int, expected: int
    ) -> None:
        """The second is right on so many that the third errs on, and the other way round."""
        right = torch.zeros(samples).long()
        second, third = right.clone(), right.clone()
        third[:better] = 1
        second[better : better + worse] = 1
        stages = answering(1 - right, second, third)
        validation = Split(torch.zeros(samples, 2), right)
        assert choose_stage(stages, validation) is stages[expected]
        # Gains of 2.0 by 1.4 are clear by one standard error, those of 2.0 by 0.3 by two as well.
        found = choose_stage(stages, validation, surely=2.0)
        assert found is stages[1 if samples == 10_000 else 2]

    def test_labels_are_read_as_they_arose(self) -> None:
        """600 cats (0) and 400 dogs (1) that look alike; 270 of the cats are called dogs. To call
        them all dogs agrees with 670 labels, and is right on 400."""
        truth = torch.tensor([0] * 600 + [1] * 400)
        labels = truth.clone()
        labels[:270] = 1
        all_cats, all_dogs = torch.zeros(1000).long(), torch.ones(1000).long()
        transition = torch.tensor([[0.55, 0.45], [0.0, 1.0]])
        assert right_by(labels, all_dogs).sum() == 670
        assert right_by(labels, all_dogs, transition).sum() == pytest.approx(400)
        assert right_by(labels, all_cats, transition).sum() == pytest.approx(600)

        stages, inputs = answering(all_dogs, all_cats), torch.zeros(1000, 2)
        noisy = Split(inputs, labels, given_labels=labels)
        kept = Kept(all_cats, None, inputs, transition=transition)
        assert choose_stage(stages, noisy) is stages[0]
        assert choose_stage(stages, noisy, kept) is stages[1]
        assert choose_stage(stages[::-1], noisy, kept) is stages[0], "not better by both"
        # True labels are taken as they are, and so are all where T hardly says what they came from.
        clean = Split(inputs, truth, given_labels=labels)
        assert choose_stage(stages[::-1], clean, kept) is stages[1]
        vague = replace(kept, transition=torch.tensor([[0.499, 0.501], [0.5, 0.5]]))
        assert choose_stage(stages, noisy, vague) is stages[0]

    def test_by_answers_of_the_best_epoch_and_the_last_filters_matrix(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked = []

        def spy(stages: Any, validation: Split, kept: Any, *others: Any) -> StageResult:
            asked.append((list(stages), validation, kept))
            return choose_stage(stages, validation, kept, *others)

        monkeypatch.setattr("mlnt.iterations.choose_stage", spy)
        monkeypatch.setattr("mlnt.recipes.choose_stage", spy)
        rows, truth = blobs(600)
        noisy = mlnt.symmetric_noise(truth, 0.6, 3, torch.Generator().manual_seed(1))
        mlnt.train((rows, noisy), **quick(batch_size=32, epochs=8, iterations=3, lr=1.0))
        assert [kept is None for *_, kept in asked] == [True, False, False]
        for *_, kept in asked[1:]:
            torch.testing.assert_close(kept.transition.sum(1), torch.ones(3, dtype=torch.float64))
        stages, validation, _ = asked[-1]
        assert [stage.stage.name for stage in stages] == [
            "cross_entropy", "mlnt iteration 1", "mlnt iteration 2", "mlnt iteration 3",
        ]  # fmt: skip
        found = [(stage, stage.results[name]) for stage in stages for name in stage.models]
        assert any(result.best_epoch < 8 for _, result in found)
        for stage in stages:
            said = predict_probabilities(best_model(stage), validation.inputs).argmax(dim=1)
            assert torch.equal(stage.best.answers, said)

    def test_stages_from_before_answers_were_kept(self) -> None:
        model, inputs = nn.Linear(2, 2), torch.randn(50, 2)
        labels = model(inputs).argmax(dim=1)
        kept = {key: value.clone() for key, value in model.state_dict().items()}
        opposite = {key: -value for key, value in kept.items()}
        stages = [
            StageResult(Stage("mlnt", i), {"student": model}, {"student": found}, [], 0.0)
            for i, found in enumerate((ModelResult(state=kept), ModelResult(state=opposite)), 1)
        ]
        assert choose_stage(stages, Split(inputs, labels)) is stages[0]
        assert choose_stage(stages[::-1], Split(inputs, 1 - labels)) is stages[1]


def test_summed_form_weighs_by_eta_over_the_full_learning_rate() -> None:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    settings = make_settings(update="summed", lr=0.2, momentum=0.0, weight_decay=0.0, sets=2)
    method = MLNT(model, settings, torch.randn(6, 3), generator=torch.Generator().manual_seed(1))
    batch = Batch(torch.arange(6), torch.randn(6, 3), torch.tensor([0, 1] * 3))
    twin = copy.deepcopy(method)
    twin.tolerance.generator = torch.Generator().manual_seed(1)
    loss = nn.functional.cross_entropy(twin.student(batch.inputs), batch.labels)
    class_part = torch.autograd.grad(loss, twin.student.weight)[0]
    _, meta = twin.tolerance.meta_gradient(batch.inputs, batch.labels, method.features_ND)
    expected = model.weight - 0.1 * (class_part + (0.4 / 0.2) * meta["weight"])
    method.step(batch, batch, Rates(lr=0.1, eta=0.4, gamma=0.9, lam=0.5))
    torch.testing.assert_close(model.weight, expected)


class TestEvaluation:
    probabilities = torch.tensor([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.3, 0.7]])

    def test_by_hand(self) -> None:
        given, truth = torch.tensor([0, 1, 1, 1]), torch.tensor([0, 0, 0, 1])
        assert accuracy(self.probabilities, given).item() == 75.0
        # Samples 1 and 2 are wrong; the model says 1 for the first of them, as its label does.
        assert memorised_noise(self.probabilities, given, truth) == 50.0

    def test_found_errors(self) -> None:
        wrong = torch.tensor([True, True, False, False])
        assert found_errors(torch.tensor([4.0, 3, 2, 1]), wrong) == {"auroc": 1.0, "ap": 1.0}
        assert found_errors(torch.tensor([1.0, 2, 3, 4]), wrong)["auroc"] == 0.0
        assert found_errors(torch.ones(4), torch.ones(4).bool()) == {"auroc": None, "ap": None}


def ten_steps(name: str) -> list[dict[str, Tensor]]:
    """Ten steps on the digits in float64, everything seeded."""
    data = mlnt.open_dataset("digits").train
    torch.manual_seed(0)
    model = SmallConv(1, 10, width=4).double()
    settings = make_settings("digits", sets=3)
    generator = torch.Generator().manual_seed(0)
    inputs = data.inputs[:320].double()
    if name == "cross_entropy":
        method = CrossEntropy(model, settings)
    else:
        method = MLNT(model, settings, inputs.flatten(1), generator=generator)
    rates = Rates(lr=0.1, eta=0.4, gamma=0.9, lam=0.5)
    losses = []
    for start in range(0, 320, 32):
        indices = torch.arange(start, start + 32)
        batch = Batch(indices, inputs[indices], data.labels[indices])
        losses.append(method.step(batch, batch, rates))
    return losses


@pytest.mark.parametrize("name", ["cross_entropy", "mlnt"])
def test_golden_losses_of_ten_steps(name: str) -> None:
    """Compared before and after any refactoring. After a deliberate change, delete the file."""
    rows = [
        " ".join(f"{key}={float(value):.12f}" for key, value in row.items())
        for row in ten_steps(name)
    ]
    file = GOLDEN / f"{name}.txt"
    if not file.exists():
        file.write_text("\n".join(rows) + "\n")
        pytest.fail(f"wrote {file}; look at it and run again")
    expected = file.read_text().splitlines()
    assert len(expected) == 10
    for step, (row, golden) in enumerate(zip(rows, expected, strict=True), start=1):
        for mine, theirs in zip(row.split(), golden.split(), strict=True):
            key, value = theirs.split("=")
            assert mine.split("=")[0] == key
            assert float(mine.split("=")[1]) == pytest.approx(float(value), rel=1e-7), (step, key)


def quick(**changes: object) -> dict:
    usual = {"epochs": 3, "sets": 2, "iterations": 2, "lr": 0.1, "seed": 3}
    return {**usual, **changes}


def blobs(count: int = 240) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(count) % 3
    centres = torch.tensor([[3.0, 0], [0, 3], [-3, -3]])
    return centres[labels] + torch.randn(count, 2, generator=generator), labels


def test_learns_a_table_and_finds_the_wrong_labels() -> None:
    rows, truth = blobs(600)
    noisy = mlnt.symmetric_noise(truth, 0.4, 3, torch.Generator().manual_seed(1))
    test = blobs(90)
    training = mlnt.train(
        (rows, noisy), true_labels=truth, test_data=test, **quick(epochs=12, batch_size=64)
    )
    assert training.summary["chosen"]["best"] > 93
    assert training.summary["found_errors"]["auroc"] > 0.95
    assert training.summary["noise"]["wrong_in_train"] == pytest.approx(27, abs=6)
    assert training.predict_probabilities(test[0].numpy()).shape == (90, 3)
    first = training.label_issues.positions[:50]
    assert (noisy[first] != truth[first]).double().mean() > 0.9


def test_same_seed_same_result_other_seed_another() -> None:
    before = torch.get_rng_state()
    first, second, other = (
        mlnt.train(blobs(), **quick(seed=seed, batch_size=32)) for seed in (3, 3, 4)
    )
    strip = [
        {k: v for k, v in row.items() if k not in ("step_ms", "seconds")} for row in first.history
    ]
    again = [
        {k: v for k, v in row.items() if k not in ("step_ms", "seconds")} for row in second.history
    ]
    assert strip == again
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name
    assert first.history[0]["class_loss"] != other.history[0]["class_loss"]
    assert torch.equal(torch.get_rng_state(), before), "the process-wide generator is left alone"


@pytest.mark.parametrize(
    "changes",
    [{"update": "summed"}, {"order": 2}, {"consistency": "mse"}, {"method": "cross_entropy"},
     {"precision": "float64"}, {"tau": 0.3, "lam": 0.2}, {"fall": "step"}],
)  # fmt: skip
def test_every_option_trains(changes: dict) -> None:
    training = mlnt.train(blobs(), **quick(batch_size=32, **changes))
    stages = {(row["method"], row["iteration"]) for row in training.summary["models"]}
    expected = {("cross_entropy", 0), ("mlnt", 1), ("mlnt", 2)}
    assert stages == ({("cross_entropy", 0)} if "method" in changes else expected)
    assert all(math.isfinite(row["class_loss"]) for row in training.history)
    assert training.summary["chosen"]["best"] is None, "no test data, no test figure"


def test_the_class_loss_sees_only_what_the_mentor_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, set[int]] = {"all": set(), "class": set()}
    original = MLNT.step

    def spy(self: MLNT, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        if self.tolerance.mentor is None:
            assert class_batch is batch
        else:
            seen["all"].update(batch.indices.tolist())
            seen["class"].update(class_batch.indices.tolist())
        return original(self, batch, class_batch, rates)

    monkeypatch.setattr(MLNT, "step", spy)
    rows, truth = blobs()
    noisy = mlnt.symmetric_noise(truth, 0.5, 3, torch.Generator().manual_seed(1))
    training = mlnt.train((rows, noisy), **quick(batch_size=32, epochs=6))
    kept = training.summary["filters"][0]["kept"]
    assert len(seen["class"]) == kept < training.summary["filters"][0]["of"]
    assert len(seen["all"]) > kept


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"iterations": 3}, {"cross_entropy 0": 2, "mlnt 1": 2, "mlnt 2": 2, "mlnt 3": 5}),
        ({"iterations": 1}, {"cross_entropy 0": 2, "mlnt 1": 2}),  # nobody led it
        ({"method": "iterative"}, {"cross_entropy 0": 2, "iterative 1": 2, "iterative 2": 5}),
        ({"method": "forward"}, {"cross_entropy 0": 2, "forward 1": 5}),
        (
            {"method": "joint_optimization"},
            {"joint_optimization 1": 5, "joint_optimization 2": 5},
        ),
        ({"method": "cross_entropy"}, {"cross_entropy 0": 2}),
        ({"method": "forward_true", "noise": "symmetric:0.2"}, {"forward_true 1": 5}),
        ({"method": "cnn_crf", "noise": "symmetric:0.2"}, {"cnn_crf 1": 5}),
    ],
)
def test_what_comes_last_may_take_longer(
    given: dict[str, object], expected: dict[str, int]
) -> None:
    """And its rates fall over all of it."""
    settings = quick(epochs=2, last_epochs=5, fall="linear", fall_at=0.0, batch_size=32, **given)
    rows = mlnt.train(blobs(), **settings).history
    last = {f"{row['method']} {row['iteration']}": row for row in rows}
    assert {name: row["epoch"] for name, row in last.items()} == expected
    for name, row in last.items():
        if name != "joint_optimization 1":  # its rate does not fall
            steps = 6 * expected[name]  # 216 of 240 samples are trained on
            assert row["lr"] == pytest.approx(0.1 / steps)


@pytest.mark.parametrize("leads", [False, True])
def test_ablations_are_led_and_judged_as_mlnt_is(
    leads: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the same networks: nothing but the meta step may differ."""
    found: dict[str, tuple[str | None, Tensor]] = {}
    original = recipes.run_iterations

    def spy(
        trainer: Trainer,
        name: str,
        make: Any,
        judge: Judge,
        classes: Any,
        leader: StageResult | None = None,
        prove: Any = None,
    ) -> Led:
        assert judge.describer is not None
        weights = nn.utils.parameters_to_vector(judge.describer.parameters()).detach().clone()
        found[name] = (leader and leader.stage.name, weights)
        return original(trainer, name, make, judge, classes, leader, prove)

    monkeypatch.setattr(recipes, "run_iterations", spy)
    # As if labels had done the features harm; the first stage stands for what never saw them.
    if leads:
        monkeypatch.setattr(recipes.Recipe, "_leader", lambda self, labelled: labelled)
    for method in ("mlnt", "mean_teacher", "iterative"):
        training = mlnt.train(blobs(), **quick(method=method, batch_size=32, epochs=1))
        assert training.history[0]["method"] == "cross_entropy"
        filters = [f["after_iteration"] for f in training.summary["filters"]]
        assert filters == ([0, 1] if leads else [1])
        assert found[method][0] == ("cross_entropy" if leads else None)
        assert torch.equal(found[method][1], found["mlnt"][1])


@pytest.mark.parametrize("method", ["mlnt", "mean_teacher", "iterative"])
@pytest.mark.parametrize(("led", "expected"), [("same", [0.01, 0.01]), (0.3, [0.01, 0.3])])
def test_weight_decay_once_a_mentor_filters(
    method: str, led: float | str, expected: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = []
    original = Trainer.run

    def spy(self: Trainer, stage: Stage, method: Method, kept: Tensor | None = None) -> StageResult:
        if stage.iteration > 0:
            found.append(method.optimizer.param_groups[0]["weight_decay"])
        return original(self, stage, method, kept)

    monkeypatch.setattr(Trainer, "run", spy)
    decays = {"weight_decay": 0.01, "led_weight_decay": led}
    mlnt.train(blobs(), **quick(method=method, batch_size=32, epochs=1, **decays))
    assert found == expected


@pytest.mark.parametrize("method", ["mlnt", "mean_teacher", "iterative"])
@pytest.mark.parametrize(("led", "expected"), [("same", [0.2, 0.2]), (0.05, [0.2, 0.05])])
def test_learning_rate_once_a_mentor_filters(
    method: str, led: float | str, expected: list[float]
) -> None:
    rates = {"lr": 0.2, "led_lr": led, "fall_at": 1.0}
    training = mlnt.train(blobs(), **quick(method=method, batch_size=32, epochs=1, **rates))
    assert [row["lr"] for row in training.history if row["iteration"] > 0] == expected


@pytest.mark.parametrize(
    ("free", "reserved", "expected"),  # GiB of 80; CUDA itself takes one
    [(76, 3, False), (79, 0, False), (70, 3, True), (10, 69, False), (10, 60, True)],
)
def test_whose_memory_of_a_gpu_it_is(
    free: int, reserved: int, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free * 2**30, 80 * 2**30))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda _: reserved * 2**30)
    assert is_shared(torch.device("cuda")) == expected
    assert not is_shared(torch.device("cpu"))


def test_a_run_beside_others_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = quick(method="cross_entropy", epochs=2)
    assert "shared_gpu" not in mlnt.train(blobs(), **settings).summary
    looks = iter([True, False])
    monkeypatch.setattr("mlnt.training.is_shared", lambda _: next(looks))
    training = mlnt.train(blobs(), **settings)
    assert [row.get("shared_gpu") for row in training.history] == [True, None]
    assert training.summary["shared_gpu"] is True


@pytest.mark.parametrize("method", ["mlnt", "mean_teacher"])
def test_a_led_teacher_settles(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """How far its weights are from the student's at the end."""
    distances: dict[bool, list[float]] = {}
    original = Trainer.run

    def spy(self: Trainer, stage: Stage, method: Method, kept: Tensor | None = None) -> StageResult:
        result = original(self, stage, method, kept)
        if stage.iteration > 0:
            flat = [nn.utils.parameters_to_vector(m.parameters()) for m in result.models.values()]
            distances[self.settings.teacher_settles].append((flat[0] - flat[1]).norm().item())
        return result

    monkeypatch.setattr(Trainer, "run", spy)
    given = {"method": method, "batch_size": 32, "epochs": 20, "fall": "linear", "gamma": 0.999}
    for settles in (False, True):
        distances[settles] = []
        rows = mlnt.train(blobs(), **quick(**given, teacher_settles=settles)).history
        last = {row["iteration"]: row["gamma"] for row in rows if row["method"] == method}
        assert last == pytest.approx({1: 0.999, 2: 0.95 if settles else 0.999})
    assert distances[True][0] == distances[False][0]  # nobody led the first iteration
    assert distances[True][1] < 0.2 * distances[False][1]


@pytest.mark.parametrize(
    ("validation", "alone", "led"),
    [
        ([60, 90, 70, 80, 82, 81, 70], 2, 6),  # by 81 = (80 + 82 + 81) / 3
        ([60, 80, 80, 80, 80], 2, 5),  # of equal ones the first, the last
        ([90, 60, 50, 40], 1, 3),  # one epoch does not count alone, nor two
        ([60, 70], 2, 2),
        ([70, 60], 1, 2),
    ],
)
def test_which_epoch(validation: list[float], alone: int, led: int) -> None:
    choices = {Choice.BEST: alone, Choice.BEST_TOGETHER: led, Choice.LAST: len(validation)}
    for choice, expected in choices.items():
        result, model = ModelResult(), nn.Linear(1, 1)
        for epoch, percent in enumerate(validation, start=1):
            nn.init.constant_(model.bias, epoch)
            result.note(epoch, {"validation": percent, "test": percent / 2}, model, choice)
        assert result.best_epoch == result.state["bias"].item() == expected
        first = max(0, expected - 3) if choice is Choice.BEST_TOGETHER else expected - 1
        together = validation[first:expected]
        assert result.validation == pytest.approx(sum(together) / len(together))
        found = (result.best, result.last, result.peak)
        assert found == (validation[expected - 1] / 2, validation[-1] / 2, max(validation) / 2)


def test_checkpoints_from_before_epochs_counted_together() -> None:
    result = ModelResult(best_epoch=2, validation=80.0, recent=[70.0, 80.0, 75.0])
    history = [{"teacher": {"validation": value}} for value in (60.0, 70.0, 80.0, 75.0)]
    state = Progress({"teacher": result}, history).state()
    state["results"] = {"teacher": {k: v for k, v in vars(result).items() if k != "recent"}}
    taken_up = Progress({})
    taken_up.load_state(state)
    assert taken_up.results["teacher"] == result


def test_of_epochs_that_validate_alike_the_first_or_where_a_mentor_leads_the_last() -> None:
    still = {"lr": 0.0, "eta": 0.0, "momentum": 0.0}  # every epoch is like the others
    training = mlnt.train(
        blobs(), model=lambda: nn.Linear(2, 3), **quick(batch_size=32, epochs=4, **still)
    )
    chosen = {(row["iteration"], row["best_epoch"]) for row in training.summary["models"]}
    assert chosen == {(0, 1), (1, 1), (2, 4)}


def test_an_iteration_that_went_wrong_leads_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[nn.Linear] = []
    mentors: list[nn.Module | None] = []

    class Mute(nn.Linear):
        def forward(self, inputs: Tensor) -> Tensor:
            return 0 * super().forward(inputs)

    def new_model() -> nn.Linear:
        # A trial, cross entropy, then the iterations: the second learns nothing.
        made.append((Mute if len(made) == 3 else nn.Linear)(2, 3))
        return made[-1]

    class Spy(MLNT):
        def __init__(self, *arguments: Any) -> None:
            mentors.append(arguments[3])
            super().__init__(*arguments)

    monkeypatch.setattr("mlnt.recipes.MLNT", Spy)
    training = mlnt.train(blobs(), model=new_model, **quick(batch_size=32, iterations=3))
    first, second, third = mentors
    assert isinstance(made[3], Mute)
    assert first is None
    assert second is not None
    assert third is not None
    for name, value in second.state_dict().items():
        assert torch.equal(value, third.state_dict()[name])
    assert training.summary["chosen"]["iteration"] == 3


def test_own_network() -> None:
    def network() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 3))

    training = mlnt.train(blobs(), model=network, **quick(batch_size=32))
    assert isinstance(training.model[1], nn.LayerNorm)
    start = network()
    weights = start[0].weight.clone()
    training = mlnt.train(blobs(), model=start, **quick(batch_size=32))
    assert torch.equal(start[0].weight, weights), "the network given is copied, not trained"
    with pytest.raises(mlnt.InputError, match=r"must give \[B, 3\] logits for 3 classes, got"):
        mlnt.train(blobs(), model=nn.Linear(2, 5), **quick(batch_size=32))


def test_text_trains_and_predicts() -> None:
    texts = ["the cat sat", "a dog ran", "cat cat mat", "dog dog far"] * 20
    training = mlnt.train(
        (texts, ["cat", "dog"] * 40), **quick(batch_size=16, epochs=8, validation_share=0.1)
    )
    probabilities = training.predict_probabilities(["cat mat", "the dog"])
    assert probabilities.argmax(dim=1).tolist() == [0, 1]


def test_fewer_samples_than_a_batch() -> None:
    with pytest.raises(mlnt.InputError, match="15 training samples are fewer than a batch of 128"):
        mlnt.train(blobs(21), epochs=1, batch_size=128)
    assert mlnt.train(blobs(21), epochs=1).settings.batch_size == 2  # chosen by the data


def test_a_loss_that_is_not_finite_stops_with_the_facts(tmp_path: Path) -> None:
    """The second epoch diverges; the first one's checkpoint is named and readable."""

    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 3)
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                self.calls += 1
            scale = torch.where(self.calls > 9, float("inf"), 1.0)
            return self.head(x) * scale

    with pytest.raises(mlnt.TrainingError) as caught:
        mlnt.train(blobs(), model=Fragile, out=tmp_path / "run", **quick(batch_size=32))
    message = str(caught.value)
    assert "class_loss became nan in step 10 (epoch 2) of cross_entropy" in message
    assert "with lr=0.1; lower it" in message
    checkpoint = tmp_path / "run" / "checkpoints" / "0-cross_entropy.safetensors"
    assert f"last good checkpoint: {checkpoint} (epoch 1 of cross_entropy)" in message
    saved = RunFolder(tmp_path / "run").checkpoints.load("0-cross_entropy")
    assert saved is not None
    assert torch.isfinite(saved["steps"]["models"]["student"]["head.weight"]).all()


def test_a_meta_update_that_was_left_out_ends_a_run_too() -> None:
    class Fragile(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(2, 3)
            self.calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += self.training
            return self.head(x) * (float("inf") if self.calls > 40 else 1.0)

    with pytest.raises(mlnt.TrainingError, match="meta_loss became nan in step 11"):
        mlnt.train(blobs(), model=Fragile, **quick(batch_size=32, iterations=1))
