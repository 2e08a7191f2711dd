"""Models whose forward draws with Python's `random` or with numpy, in the forms that people write."""

from __future__ import annotations

import random
from typing import Any

import numpy
import torch
from torch import Tensor, nn

from lpcompile.zoo.entry import InputMaker, floats


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.branch = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = x + self.branch(self.norm(x))
        return out


class Draws(nn.Module):
    """A stack of blocks; `step` says how a block is called."""

    def __init__(self, depth: int = 6) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.blocks = nn.ModuleList(self.block() for _ in range(depth))

    def block(self) -> nn.Module:
        return Block()

    def step(self, block: Any, x: Tensor) -> Tensor:
        out: Tensor = block(x)
        return out

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = self.step(block, x)
        out: Tensor = self.last(x)
        return out


def spans(shape: tuple[int, int], share: float, length: int) -> Any:
    """Which features to mask, in spans, as in SpecAugment; their number is drawn, too."""
    mask = numpy.zeros(shape, dtype=bool)
    count = int(share * shape[1] / length + numpy.random.rand())
    for row in mask:
        for start in numpy.random.choice(shape[1] - length, count, replace=False):
            row[start : start + length] = True
    return mask


class MasksSpans(Draws):
    """A mask that a function draws by numpy, as speech models of transformers do."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        if self.training:
            x[torch.tensor(spans((len(x), 32), 0.3, 4), dtype=torch.bool)] = 0
        for block in self.blocks:
            x = self.step(block, x)
        out: Tensor = self.last(x)
        return out


class MasksByNumpy(Draws):
    def step(self, block: Any, x: Tensor) -> Tensor:
        mask = numpy.random.rand(x.shape[1]) < 0.2
        out: Tensor = block(x.masked_fill(torch.from_numpy(mask), 0.0))
        return out


class Permutes(Draws):
    def step(self, block: Any, x: Tensor) -> Tensor:
        out: Tensor = block(x[:, torch.as_tensor(numpy.random.permutation(32))])
        return out


class SamplesFeatures(Draws):
    """Some features, sampled by Python's generator, are left out."""

    def step(self, block: Any, x: Tensor) -> Tensor:
        dropped = random.sample(range(32), 8)
        x = x.clone()
        x[:, dropped] = 0
        out: Tensor = block(x) * random.choice([0.5, 1.0, 2.0])
        return out


class EitherLayer(Draws):
    """One of two blocks of different kinds, drawn at every call, in evaluation too."""

    def block(self) -> nn.Module:
        return nn.ModuleList([Block(), nn.Sequential(nn.Linear(32, 32), nn.Tanh())])

    def step(self, block: Any, x: Tensor) -> Tensor:
        out: Tensor = block[0](x) if torch.rand(()) < 0.5 else x + block[1](x)
        return out


class ShakesOrDrops(Draws):
    """ShakeDrop: a residual branch whole, or scaled by chance, and by its mean in evaluation."""

    def step(self, block: Any, x: Tensor) -> Tensor:
        out: Tensor
        if not self.training:
            out = x + 0.75 * block.branch(block.norm(x))
        elif torch.bernoulli(torch.tensor(0.5)) == 1:
            out = x + block.branch(block.norm(x))
        else:
            scale = torch.empty(len(x), 1).uniform_(-1, 1)
            out = x + scale * block.branch(block.norm(x))
        return out


class NoiseAndSkips(Draws):
    """Noise that is drawn in some layers, and layers that are skipped."""

    def step(self, block: Any, x: Tensor) -> Tensor:
        if self.training and random.random() < 0.4:
            x = x + 0.1 * torch.randn_like(x)
        if not self.training or random.random() >= 0.3:
            x = block(x)
        return x


KINDS: list[type[Draws]] = [
    MasksSpans, MasksByNumpy, Permutes, EitherLayer, ShakesOrDrops, NoiseAndSkips, SamplesFeatures
]  # fmt: skip
MODELS: list[tuple[type[nn.Module], InputMaker]] = [(kind, floats(16)) for kind in KINDS]
