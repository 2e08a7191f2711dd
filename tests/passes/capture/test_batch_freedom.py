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
