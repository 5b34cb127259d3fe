"""The moving average and its target."""

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from mlnt.meta.features import logits_and_features, penultimate
from mlnt.meta.teacher import ema_, make_teacher, mixed_target, teacher_target


def test_average_is_exact_to_the_last_bit_of_float32() -> None:
    torch.manual_seed(0)
    student = nn.Linear(40, 30)
    teacher = make_teacher(student)
    expected = teacher.weight.numpy().copy()
    gamma = 0.99
    for _ in range(50):
        with torch.no_grad():
            student.weight += 0.1 * torch.randn_like(student.weight)
        # numpy rounds each product and the sum to float32
        kept = np.float32(gamma) * expected
        added = np.float32(1 - gamma) * student.weight.detach().numpy()
        expected = kept + added
        ema_(teacher, student, gamma)
        assert np.array_equal(teacher.weight.numpy(), expected)


def test_teacher_is_a_copy_without_gradient() -> None:
    student = nn.Linear(2, 2)
    teacher = make_teacher(student)
    assert not any(p.requires_grad for p in teacher.parameters())
    ema_(teacher, student, 1.0)
    assert all(p.requires_grad for p in student.parameters())
    assert teacher.weight.data_ptr() != student.weight.data_ptr()


def test_tied_weights_stay_tied_and_are_averaged_once() -> None:
    student = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    student[1].weight = student[0].weight
    teacher = make_teacher(student)
    before = teacher[0].weight.clone()
    with torch.no_grad():
        student[0].weight += 1
    ema_(teacher, student, 0.5)
    assert teacher[1].weight is teacher[0].weight
    torch.testing.assert_close(teacher[0].weight, before + 0.5)


def test_parameters_frozen_on_the_way_go_on_to_the_student_and_stay_there() -> None:
    torch.manual_seed(0)
    student = nn.Linear(40, 30)
    teacher = make_teacher(student)
    with torch.no_grad():
        student.weight += 1
    expected = 0.9 * teacher.weight + 0.1 * student.weight
    student.requires_grad_(False)
    ema_(teacher, student, 0.9)
    torch.testing.assert_close(teacher.weight, expected.detach())
    for _ in range(50):
        ema_(teacher, student, torch.tensor(0.987))
        assert torch.equal(teacher.bias, student.bias), "no rounding where nothing moves"


def test_frozen_parameters_that_are_a_mask_or_numbers() -> None:
    student = nn.Linear(2, 2)
    student.mask = nn.Parameter(torch.tensor([0.0, -torch.inf]), requires_grad=False)
    student.codes = nn.Parameter(torch.tensor([3, 4]), requires_grad=False)
    teacher = make_teacher(student)
    student.codes += 1
    for gamma in (0.0, 0.5, 1.0):
        ema_(teacher, student, gamma)
        assert torch.equal(teacher.mask, student.mask)
        assert torch.equal(teacher.codes, student.codes)
    student.mask.data = student.mask.data.flip(0)
    ema_(teacher, student, 0.5)
    assert torch.equal(teacher.mask, student.mask), "between 0 and −∞ there is nothing"


def test_target_follows_batch_statistics_but_not_dropout() -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Dropout(0.9))
    teacher = make_teacher(student)
    inputs = torch.randn(8, 4)
    first = teacher_target(teacher, student, inputs)
    assert torch.equal(first, teacher_target(teacher, student, inputs))
    assert teacher[1].num_batches_tracked == 2
    batch_mean = teacher[0](inputs).mean(dim=0)
    torch.testing.assert_close(teacher[1].running_mean, batch_mean * (0.1 + 0.9 * 0.1))
    torch.testing.assert_close(first.sum(dim=1), torch.ones(8))


