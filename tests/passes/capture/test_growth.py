"""How the work of a compilation grows with the model."""

import sys
from functools import partial

import pytest
import torch
from torch import nn

import lpcompile


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x):
        return x + self.down(nn.functional.gelu(self.up(self.norm(x)).view(len(x), -1, 16)))


def calls_made(call):
    """The functions that a call runs, Python's and C's: no clock, so the same on every machine."""
    count = 0

    def note(frame, event, arg):
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return count


@pytest.mark.parametrize("compile_", [lpcompile.capture, partial(lpcompile.parallelize, K=2, cost="flops")])
def test_work_grows_no_faster_than_the_number_of_recorded_operations(compile_):
    x = torch.randn(2, 3, 8)

    def work(blocks):
        model = nn.Sequential(*(Block() for _ in range(blocks)))
        return calls_made(lambda: compile_(model, example_inputs=x)) / blocks

    work(4)  # first calls: imports, and torch's own tables
    assert work(20) <= 1.05 * work(6)
