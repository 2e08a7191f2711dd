"""Programs for the tests of emit."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lpcompile import Program, models, parallelize


def program_of(model: nn.Module, K: int, *args: Any, **kwargs: Any) -> Program:
    return parallelize(
        model, K, example_inputs=args, example_kwargs=kwargs, cost="flops", method="multiplier", gate=False
    )


def gpt() -> tuple[nn.Module, Tensor]:
    return models.gpt_tiny(), torch.randint(0, 50, (2, 64))


class Chain(nn.Module):
    def __init__(self, blocks: dict[str, nn.Module]) -> None:
        super().__init__()
        self._modules.update(blocks)

    def forward(self, x: Tensor) -> Tensor:
        for block in self._modules.values():
            x = block(x)  # type: ignore[misc]
        return x
