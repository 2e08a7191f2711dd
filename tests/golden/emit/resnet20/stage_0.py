"""Stage 0 of 2 of ResNet: conv1 to layer2.0."""

import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """layer1.N for N = 0 ... 2."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.conv2 = nn.Conv2d(16, 16, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(16)
        self.shortcut = nn.Identity()

    def forward(self, x):
        out = self.conv1(x)
        out = self.bn1(out)
        out = F.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        return F.relu(out + self.shortcut(x))


class BasicBlock2(nn.Module):
    """layer2.0."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(16, 32, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(32)
        self.conv2 = nn.Conv2d(32, 32, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(32)

    def forward(self, x):
        out = self.conv1(x)
        out = self.bn1(out)
        out = F.relu(out)
        out = self.conv2(out)
        out = self.bn2(out)
        x = x[:, :, ::2, ::2]
        x = out + F.pad(x, (0, 0, 0, 0, 8, 8))
        return F.relu(x)


class Stage0(nn.Module):
    """Stage 0 of 2 of ResNet: conv1 to layer2.0.

    plan.json: stages[0], units 0 to 4.
    The boundary after it: boundaries[0], after relu_7.

    Takes: x: float32[B, 3, 32, 32].
    Gives: float32[B, 32, 16, 16].
    """

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.act1 = nn.ReLU()
        self.layer1 = nn.Sequential(*[BasicBlock() for _ in range(3)])
        self.layer2 = nn.Sequential(BasicBlock2())

    def forward(self, x):
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.act1(x)
        x = self.layer1(x)
        return self.layer2(x)
