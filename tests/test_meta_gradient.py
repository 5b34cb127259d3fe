"""The meta-gradient against an independent computation, and what it must leave alone."""

import copy
import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

import mlnt
from mlnt.meta.features import penultimate
from mlnt.meta.plain import kl_consistency, mse_consistency
from networks import CASES, CLASSES, AttentionNet, Case

ALPHA, SETS = 0.3, 3


def setup(name: str) -> tuple[Case, Tensor, Tensor]:
    torch.manual_seed(11)
    case = CASES[name]()
    case.module.double()
    numbers = case.inputs.double() if case.inputs.is_floating_point() else case.inputs
    case = Case(case.module, case.function, numbers)
    synthetic_MB = torch.randint(CLASSES, (SETS, len(case.inputs)))
    target_BC = torch.randn(len(case.inputs), CLASSES, dtype=torch.float64).softmax(dim=1)
    return case, synthetic_MB, target_BC


def independent(
    case: Case, synthetic_MB: Tensor, target_BC: Tensor, order: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """Algorithm 1, lines 5 to 10, with nothing but torch.autograd.grad."""
    theta = {n: p.detach().clone().requires_grad_() for n, p in case.module.named_parameters()}
    names, values = list(theta), list(theta.values())
    losses, firsts = [], []
    for labels_B in synthetic_MB:
        log_p = torch.log_softmax(case.function(theta, case.inputs), dim=1)
        class_loss = -sum(log_p[i, c] for i, c in enumerate(labels_B.tolist())) / len(labels_B)
        inner = torch.autograd.grad(class_loss, values, create_graph=order == 2)
        prime = [v - ALPHA * g for v, g in zip(values, inner, strict=True)]
        if order == 1:
            prime = [v.detach().requires_grad_() for v in prime]
        log_q = torch.log_softmax(
            case.function(dict(zip(names, prime, strict=True)), case.inputs), dim=1
        )
        divergence = (target_BC * (target_BC.log() - log_q)).sum() / len(labels_B)
        losses.append(divergence)
        if order == 1:
            firsts.append(torch.autograd.grad(divergence, prime))
    loss = sum(losses) / len(losses)
    if order == 1:
        gradients = [sum(parts) / len(firsts) for parts in zip(*firsts, strict=True)]
    else:
        gradients = torch.autograd.grad(loss, values)
    return loss.detach(), dict(zip(names, gradients, strict=True))


@pytest.mark.parametrize("name", CASES)
def test_networks_are_what_their_functions_say(name: str) -> None:
    case, _, _ = setup(name)
    theta = dict(case.module.named_parameters())
    torch.testing.assert_close(
        case.function(theta, case.inputs), case.module(case.inputs), rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize(("name", "order"), list(itertools.product(CASES, (1, 2))))
def test_agrees_with_independent_computation(name: str, order: int) -> None:
    case, synthetic_MB, target_BC = setup(name)
    loss, gradients = mlnt.meta_gradient(
        case.module, case.inputs, synthetic_MB, target_BC, ALPHA, order=order
    )
    expected_loss, expected = independent(case, synthetic_MB, target_BC, order)
    torch.testing.assert_close(loss, expected_loss, rtol=1e-9, atol=0)
    assert list(gradients) == list(expected)
    for parameter, gradient in expected.items():
        error = (gradients[parameter] - gradient).norm()
        assert error <= 1e-9 * gradient.norm() + 1e-14, parameter
    total = sum(float(gradient.norm()) for gradient in expected.values())
    assert total > 1e-3, "a gradient of zero would agree with anything"


@pytest.mark.parametrize("name", ["conv", "mlp"])
def test_first_and_second_order_differ_by_the_inner_derivative(name: str) -> None:
    case, synthetic_MB, target_BC = setup(name)
    first, second = (
        mlnt.meta_gradient(case.module, case.inputs, synthetic_MB, target_BC, ALPHA, order=order)
        for order in (1, 2)
    )
    torch.testing.assert_close(first[0], second[0], rtol=1e-12, atol=0)
    assert any(not torch.allclose(first[1][k], second[1][k], rtol=1e-3) for k in first[1])


def test_without_an_inner_step_it_is_the_consistency_gradient() -> None:
    case, synthetic_MB, target_BC = setup("mlp")
    loss, gradients = mlnt.meta_gradient(case.module, case.inputs, synthetic_MB, target_BC, 0.0)
    direct = kl_consistency(target_BC, case.module(case.inputs))
    expected = torch.autograd.grad(direct, list(case.module.parameters()))
    torch.testing.assert_close(loss, direct.detach(), rtol=1e-12, atol=0)
    for gradient, other in zip(gradients.values(), expected, strict=True):
        torch.testing.assert_close(gradient, other, rtol=1e-9, atol=1e-14)


def test_consistency_by_hand() -> None:
    target = torch.tensor([[0.5, 0.5], [1.0, 0.0]])
    logits = torch.log(torch.tensor([[0.8, 0.2], [0.5, 0.5]]))
    # KL: [0.5 ln(0.5/0.8) + 0.5 ln(0.5/0.2) + ln(1/0.5)] / 2 = (0.2231436 + 0.6931472) / 2
    assert kl_consistency(target, logits).item() == pytest.approx(0.4581454, abs=1e-6)
    # squares: [0.09 + 0.09 + 0.25 + 0.25] / 4
    assert mse_consistency(target, logits).item() == pytest.approx(0.17, abs=1e-6)


def test_mse_option_is_used() -> None:
    case, synthetic_MB, target_BC = setup("mlp")
    loss, _ = mlnt.meta_gradient(
        case.module, case.inputs, synthetic_MB, target_BC, 0.0, consistency="mse"
    )
    expected = mse_consistency(target_BC, case.module(case.inputs))
    torch.testing.assert_close(loss, expected.detach(), rtol=1e-12, atol=0)


class Counting(nn.Module):
    """Every way a buffer can change in a forward pass: in place, by assignment, by batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("mean", torch.zeros(5))
        self.norm = nn.BatchNorm1d(5, momentum=None)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(5, 5))
        self.head = nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(dim=0)
        return self.head(self.spectral(self.norm(x + self.mean)))


@pytest.mark.parametrize("order", [1, 2])
def test_model_is_untouched(order: int) -> None:
    torch.manual_seed(0)
    model = Counting()
    model(torch.randn(9, 5)).sum().backward()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    identities = {name: id(buffer) for name, buffer in model.named_buffers()}
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    mlnt.meta_gradient(
        model,
        torch.randn(9, 5),
        torch.randint(CLASSES, (2, 9)),
        torch.full((9, CLASSES), 1 / CLASSES),
        ALPHA,
        order=order,
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert {name: id(buffer) for name, buffer in model.named_buffers()} == identities
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name]), name


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Linear(CLASSES, CLASSES, bias=False)
        self.decode = nn.Linear(CLASSES, CLASSES, bias=False)
        self.decode.weight = self.encode.weight
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.decode(torch.tanh(self.encode(x)))


def test_tied_weights_count_once_and_unused_ones_get_zero() -> None:
    torch.manual_seed(0)
    model = Tied().double()
    inputs = torch.randn(6, CLASSES, dtype=torch.float64)
    synthetic_MB = torch.randint(CLASSES, (2, 6))
    target_BC = torch.randn(6, CLASSES, dtype=torch.float64).softmax(dim=1)
    _, gradients = mlnt.meta_gradient(model, inputs, synthetic_MB, target_BC, ALPHA, order=2)

    def function(p: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.tanh(x @ p["encode.weight"].T) @ p["encode.weight"].T + 0 * p["unused"].sum()

    _, expected = independent(Case(model, function, inputs), synthetic_MB, target_BC, 2)
    assert set(gradients) == {"unused", "encode.weight"}
    assert torch.equal(gradients["unused"], torch.zeros(2, dtype=torch.float64))
    torch.testing.assert_close(
        gradients["encode.weight"], expected["encode.weight"], rtol=1e-9, atol=1e-13
    )


def test_frozen_parameters_have_no_gradient_and_do_not_move() -> None:
    case, synthetic_MB, target_BC = setup("mlp")
    case.module[0].requires_grad_(False)
    _, gradients = mlnt.meta_gradient(case.module, case.inputs, synthetic_MB, target_BC, ALPHA)
    assert set(gradients) == {"2.weight", "2.bias"}


def test_dropout_draws_new_masks_for_every_updated_model() -> None:
    torch.manual_seed(0)
    model = AttentionNet(dropout=0.5).train()
    inputs = torch.randn(6, 5, 4)
    same_labels_MB = torch.zeros(2, 6, dtype=torch.long)
    target_BC = torch.full((6, CLASSES), 1 / CLASSES)
    masked: list[Tensor] = []
    model.dropout.register_forward_hook(lambda module, given, output: masked.append(output == 0))
    mlnt.meta_gradient(model, inputs, same_labels_MB, target_BC, ALPHA)
    shared, first, second = masked
    assert shared.any()
    assert not torch.equal(first, second), "each updated model has a mask of its own"
    model.eval()
    still = [mlnt.meta_gradient(model, inputs, same_labels_MB, target_BC, ALPHA)[0] for _ in "ab"]
    assert torch.equal(*still), "in eval mode there is no mask to draw"


def test_inputs_may_be_several_arguments() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(3, CLASSES)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            return self.head(left * right)

    model, left, right = Two(), torch.randn(5, 3), torch.randn(5, 3)
    synthetic_MB = torch.randint(CLASSES, (2, 5))
    target_BC = torch.full((5, CLASSES), 1 / CLASSES)
    pair = mlnt.meta_gradient(model, (left, right), synthetic_MB, target_BC, ALPHA)
    single = mlnt.meta_gradient(model.head, left * right, synthetic_MB, target_BC, ALPHA)
    torch.testing.assert_close(pair[1]["head.weight"], single[1]["weight"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 3}, "order must be 1 or 2, got 3"),
        ({"engine": "fast"}, "engine must be one of auto, plain"),
        ({"consistency": "kll"}, "did you mean 'kl'"),
        ({"synthetic": torch.zeros(2, 4, dtype=torch.long)}, "for the same batch"),
        ({"synthetic": torch.zeros(2, 7)}, "class numbers"),
        ({"synthetic": torch.zeros(0, 7, dtype=torch.long)}, "1 or more sets of labels, got none"),
        ({"alpha": -0.1}, r"alpha must lie in \[0, ∞\), got -0.1"),
        ({"target": torch.full((7, 6), 1 / 6)}, r"logits are, \(7, 4\), got \(7, 6\)"),
        ({"target": torch.full((7, 6), 1 / 6), "engine": "folded"}, r"logits are, \(7, 4\), got"),
        ({"target": torch.full((7, CLASSES), float("nan"))}, "must hold probabilities"),
        ({"target": torch.eye(7, CLASSES) - 0.5}, "must hold probabilities"),
        ({"target": torch.ones(7, CLASSES).long()}, "must hold probabilities, got torch.int64"),
        ({"target": [["a"]]}, r"target must be probabilities \[B, C\], got \[\['a'\]\]"),
        ({"inputs": {"x": torch.ones(7, 5)}}, "got a mapping"),
        ({"model": "resnet"}, "the model must be an nn.Module, got 'resnet'"),
        ({"model": nn.Linear(5, CLASSES).requires_grad_(False)}, "all its parameters are frozen"),
        ({"inputs": torch.ones(3, 5, dtype=torch.float64)}, r"logits are, \(3, 4\), got \(7, 4\)"),
    ],
)
def test_bad_arguments(change: dict, message: str) -> None:
    case, synthetic_MB, target_BC = setup("mlp")
    arguments = {
        "model": case.module,
        "inputs": case.inputs,
        "synthetic": synthetic_MB,
        "target": target_BC,
        "alpha": ALPHA,
        **change,
    }
    with pytest.raises(mlnt.InputError, match=message):
        mlnt.meta_gradient(**arguments)


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_model_without_weights_yet() -> None:
    lazy = nn.Sequential(nn.Flatten(), nn.LazyLinear(CLASSES))
    with pytest.raises(mlnt.InputError, match="the model has lazy layers"):
        mlnt.NoiseTolerance(lazy)
    with pytest.raises(mlnt.InputError, match="the mentor has lazy layers"):
        mlnt.NoiseTolerance(nn.Linear(5, CLASSES), mentor=lazy)
    lazy(torch.ones(2, 5))
    mlnt.NoiseTolerance(lazy)


def test_second_order_of_a_layer_without_second_derivative() -> None:
    model = nn.Sequential(nn.EmbeddingBag(9, 5), nn.Linear(5, CLASSES))
    target = torch.full((1, CLASSES), 1 / CLASSES)
    synthetic_MB = torch.zeros(2, 1, dtype=torch.long)
    arguments = (model, torch.arange(9)[None], synthetic_MB, target, ALPHA)
    mlnt.meta_gradient(*arguments)
    with pytest.raises(mlnt.InputError, match=r"second derivatives, which .*; use order=1"):
        mlnt.meta_gradient(*arguments, order=2)


@pytest.mark.parametrize("frozen", [False, True])
@pytest.mark.parametrize("kind", [nn.Embedding, nn.EmbeddingBag])
def test_embeddings_that_shorten_their_weights_in_place(kind: type, frozen: bool) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(kind(9, 5, max_norm=1.0), nn.Flatten(), nn.Linear(5, CLASSES)).double()
    model[0].weight.requires_grad_(not frozen)
    words = torch.arange(9)[:, None]
    arguments = (torch.zeros(2, 9, dtype=torch.long), torch.full((9, CLASSES), 1 / CLASSES), ALPHA)
    before = copy.deepcopy(model)
    loss, gradients = mlnt.meta_gradient(model, words, *arguments)
    for parameter, expected in zip(model.parameters(), before.parameters(), strict=True):
        assert torch.equal(parameter, expected)
    model(words)
    assert not torch.equal(model[0].weight, before[0].weight), "a pass of its own does"
    short = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(5, CLASSES)).double()
    short.load_state_dict(model.state_dict())
    short[0].weight.requires_grad_(not frozen)
    if frozen:
        assert loss == mlnt.meta_gradient(short, words, *arguments)[0]
    assert all(gradient.any() for gradient in gradients.values())


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:
        context.save_for_backward(y := x.exp())
        return y

    @staticmethod
    @once_differentiable
    def backward(context: Any, gradient: Tensor) -> Tensor:
        return gradient * context.saved_tensors[0]


class Exponential(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return Exp.apply(x)


def test_second_order_of_a_function_that_is_differentiable_once() -> None:
    """autograd.grad passes by what would raise: gradients were wrong without a word."""
    model = nn.Sequential(nn.Linear(5, 4), Exponential(), nn.Linear(4, CLASSES))
    target = torch.full((6, CLASSES), 1 / CLASSES)
    synthetic_MB = torch.zeros(2, 6, dtype=torch.long)
    arguments = (model, torch.randn(6, 5), synthetic_MB, target, ALPHA)
    mlnt.meta_gradient(*arguments)
    with pytest.raises(mlnt.InputError, match=r"marked once_differentiable\); use order=1"):
        mlnt.meta_gradient(*arguments, order=2)


def test_arrays_and_lists_are_taken() -> None:
    case, synthetic_MB, target_BC = setup("mlp")
    expected = mlnt.meta_gradient(case.module, case.inputs, synthetic_MB, target_BC, ALPHA)[0]
    found = mlnt.meta_gradient(
        case.module, [case.inputs], synthetic_MB.numpy(), target_BC.numpy(), ALPHA
    )[0]
    assert found == expected


class TestNoiseTolerance:
    def make(self, **options: object) -> tuple[mlnt.NoiseTolerance, Tensor, Tensor]:
        torch.manual_seed(0)
        case = CASES["conv"]()
        generator = torch.Generator().manual_seed(5)
        tolerance = mlnt.NoiseTolerance(case.module, sets=2, generator=generator, **options)
        return tolerance, case.inputs, torch.randint(CLASSES, (7,))

    @pytest.mark.parametrize(
        ("model", "options", "message"),
        [
            (nn.Linear(3, CLASSES), {"sets": 2.5}, "sets must be a whole number, got 2.5"),
            (nn.Linear, {}, "the model must be an nn.Module, got <class"),
            (nn.Linear(3, CLASSES), {"mentor": "best.pt"}, "the mentor must be an nn.Module, got"),
            (nn.Linear(3, CLASSES), {"generator": 0}, r"torch.Generator\(\).manual_seed\(0\)"),
            (nn.Linear(3, CLASSES), {"mentor": nn.Linear(3, CLASSES + 1)}, "the mentor tells"),
            (nn.Linear(3, CLASSES).requires_grad_(False), {}, "all its parameters are frozen"),
            (nn.GRU(3, CLASSES), {}, r"must give logits \[B, C\], it gave tuple"),
        ],
    )
    def test_what_it_cannot_work_with(self, model: nn.Module, options: dict, message: str) -> None:
        with pytest.raises(mlnt.InputError, match=message):
            mlnt.NoiseTolerance(model, **options).meta_update(
                torch.ones(7, 3), torch.zeros(7).long()
            )

    def test_settings_may_be_tensors_of_one_number(self) -> None:
        tolerance = mlnt.NoiseTolerance(nn.Linear(3, CLASSES), alpha=torch.tensor(0.25))
        assert tolerance.alpha == 0.25
        assert isinstance(tolerance.alpha, float)
        with pytest.raises(mlnt.InputError, match="rho must lie in"):
            mlnt.NoiseTolerance(nn.Linear(3, CLASSES), rho=torch.tensor(2.0))

    def test_rates_of_parameters_that_are_not_there(self) -> None:
        tolerance, inputs, labels = self.make()
        with pytest.raises(mlnt.InputError, match="the model has no parameter 'nobody'"):
            tolerance.meta_update(inputs, labels, eta={"nobody": 0.1})

    def test_meta_update_is_plain_gradient_descent(self) -> None:
        tolerance, inputs, labels = self.make()
        features = torch.randn(7, 3)
        twin = copy.deepcopy(tolerance.student)
        before = {n: p.detach().clone() for n, p in twin.named_parameters()}
        generator = torch.Generator().manual_seed(5)
        synthetic_MB = mlnt.synthetic_labels(labels, features, 2, 0.5, 10, generator)
        target_BC = F.softmax(copy.deepcopy(tolerance.teacher).train()(inputs), dim=1)
        _, gradients = mlnt.meta_gradient(twin, inputs, synthetic_MB, target_BC, 0.2)
        tolerance.meta_update(inputs, labels, features, eta=0.4)
        for name, parameter in tolerance.student.named_parameters():
            torch.testing.assert_close(parameter, before[name] - 0.4 * gradients[name])

    def test_student_buffers_are_bit_identical(self) -> None:
        tolerance, inputs, labels = self.make()
        before = {name: buffer.clone() for name, buffer in tolerance.student.named_buffers()}
        tolerance.meta_update(inputs, labels, torch.randn(7, 3), eta=0.4)
        for name, buffer in tolerance.student.named_buffers():
            assert torch.equal(buffer, before[name]), name

    def test_teacher_statistics_come_from_its_own_forward_pass(self) -> None:
        tolerance, inputs, labels = self.make()
        expected = copy.deepcopy(tolerance.teacher).train()
        with torch.no_grad():
            expected(inputs)
        tolerance.meta_update(inputs, labels, torch.randn(7, 3), eta=0.4)
        for (name, buffer), other in zip(
            tolerance.teacher.named_buffers(), expected.buffers(), strict=True
        ):
            assert torch.equal(buffer, other), name

    @pytest.mark.parametrize("form", ["meta_update", "add_meta_gradient"])
    def test_teacher_and_mentor_may_see_the_samples_differently(self, form: str) -> None:
        torch.manual_seed(4)
        tolerance, inputs, labels = self.make(mentor=CASES["conv"]().module)
        features, whole = torch.randn(7, 3), torch.randn_like(inputs)
        teacher, mentor = copy.deepcopy(tolerance.teacher).train(), tolerance.mentor.eval()
        with torch.no_grad():
            target_BC = 0.3 * teacher(whole).softmax(1) + 0.7 * mentor(whole).softmax(1)
        generator = torch.Generator().manual_seed(5)
        synthetic_MB = mlnt.synthetic_labels(labels, features, 2, 0.5, 10, generator)
        twin = copy.deepcopy(tolerance.student)
        expected, _ = mlnt.meta_gradient(twin, inputs, synthetic_MB, target_BC, 0.2)
        update = getattr(tolerance, form)
        loss = update(inputs, labels, features, lam=0.3, for_teacher=whole)
        torch.testing.assert_close(loss, expected)
        for (name, buffer), other in zip(
            tolerance.teacher.named_buffers(), teacher.buffers(), strict=True
        ):
            assert torch.equal(buffer, other), name

    def test_rates_by_name_leave_others_alone(self) -> None:
        tolerance, inputs, labels = self.make()
        before = {n: p.detach().clone() for n, p in tolerance.student.named_parameters()}
        tolerance.meta_update(inputs, labels, torch.randn(7, 3), eta={"7.weight": 1.0})
        moved = {
            n for n, p in tolerance.student.named_parameters() if not torch.equal(p, before[n])
        }
        assert moved == {"7.weight"}

    def test_summed_form_adds_to_the_gradient(self) -> None:
        tolerance, inputs, labels = self.make()
        features = torch.randn(7, 3)
        F.cross_entropy(tolerance.student(inputs), labels).backward()
        class_part = {n: p.grad.clone() for n, p in tolerance.student.named_parameters()}
        twin = copy.deepcopy(tolerance)
        twin.generator = torch.Generator().manual_seed(5)
        _, gradients = twin.meta_gradient(inputs, labels, features)
        tolerance.add_meta_gradient(inputs, labels, features, weight=2.0)
        for name, parameter in tolerance.student.named_parameters():
            torch.testing.assert_close(parameter.grad, class_part[name] + 2 * gradients[name])

    def test_works_with_several_parameter_groups_and_a_frozen_one(self) -> None:
        tolerance, inputs, labels = self.make()
        student = tolerance.student
        student[0].requires_grad_(False)
        frozen = student[0].weight.clone()
        optimizer = torch.optim.SGD(
            [
                {"params": student[3].parameters(), "lr": 0.01},
                {"params": student[7].parameters(), "lr": 0.1, "weight_decay": 1e-3},
            ],
            momentum=0.9,
        )
        before = {n: p.detach().clone() for n, p in student.named_parameters()}
        for _ in range(3):
            loss = tolerance.meta_update(inputs, labels, eta=0.1)
            optimizer.zero_grad()
            F.cross_entropy(student(inputs), labels).backward()
            optimizer.step()
            tolerance.update_teacher(0.9)
        assert torch.isfinite(loss)
        assert torch.equal(student[0].weight, frozen)
        assert torch.equal(tolerance.teacher[0].weight, frozen)
        assert not torch.equal(student[7].weight, before["7.weight"])

    def test_without_features_the_teachers_are_used(self) -> None:
        tolerance, inputs, labels = self.make()
        with torch.no_grad():
            tolerance.student[0].weight.add_(1.0)  # now its features differ from the teacher's
        features = penultimate(tolerance.teacher, inputs)
        twin = copy.deepcopy(tolerance)
        twin.generator = torch.Generator().manual_seed(5)
        loss = tolerance.meta_update(inputs, labels, eta=0.1)
        assert torch.equal(loss, twin.meta_update(inputs, labels, features, eta=0.1))
        assert not any(module._forward_pre_hooks for module in tolerance.teacher.modules())

    def test_mentor_is_mixed_in(self) -> None:
        torch.manual_seed(3)
        mentor = CASES["conv"]().module
        tolerance, inputs, labels = self.make(mentor=mentor)
        generator = tolerance.generator
        features = torch.randn(7, 3)
        losses = []
        for lam in (0.0, 1.0):
            generator.manual_seed(5)
            losses.append(tolerance.meta_gradient(inputs, labels, features, lam)[0])
        tolerance.mentor = None
        generator.manual_seed(5)
        alone = tolerance.meta_gradient(inputs, labels, features, 0.0)[0]
        assert torch.equal(losses[1], alone)
        assert not torch.equal(losses[0], alone)
