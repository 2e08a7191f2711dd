"""Recursive AuxNets: several in a row as one."""

from __future__ import annotations

import pytest
import torch

from lpcompile.passes.auxnet.derive import aux_io
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled


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
