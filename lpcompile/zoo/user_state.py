"""User-style modules with state, randomness or side effects in forward."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from lpcompile.zoo.entry import InputMaker, floats, plain_text
from lpcompile.zoo.user_forms import WIDTH, residuals


class TiedEmbedding(nn.Module):
    """The head uses the embedding's matrix through F.linear: one parameter, used at both ends."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(99, WIDTH)
        self.blocks = residuals(dropout=0.1)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return F.linear(x, self.words.weight)


class SharedBlocks(nn.Module):
    """Two blocks used four times each, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.even, self.odd = residuals(2)

    def forward(self, x: Tensor) -> Tensor:
        for step in range(8):
            x = self.odd(x) if step % 2 else self.even(x)
        return x


class InplaceAfterAdd(nn.Module):
    """`+=` on the stream and `relu_` right after it: wherever the cut falls, a received tensor is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            out = norm(conv(x))
            out += x
            x = out.relu_()
        return x.mean((2, 3))


class InplaceMethods(nn.Module):
    """In-place arithmetic, masked fill and slice assignment on fresh tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x).mul_(0.5).add_(0.1)
            y = y.masked_fill_(y < -2.0, 0.0)
            z = torch.zeros_like(y)
            z[:, : WIDTH // 2] = y[:, WIDTH // 2 :]
            x = x + z + F.silu(y, inplace=False)
        return x


class RunningMean(nn.Module):
    """Buffers updated in place: a hand-made normalisation in every block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.means: Tensor
        self.register_buffer("means", torch.zeros(6, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            if self.training:
                with torch.no_grad():
                    self.means[index].mul_(0.9).add_(x.mean(0), alpha=0.1)
            x = x + F.relu(layer(x - self.means[index]))
        return x


class ReassignedBuffer(nn.Module):
    """A buffer replaced in forward by a new tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()
        self.scale: Tensor
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.scale = 0.9 * self.scale + 0.1 * x.detach().abs().mean(0)
        for block in self.blocks:
            x = block(x / (self.scale + 1e-3))
        return x


class ForwardCounter(nn.Module):
    """Counts its calls in a plain attribute, and warms up by it."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals()
        self.calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        warm = min(1.0, 0.5 + self.calls / 1000)
        for block in self.blocks:
            x = block(x)
        return x * warm


class PythonRandomDepth(nn.Module):
    """Stochastic depth by Python's `random`: a new graph at every call."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if not self.training or random.random() < 0.8:
                x = block(x)
        return x


class SampleDropPath(nn.Module):
    """Stochastic depth for each sample by torch.rand: random, but always the same graph."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            branch = F.relu(layer(x))
            if self.training:
                branch = branch * torch.rand(x.shape[0], 1, device=x.device).lt(0.8).to(x.dtype) / 0.8
            x = x + branch
        return x


class TensorRandomBranch(nn.Module):
    """LayerDrop: a Python branch on a random tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = residuals(8)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            if self.training and torch.rand([]) < 0.1:
                continue
            x = block(x)
        return x


class WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH)) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x


class SpectralNormed(nn.Module):
    """A parametrisation that updates its buffers (the power iteration) whenever the weight is read in training."""

    def __init__(self) -> None:
        super().__init__()
        self.convs = nn.ModuleList(
            parametrizations.spectral_norm(nn.Conv2d(3 if i == 0 else 8, 8, 3, padding=1)) for i in range(6)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.convs[0](x)
        for conv in list(self.convs)[1:]:
            x = x + F.leaky_relu(conv(x), 0.1)
        return x.mean((2, 3))


class StraightThrough(torch.autograd.Function):
    """Signs forward, identity within [-1, 1] backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.sign()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return grads[0] * (x.abs() <= 1)


class BinaryNet(nn.Module):
    """A custom autograd.Function in every block."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(6))
        self.norms = nn.ModuleList(nn.BatchNorm1d(WIDTH) for _ in range(6))

    def forward(self, x: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + layer(StraightThrough.apply(norm(x)))
        return x


class Checkpointed(nn.Module):
    """Activation checkpointing, with dropout inside, so that the recomputation must replay its random numbers."""

    reentrant = False

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.blocks = residuals(dropout=0.1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=self.reentrant)
        return x


class CheckpointedReentrant(Checkpointed):
    reentrant = True


class NoGradRegion(nn.Module):
    """Frozen features computed under no_grad, then trainable blocks, then a detached gate."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = residuals(2)
        self.blocks = residuals(6)

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for block in self.frozen:
                x = block(x)
        gate = torch.sigmoid(x).detach()
        for block in self.blocks:
            x = block(x) * gate
        return x


VECTOR: InputMaker = floats(WIDTH)
IMAGE: InputMaker = floats(3, 16, 16)
MODELS: list[tuple[type[nn.Module], InputMaker]] = [
    (TiedEmbedding, plain_text),
    (SharedBlocks, VECTOR),
    (InplaceAfterAdd, IMAGE),
    (InplaceMethods, VECTOR),
    (RunningMean, VECTOR),
    (ReassignedBuffer, VECTOR),
    (ForwardCounter, VECTOR),
    (PythonRandomDepth, VECTOR),
    (SampleDropPath, VECTOR),
    (TensorRandomBranch, VECTOR),
    (WeightNormed, VECTOR),
    (SpectralNormed, IMAGE),
    (BinaryNet, VECTOR),
    (Checkpointed, VECTOR),
    (CheckpointedReentrant, VECTOR),
    (NoGradRegion, VECTOR),
]