class FunctionalDropout(nn.Module):
    """Dropout that no module tells of, in a network with batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.last = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.last(F.dropout(self.norm(inputs), 0.5, self.training))


def test_target_is_free_of_dropout_that_is_a_function() -> None:
    torch.manual_seed(0)
    student = FunctionalDropout()
    teacher, inputs = make_teacher(student), torch.randn(8, 4)
    first = teacher_target(teacher, student, inputs)
    assert torch.equal(first, teacher_target(teacher, student, inputs))
    assert teacher.norm.num_batches_tracked == 2


class MaskedAttention(nn.Module):
    """Owns a buffer that is no statistic, and drops out by a function."""

    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(4, 12)
        self.register_buffer("mask", torch.ones(6, 6).tril().bool())

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        drop = 0.5 if self.training else 0.0
        parts = self.project(inputs).chunk(3, dim=-1)
        return F.scaled_dot_product_attention(*parts, attn_mask=self.mask, dropout_p=drop)


def test_target_is_free_of_dropout_where_a_module_owns_its_mask() -> None:
    torch.manual_seed(0)
    student = nn.Sequential(MaskedAttention(), nn.Flatten(), nn.Linear(24, 3)).train()
    teacher, inputs = make_teacher(student), torch.randn(8, 6, 4)
    first = teacher_target(teacher, student, inputs)
    assert torch.equal(first, teacher_target(teacher, student, inputs))
    assert not teacher[0].training


@pytest.mark.parametrize("wrap", [nn.utils.parametrizations.spectral_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore:.*deprecated")
def test_spectral_norms_of_the_teacher_follow_its_weights(wrap: Callable) -> None:
    torch.manual_seed(0)
    student = nn.Sequential(wrap(nn.Linear(4, 4)), nn.Linear(4, 3)).train()
    teacher, inputs = make_teacher(student), torch.randn(8, 4)
    before = [buffer.clone() for buffer in teacher.buffers()]
    teacher_target(teacher, student, inputs)
    after = list(teacher.buffers())
    assert not any(torch.equal(*pair) for pair in zip(before, after, strict=True))


def test_batch_norms_frozen_in_the_student_are_frozen_in_the_teacher() -> None:
    torch.manual_seed(0)
    student = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4))
    student[0].eval()
    teacher, inputs = make_teacher(student), torch.randn(8, 4) + 3
    teacher_target(teacher, student, inputs)
    assert torch.equal(teacher[0].running_mean, torch.zeros(4))
    assert teacher[2].num_batches_tracked == 1
    # All frozen: of one sample too, and as the student sees it.
    target = teacher_target(teacher, student.eval(), inputs[:1])
    torch.testing.assert_close(target, teacher.eval()(inputs[:1]).softmax(dim=1))


def test_mixture_by_hand() -> None:
    def constant(logits: list[float]) -> nn.Module:
        layer = nn.Linear(1, 2)
        with torch.no_grad():
            layer.weight.zero_()
            layer.bias.copy_(torch.tensor(logits).log())
        return layer

    teacher, mentor = constant([0.9, 0.1]), constant([0.3, 0.7])
    inputs = torch.zeros(3, 1)
    expected = torch.tensor([[0.25 * 0.9 + 0.75 * 0.3, 0.25 * 0.1 + 0.75 * 0.7]]).expand(3, 2)
    torch.testing.assert_close(mixed_target(teacher, teacher, mentor, inputs, 0.25), expected)
    torch.testing.assert_close(
        mixed_target(teacher, teacher, None, inputs, 0.25), torch.tensor([[0.9, 0.1]]).expand(3, 2)
    )


def test_features_are_what_the_last_linear_layer_is_given() -> None:
    model = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.5), nn.Linear(5, 2)).train()
    inputs = torch.randn(4, 3)
    features = penultimate(model, inputs)
    torch.testing.assert_close(features, model[:2](inputs))
    assert all(module.training for module in model.modules())
    convolution = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten())
    logits, features = logits_and_features(convolution, torch.randn(4, 1, 3, 3))
    assert torch.equal(logits, features), "without a linear layer, the logits themselves"
