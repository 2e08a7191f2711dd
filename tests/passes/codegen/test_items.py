"""The items of a unit: its own steps, the calls of inner units, and the sizes it needs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.codegen.items import parts_of, read_off
from lpcompile.passes.graph.batch import symbol
from tests.passes.codegen.stages import Blocks, opened, rows


def test_an_inner_unit_is_one_item() -> None:
    stage = opened(Blocks(0, 0), rows())
    apart, together = stage.contents().items(()), stage.contents("blocks.0", "head").items(())
    assert all(item.unit is None for item in apart) and len(apart) == len(stage.view.steps)
    assert [".".join(i.unit.path) for i in together if i.unit is not None] == ["blocks.0", "head"]
    assert together[0].kind == "call" and together[0].inputs == stage.view.arguments


class Positions(nn.Module):
    """Makes a tensor as long as the batch, in a block that is given no tensor of that length."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(1, 4)

    def forward(self, x: Tensor) -> Tensor:
        index = torch.arange(x.shape[0] * 2, dtype=torch.float32)
        return x + self.fc(index.view(x.shape[0], 2, 1)).sum(1)


def test_a_size_is_traced_to_the_batch_that_it_is_computed_from() -> None:
    stage = opened(Positions(), rows())
    contents = stage.contents()
    assert [n.meta["symbol"] for n in contents.sizes((), contents.items(()))] == ["batch"]
    assert contents.handed(()) == []


def value(spec: TensorSpec | None) -> fx.Node:
    node = fx.Graph().placeholder("x")
    node.meta["spec"] = spec
    return node


def test_sizes_are_read_off_the_first_input_that_tells_them() -> None:
    plain, batched = (TensorSpec((3, 8), torch.float32, batch=batch) for batch in ((0, 0), (0, 4)))
    first, second = value(plain), value(batched)
    batch, device = value(None), value(None)
    batch.meta.update(symbol("batch"))
    device.meta.update(symbol("device"))
    names = {first: "x", second: "y"}
    assert read_off(batch, [first], names) is None
    assert read_off(batch, [first, second], names).text == "y.shape[1] // 4"  # type: ignore[union-attr]
    assert read_off(device, [first, second], names).text == "x.device"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "args", "count"),
    [("chunk", (3, 1), 3), ("chunk", (4, 1), 3), ("split", (4, 1), 2), ("split", ([2, 4], 1), 2), ("unbind", (1,), 6),
     ("chunk", (3, 0), None), ("view", (6,), None)],
)  # fmt: skip
def test_the_number_of_parts_is_known_unless_the_batch_is_split(name: str, args: tuple[Any, ...], count: int) -> None:
    x = value(TensorSpec((2, 6), torch.float32, batch=(1, 0)))
    assert parts_of(x.graph.call_method(name, (x, *args))) == count
