"""Small models that the tests of capture share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(self.drop(x.mean((2, 3))))


def run(module, *args, **kwargs):
    torch.manual_seed(3)
    return module(*args, **kwargs)


class Loop(nn.Module):
    """Blocks under a forward given as a function."""

    def __init__(self, body) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.body = body

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.body(self, x)


@dataclass
class Result:
    logits: torch.Tensor
    parts: dict[str, torch.Tensor]
    note: str = "fine"


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, pair, *, mask=None, flag: bool = True) -> Result:
        x, y = pair
        h = self.a(x) + y
        if mask is not None:
            h = h.masked_fill(mask, 0.0)
        return Result(self.b(h) if flag else h, {"hidden": h})
