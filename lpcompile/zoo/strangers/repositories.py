"""Models as people write them in repositories of their own, in a few lines each."""

from __future__ import annotations

import random
from functools import partial
from random import randrange
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.zoo.entry import InputMaker, ZooEntry, floats
from lpcompile.zoo.strangers.table import ids


class CausalBlock(nn.Module):
    """A block of a small GPT: fused projections, a mask kept as a buffer."""

    def __init__(self, width: int = 64, heads: int = 4, length: int = 32) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.c_attn, self.c_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))
        self.register_buffer("bias", torch.tril(torch.ones(length, length)).view(1, 1, length, length))
        self.bias: Tensor

    def forward(self, x: Tensor) -> Tensor:
        b, t, c = x.size()
        q, k, v = (
            p.view(b, t, self.heads, c // self.heads).transpose(1, 2) for p in self.c_attn(self.ln_1(x)).split(c, 2)
        )
        weights = (q @ k.transpose(-2, -1)) * (k.size(-1) ** -0.5)
        weights = F.softmax(weights.masked_fill(self.bias[:, :, :t, :t] == 0, float("-inf")), dim=-1)
        x = x + self.c_proj((weights @ v).transpose(1, 2).contiguous().view(b, t, c))
        out: Tensor = x + self.mlp(self.ln_2(x))
        return out


class SmallGpt(nn.Module):
    """Token and position embeddings, blocks, and a head tied to the embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(64, 64), nn.Embedding(32, 64)
        self.h = nn.ModuleList(CausalBlock() for _ in range(6))
        self.ln_f, self.lm_head = nn.LayerNorm(64), nn.Linear(64, 64, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.size(1), device=tokens.device))
        for block in self.h:
            x = block(x)
        out: Tensor = self.lm_head(self.ln_f(x))
        return out


class PreActivation(nn.Module):
    """A pre-activation block whose shortcut starts from the activated input."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.bn1, self.bn2 = nn.BatchNorm2d(inner), nn.BatchNorm2d(outer)
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        if stride != 1 or inner != outer:
            self.shortcut = nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False))

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(x))
        shortcut = self.shortcut(out) if hasattr(self, "shortcut") else x
        out = self.conv2(F.relu(self.bn2(self.conv1(out))))
        out += shortcut
        return out


class CifarResNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        widths = [16, 16, 32, 32, 64, 64]
        self.conv1 = nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        pairs = zip([16, *widths], widths, strict=False)
        self.layers = nn.Sequential(*[PreActivation(a, b, 2 if a != b else 1) for a, b in pairs])
        self.linear = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        out = F.avg_pool2d(self.layers(self.conv1(x)), 8)
        found: Tensor = self.linear(out.view(out.size(0), -1))
        return found


class ShakeShake(torch.autograd.Function):
    """Two branches mixed by one random weight forward and by another backward."""

    @staticmethod
    def forward(ctx: object, a: Tensor, b: Tensor) -> Tensor:
        weight = torch.rand(a.size(0), 1, 1, 1)
        return weight * a + (1 - weight) * b

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> tuple[Tensor, Tensor]:
        weight = torch.rand(gradient.size(0), 1, 1, 1)
        return weight * gradient, (1 - weight) * gradient


shake_shake = ShakeShake.apply


class ShakeBlock(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.branches = nn.ModuleList(
            nn.Sequential(nn.ReLU(), nn.Conv2d(width, width, 3, 1, 1), nn.BatchNorm2d(width)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        first, second = (branch(x) for branch in self.branches)
        mixed: Tensor = shake_shake(first, second)
        return x + mixed if self.training else x + (first + second) / 2


class ShakeNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.blocks = nn.Conv2d(3, 16, 3, 1, 1), nn.Sequential(*[ShakeBlock() for _ in range(6)])
        self.head = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.blocks(self.stem(x)).mean((2, 3)))
        return out


class Flow(nn.Module):
    """Optical flow by recurrence: features of two images, and a flow that one cell refines several times."""

    def __init__(self, steps: int = 4) -> None:
        super().__init__()
        self.steps = steps
        self.features = nn.Sequential(nn.Conv2d(3, 16, 7, 2, 3), nn.ReLU(), nn.Conv2d(16, 16, 3, 1, 1))
        self.cells = nn.ModuleList(nn.Conv2d(34, 18, 3, 1, 1) for _ in range(steps))

    def forward(self, first: Tensor, second: Tensor) -> list[Tensor]:
        a, b = self.features(torch.cat([first, second])).chunk(2)
        state, flow, found = torch.tanh(a * b), torch.zeros_like(a[:, :2]), []
        for cell in self.cells:
            change, state = cell(torch.cat([state, b, flow], 1)).split([2, 16], 1)
            state, flow = torch.tanh(state), flow + change
            found.append(flow)
        return found


class PreNorm(nn.ModuleList):
    """Norm and branch of a layer, as a pair that the stack takes apart."""

    def __init__(self, width: int = 32) -> None:
        branch = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Dropout(0.1), nn.Linear(2 * width, width))
        super().__init__([nn.LayerNorm(width), branch])


class SkipsLayers(nn.Module):
    """Layer dropout by Python's generator: a skipped layer leaves its norm and its sum out, too."""

    def __init__(self, depth: int = 6, rate: float = 0.3) -> None:
        super().__init__()
        self.rate = rate
        self.first, self.last = nn.Linear(16, 32), nn.Linear(32, 4)
        self.layers = nn.ModuleList(PreNorm() for _ in range(depth))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        layers: Any = self.layers
        for norm, branch in layers:
            if self.training and random.random() < self.rate:
                continue
            x = branch(norm(x)) + x
        out: Tensor = self.last(x)
        return out


def some_layers(layers: Any, rate: float) -> Any:
    """Layers drawn at random, at least one."""
    dropped: Any = torch.zeros(len(layers)).uniform_(0.0, 1.0) < rate
    if all(dropped):
        dropped[randrange(len(layers))] = False
    return [layer for layer, drop in zip(layers, dropped, strict=True) if not drop]


class PicksLayers(SkipsLayers):
    """Layer dropout by a function that picks from the list, in evaluation too."""

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for norm, branch in some_layers(self.layers, self.rate):
            x = branch(norm(x)) + x
        out: Tensor = self.last(x)
        return out


def _two_images(batch: int) -> tuple[tuple[Tensor, Tensor], dict[str, object]]:
    (x,), _ = floats(6, 32, 32)(batch)
    return (x[:, :3], x[:, 3:]), {}


def _make(kind: type[nn.Module], inputs: InputMaker) -> tuple[nn.Module, InputMaker]:
    return kind(), inputs


MODELS: list[tuple[type[nn.Module], InputMaker]] = [
    (SmallGpt, ids(32)),
    (CifarResNet, floats(3, 32, 32)),
    (ShakeNet, floats(3, 16, 16)),
    (Flow, _two_images),
    (SkipsLayers, floats(16)),
    (PicksLayers, floats(16)),
]


def entries() -> list[ZooEntry]:
    suite, folder = "strangers", "repositories"
    return [ZooEntry(f"{suite}:{folder}/{k.__name__}", suite, partial(_make, k, inputs)) for k, inputs in MODELS]
