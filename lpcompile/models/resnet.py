"""The CIFAR residual networks of He et al. (2016): three groups of n basic blocks, 6n + 2 layers.

The paper that lpcompile implements trains ResNet-20, 32, 54 and 110 in their original, post-activation form. There is
no n for which 6n + 2 = 54 and the paper does not say what it built; we assume the 56-layer network (n = 9), the nearest
that He et al. define, so `resnet54` is that network under the paper's name.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv3x3(inputs: int, outputs: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False)


class PadShortcut(nn.Module):
    """The parameter-free shortcut (option A): every second pixel, new channels filled with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride = stride
        self.extra = outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        below = self.extra // 2
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, below, self.extra - below))


def _shortcut(kind: str, inputs: int, outputs: int, stride: int, norm: bool) -> nn.Module:
    if inputs == outputs and stride == 1:
        return nn.Identity()
    if kind == "pad":
        return PadShortcut(inputs, outputs, stride)
    if kind != "projection":
        raise ValueError(f"shortcut is {kind!r}; use 'pad' or 'projection'")
    projection = nn.Conv2d(inputs, outputs, 1, stride=stride, bias=False)
    return nn.Sequential(projection, nn.BatchNorm2d(outputs)) if norm else projection


class BasicBlock(nn.Module):
    """conv-norm-relu-conv-norm, add, relu."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut = _shortcut(shortcut, inputs, outputs, stride, norm=True)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class PreActBlock(nn.Module):
    """norm-relu-conv-norm-relu-conv, add: the residual stream itself is never normalised."""

    def __init__(self, inputs: int, outputs: int, stride: int, shortcut: str) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(inputs)
        self.conv1 = conv3x3(inputs, outputs, stride)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.conv2 = conv3x3(outputs, outputs)
        self.shortcut = _shortcut(shortcut, inputs, outputs, stride, norm=False)

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv1(F.relu(self.bn1(x)))
        out = self.conv2(F.relu(self.bn2(out)))
        result: Tensor = out + self.shortcut(x)
        return result


def initialise(model: nn.Module, zero_init_residual: bool = False) -> None:
    """He initialisation; `zero_init_residual` zeroes the end of every branch, so that blocks start as identities."""
    for module in model.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    for module in model.modules() if zero_init_residual else ():
        if isinstance(module, BasicBlock):
            nn.init.zeros_(module.bn2.weight)
        elif isinstance(module, PreActBlock):  # no norm closes this branch, so its last convolution is zeroed
            nn.init.zeros_(module.conv2.weight)


class ResNet(nn.Module):
    """A CIFAR ResNet of `depth` layers.

    ResNet(110)                     # the paper's baseline, 1.7 million parameters
    ResNet(20, preact=True)         # He et al.'s second paper: identity mappings
    """

    def __init__(
        self,
        depth: int,
        num_classes: int = 10,
        *,
        preact: bool = False,
        width: int = 16,
        shortcut: str = "pad",
        zero_init_residual: bool = False,
    ) -> None:
        super().__init__()
        if depth < 8 or depth % 6 != 2:
            raise ValueError(f"a CIFAR ResNet has 6n + 2 layers (8, 14, 20, ...); depth {depth} is not one of them")
        blocks = (depth - 2) // 6
        block = PreActBlock if preact else BasicBlock
        self.conv1 = conv3x3(3, width)
        self.bn1 = nn.Identity() if preact else nn.BatchNorm2d(width)
        self.act1 = nn.Identity() if preact else nn.ReLU()
        groups, inputs = [], width
        for outputs, stride in ((width, 1), (2 * width, 2), (4 * width, 2)):
            group = [block(inputs, outputs, stride, shortcut)]
            group += [block(outputs, outputs, 1, shortcut) for _ in range(blocks - 1)]
            groups.append(nn.Sequential(*group))
            inputs = outputs
        self.layer1, self.layer2, self.layer3 = groups
        self.head_norm = nn.Sequential(nn.BatchNorm2d(inputs), nn.ReLU()) if preact else nn.Identity()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(inputs, num_classes)
        initialise(self, zero_init_residual)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act1(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        x = self.avgpool(self.head_norm(x))
        logits: Tensor = self.fc(torch.flatten(x, 1))
        return logits


def resnet20(**kwargs: Any) -> ResNet:
    return ResNet(20, **kwargs)


def resnet32(**kwargs: Any) -> ResNet:
    return ResNet(32, **kwargs)


def resnet54(**kwargs: Any) -> ResNet:
    """The paper's ResNet-54: see the module's docstring."""
    return ResNet(56, **kwargs)


def resnet56(**kwargs: Any) -> ResNet:
    return ResNet(56, **kwargs)


def resnet110(**kwargs: Any) -> ResNet:
    return ResNet(110, **kwargs)


def preact_resnet20(**kwargs: Any) -> ResNet:
    return ResNet(20, preact=True, **kwargs)


def preact_resnet110(**kwargs: Any) -> ResNet:
    return ResNet(110, preact=True, **kwargs)
