"""Stage 1 of 2 of ResNet: layer2.1 to fc."""

from collections import OrderedDict

import torch
import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """layer2.1, layer2.2, layer3.1, layer3.2."""

    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut = nn.Identity()

    def forward(self, x):
        out = self.conv1(x)
        out = self.bn1(out)
        out = F.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        return F.relu(out + self.shortcut(x))


class BasicBlock2(nn.Module):
    """layer3.0."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(32, 64, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.conv2 = nn.Conv2d(64, 64, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(64)

    def forward(self, x):
        out = self.conv1(x)
        out = self.bn1(out)
        out = F.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        x = x[:, :, ::2, ::2]
        x = out + F.pad(x, (0, 0, 0, 0, 16, 16))
        return F.relu(x)


class Stage1(nn.Module):
    """Stage 1 of 2 of ResNet: layer2.1 to fc.

    plan.json: stages[1], units 5 to 10.

    Takes: lam: float32[B, 32, 16, 16].
    Gives: output 0 of the model.
    """

    def __init__(self):
        super().__init__()
        self.layer2 = nn.Sequential(OrderedDict({"1": BasicBlock(32), "2": BasicBlock(32)}))
        self.layer3 = nn.Sequential(BasicBlock2(), BasicBlock(64), BasicBlock(64))
        self.head_norm = nn.Identity()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(64, 10)

    def forward(self, lam):
        x = self.layer2(lam)
        x = self.layer3(x)
        x = self.head_norm(x)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.fc(x)
