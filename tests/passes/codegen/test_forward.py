"""The steps of a unit as lines of a method."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lpcompile.passes.codegen.forward import ForwardWriter
from tests.passes.codegen.stages import Block, opened, rows


def lines(model: nn.Module, *inputs: Tensor) -> list[str]:
    stage = opened(model, *inputs)
    return list(ForwardWriter(stage.contents(), stage.root).write().lines)


def test_a_residual_block_reads_as_written() -> None:
    assert lines(Block(), rows()) == [
        "out = self.norm(x)",
        "out = self.up(out)",
        "out = F.gelu(out)",
        "out = F.dropout(out, p=0.0, training=True)",
        "return x + self.down(out)",
    ]


def test_the_method_knows_its_arguments_and_results() -> None:
    stage = opened(Block(), rows())
    method = ForwardWriter(stage.contents(), stage.root).write()
    assert (method.arguments, method.results) == (("x",), 1)


class Split(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=1)
        return a * torch.sigmoid(b)


def test_parts_of_a_tensor_are_unpacked() -> None:
    assert lines(Split(), rows()) == ["out, y = x.chunk(2, dim=1)", "return out * torch.sigmoid(y)"]


class InPlace(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        y = x * 2
        y += 1
        y[:, 0] = 0
        return y


def test_writes_in_place_are_statements() -> None:
    assert lines(InPlace(), rows()) == ["x = x * 2", "x += 1", "x[:, 0] = 0", "return x"]


class NoGrad(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            size = x.norm(dim=-1, keepdim=True)
            size = size + 1
        return x / size


def test_steps_without_gradient_share_a_with_block() -> None:
    found = lines(NoGrad(), rows())
    assert found[0] == "with torch.no_grad():" and found.count(found[0]) == 1
    assert [line.startswith("    ") for line in found] == [False, True, True, False]


class Sized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x + torch.zeros(x.shape[0], 4)


def test_the_batch_size_is_read_first() -> None:
    assert lines(Sized(), rows()) == ["batch = x.shape[0]", "return x + torch.zeros(batch, 4)"]


class TwoResults(nn.Module):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x + 1, x * 2


def test_several_results_are_returned_together() -> None:
    assert lines(TwoResults(), rows()) == ["out = x + 1", "x = x * 2", "return out, x"]


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.mix(self.norm(x))


def test_calls_that_end_in_a_sum_are_nested() -> None:
    assert lines(Mixer(), rows()) == ["return x + self.mix(self.norm(x))"]
