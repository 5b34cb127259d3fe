"""Small networks, each as a module and as a function of its parameters written with torch alone."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.networks import Bag

Parameters = dict[str, Tensor]
CLASSES = 4


@dataclass(frozen=True)
class Case:
    """`function(parameters, inputs)` is written independently of `module`."""

    module: nn.Module
    function: Callable[[Parameters, Tensor], Tensor]
    inputs: Tensor


def conv_with_batch_norm() -> Case:
    module = nn.Sequential(
        nn.Conv2d(2, 5, 3, padding=1),
        nn.BatchNorm2d(5),
        nn.ReLU(),
        nn.Conv2d(5, 6, 3, stride=2, bias=False),
        nn.BatchNorm2d(6),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(6 * 2 * 2, CLASSES),
    )

    def batch_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean = x.mean(dim=(0, 2, 3), keepdim=True)
        variance = ((x - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
        scaled = (x - mean) / (variance + 1e-5).sqrt()
        return scaled * weight[None, :, None, None] + bias[None, :, None, None]

    def function(p: Parameters, x: Tensor) -> Tensor:
        x = F.conv2d(x, p["0.weight"], p["0.bias"], padding=1)
        x = batch_norm(x, p["1.weight"], p["1.bias"]).clamp(min=0)
        x = F.conv2d(x, p["3.weight"], stride=2)
        x = batch_norm(x, p["4.weight"], p["4.bias"]).clamp(min=0)
        return x.reshape(len(x), -1) @ p["7.weight"].T + p["7.bias"]

    return Case(module, function, torch.randn(7, 2, 6, 6))


def mlp() -> Case:
    module = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, CLASSES))

    def function(p: Parameters, x: Tensor) -> Tensor:
        hidden = (x @ p["0.weight"].T + p["0.bias"]).tanh()
        return hidden @ p["2.weight"].T + p["2.bias"]

    return Case(module, function, torch.randn(7, 5))


class GRUNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(3, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.gru(x)[0][:, -1])


def gru() -> Case:
    def function(p: Parameters, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 6)
        for t in range(x.shape[1]):
            given = x[:, t] @ p["gru.weight_ih_l0"].T + p["gru.bias_ih_l0"]
            own = state @ p["gru.weight_hh_l0"].T + p["gru.bias_hh_l0"]
            reset = torch.sigmoid(given[:, :6] + own[:, :6])
            update = torch.sigmoid(given[:, 6:12] + own[:, 6:12])
            new = torch.tanh(given[:, 12:] + reset * own[:, 12:])
            state = (1 - update) * new + update * state
        return state @ p["head.weight"].T + p["head.bias"]

    return Case(GRUNet(), function, torch.randn(7, 4, 3))


def bag() -> Case:
    """Texts with padding behind, a word that is unknown and one that is twice there."""
    rarities = (1.5, 1.0, 2.5)
    words = torch.tensor([[2, 3, 4], [2, 0, 0], [1, 3, 0], [4, 4, 2], [1, 1, 0], [3, 2, 0]])

    def function(p: Parameters, words_BL: Tensor) -> Tensor:
        logits = []
        for text in words_BL.tolist():
            known = [(rarities[word - 2], p["embedding.weight"][word]) for word in text if word > 1]
            length = math.sqrt(sum(rarity**2 for rarity, _ in known)) or 1.0
            zero = p["head.weight"].new_zeros(3)
            features = sum((0.2 * rarity / length * word for rarity, word in known), zero)
            logits.append(p["head.weight"] @ features + p["head.bias"])
        return torch.stack(logits)

    return Case(Bag(5, CLASSES, rarities, width=3), function, words)


class AttentionNet(nn.Module):
    def __init__(self, dropout: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.attention = nn.MultiheadAttention(4, 2, dropout=dropout, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x)
        x = x + self.dropout(self.attention(y, y, y, need_weights=False)[0])
        return self.head(x.mean(dim=1))


def attention() -> Case:
    def function(p: Parameters, x: Tensor) -> Tensor:
        mean = x.mean(dim=-1, keepdim=True)
        variance = ((x - mean) ** 2).mean(dim=-1, keepdim=True)
        y = (x - mean) / (variance + 1e-5).sqrt() * p["norm.weight"] + p["norm.bias"]
        joint = y @ p["attention.in_proj_weight"].T + p["attention.in_proj_bias"]
        heads = []
        for head in range(2):
            part = slice(2 * head, 2 * head + 2)
            q, k, v = (joint[:, :, 4 * i : 4 * i + 4][:, :, part] for i in range(3))
            weights = torch.softmax(q @ k.transpose(1, 2) / math.sqrt(2), dim=-1)
            heads.append(weights @ v)
        mixed = torch.cat(heads, dim=-1) @ p["attention.out_proj.weight"].T
        x = x + mixed + p["attention.out_proj.bias"]
        return x.mean(dim=1) @ p["head.weight"].T + p["head.bias"]

    return Case(AttentionNet(), function, torch.randn(7, 5, 4))


CASES = {
    "conv": conv_with_batch_norm,
    "mlp": mlp,
    "gru": gru,
    "bag": bag,
    "attention": attention,
}
