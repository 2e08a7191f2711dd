"""Wide residual networks of Zagoruyko and Komodakis (2016): pre-activation blocks, 6n + 4 layers, k times as wide."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.models.resnet import conv3x3, initialise


class WideBlock(nn.Module):
    """norm-relu-conv-norm-relu-dropout-conv, add; where the shape changes, the shortcut starts after the first relu."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = None if same else nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        active = F.relu(self.bn1(x))
        shortcut = x if self.shortcut is None else self.shortcut(active)
        out = F.relu(self.bn2(self.conv1(active)))
        result: Tensor = self.conv2(self.dropout(out)) + shortcut
        return result


class WideResNet(nn.Module):
    """WideResNet(28, 10) is WRN-28-10: 28 layers, ten times the width of the CIFAR ResNet, 36.5 million parameters."""

    def __init__(self, depth: int, widen: int, num_classes: int = 10, *, dropout: float = 0.0) -> None:
        super().__init__()
        if depth < 10 or depth % 6 != 4:
            raise ValueError(f"a WideResNet has 6n + 4 layers (10, 16, 22, 28, ...); depth {depth} is not one of them")
        blocks = (depth - 4) // 6
        self.conv1 = conv3x3(3, 16)
        groups, inputs = [], 16
        for outputs, stride in ((16 * widen, 1), (32 * widen, 2), (64 * widen, 2)):
            group = [WideBlock(inputs, outputs, stride, dropout)]
            group += [WideBlock(outputs, outputs, 1, dropout) for _ in range(blocks - 1)]
            groups.append(nn.Sequential(*group))
            inputs = outputs
        self.layer1, self.layer2, self.layer3 = groups
        self.bn = nn.BatchNorm2d(inputs)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self)

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        x = self.avgpool(F.relu(self.bn(x)))
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits


def wide_resnet16_4(**kwargs: Any) -> WideResNet:
    return WideResNet(16, 4, **kwargs)


def wide_resnet16_10(**kwargs: Any) -> WideResNet:
    return WideResNet(16, 10, **kwargs)


def wide_resnet28_10(**kwargs: Any) -> WideResNet:
    return WideResNet(28, 10, **kwargs)


def wide_resnet40_10(**kwargs: Any) -> WideResNet:
    return WideResNet(40, 10, **kwargs)
