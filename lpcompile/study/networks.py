"""The networks of a study: six families of any width and depth, for small images or for bytes of text."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile.errors import UsageError
from lpcompile.models import GPT, ResNet, VisionTransformer, WideResNet

CONTEXT = 64  # bytes of text that a GPT sees
HEADS = 4  # of attention
PATCH = 4  # pixels
CLASSES = 10  # of images


@dataclass(frozen=True)
class Network:
    """A network and how it is trained, whatever the method.

    width: channels of the first blocks, or features of a transformer; of `wide` the factor on 16 channels.
    """

    name: str
    family: str
    width: int
    depth: int
    optimizer: str = "sgd"
    lr: float = 0.1
    batch: int = 128
    dtype: str = "fp32"

    @property
    def text(self) -> bool:
        return self.family == "gpt"

    def check(self) -> None:
        if self.family not in FAMILIES:
            raise UsageError(f"model {self.name}: family {self.family!r} is not one of {', '.join(FAMILIES)}")
        for name, known in (("optimizer", ("sgd", "adamw")), ("dtype", ("fp32", "bf16"))):
            if getattr(self, name) not in known:
                raise UsageError(f"model {self.name}: {name} {getattr(self, name)!r} is not one of {', '.join(known)}")
        for name in ("width", "depth", "batch"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"model {self.name}: {name} {value!r} is no whole number of 1 or more")
        if isinstance(self.lr, bool) or not isinstance(self.lr, (int, float)) or not self.lr > 0:
            raise UsageError(f"model {self.name}: lr {self.lr!r} is no positive number")
        six = self.depth >= 8 and self.depth % 6 == (4 if self.family == "wide" else 2)
        if self.family in ("resnet", "preact", "wide") and not six:
            of = "6n + 4, such as 10, 16 or 22" if self.family == "wide" else "6n + 2, such as 8, 20 or 32"
            raise UsageError(f"model {self.name}: depth {self.depth} of a {self.family} network must be {of}")
        if self.family in ("vit", "gpt") and self.width % HEADS:
            raise UsageError(f"model {self.name}: width {self.width} must be a multiple of its {HEADS} heads")


FAMILIES = ("resnet", "preact", "wide", "vit", "mixer", "gpt")
NAMED = {
    found.name: found
    for found in (
        Network("resnet14", "resnet", 16, 14),
        Network("resnet20", "resnet", 16, 20),
        Network("resnet32", "resnet", 16, 32),
        Network("resnet56", "resnet", 16, 56),
        Network("wide_resnet16_4", "wide", 4, 16),
        Network("preact20", "preact", 16, 20),
        Network("vit", "vit", 96, 8, "adamw", 2e-3),
        Network("gpt", "gpt", 96, 8, "adamw", 2e-3, 32),
    )
}


def network_of(given: Any) -> Network:
    """A network by its name, or from its fields."""
    if isinstance(given, str):
        if given not in NAMED:
            raise UsageError(
                f"there is no model {given!r}: name one of {', '.join(NAMED)}, or give a table with "
                f"{', '.join(f.name for f in fields(Network))}"
            )
        return NAMED[given]
    known = {f.name for f in fields(Network)}
    if not isinstance(given, dict) or not {"name", "family", "width", "depth"} <= set(given) <= known:
        raise UsageError(
            f"{given!r} is no model: it needs name, family, width and depth, and may have "
            f"{', '.join(sorted(known - {'name', 'family', 'width', 'depth'}))}"
        )
    found = Network(**given)
    found.check()
    return found


def build(network: Network, size: int) -> nn.Module:
    """The module for images of `size` pixels, or for text."""
    width, depth = network.width, network.depth
    if network.family == "gpt":
        return GPT(vocabulary=256, context=CONTEXT, dim=width, depth=depth, heads=HEADS)
    if network.family == "vit":
        return VisionTransformer(size, PATCH, dim=width, depth=depth, heads=HEADS, num_classes=CLASSES)
    if network.family == "mixer":
        return Mixer(size, width, depth)
    if network.family == "preact":
        return PreActNet(depth, width)
    return WideResNet(depth, width) if network.family == "wide" else ResNet(depth, width=width)


class Block(nn.Module):
    """A pre-activation block with dropout, as a user would write it."""

    def __init__(self, i: int, o: int, stride: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.BatchNorm2d(i), nn.Conv2d(i, o, 3, stride, 1, bias=False)
        self.norm2, self.conv2 = nn.BatchNorm2d(o), nn.Conv2d(o, o, 3, 1, 1, bias=False)
        self.drop = nn.Dropout(0.1)
        self.short = nn.Conv2d(i, o, 1, stride, bias=False) if i != o or stride > 1 else None

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(self.norm1(x))
        rest = x if self.short is None else self.short(h)
        found: Tensor = rest + self.conv2(self.drop(F.relu(self.norm2(self.conv1(h)))))
        return found


class PreActNet(nn.Module):
    """A pre-activation ResNet: no norm before the cuts."""

    def __init__(self, depth: int, width: int) -> None:
        super().__init__()
        sizes = [width * 2**k for k in range(3) for _ in range((depth - 2) // 6)]
        self.stem = nn.Conv2d(3, width, 3, 1, 1, bias=False)
        pairs = zip([width, *sizes], sizes, strict=False)
        self.blocks = nn.Sequential(*(Block(i, o, 1 + (o > i)) for i, o in pairs))
        self.norm, self.head = nn.BatchNorm2d(sizes[-1]), nn.Linear(sizes[-1], CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(F.relu(self.norm(self.blocks(self.stem(x)))).mean((2, 3)))
        return found


class MixerBlock(nn.Module):
    """A residual branch over positions and one over features."""

    def __init__(self, tokens: int, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.across = nn.Sequential(nn.Linear(tokens, 2 * tokens), nn.GELU(), nn.Linear(2 * tokens, tokens))
        self.along = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        found: Tensor = x + self.along(self.norm2(x))
        return found


class Mixer(nn.Module):
    """An MLP-Mixer on patches of 4 px."""

    def __init__(self, size: int, dim: int, depth: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, dim, PATCH, PATCH)
        self.blocks = nn.Sequential(*(MixerBlock((size // PATCH) ** 2, dim) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.head(self.norm(self.blocks(self.patches(x).flatten(2).transpose(1, 2))).mean(1))
        return found


def loss_fn(output: Tensor, target: Tensor) -> Tensor:
    """Cross entropy of classes, or of the next byte at every position."""
    return F.cross_entropy(output.flatten(0, -2).float(), target.flatten())


def figures(output: Tensor, target: Tensor) -> dict[str, Any]:
    """The figures of an evaluation: loss and accuracy of a batch."""
    return {"loss": loss_fn(output, target), "accuracy": (output.argmax(-1) == target).float().mean()}


def example(network: Network, size: int, count: int) -> Tensor:
    """Inputs of the right shape."""
    g = torch.Generator().manual_seed(0)
    if network.text:
        return torch.randint(256, (count, CONTEXT), generator=g)
    return torch.randn(count, 3, size, size, generator=g)
