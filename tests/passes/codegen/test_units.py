"""Which containers become units, and how they are written."""

from __future__ import annotations

from torch import Tensor, nn

from lpcompile.passes.codegen.units import Units
from tests.passes.codegen.stages import Block, Blocks, opened, rows


def units(model: nn.Module) -> Units:
    stage = opened(model, rows())
    return Units(stage.root, {True: stage.view, False: stage.view}, stage.names)


def test_blocks_are_units_and_chains_are_sequential() -> None:
    found = units(Blocks(0, 0))
    kinds = {".".join(path): part.kind for path, part in found.parts.items()}
    assert kinds == {"blocks": "sequential", "blocks.0": "plain", "blocks.1": "plain", "head": "sequential"}


class Sums(nn.Module):
    """A list that is no chain: there are steps between its blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])

    def forward(self, x: Tensor) -> Tensor:
        return x + self.blocks[1](x + self.blocks[0](x))


def test_a_list_that_is_no_chain_stays_a_list() -> None:
    found = units(Sums())
    assert found.parts.keys() == {("blocks", "0"), ("blocks", "1")}
    assert found.root.children["blocks"].kind == "list"


class Wrapper(nn.Module):
    """A block of a single step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)  # type: ignore[no-any-return]


def test_a_single_step_is_no_unit() -> None:
    assert units(nn.Sequential(Wrapper(), Block())).parts.keys() == {("1",)}


def test_both_modes_share_a_method_when_they_share_a_graph() -> None:
    found = units(Blocks(0))
    methods = found.methods(found.parts["blocks", "0"])
    assert methods[True] is methods[False]
    assert methods[True].arguments == ("x",)
