"""The networks of the experiments: those of a study, and ResNet-50 and ResNet-18 of any width."""

from __future__ import annotations

from dataclasses import replace

import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.errors import UsageError
from lpcompile.models import ResNet, WideResNet
from lpcompile.models.resnet import initialise
from lpcompile.study.networks import Network

GROUPS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3)}
BOTTLENECKS = (50,)
EXPANSION = 4
BIG_IMAGES = 64  # pixels from which on the stem is ImageNet's


def resnet(depth: int, width: int, batch: int, lr: float) -> Network:
    return Network(f"ResNet-{depth}", "resnet", width, depth, lr=lr, batch=batch)


def wide(depth: int, factor: int, batch: int, lr: float) -> Network:
    return Network(f"WRN-{depth}-{factor}", "wide", factor, depth, lr=lr, batch=batch)


def imagenet(depth: int, width: int, batch: int, lr: float) -> Network:
    return Network(f"ResNet-{depth}", "imagenet", width, depth, lr=lr, batch=batch)


def smaller(network: Network, depth: int) -> Network:
    """The member of the same family with that depth."""
    return replace(network, depth=depth)


def build(network: Network, size: int, classes: int) -> nn.Module:
    if network.family == "resnet":
        return ResNet(network.depth, classes, width=network.width)
    if network.family == "wide":
        return WideResNet(network.depth, network.width, classes)
    if network.depth not in GROUPS:
        raise UsageError(f"there is no ResNet-{network.depth} here, only {', '.join(map(str, GROUPS))}")
    return ImageNetResNet(network.depth, network.width, classes, small=size < BIG_IMAGES)


class Bottleneck(nn.Module):
    """1x1, 3x3 and 1x1 convolution, four times as wide at the end."""

    def __init__(self, inputs: int, width: int, stride: int, expansion: int = EXPANSION) -> None:
        super().__init__()
        outputs = width * expansion
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv3, self.bn3 = nn.Conv2d(width, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.shortcut(x))


class Basic(nn.Module):
    """Two 3x3 convolutions."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width)
        self.conv2, self.bn2 = nn.Conv2d(width, width, 3, 1, 1, bias=False), nn.BatchNorm2d(width)
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class ImageNetResNet(nn.Module):
    """Four groups of blocks. small: a 3x3 stem without pooling, for images of 32 px and less."""

    def __init__(self, depth: int, width: int, classes: int, small: bool) -> None:
        super().__init__()
        stem = nn.Conv2d(3, width, 3, 1, 1, bias=False) if small else nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.stem = nn.Sequential(stem, nn.BatchNorm2d(width), nn.ReLU())
        self.pool = nn.Identity() if small else nn.MaxPool2d(3, 2, 1)
        inputs, groups = width, []
        for i, count in enumerate(GROUPS[depth]):
            blocks: list[nn.Module] = []
            for j in range(count):
                stride, wide = 2 if i and not j else 1, width * 2**i
                blocks.append(Bottleneck(inputs, wide, stride) if depth in BOTTLENECKS else Basic(inputs, wide, stride))
                inputs = wide * (EXPANSION if depth in BOTTLENECKS else 1)
            groups.append(nn.Sequential(*blocks))
        self.layer1, self.layer2, self.layer3, self.layer4 = groups
        self.fc = nn.Linear(inputs, classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool(self.stem(x))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        logits: Tensor = self.fc(x.mean((2, 3)))
        return logits
