"""ResNets as in He et al. 2016, named part by part as torchvision names them.

So that weights trained elsewhere load, where torchvision is not installed too. As there, a
bottleneck has its stride in the 3×3 convolution.
"""

import torch.nn.functional as F
from torch import Tensor, nn


def conv(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two 3×3 convolutions, or with `expansion` 4 a bottleneck of 1×1, 3×3 and 1×1."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int) -> None:
        super().__init__()
        outputs = width * expansion
        is_bottleneck = expansion > 1
        self.conv1 = conv(inputs, width, 1 if is_bottleneck else 3, 1 if is_bottleneck else stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = conv(width, width, 3, stride if is_bottleneck else 1)
        self.bn2 = nn.BatchNorm2d(width)
        if is_bottleneck:
            self.conv3, self.bn3 = conv(width, outputs, 1), nn.BatchNorm2d(outputs)
        self.is_bottleneck = is_bottleneck
        self.downsample = None
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(
                conv(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x if self.downsample is None else self.downsample(x)
        x = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.is_bottleneck:
            x = self.bn3(self.conv3(F.relu(x)))
        return F.relu(x + shortcut)


class ResNet(nn.Module):
    """`blocks` in each of the four groups."""

    def __init__(
        self, blocks: tuple[int, ...], expansion: int, channels: int, classes: int
    ) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        groups, inputs = [], 64
        for group, count in enumerate(blocks):
            width, parts = 64 * 2**group, []
            for position in range(count):
                stride = 2 if group > 0 and position == 0 else 1
                parts.append(Block(inputs, width, stride, expansion))
                inputs = width * expansion
            groups.append(nn.Sequential(*parts))
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        self.fc = nn.Linear(inputs, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, padding=1)
        for group in (self.layer1, self.layer2, self.layer3, self.layer4):
            x = group(x)
        return self.fc(x.mean(dim=(2, 3)))


def resnet18(channels: int, classes: int) -> ResNet:
    return ResNet((2, 2, 2, 2), 1, channels, classes)


def resnet50(channels: int, classes: int) -> ResNet:
    return ResNet((3, 4, 6, 3), 4, channels, classes)
