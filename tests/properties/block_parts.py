"""Layers that the blocks of random models are made of, and the shape of the stream that they pass on."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """What the stream looks like while a model is built."""

    image: bool
    width: int
    size: int
    inputs: tuple[str, ...]

    @property
    def dim(self) -> int:
        """Where the channels are."""
        return 1 if self.image else -1


def layer(shape: Shape, width: int, stride: int = 1, kernel: int = 3, bias: bool = True) -> nn.Module:
    if shape.image:
        return nn.Conv2d(shape.width, width, kernel, stride, kernel // 2, bias=bias)
    return nn.Linear(shape.width, width, bias=bias)


class TokenBatchNorm(nn.BatchNorm1d):
    """Batch norm over (batch, token, channel)."""

    view = False

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x.transpose(1, 2)).transpose(1, 2)
        return out if self.view else out.contiguous()


class TokenBatchNormView(TokenBatchNorm):
    """The same, but what it returns is a view: writing into it in place goes through its base."""

    view = True


def normalisation(shape: Shape, kind: str) -> nn.Module:
    if kind == "none":
        return nn.Identity()
    if kind == "batch":
        return nn.BatchNorm2d(shape.width) if shape.image else TokenBatchNorm(shape.width)
    if kind == "batch view" and not shape.image:
        return TokenBatchNormView(shape.width)
    if shape.image:
        return nn.GroupNorm(2 if kind == "group" else 1, shape.width)
    return nn.LayerNorm(shape.width)


class DropPath(nn.Module):
    """Stochastic depth as timm writes it."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        return x * x.new_empty((x.shape[0],) + (1,) * (x.dim() - 1)).bernoulli_(0.7) / 0.7


class Block(nn.Module):
    """A block may want other inputs than the stream."""

    wants: tuple[str, ...] = ()
