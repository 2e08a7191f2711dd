"""AuxNets that the user gives."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.split.split import Stage
from tests.passes.auxnet.families import FAMILIES, boundaries, compiled


def factory(in_spec: Any, out_spec: Any, stage: Stage) -> nn.Module:
    assert isinstance(stage, Stage)
    return nn.Conv2d(in_spec.shape[1], out_spec.shape[1], 3, in_spec.shape[2] // out_spec.shape[2], 1)


def test_a_users_factory_is_called_with_both_specs() -> None:
    program = compiled("post-activation ResNet", 3, auxnet=factory)
    assert all(b.aux and b.aux.kind == "user" for b in program.plan.boundaries)
    for lams, xs in boundaries(program, [FAMILIES["post-activation ResNet"][1]["example_inputs"]]):
        assert [t.shape for t in lams] == [t.shape for t in xs]


def test_a_dict_gives_some_boundaries_and_leaves_the_others_to_us() -> None:
    program = compiled("post-activation ResNet", 3, auxnet={1: nn.Conv2d(3, 16, 3, 1, 1)})
    kinds = [b.aux.kind for b in program.plan.boundaries if b.aux]
    assert kinds == ["user", "derived"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            lambda i, o, s: nn.Conv2d(3, 5, 3, 1, 1),
            r"boundary 1 does not fit: .*\[2, 5, 32, 32\].*expected.*\[2, 16, 32, 32\]",
        ),
        (lambda i, o, s: nn.Conv2d(3, 16, 3, 1, 1).double(), r"boundary 1 does not fit"),
        (lambda i, o, s: nn.Linear(7, 7), r"boundary 1 does not fit: it fails on such an input"),
        (lambda i, o: nn.Identity(), r"factory failed for boundary 1 .*factory\(in_spec, out_spec, stage\)"),
        ([nn.Identity()], r"1 modules; K = 3 stages have 2 boundaries"),
        ({7: nn.Identity()}, r"names boundaries \[7\]; there are 1 to 2"),
        (nn.Identity(), r"boundary 1, which carries .* offers no place to cut at"),
        (lambda i, o, s: "net", r"boundary 1 is a str"),
    ],
)
def test_a_wrong_auxnet_is_refused_with_boundary_and_expectation(given: Any, message: str) -> None:
    with pytest.raises((UsageError, PlanError), match=message):
        compiled("post-activation ResNet", 3, auxnet=given)


def test_a_name_is_no_list_of_modules() -> None:
    with pytest.raises(UsageError, match="auxnet is a str; give a factory"):
        compiled("post-activation ResNet", 3, auxnet="resnet20")
