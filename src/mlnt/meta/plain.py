"""The meta-gradient in plain loops: the specification that every faster engine is tested against.

Lines of Algorithm 1, for one batch X with synthetic labels Ŷ_1 … Ŷ_M and target s:

    θ′_m    = θ − α ∇_θ L_c(X, Ŷ_m, θ)
    J_m     = mean over the batch of KL(s ‖ f(X, θ′_m))
    L_meta  = 1/M Σ_m J_m

Axes: M sets, B batch, C classes.
"""

import contextlib
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from mlnt.distributed import WHOLE, Rows
from mlnt.errors import InputError
from mlnt.meta.features import forward
from mlnt.meta.synchronised import synchronised

Gradients = dict[str, Tensor]
Result = TypeVar("Result")


def kl_consistency(target_BC: Tensor, logits_BC: Tensor) -> Tensor:
    """J = mean over the batch of KL(target ‖ softmax(logits)), summed over classes."""
    return F.kl_div(logits_BC.log_softmax(dim=1), target_BC, reduction="batchmean")


def mse_consistency(target_BC: Tensor, logits_BC: Tensor) -> Tensor:
    """J = mean over the batch and the classes of (target − softmax(logits))²."""
    return F.mse_loss(logits_BC.softmax(dim=1), target_BC)


CONSISTENCIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl_consistency,
    "mse": mse_consistency,
}

ONCE = "torch::autograd::Error"  # the node that PyTorch puts where a second derivative would begin


def plain_meta_gradient(
    model: nn.Module,
    inputs: Any,
    synthetic_MB: Tensor,
    target_BC: Tensor,
    alpha: float | Tensor,
    order: int = 1,
    consistency: str = "kl",
    rows: Rows = WHOLE,
) -> tuple[Tensor, Gradients]:
    """L_meta and its gradient with respect to the trainable parameters θ, by name.

    First order takes ∇_θ L_c as constant, so that ∇_θ J_m = ∇J at θ′_m =: v_m; second order is
    v_m − α ∇_θ ⟨∇_θ L_c, v_m⟩. The model's parameters, buffers and `.grad` are left as they were.
    The M inner gradients share one forward pass at θ (and so, in a model with dropout, one mask);
    each θ′_m has a forward pass of its own.

    Where several processes divide the batch, inputs, labels and target are this one's rows, and
    what comes back is its part: the sum over the processes is L_meta and its gradient.
    """
    measure = CONSISTENCIES[consistency]
    theta: dict[str, Tensor] = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total_loss = target_BC.new_zeros(())
    total = {name: torch.zeros_like(p) for name, p in theta.items()}

    def at_theta_prime(theta_prime: dict[str, Tensor]) -> tuple[Tensor, Gradients]:
        loss = rows.share * measure(target_BC, forward(model, inputs))
        return loss.detach(), gradient(loss, theta_prime)

    def at_theta() -> None:
        logits_BC = forward(model, inputs)
        check_target(logits_BC.shape, target_BC)
        for m, labels_B in enumerate(synthetic_MB):
            class_loss = rows.share * F.cross_entropy(logits_BC, labels_B)
            own = gradient(class_loss, theta, retain_graph=True, create_graph=order == 2)
            if order == 2 and m == 0:
                _check_differentiable_twice(own)
            inner = rows.group.sum_named({name: g.detach() for name, g in own.items()})
            theta_prime = {
                name: (p - alpha * inner[name]).detach().requires_grad_()
                for name, p in theta.items()
            }

            loss, meta = given(model, theta_prime, functools.partial(at_theta_prime, theta_prime))
            if order == 2:
                of_all = rows.group.sum_named(meta)
                product = torch.stack([(own[name] * of_all[name]).sum() for name in theta]).sum()
                curvature = gradient(product, theta, retain_graph=True)
                meta = {name: v - alpha * curvature[name] for name, v in meta.items()}

            total_loss.add_(loss / len(synthetic_MB))
            for name in theta:
                total[name].add_(meta[name] / len(synthetic_MB))

    with torch.enable_grad(), _suitable_kernels(model, order), synchronised(rows):
        given(model, theta, at_theta)
    return total_loss, total


