"""Stage 1 of 2 of MobileNetV3: features.8.block to classifier.3."""

from collections import OrderedDict

import torch
from torch import nn


class SqueezeExcitation(nn.Module):
    """features.N.block.2 for N = 8 ... 11."""

    def __init__(self, in_channels, out_channels):
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(in_channels, out_channels, 1)
        self.fc2 = nn.Conv2d(out_channels, in_channels, 1)
        self.activation = nn.ReLU()
        self.scale_activation = nn.Hardsigmoid()

    def forward(self, x):
        out = self.avgpool(x)
        out = self.fc1(out)
        out = self.activation(out)
        return self.scale_activation(self.fc2(out)) * x


class InvertedResidual(nn.Module):
    """features.N for N = 8, 10, 11."""

    def __init__(self, in_channels, out_channels, block_2_out_channels):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, bias=False),
                nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            nn.Sequential(
                nn.Conv2d(out_channels, out_channels, 5, padding=2, groups=out_channels, bias=False),
                nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            SqueezeExcitation(out_channels, block_2_out_channels),
            nn.Sequential(
                nn.Conv2d(out_channels, in_channels, 1, bias=False),
                nn.BatchNorm2d(in_channels, eps=0.001, momentum=0.01),
            ),
        )

    def forward(self, x):
        out = self.block(x)
        out += x
        return out


class InvertedResidual2(nn.Module):
    """features.9."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(48, 288, 1, bias=False),
                nn.BatchNorm2d(288, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            nn.Sequential(
                nn.Conv2d(288, 288, 5, stride=2, padding=2, groups=288, bias=False),
                nn.BatchNorm2d(288, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            SqueezeExcitation(288, 72),
            nn.Sequential(nn.Conv2d(288, 96, 1, bias=False), nn.BatchNorm2d(96, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        return self.block(x)


class Stage1(nn.Module):
    """Stage 1 of 2 of MobileNetV3: features.8.block to classifier.3.

    plan.json: stages[1], units 24 to 34.

    Takes: lam: float32[B, 48, 4, 4].
    Gives: output 0 of the model.
    """

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                {
                    "8": InvertedResidual(48, 144, 40),
                    "9": InvertedResidual2(),
                    "10": InvertedResidual(96, 576, 144),
                    "11": InvertedResidual(96, 576, 144),
                    "12": nn.Sequential(
                        nn.Conv2d(96, 576, 1, bias=False),
                        nn.BatchNorm2d(576, eps=0.001, momentum=0.01),
                        nn.Hardswish(inplace=True),
                    ),
                },
            ),
        )
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Linear(576, 1024), nn.Hardswish(inplace=True), nn.Dropout(0.2, inplace=True), nn.Linear(1024, 10)
        )

    def forward(self, lam):
        x = self.features(lam)
        x = self.avgpool(x)
        x = torch.flatten(x, 1)
        return self.classifier(x)
