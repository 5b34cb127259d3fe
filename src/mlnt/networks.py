"""The small networks for digits, pictures, tables and texts, and the paper's own for CIFAR-10."""

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mlnt.data.text_encoding import PAD as PADDING
from mlnt.data.text_encoding import UNKNOWN

KNOWN = UNKNOWN + 1  # the number of the first word of the vocabulary
# The length of a bag's weights. The shorter, the slower both its layers learn, wrong labels above
# all; a lower learning rate would do the same, but the preset's is the GRU's too. Chosen by cross
# entropy on labels held out of the Hausa news' training titles: with 0, 40 and 60 % noise put in
# the rest, and as distant supervision labelled these.
BAG_SCALE = 0.2
TINY = 1e-12
DROPPED = 0.5  # of the hidden units for tables, which else learn wrong labels by heart


class SmallConv(nn.Sequential):
    """Three convolutions with batch norm, for small images such as the digits."""

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__(
            *_conv_block(channels, width),
            *_conv_block(width, width),
            nn.MaxPool2d(2, ceil_mode=True),
            *_conv_block(width, 2 * width),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )


class PooledConv(nn.Sequential):
    """Four convolutions with batch norm, each on half the side of the one before: for pictures.

    About the work of SmallConv on the same picture, and it sees things, not only textures.
    """

    def __init__(self, channels: int, classes: int, width: int = 16) -> None:
        super().__init__(
            *_conv_block(channels, width, stride=2),
            *_conv_block(width, 2 * width),
            nn.MaxPool2d(2, ceil_mode=True),
            *_conv_block(2 * width, 4 * width),
            nn.MaxPool2d(2, ceil_mode=True),
            *_conv_block(4 * width, 8 * width),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(8 * width, classes),
        )


def _conv_block(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
    return convolution, nn.BatchNorm2d(outputs), nn.ReLU()


class MLP(nn.Sequential):
    """Two hidden layers with batch norm, for tables."""

    def __init__(
        self, inputs: int, classes: int, width: int = 128, dropped: float = DROPPED
    ) -> None:
        super().__init__(
            nn.Linear(inputs, width),
            nn.BatchNorm1d(width),
            _relu(dropped),
            nn.Linear(width, width),
            nn.BatchNorm1d(width),
            _relu(dropped),
            nn.Linear(width, classes),
        )


def _relu(dropped: float) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Dropout(dropped)) if dropped else nn.ReLU()


class Bins(nn.Module):
    """Beside each column z of a table, how far its cell has come through each of the bins.

    b_k = min(max((z - e_k) / (e_{k+1} - e_k), 0), 1), to zero mean and unit variance

    A network of it can take steps: rules of real tables often have thresholds, where those that are
    smooth in z need many more weights and samples (Gorishniy et al. 2022, piecewise linear
    encoding).
    """

    column_K: Tensor
    low_K: Tensor
    per_width_K: Tensor
    mean_K: Tensor
    per_std_K: Tensor

    def __init__(self, edges_of: Sequence[Sequence[float]]) -> None:
        super().__init__()
        found = bins_of(edges_of)
        columns, *values = zip(*found, strict=True) if found else [()] * 5
        self.register_buffer("column_K", torch.tensor(columns, dtype=torch.long))
        names = ("low_K", "per_width_K", "mean_K", "per_std_K")
        for name, value in zip(names, values, strict=True):
            self.register_buffer(name, torch.tensor(value, dtype=torch.float32))

    def forward(self, rows_BD: Tensor) -> Tensor:
        cells_BK = rows_BD.index_select(1, self.column_K)
        come_BK = ((cells_BK - self.low_K) * self.per_width_K).clamp(0, 1)
        return torch.cat([rows_BD, (come_BK - self.mean_K) * self.per_std_K], dim=1)


def bins_of(edges_of: Sequence[Sequence[float]]) -> list[tuple[int, float, float, float, float]]:
    """(column, lower edge, 1 / width, mean, 1 / standard deviation) of each that is not empty."""
    return [
        (column, low, 1 / (high - low), *_mean_and_per_std(k, len(edges) - 1))
        for column, edges in enumerate(edges_of)
        for k, (low, high) in enumerate(itertools.pairwise(edges))
        if high > low
    ]


