"""The source of a small residual model, for commands that are given a file."""

from __future__ import annotations


def net_source(channels: int = 1, classes: int = 10) -> str:
    return f"""
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x):
        return (x + self.norm(self.conv(x))).relu()

def build(classes={classes}):
    blocks = [Block() for _ in range(4)]
    return nn.Sequential(nn.Conv2d({channels}, 4, 3), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(4, classes))

def two():
    return build(2)
"""
