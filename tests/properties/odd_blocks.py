"""Blocks of random models with something unusual: concatenation, gates, state, writes in place, odd layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.properties.block_parts import Block, Shape, layer
from tests.properties.recipes import CONDITION, HEADS, Concatenate, Gate, Layer, State, Write


class ConcatenateBlock(Block):
    def __init__(self, recipe: Concatenate, shape: Shape) -> None:
        super().__init__()
        self.kind, self.dim, self.half, self.shape = recipe.kind, shape.dim, shape.width // 2, shape
        if self.kind in ("dense", "list") and shape.width > 10:
            self.kind = "halves"
        if self.kind == "halves":
            self.left: Any = layer(replace(shape, width=shape.width - self.half), self.half)
        elif self.kind == "branches":
            self.left, self.right = layer(shape, 2), layer(shape, 2, kernel=1)
            self.join = layer(replace(shape, width=4), shape.width, kernel=1)
        else:
            widths = [shape.width, shape.width + 2] if self.kind == "list" else [shape.width]
            self.left = nn.ModuleList(layer(replace(shape, width=w), 2) for w in widths)
            self.shape = replace(shape, width=widths[-1] + 2)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "halves":
            left = x.narrow(self.dim, 0, self.half)
            right = x.narrow(self.dim, self.half, x.shape[self.dim] - self.half)
            return torch.cat([left + self.left(right).tanh(), right], self.dim)
        if self.kind == "branches":
            return x + self.join(torch.cat((self.left(x).tanh(), self.right(x).sigmoid()), dim=self.dim))
        features = [x]
        for inner in self.left:
            features.append(inner(F.relu(torch.cat(features, self.dim))))
        return torch.cat(features, self.dim)


class GateBlock(Block):
    def __init__(self, recipe: Gate, shape: Shape) -> None:
        super().__init__()
        self.source, self.shape = recipe.source if recipe.source in shape.inputs else "self", shape
        self.wants = (self.source,) if self.source != "self" else ()
        if self.source != "gain":
            self.fc = nn.Linear(CONDITION if self.source == "condition" else shape.width, shape.width)

    def forward(self, x: Tensor, condition: Tensor | None = None, gain: Tensor | None = None) -> Tensor:
        if gain is not None:
            return x * gain.mean() + gain[0]
        pooled = condition if condition is not None else x.mean((2, 3) if self.shape.image else 1)
        scale = torch.sigmoid(self.fc(pooled))
        return x * (scale[:, :, None, None] if self.shape.image else scale.unsqueeze(1))


class StateBlock(Block):
    def __init__(self, recipe: State, shape: Shape) -> None:
        super().__init__()
        self.kind, self.shape = recipe.kind, shape
        size = (shape.width, 1, 1) if shape.image else (shape.width,)
        self.inner = layer(shape, shape.width)  # a child: the block is traced, not kept whole
        if recipe.kind.startswith("parameter"):
            self.weight = nn.Parameter(torch.randn(size))
        else:
            self.register_buffer("table", torch.randn(size), persistent=recipe.kind != "scratch")
        if recipe.kind == "count":
            self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.inner(x)
        if self.kind == "parameter inplace":
            return x.add_(self.weight)
        if self.kind == "parameter":
            return x * self.weight
        if self.kind == "count":
            self.calls += 1
            return x / self.calls
        if self.kind == "running" and self.training:
            with torch.no_grad():
                self.table.mul_(0.9).add_(x.mean(), alpha=0.1)
        return x + self.table


class WriteBlock(Block):
    def __init__(self, recipe: Write, shape: Shape) -> None:
        super().__init__()
        self.kind, self.shape = recipe.kind, shape
        self.inner = layer(shape, shape.width)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "stream":  # the stream itself is changed; what came before still holds it
            x.mul_(0.5)
            return x + self.inner(x)
        out = self.inner(x)
        if self.kind == "slice":
            out[:, :2] = 0.0
        elif self.kind == "view":
            out.view(out.shape[0], -1)[:, :3].mul_(0.5)
        elif self.kind == "zeros":
            empty = torch.zeros_like(out)
            empty[:, 1:] += out[:, 1:]
            out = empty
        else:
            out.mul_(0.5).clamp_(-1.0, 1.0)
        return x + out


class StraightThrough(torch.autograd.Function):
    """sign(x) with the gradient of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient * 0.5


class LayerBlock(Block):
    def __init__(self, recipe: Layer, shape: Shape) -> None:
        super().__init__()
        self.shape, self.kind = shape, recipe.kind
        if shape.image and recipe.kind in ("encoder", "gru"):
            self.kind = "pool"
        if self.kind == "pool" and (not shape.image or shape.size <= 2):
            self.kind = "detached"
        if self.kind == "encoder":
            self.inner: Any = nn.TransformerEncoderLayer(shape.width, HEADS, 8, dropout=0.1, batch_first=True)
        elif self.kind == "gru":
            self.inner = nn.GRU(shape.width, shape.width, batch_first=True)
        elif self.kind == "pool":
            self.inner = nn.MaxPool2d(2)
            self.shape = replace(shape, size=shape.size // 2)
        else:
            self.inner = layer(shape, shape.width)
        if self.kind == "weight norm":
            self.inner = nn.utils.parametrizations.weight_norm(self.inner)
        if self.kind == "quantise":
            self.codes = nn.Embedding(shape.width, 1)

    def forward(self, x: Tensor) -> Tensor:
        if self.kind in ("encoder", "pool"):
            return self.inner(x)
        out = getattr(self, f"_{self.kind.replace(' ', '_')}", self.inner)(x)
        return x + out

    def _gru(self, x: Tensor) -> Tensor:
        return self.inner(x)[0]

    def _detached(self, x: Tensor) -> Tensor:
        return self.inner(x.detach())

    def _no_grad(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            scale = self.inner(x).abs().mean()
        return self.inner(x) / (1 + scale)

    def _autocast(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.inner(x)

    def _checkpoint(self, x: Tensor) -> Tensor:
        return checkpoint(lambda t: F.gelu(self.inner(t)), x, use_reentrant=False)

    def _function(self, x: Tensor) -> Tensor:
        return self.inner(StraightThrough.apply(x))

    def _double(self, x: Tensor) -> Tensor:
        return self.inner((x.double() * 0.3).float())

    def _fourier(self, x: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(self.inner(x)) * 0.5, n=x.shape[-1])

    def _quantise(self, x: Tensor) -> Tensor:
        places = self.inner(x).argmax(self.shape.dim)
        return self.codes(places).movedim(-1, self.shape.dim)
