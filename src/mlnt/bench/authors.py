"""A step of MLNT the way its authors published it: the yardstick of the bench, not for training.

Written from the description of their code: neighbours sample by sample in a Python loop, a
forward pass at θ for each of the M sets, all M graphs held until one backward pass of

    L = L_c(X, Y, θ) + η/β · 1/M Σ_m J(θ − α ∇_θ L_c(X, Ŷ_m, θ))

and one momentum step on ∇L; eager, in the number type of the model. Given the same synthetic
labels it is our own update="summed", which a test compares. Its KL term is ours too (theirs is
also divided by the number of classes), since that changes no time.

Axes: M sets, B batch, C classes, D features, N samples.
"""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from mlnt.config import Settings
from mlnt.data.batches import Batch
from mlnt.meta.plain import CONSISTENCIES
from mlnt.methods.base import Rates


class AuthorsWay:
    """Student and teacher; `features_ND` are those of all training samples, for the neighbours."""

    def __init__(
        self,
        model: nn.Module,
        settings: Settings,
        features_ND: Tensor,
        generator: torch.Generator,
    ) -> None:
        self.student = model
        self.teacher = copy.deepcopy(model).requires_grad_(False)
        self.settings = settings
        self.features_ND = features_ND
        self.generator = generator
        self.consistency = CONSISTENCIES[settings.consistency]
        self.optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad],
            lr=settings.lr,
            momentum=settings.momentum,
            weight_decay=settings.weight_decay,
        )
        self.models = {"student": self.student, "teacher": self.teacher}

    def step(self, batch: Batch, class_batch: Batch, rates: Rates) -> dict[str, Tensor]:
        """One backward pass of class and meta loss together, one step, θ̃ ← γ θ̃ + (1 − γ) θ."""
        for group in self.optimizer.param_groups:
            group["lr"] = rates.lr
        self.student.train()
        self.optimizer.zero_grad()
        logits_BC = self.student(class_batch.inputs)
        class_loss = F.cross_entropy(logits_BC, class_batch.labels)
        meta_loss = self._meta_loss(batch)
        (class_loss + rates.eta / self.settings.lr * meta_loss).backward()
        self.optimizer.step()
        self._update_teacher(rates.gamma)
        hits_B = logits_BC.detach().argmax(dim=1) == class_batch.labels
        return {
            "meta_loss": meta_loss.detach(),
            "class_loss": class_loss.detach(),
            "train": 100 * hits_B.double().mean(),
        }

    def synthetic_labels(self, labels_B: Tensor, features_BD: Tensor) -> Tensor:
        """[M, B]: in each set ⌊ρB⌋ samples take the label of one of their nearest others."""
        batch = len(labels_B)
        count = min(self.settings.neighbours, batch - 1)
        replaced = math.floor(self.settings.rho * batch + 1e-9)
        labels_MB = labels_B.repeat(self.settings.sets, 1)
        device = self.generator.device
        for own_B in labels_MB:
            order = torch.randperm(batch, generator=self.generator, device=device)
            picks = torch.randint(count, (replaced,), generator=self.generator, device=device)
            for sample, pick in zip(order[:replaced].tolist(), picks.tolist(), strict=True):
                distances_B = (features_BD - features_BD[sample]).square().sum(dim=1)
                distances_B[sample] = math.inf
                nearest_K = distances_B.topk(count, largest=False).indices
                own_B[sample] = labels_B[nearest_K[pick]]
        return labels_MB

    def _meta_loss(self, batch: Batch) -> Tensor:
        """L_meta with the graphs of all M sets behind it."""
        synthetic_MB = self.synthetic_labels(batch.labels, self.features_ND[batch.indices])
        with torch.no_grad():
            target_BC = self.teacher.train()(batch.inputs).softmax(dim=1)
        second_order = self.settings.order == 2
        theta: dict[str, Tensor] = {
            name: p for name, p in self.student.named_parameters() if p.requires_grad
        }
        # In the authors' code the passes below write the student's batch-norm statistics. Here they
        # write into copies, made once: the same work, and the student stays comparable to ours.
        buffers = {name: buffer.clone() for name, buffer in self.student.named_buffers()}

        def forward(parameters: dict[str, Tensor]) -> Tensor:
            return functional_call(self.student, {**parameters, **buffers}, (batch.inputs,))

        losses = []
        for labels_B in synthetic_MB:
            class_loss = F.cross_entropy(forward(theta), labels_B)
            inner = torch.autograd.grad(
                class_loss,
                list(theta.values()),
                create_graph=second_order,
                materialize_grads=True,
            )
            # First order: the inner gradient is a constant, and ∂θ′/∂θ the identity.
            steps = inner if second_order else [g.detach() for g in inner]
            theta_prime = {
                name: p - self.settings.alpha * g
                for (name, p), g in zip(theta.items(), steps, strict=True)
            }
            losses.append(self.consistency(target_BC, forward(theta_prime)))
        return torch.stack(losses).sum() / len(losses)

    @torch.no_grad()
    def _update_teacher(self, gamma: float | Tensor) -> None:
        pairs = zip(self.teacher.parameters(), self.student.parameters(), strict=True)
        for mean, current in pairs:
            mean.mul_(gamma).add_(current * (1 - gamma))
