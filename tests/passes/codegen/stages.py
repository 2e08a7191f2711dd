"""Small models as stages, for the tests of the passes that write their code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lpcompile import parallelize
from lpcompile.passes.codegen.items import Contents
from lpcompile.passes.codegen.leaf import leaf
from lpcompile.passes.codegen.source import stage_source
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.tree import Part, View, build_tree, is_container


@dataclass
class Opened:
    """A stage of one part as far as its tree and its training graph."""

    root: Part
    view: View
    names: Names

    def contents(self, *units: str) -> Contents:
        paths = [tuple(unit.split(".")) for unit in units]
        return Contents(self.view, {path: self.part(path) for path in paths}, self.names)

    def part(self, path: tuple[str, ...]) -> Part:
        found = self.root.at(path)
        assert found is not None
        return found


def stage_of(model: nn.Module, *inputs: Any) -> Any:
    return parallelize(model, 1, example_inputs=inputs, cost="flops", gate=False).stages[0]


def opened(model: nn.Module, *inputs: Any) -> Opened:
    stage, names = stage_of(model, *inputs), Names()
    root = build_tree(stage, model)
    for part in root.walk():
        if not is_container(part):
            part.leaf = leaf(part.module, ".".join(part.path), names)
    return Opened(root, View(stage._lp_graphs[True], root), names)


def source_of(model: nn.Module, *inputs: Any) -> str:
    return stage_source(stage_of(model, *inputs), model, "Stage0", ["A stage."])


class Block(nn.Module):
    """Norm, two linear layers, dropout and a residual."""

    def __init__(self, width: int = 4, rate: float = 0.0) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        out = F.dropout(F.gelu(self.up(self.norm(x))), self.rate, self.training)
        return x + self.down(out)


class Blocks(nn.Module):
    """Blocks in a list, then a head that is a chain."""

    def __init__(self, *rates: float) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(4, rate) for rate in rates)
        self.head = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)  # type: ignore[no-any-return]


def rows(count: int = 3, width: int = 4) -> Tensor:
    return torch.randn(count, width)
