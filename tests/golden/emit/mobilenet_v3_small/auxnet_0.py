"""AuxNet 0 of MobileNetV3: a small network in the place of stage 0, features.0.0 to features.7.block.3.0."""

from collections import OrderedDict

from torch import nn


class SqueezeExcitation(nn.Module):
    """features.1.block.1, features.4.block.2, features.7.block.2."""

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
    """features.2."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(nn.Conv2d(4, 24, 1, bias=False), nn.BatchNorm2d(24, eps=0.001, momentum=0.01), nn.ReLU()),
            nn.Sequential(
                nn.Conv2d(24, 24, 3, stride=2, padding=1, groups=24, bias=False),
                nn.BatchNorm2d(24, eps=0.001, momentum=0.01),
                nn.ReLU(),
            ),
            nn.Sequential(nn.Conv2d(24, 7, 1, bias=False), nn.BatchNorm2d(7, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        return self.block(x)


class InvertedResidual3(nn.Module):
    """features.1."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(4, 4, 3, stride=2, padding=1, groups=4, bias=False),
                nn.BatchNorm2d(4, eps=0.001, momentum=0.01),
                nn.ReLU(),
            ),
            SqueezeExcitation(4, 2),
            nn.Sequential(nn.Conv2d(4, 4, 1, bias=False), nn.BatchNorm2d(4, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        return self.block(x)


class InvertedResidual2(nn.Module):
    """features.N for N = 4, 7."""

    def __init__(self, in_channels, out_channels, block_3_0_out_channels, stride=1):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, bias=False),
                nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
                nn.Hardswish(),
            ),
            nn.Sequential(
                nn.Conv2d(out_channels, out_channels, 5, stride=stride, padding=2, groups=out_channels, bias=False),
                nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
                nn.Hardswish(),
            ),
            SqueezeExcitation(out_channels, in_channels),
            nn.Sequential(
                nn.Conv2d(out_channels, block_3_0_out_channels, 1, bias=False),
                nn.BatchNorm2d(block_3_0_out_channels, eps=0.001, momentum=0.01),
            ),
        )

    def forward(self, x):
        return self.block(x)


class AuxNet0(nn.Module):
    """AuxNet 0 of MobileNetV3: a small network in the place of stage 0, features.0.0 to features.7.block.3.0.

    derived, fresh; keeps none of 3 blocks; thinned: features.0.0 (4 channels), features.1.block.1.fc2
    (4 channels), features.1.block.2.0 (4 channels), features.1.block.1.fc1 (2 channels),
    features.2.block.0.0 (24 channels), features.2.block.2.0 (7 channels), features.4.block.0.0 (24
    channels), features.4.block.2.fc2 (24 channels), features.4.block.3.0 (8 channels),
    features.4.block.2.fc1 (7 channels), features.7.block.0.0 (32 channels), features.7.block.2.fc2 (32
    channels), features.7.block.2.fc1 (8 channels).
    It costs 8.3 % of the stage and runs on rank 0.
    plan.json: stages[0], units 0 to 23.
    The boundary after it: boundaries[0], after features_7_block_3_1.

    Takes: x: float32[B, 3, 64, 64].
    Gives: float32[B, 48, 4, 4].
    """

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            OrderedDict(
                {
                    "0": nn.Sequential(
                        nn.Conv2d(3, 4, 3, stride=2, padding=1, bias=False),
                        nn.BatchNorm2d(4, eps=0.001, momentum=0.01),
                        nn.Hardswish(),
                    ),
                    "1": InvertedResidual3(),
                    "2": InvertedResidual(),
                    "4": InvertedResidual2(7, 24, 8, stride=2),
                    "7": InvertedResidual2(8, 32, 48),
                },
            ),
        )

    def forward(self, x):
        return self.features(x)
