"""Recursive AuxNets: several in a row as one."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lpcompile.passes.auxnet.derive import AuxRecord, aux_io, derive
from lpcompile.passes.auxnet.recursive import compose, record
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled
from tests.passes.auxnet.small import Block, stack, stages


@pytest.mark.parametrize("form", ["recursive", "recursive-shared"])
def test_recursive_auxnets_go_from_the_input_to_every_boundary(form: str) -> None:
    program = compiled("post-activation ResNet", 4, aux=form, init="consistent", aux_budget=0.3)
    x = FAMILIES["post-activation ResNet"][1]["example_inputs"]
    assert all(aux_io(a).lams == () and aux_io(a).inputs == (0,) for a in program.auxnets)
    for lams, xs in boundaries(program, [x]):
        assert all(torch.equal(a, b) for a, b in zip(lams, xs, strict=True))
    first, second = (dict(a.named_parameters()) for a in program.auxnets[:2])
    assert (first["conv1.weight"] is second["conv1.weight"]) == (form == "recursive-shared")
    aux = [b.aux for b in program.plan.boundaries]
    assert all(a is not None and a.kind == form and a.forward > 0 for a in aux)


def test_a_composed_network_runs_its_parts_on_their_own_weights() -> None:
    x = torch.randn(2, 4)
    first, second, _ = stages(stack(5), x, "add_1", "add_3")
    parts = [derive(stage, budget=0.8, seed=k) for k, stage in enumerate((first, second))]
    whole = compose(parts)
    assert torch.equal(whole(x), parts[1](parts[0](x)))
    assert {id(p) for p in whole.parameters()} == {id(p) for part in parts for p in part.parameters()}
    assert aux_io(whole).boundary == aux_io(parts[1]).boundary
    assert (aux_io(whole).lams, aux_io(whole).inputs) == ((), (0,))


def test_two_copies_of_one_layer_keep_their_own_weights() -> None:
    torch.manual_seed(0)
    block, x = Block(), torch.randn(2, 4)
    model = nn.Sequential(nn.Linear(4, 8), block, block, block, nn.Linear(8, 3))
    first, second, _ = stages(model, x, "add", "add_1")
    parts = [derive(stage, budget=1.0, seed=k) for k, stage in enumerate((first, second))]
    whole = compose(parts)
    assert torch.equal(whole(x), parts[1](parts[0](x)))
    assert {"1.a.weight", "1.a_1.weight"} <= {name for name, _ in whole.named_parameters()}


def test_records_are_joined_and_zeroed_parameters_named_once() -> None:
    parts = [derive(stage, budget=0.8) for stage in stages(stack(5), torch.randn(2, 4), "add_1", "add_3")[:2]]
    parts[0]._lp_set_record(AuxRecord("derived", "copy", ("a",), ("b",), ("c",), ("z", "y"), ("s",), 0.1, 0.2))
    parts[1]._lp_set_record(AuxRecord("derived", "copy", ("d",), (), (), ("y", "x")))
    found = record(parts, "recursive", 0.5, 0.6)
    assert found == AuxRecord("recursive", "copy", ("a", "d"), ("b",), ("c",), ("x", "y", "z"), ("s",), 0.5, 0.6)
