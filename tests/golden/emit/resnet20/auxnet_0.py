"""AuxNet 0 of ResNet: a small network in the place of stage 0, conv1 to layer2.0."""

import torch.nn.functional as F
from torch import nn


class BasicBlock(nn.Module):
    """layer2.0."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(16, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.conv2 = nn.Conv2d(8, 32, 3, padding=1, bias=False)
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


class AuxNet0(nn.Module):
    """AuxNet 0 of ResNet: a small network in the place of stage 0, conv1 to layer2.0.

    derived, fresh; keeps layer2.0 of 4 blocks; thinned: layer2.0.conv1 (8 channels).
    It costs 6.6 % of the stage and runs on rank 0.
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
        self.layer2 = nn.Sequential(BasicBlock())

    def forward(self, x):
        x = self.conv1(x)
        x = self.bn1(x)
        x = self.act1(x)
        return self.layer2(x)
