"""Random residual models, built from recipes: containers of blocks, and the model around them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.properties.block_parts import Block, Shape, layer
from tests.properties.odd_blocks import ConcatenateBlock, GateBlock, LayerBlock, StateBlock, WriteBlock
from tests.properties.recipes import (
    IMAGE,
    TOKENS,
    VOCABULARY,
    Around,
    Attention,
    Concatenate,
    Gate,
    Group,
    Layer,
    Recipe,
    Repeat,
    Residual,
    State,
    Write,
)
from tests.properties.residual_blocks import AttentionBlock, ResidualBlock


def run(block: nn.Module, x: Tensor, extras: Mapping[str, Tensor]) -> Tensor:
    return block(x, **{name: extras[name] for name in getattr(block, "wants", ())})


def wanted(blocks: Iterable[nn.Module]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for block in blocks for name in getattr(block, "wants", ())))


class GroupBlock(Block):
    def __init__(self, recipe: Group, shape: Shape) -> None:
        super().__init__()
        blocks, self.shape = chain(recipe.children, shape)
        self.kind, self.wants = recipe.kind, wanted(blocks)
        if recipe.kind == "sequential" and not self.wants:
            self.inner: Any = nn.Sequential(*blocks)
        elif recipe.kind == "dict":
            self.inner = nn.ModuleDict({f"block{i}": block for i, block in enumerate(blocks)})
        elif recipe.kind == "bare":
            self.inner = nn.Module()
            for i, block in enumerate(blocks):
                setattr(self.inner, f"block{i}", block)
        else:
            self.inner = nn.ModuleList(blocks)

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        if isinstance(self.inner, nn.Sequential):
            return self.inner(x)
        for block in self.inner.children():
            x = run(block, x, extras)
        return x


class AroundBlock(Block):
    def __init__(self, recipe: Around, shape: Shape) -> None:
        super().__init__()
        blocks, after = chain(recipe.children, shape)
        self.inner, self.wants, self.dim = nn.ModuleList(blocks), wanted(blocks), shape.dim
        self.concatenate = recipe.join == "cat" and after.size == shape.size and shape.width + after.width <= 16
        self.project = layer(shape, after.width, shape.size // after.size) if after != shape else None
        self.shape = replace(shape, width=shape.width + after.width) if self.concatenate else after

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        out = x
        for block in self.inner:
            out = run(block, out, extras)
        if self.concatenate:
            return torch.cat([x, out], self.dim)
        return out + (x if self.project is None else self.project(x))


class RepeatBlock(Block):
    def __init__(self, recipe: Repeat, shape: Shape) -> None:
        super().__init__()
        self.inner, self.shape = make(recipe.child, shape)
        self.times, self.wants = recipe.times if self.shape == shape else 1, wanted([self.inner])

    def forward(self, x: Tensor, **extras: Tensor) -> Tensor:
        for _ in range(self.times):
            x = run(self.inner, x, extras)
        return x


BLOCKS: dict[type, type[Any]] = {
    Residual: ResidualBlock,
    Attention: AttentionBlock,
    Concatenate: ConcatenateBlock,
    Gate: GateBlock,
    State: StateBlock,
    Write: WriteBlock,
    Layer: LayerBlock,
    Group: GroupBlock,
    Around: AroundBlock,
    Repeat: RepeatBlock,
}


def make(recipe: Any, shape: Shape) -> tuple[nn.Module, Shape]:
    block = BLOCKS[type(recipe)](recipe, shape)
    return block, block.shape


def chain(recipes: Iterable[Any], shape: Shape) -> tuple[list[nn.Module], Shape]:
    blocks = []
    for recipe in recipes:
        block, shape = make(recipe, shape)
        blocks.append(block)
    return blocks, shape


Pair = namedtuple("Pair", ("main", "early", "echo"))


@dataclass
class Output:
    main: Tensor
    early: list[Tensor]
    echo: Any = None


class RandomModel(nn.Module):
    def __init__(self, recipe: Recipe) -> None:
        super().__init__()
        self.recipe, self.image = recipe, recipe.kind == "image"
        start = Shape(self.image, recipe.width, IMAGE if self.image else TOKENS, recipe.inputs)
        self.register_buffer("temperature", torch.ones(2))
        self.stem: Any = nn.Embedding(VOCABULARY, recipe.width) if recipe.kind == "words" else nn.Identity()
        if recipe.stem and recipe.kind != "words":
            self.stem = layer(replace(start, width=3 if self.image else recipe.width), recipe.width)
        blocks, shapes = [], [start]
        self.names = []
        for i, item in enumerate(recipe.body):
            block, shape = make(item, shapes[-1])
            self.names.append(f"block{i}" if i else recipe.name)
            self.add_module(self.names[-1], block)
            blocks.append(block)
            shapes.append(shape)
        self.taps = sorted({i % len(blocks) for i in recipe.early}) if blocks else []
        if recipe.early_form == "head":
            self.early_heads = nn.ModuleList(nn.Linear(shapes[i + 1].width, 2) for i in self.taps)
        if recipe.head == "pool":
            self.head = nn.Linear(shapes[-1].width, 3)
        self.tie_words = recipe.head == "words" and recipe.kind == "words" and shapes[-1].width == recipe.width
        if recipe.alias and blocks:
            self.second_name = blocks[0]
        if recipe.eval_block and blocks:
            blocks[0].eval()
        self.stem.requires_grad_(not recipe.frozen)
        if recipe.tied:
            self.tie()

    def tie(self) -> None:
        """Make the last weight of some shape the first weight of that shape."""
        owners: dict[tuple[int, ...], list[nn.Module]] = {}
        for module in self.modules():
            if type(module) in (nn.Linear, nn.Conv2d) and module.weight.requires_grad:
                owners.setdefault(tuple(module.weight.shape), []).append(module)
        first, *_, last = max(owners.values(), key=len, default=[self, self]) * 2
        if first is not last:
            last.weight = first.weight

    def pooled(self, x: Tensor) -> Tensor:
        return x.mean((2, 3) if self.image else 1)

    def tapped(self, x: Tensor, i: int) -> Tensor:
        if self.recipe.early_form == "head":
            return self.early_heads[i](self.pooled(x))
        return x.flatten(1) if self.recipe.early_form == "view" else x

    def compute(self, x: Tensor, extras: dict[str, Tensor]) -> Any:
        given, early = x, []
        x = self.stem(x)
        for i, name in enumerate(self.names):
            x = run(self._modules[name], x, extras)  # type: ignore[arg-type]
            if i in self.taps:
                early.append(self.tapped(x, len(early)))
        if self.recipe.head == "pool":
            x = self.head(self.pooled(x))
        elif self.tie_words:
            x = F.linear(x, self.stem.weight)
        return self.packed(x, early, given)

    def packed(self, x: Tensor, early: list[Tensor], given: Tensor) -> Any:
        echo = {"input": given, "buffer": self.temperature, "argmax": x.argmax(-1), "none": None}[self.recipe.echo]
        form = self.recipe.output
        if form == "dict":
            return {"main": x, "early": {f"tap{i}": t for i, t in enumerate(early)}, "echo": echo}
        if form == "dataclass":
            return Output(x, early, echo)
        if form == "namedtuple":
            return Pair(x, early, echo)
        if form == "tuple" or early or echo is not None:
            return (x, *early, echo)
        return x

    def __repr__(self) -> str:
        return f"{self.recipe!r}.build()"


class OfArguments(RandomModel):
    def forward(
        self, x: Tensor, condition: Tensor | None = None, gain: Tensor | None = None, mask: Tensor | None = None
    ) -> Any:
        given = {"condition": condition, "gain": gain, "mask": mask}
        return self.compute(x, {name: t for name, t in given.items() if t is not None})


class OfMapping(RandomModel):
    """All inputs in one mapping."""

    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.compute(batch["x"], {name: t for name, t in batch.items() if name != "x"})
