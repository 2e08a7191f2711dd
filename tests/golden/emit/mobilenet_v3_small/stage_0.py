"""Stage 0 of 2 of MobileNetV3: features.0.0 to features.7.block.3.0."""

from torch import nn


class SqueezeExcitation(nn.Module):
    """features.1.block.1, features.4.block.2, features.5.block.2, features.6.block.2, features.7.block.2."""

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
            nn.Sequential(
                nn.Conv2d(16, 72, 1, bias=False), nn.BatchNorm2d(72, eps=0.001, momentum=0.01), nn.ReLU(inplace=True)
            ),
            nn.Sequential(
                nn.Conv2d(72, 72, 3, stride=2, padding=1, groups=72, bias=False),
                nn.BatchNorm2d(72, eps=0.001, momentum=0.01),
                nn.ReLU(inplace=True),
            ),
            nn.Sequential(nn.Conv2d(72, 24, 1, bias=False), nn.BatchNorm2d(24, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        return self.block(x)


class InvertedResidual2(nn.Module):
    """features.3."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(24, 88, 1, bias=False), nn.BatchNorm2d(88, eps=0.001, momentum=0.01), nn.ReLU(inplace=True)
            ),
            nn.Sequential(
                nn.Conv2d(88, 88, 3, padding=1, groups=88, bias=False),
                nn.BatchNorm2d(88, eps=0.001, momentum=0.01),
                nn.ReLU(inplace=True),
            ),
            nn.Sequential(nn.Conv2d(88, 24, 1, bias=False), nn.BatchNorm2d(24, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        out = self.block(x)
        out += x
        return out


class InvertedResidual5(nn.Module):
    """features.1."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(16, 16, 3, stride=2, padding=1, groups=16, bias=False),
                nn.BatchNorm2d(16, eps=0.001, momentum=0.01),
                nn.ReLU(inplace=True),
            ),
            SqueezeExcitation(16, 8),
            nn.Sequential(nn.Conv2d(16, 16, 1, bias=False), nn.BatchNorm2d(16, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        return self.block(x)


class InvertedResidual3(nn.Module):
    """features.N for N = 4, 7."""

    def __init__(self, in_channels, out_channels, block_2_out_channels, block_3_0_out_channels, stride=1):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(in_channels, out_channels, 1, bias=False),
                nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            nn.Sequential(
                nn.Conv2d(out_channels, out_channels, 5, stride=stride, padding=2, groups=out_channels, bias=False),
                nn.BatchNorm2d(out_channels, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            SqueezeExcitation(out_channels, block_2_out_channels),
            nn.Sequential(
                nn.Conv2d(out_channels, block_3_0_out_channels, 1, bias=False),
                nn.BatchNorm2d(block_3_0_out_channels, eps=0.001, momentum=0.01),
            ),
        )

    def forward(self, x):
        return self.block(x)


class InvertedResidual4(nn.Module):
    """features.N for N = 5, 6."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(40, 240, 1, bias=False),
                nn.BatchNorm2d(240, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            nn.Sequential(
                nn.Conv2d(240, 240, 5, padding=2, groups=240, bias=False),
                nn.BatchNorm2d(240, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            SqueezeExcitation(240, 64),
            nn.Sequential(nn.Conv2d(240, 40, 1, bias=False), nn.BatchNorm2d(40, eps=0.001, momentum=0.01)),
        )

    def forward(self, x):
        out = self.block(x)
        out += x
        return out


class Stage0(nn.Module):
    """Stage 0 of 2 of MobileNetV3: features.0.0 to features.7.block.3.0.

    plan.json: stages[0], units 0 to 23.
    The boundary after it: boundaries[0], after features_7_block_3_1.

    Takes: x: float32[B, 3, 64, 64].
    Gives: float32[B, 48, 4, 4].
    """

    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(
            nn.Sequential(
                nn.Conv2d(3, 16, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(16, eps=0.001, momentum=0.01),
                nn.Hardswish(inplace=True),
            ),
            InvertedResidual5(),
            InvertedResidual(),
            InvertedResidual2(),
            InvertedResidual3(24, 96, 24, 40, stride=2),
            InvertedResidual4(),
            InvertedResidual4(),
            InvertedResidual3(40, 120, 32, 48),
        )

    def forward(self, x):
        return self.features(x)