def check_classes(classes: int) -> None:
    if classes == 1:
        raise InputError(
            "the model gives one logit a sample; for two classes it must give two: nn.Linear(D, 2) "
            "at its end, and F.cross_entropy as the class loss"
        )


def check_target(logits_shape: tuple[int, ...], target_BC: Tensor) -> None:
    check_classes(logits_shape[1])
    if target_BC.shape != logits_shape:
        raise InputError(
            f"target must be [B, C] as the model's logits are, {tuple(logits_shape)}, got "
            f"{tuple(target_BC.shape)}"
        )


def given(model: nn.Module, parameters: dict[str, Tensor], work: Callable[[], Result]) -> Result:
    """`work()` while the model has these parameters, and fresh copies of all buffers: what is done
    to those stays in here. Backward passes belong in here too, for they may run the model again
    (activation checkpointing)."""
    buffers = {name: buffer.clone() for name, buffer in model.named_buffers()}
    for name, weight in _shortened_in_place(model).items():
        parameters = {**parameters, name: parameters.get(name, weight).clone()}
    tensors = {f"model.{name}": tensor for name, tensor in (parameters | buffers).items()}
    result: Result = functional_call(_At(model), tensors, (work,))
    return result


def _shortened_in_place(model: nn.Module) -> dict[str, nn.Parameter]:
    """Weights that a forward pass changes: of embeddings with a `max_norm`."""
    changed = {
        id(module.weight)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.max_norm is not None
    }
    return {name: p for name, p in model.named_parameters() if id(p) in changed} if changed else {}


class _At(nn.Module):
    """Does some work; `functional_call` gives its model other parameters meanwhile."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, work: Callable[[], Result]) -> Result:
        return work()


def gradient(
    loss: Tensor,
    parameters: dict[str, Tensor],
    retain_graph: bool = False,
    create_graph: bool = False,
) -> Gradients:
    """∂loss/∂parameters by name; zero where the loss does not depend on a parameter."""
    found = torch.autograd.grad(
        loss,
        list(parameters.values()),
        retain_graph=retain_graph,
        create_graph=create_graph,
        allow_unused=True,
    )
    return {
        name: torch.zeros_like(p) if g is None else g
        for (name, p), g in zip(parameters.items(), found, strict=True)
    }


def no_second_derivative(reason: str) -> InputError:
    return InputError(
        f"order=2 needs second derivatives, which the model does not have ({reason}); use order=1"
    )


def _check_differentiable_twice(gradients: Gradients) -> None:
    """Raise InputError if the network calls a function that is marked `once_differentiable`.

    PyTorch would raise on the way back through such a function's gradient. But that node leads to
    no weight, so that `autograd.grad` leaves it out, and the result lacks a term without a word.
    """
    nodes = [g.grad_fn for g in gradients.values() if g.grad_fn is not None]
    seen = set(nodes)
    while nodes:
        node = nodes.pop()
        if node.name() == ONCE:
            raise no_second_derivative("a function in it is marked once_differentiable")
        before = {earlier for earlier, _ in node.next_functions if earlier is not None} - seen
        seen |= before
        nodes += before


@contextlib.contextmanager
def _suitable_kernels(model: nn.Module, order: int) -> Iterator[None]:
    """For second order, kernels that have a second derivative: not fused attention, not cuDNN's
    recurrent ones. For first order, cuDNN copies the recurrent weights at every call, since θ′ is
    not one block of memory; its warning about that is no news."""
    recurrent = any(isinstance(module, nn.RNNBase) for module in model.modules())
    with contextlib.ExitStack() as stack:
        if order == 2:
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if order == 2 and recurrent and torch.backends.cudnn.is_available():
            stack.enter_context(torch.backends.cudnn.flags(enabled=False))
        if recurrent:
            stack.enter_context(warnings.catch_warnings())
            warnings.filterwarnings("ignore", message="RNN module weights are not part of single")
        yield
