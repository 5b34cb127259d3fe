"""Single passes by the fast rules give what autograd gives."""

import copy

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from mlnt.distributed import ALL_ALONE
from mlnt.meta import passes
from mlnt.meta.features import split_at_features
from mlnt.networks import PreActResNet32, SmallConv
from mlnt.resnet import resnet18


def any_loss(logits_BC: Tensor) -> tuple[Tensor, Tensor]:
    """Of all rows together, as a contrast is."""
    loss = (logits_BC @ logits_BC.T).tanh().mean() + logits_BC.square().mean()
    return loss.detach(), torch.autograd.grad(loss, logits_BC)[0]


@pytest.mark.parametrize("is_split", [False, True])
@pytest.mark.parametrize("make", [SmallConv, PreActResNet32, resnet18])
def test_gradients_and_statistics(make, is_split: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    inputs = torch.randn(6, 3, 16, 16, dtype=torch.float64)
    model = make(3, 5).double()
    model = split_at_features(model, inputs)[0] if is_split else model
    model.train()
    ours = copy.deepcopy(model)
    expected = passes.loss_gradient(model, inputs, any_loss, ALL_ALONE, 6)
    monkeypatch.setattr(passes, "_fast_run", passes._run_by_rules)
    found = passes.loss_gradient(ours, inputs, any_loss, ALL_ALONE, 6)
    assert_close(found[:2], expected[:2], rtol=1e-10, atol=1e-12)
    assert found[2].keys() == expected[2].keys()
    for name, gradient in expected[2].items():
        assert_close(found[2][name], gradient, rtol=1e-9, atol=1e-12, msg=name)
    for name, buffer in model.named_buffers():
        assert_close(ours.get_buffer(name), buffer, rtol=1e-12, atol=1e-12, msg=name)