def _mean_and_per_std(bin_number: int, bins: int) -> tuple[float, float]:
    """Of b_k: each bin holds as many cells; it is 0 of those below, 1 of those above."""
    mean = 1 - (bin_number + 0.5) / bins
    return mean, (mean * (1 - mean)) ** -0.5


class BinnedMLP(nn.Sequential):
    """One hidden layer behind the bins, for tables."""

    def __init__(
        self, columns: int, classes: int, edges_of: Sequence[Sequence[float]], width: int = 128
    ) -> None:
        bins = Bins(edges_of)
        super().__init__(
            bins,
            nn.Linear(columns + len(bins.column_K), width),
            nn.BatchNorm1d(width),
            _relu(DROPPED),
            nn.Linear(width, classes),
        )


class Bag(nn.Module):
    """Embeddings of the words, summed by tf-idf whatever their order, for texts.

    h = s Σ_l w_l E_l / √(Σ_l w_l²) over the places l of a text; w is the rarity of the word there,
    0 of padding and of words not seen in training. A non-linearity behind it would help to learn
    wrong labels by heart.
    """

    rarity_V: Tensor

    def __init__(
        self, vocabulary: int, classes: int, rarities: Sequence[float] = (), width: int = 64
    ) -> None:
        super().__init__()
        known = torch.tensor(rarities) if rarities else torch.ones(vocabulary - KNOWN)
        self.register_buffer("rarity_V", torch.cat([torch.zeros(KNOWN), known]))
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        # Small, so that what is learnt of a word soon outweighs what it began with.
        nn.init.normal_(self.embedding.weight, std=width**-0.5)
        self.head = nn.Linear(width, classes)

    def forward(self, words_BL: Tensor) -> Tensor:
        weight_BL = self.rarity_V[words_BL]
        length_B1 = weight_BL.square().sum(dim=1, keepdim=True).clamp(min=TINY).sqrt()
        share_B1L = (BAG_SCALE * weight_BL / length_B1).unsqueeze(1)
        return self.head((share_B1L @ self.embedding(words_BL)).squeeze(1))


class GRU(nn.Module):
    """Word embeddings, a GRU, the mean and maximum of its states, for texts."""

    def __init__(self, vocabulary: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width, padding_idx=PADDING)
        self.dropout = nn.Dropout(0.3)
        self.recurrent = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, words_BL: Tensor) -> Tensor:
        is_word_BL1 = (words_BL != PADDING).unsqueeze(2)
        states_BLD, _ = self.recurrent(self.dropout(self.embedding(words_BL)))
        count_B1 = is_word_BL1.sum(dim=1).clamp(min=1)
        mean_BD = (states_BLD * is_word_BL1).sum(dim=1) / count_B1
        top_BD = states_BLD.masked_fill(~is_word_BL1, -1.0).amax(dim=1)  # states lie in [-1, 1]
        return self.head(self.dropout(torch.cat([mean_BD, top_BD], dim=1)))


class PreActBlock(nn.Module):
    """BN-ReLU-conv twice, plus the input (projected where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.project = (
            nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
            if stride != 1 or inputs != outputs
            else None
        )

    def forward(self, x: Tensor) -> Tensor:
        activated = F.relu(self.norm1(x))
        shortcut = x if self.project is None else self.project(activated)
        x = self.conv1(activated)
        return self.conv2(F.relu(self.norm2(x))) + shortcut


class PreActResNet32(nn.Module):
    """PreAct ResNet-32, as the paper calls its network for CIFAR-10: three groups of five blocks.

    The paper gives no widths; 32, 64 and 128 are those of the authors of Joint Optimization, to
    whose figures it compares.
    """

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(channels, 32, 3, padding=1, bias=False)
        blocks, inputs = [], 32
        for outputs, first_stride in ((32, 1), (64, 2), (128, 2)):
            for position in range(5):
                blocks.append(PreActBlock(inputs, outputs, first_stride if position == 0 else 1))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.head = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm(self.blocks(self.stem(x))))
        return self.head(x.mean(dim=(2, 3)))
