"""Graphs that follow the batch size, and graphs that are tied to it."""

from __future__ import annotations

import pytest
import torch

import lpcompile
from lpcompile.errors import InputError
from tests.passes.capture.models import Loop


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: x * x.shape[0] ** 2,
        lambda m, x: x / x.shape[0] ** 0.5,
        lambda m, x: x[: x.shape[0] // 2],
        lambda m, x: x * 2 if x.shape[0] > 8 else x,
        lambda m, x: (x, x.shape[0]),
    ],
)
def test_what_is_not_linear_in_the_batch_ties_the_graph_to_it(body):
    model = Loop(body)
    captured = lpcompile.capture(model, torch.randn(2, 4))
    with pytest.raises(InputError, match="compiled for"):
        captured(torch.randn(9, 4))


def test_what_is_linear_in_the_batch_follows_it():
    model = Loop(lambda m, x: x.view(x.shape[0] * 2, 2) + torch.arange(x.shape[0] * 2)[:, None])
    captured = lpcompile.capture(model, torch.randn(2, 4))
    for batch in (1, 3, 8):
        x = torch.randn(batch, 4)
        assert torch.equal(captured(x), model(x))


class NumberedRows(torch.nn.Module):
    """Rows that refer to each other by number, as the nodes of a graph: the first dimension is no batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, index):
        for layer in self.layers:
            x = x + torch.relu(layer(x))[index]
        return x


def test_inputs_that_number_their_rows_are_taken_as_they_are():
    model, x, index = NumberedRows(), torch.randn(9, 8), torch.arange(9).flip(0)
    program = lpcompile.parallelize(model, 2, example_inputs=(x, index), cost="flops")
    assert program.plan.gate == "bitwise" and not program.plan.batch_free
    assert "by number" in program.plan.notes[0]


RAN: list[list[int]] = []  # of each forward: image height, and layers that ran


class Images(torch.nn.Module):
    """Convolutions that cost enough for smaller images in the gate. `how`: what forward does with the image size."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Conv2d(3 if i == 0 else 64, 64, 7, padding=3) for i in range(4))
        self.how = how

    def forward(self, x):
        batch, channels, height, width = x.shape
        RAN.append([height, 0])
        if self.how == "windows":
            x = x.view(batch, channels, 2, height // 2, width).flatten(2, 3)
        elif self.how == "unused":
            x.sum((1, 2)) * width
        for layer in self.layers:
            RAN[-1][1] += 1
            x = layer(x)
        return x.mean((2, 3))


@pytest.mark.parametrize(
    ("how", "forwards"),
    [
        ("nothing", [[128, 4], [64, 4], [64, 4]]),
        ("unused", [[128, 4], [64, 4], [64, 4]]),
        ("windows", [[128, 4], [64, 0], [128, 4], [128, 4]]),
    ],
)
def test_a_recording_of_small_images_ends_at_the_first_call_that_is_another(how, forwards):
    RAN.clear()
    captured = lpcompile.capture(Images(how), torch.randn(2, 3, 128, 128))
    assert forwards == RAN and captured._lp.batch_free
    assert (captured._lp.small_inputs is None) == (how == "windows")
