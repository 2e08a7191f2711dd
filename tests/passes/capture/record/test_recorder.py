"""One forward under the recorder: which calls become nodes, and what the nodes say."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpcompile.passes.capture.record.recorder import Recorder
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.record.shadow import Shadow


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.layer(x).relu()


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()

    def forward(self, x: Tensor) -> Any:
        return {"out": self.block(x) * 2}


def recorded(model: nn.Module, x: Tensor, **options: Any) -> Recorder:
    recorder = Recorder(Shadow(model, None), **options)
    recorder.tree = recorder.run([("x", x)], lambda root: root(x))  # type: ignore[attr-defined]
    return recorder


def test_layers_and_functions_become_nodes_and_blocks_are_traced_through() -> None:
    recorder = recorded(Model(), torch.ones(3, 2))
    assert [n.name for n in recorder.graph.nodes] == ["x", "block_layer", "relu", "add", "mul", "output"]
    layer = next(n for n in recorder.graph.nodes if n.op == "call_module")
    assert layer.target == "block.layer" and layer.meta["path"] == "block.layer"


def test_a_node_knows_its_shape_its_line_and_its_cost() -> None:
    layer = next(n for n in recorded(Model(), torch.ones(3, 2)).graph.nodes if n.op == "call_module")
    assert layer.meta["spec"].shape == (3, 2) and layer.meta["flops"] == 2 * 3 * 2 * 2
    assert layer.meta["source"].startswith(f"{__file__}:") and layer.meta["source"].endswith("in forward")


def test_a_module_that_is_kept_whole_is_one_node() -> None:
    recorder = recorded(Model(), torch.ones(3, 2), kept_whole=frozenset({"block"}))
    assert [n.target for n in recorder.graph.nodes if n.op == "call_module"] == ["block"]


def test_the_output_keeps_its_structure() -> None:
    tree = recorded(Model(), torch.ones(3, 2)).tree  # type: ignore[attr-defined]
    assert tree.unflatten([torch.zeros(1)]).keys() == {"out"}


class OnValues(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if bool(x.sum() > 0) else x


def test_a_branch_on_values_is_refused_unless_it_is_frozen() -> None:
    with pytest.raises(Unrecordable):
        recorded(OnValues(), torch.ones(3, 2))
    frozen = recorded(OnValues(), torch.ones(3, 2), specialise=True)
    assert any(n.op == "call_module" for n in frozen.graph.nodes)


class Counts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + x.shape[0] if self.training else x


def test_reads_of_mode_and_sizes_are_noticed() -> None:
    recorder = recorded(Counts(), torch.ones(3, 2))
    assert recorder.reads_training and recorder.reads_sizes
    assert not recorded(Model(), torch.ones(3, 2)).reads_training
