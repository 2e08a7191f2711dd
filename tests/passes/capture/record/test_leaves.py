"""Which modules stay whole in a graph."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from lpcompile.passes.capture.record.leaves import is_leaf


class Custom(nn.Module):
    def __init__(self, parameters: int = 0) -> None:
        super().__init__()
        self.held = [self.register_parameter(f"p{i}", nn.Parameter(torch.ones(1))) for i in range(parameters)]

    def forward(self, x: Tensor) -> Tensor:
        return x


class DropPath(Custom):
    def forward(self, x: Tensor) -> Tensor:
        return x if self.training else x * 2


class Norm(nn.BatchNorm2d):
    pass


class Block(Custom):
    def __init__(self) -> None:
        super().__init__(1)
        self.inner = nn.ReLU()


def hooked() -> nn.Module:
    block = Block()
    block.register_full_backward_hook(lambda *_: None)
    return block


@pytest.mark.parametrize("module", [nn.Linear(2, 2), Norm(2), Custom(1), Custom(3), DropPath(), hooked()], ids=repr)
def test_layers_stay_whole(module: nn.Module) -> None:
    assert is_leaf(module)


@pytest.mark.parametrize("module", [nn.Sequential(nn.ReLU()), Block(), Custom(0), Custom(4)], ids=repr)
def test_containers_blocks_and_helpers_are_traced(module: nn.Module) -> None:
    assert not is_leaf(module)
