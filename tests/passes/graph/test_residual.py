"""Residual blocks, found in captured graphs."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import lpcompile
from lpcompile.passes.graph.residual import Residual, residuals


class Block(nn.Module):
    def __init__(self, project: bool = False, twice: bool = False) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)
        self.project = nn.Linear(8, 8) if project else None
        self.twice = twice

    def forward(self, x: Tensor) -> Tensor:
        branch = self.b(torch.relu(self.a(x)))
        out = (x if self.project is None else self.project(x)) + branch
        return out + self.a(out) if self.twice else out


def found(model: nn.Module, width: int = 8) -> list[Residual]:
    captured = lpcompile.capture(model, torch.randn(2, width))
    return residuals(captured._lp_graphs[True], captured)


def test_a_block_is_a_sum_of_the_stream_and_its_branch() -> None:
    first, second = found(nn.Sequential(Block(), Block()))
    assert (first.group, second.group) == ("0", "1")
    assert first.keeps and first.shortcut.op == "placeholder" and second.shortcut is first.node
    assert {n.name for n in first.inside} == {"_0_a", "relu", "_0_b"} and first.branch.name == "_0_b"


def test_a_projected_shortcut_does_not_keep_the_stream() -> None:
    (block,) = found(nn.Sequential(Block(project=True)))
    assert not block.keeps and block.shortcut.target == "0.project"


def test_two_sums_in_one_module_are_one_group() -> None:
    blocks = found(nn.Sequential(Block(twice=True)))
    assert [b.group for b in blocks] == ["0", "0"]


def test_each_run_of_a_shared_module_is_a_group_of_its_own() -> None:
    block = Block()

    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([block])

        def forward(self, x: Tensor) -> Tensor:
            for _ in range(3):
                x = self.layers[0](x)
            return x

    assert [b.group for b in found(Shared())] == ["layers.0", "layers.0#2", "layers.0#3"]


class Skip(nn.Module):
    """A long skip over its blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*[Block() for _ in range(blocks)])
        self.last = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.last(self.blocks(x))


def test_a_skip_over_several_blocks_is_no_block() -> None:
    assert [b.group for b in found(Skip(3))] == ["blocks.0", "blocks.1", "blocks.2"]


def test_a_block_inside_one_branch_goes_with_it() -> None:
    (block,) = found(Skip(1))
    assert block.branch.target == "last"


class Sum(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 1)
        self.kind = kind

    def forward(self, x: Tensor) -> Tensor:
        h = self.a(x)
        return {"itself": h + h, "bias": h + self.a.bias, "broadcast": h + self.b(h), "number": h + 1.0}[self.kind]


@pytest.mark.parametrize("kind", ["itself", "bias", "broadcast", "number"])
def test_other_sums_are_no_blocks(kind: str) -> None:
    assert found(Sum(kind)) == []


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_transformer_layer_is_a_block_whose_norms_stay_if_they_come_last(norm_first: bool) -> None:
    model = nn.Sequential(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=norm_first))
    captured = lpcompile.capture(model, torch.randn(2, 3, 8))
    (block,) = residuals(captured._lp_graphs[True], captured)
    assert block.group == "0" and block.node is block.branch
    assert block.norms == (() if norm_first else ("norm1", "norm2"))
