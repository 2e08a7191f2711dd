"""The shape check of an AuxNet, on fake tensors."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from lpcompile.passes.auxnet.check import Mismatch, checked_flops, learns
from lpcompile.passes.auxnet.derive import AuxNet, aux_io, derive
from tests.passes.auxnet.small import stack, stages


@pytest.fixture
def aux() -> AuxNet:
    return derive(stages(stack(), torch.zeros(2, 4), "add_1")[0], budget=1.0)


def test_the_flops_are_those_of_the_compiled_batch_size(aux: AuxNet) -> None:
    assert checked_flops(aux, aux_io(aux).boundary) == 2 * 2 * (4 * 8 + 2 * 2 * 8 * 32)


def test_the_network_keeps_its_own_tensors(aux: AuxNet) -> None:
    before = {name: id(p) for name, p in aux.named_parameters()}
    checked_flops(aux, aux_io(aux).boundary)
    assert {name: id(p) for name, p in aux.named_parameters()} == before
    assert aux(torch.randn(2, 4)).shape == (2, 8)


@pytest.mark.parametrize(("change", "message"), [
    ({"shape": (2, 9)}, r"its result 0 is float32\[2, 8\], expected float32\[2, 9\]"),
    ({"dtype": torch.float64}, r"expected float64\[2, 8\]"),
    ({"batch": (2, 0)}, r"is float32\[2, 8\], expected float32\[4, 8\]"),
])  # fmt: skip
def test_another_boundary_is_a_mismatch(aux: AuxNet, change: dict[str, Any], message: str) -> None:
    (spec,) = aux_io(aux).boundary
    with pytest.raises(Mismatch, match=message):
        checked_flops(aux, (replace(spec, **change),))


def test_the_number_of_tensors_counts(aux: AuxNet) -> None:
    (spec,) = aux_io(aux).boundary
    with pytest.raises(Mismatch, match="it gives 1 tensors where the boundary has 2"):
        checked_flops(aux, (spec, spec))


class Codes(nn.Module):
    """A codebook: its gradient ends at the choice of a code."""

    def __init__(self) -> None:
        super().__init__()
        self.code = nn.Embedding(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.code(torch.cdist(x, self.code.weight).argmin(-1))
        return x + (found - x).detach()


def test_a_network_learns_if_a_gradient_reaches_a_parameter() -> None:
    model = nn.Sequential(nn.Linear(4, 4), Codes(), nn.Linear(4, 4))
    found = [learns(s._lp_graphs[True], s) for s in stages(model, torch.zeros(2, 4), "_0", "add")]
    assert found == [True, False, True]


class Fixed(nn.Module):
    """Runs at a batch size of 2 only."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.reshape(2, 8)


def test_a_network_for_one_batch_size_is_seen_unless_the_model_is_one(aux: AuxNet) -> None:
    graph = aux._lp_graphs[True]
    end = next(n for n in graph.nodes if n.op == "output")
    aux._modules["fixed"] = Fixed()
    with graph.inserting_before(end):
        end.args = (graph.create_node("call_module", "fixed", end.args),)
    aux.recompile()
    assert checked_flops(aux, aux_io(aux).boundary, batch_free=False) > 0
    with pytest.raises(Mismatch, match="it fails on such an input: RuntimeError"):
        checked_flops(aux, aux_io(aux).boundary)
