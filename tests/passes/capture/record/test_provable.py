"""Comparisons of a draw from [0, 1) with a number, decided in advance where every draw agrees."""

from __future__ import annotations

import pytest
import torch

from lpcompile.passes.capture.record.provable import UnitRange


def proven(name: str, bound: object) -> bool | None:
    ranges, u, out = UnitRange(), torch.rand([]), torch.tensor(True)
    ranges.note("rand", ([],), {}, u)
    ranges.note(name, (u, bound), {}, out)
    return ranges.proven(out)


@pytest.mark.parametrize(
    "name, bound, outcome",
    [
        ("lt", 0.0, False), ("__lt__", 1.0, True), ("lt", 0.5, None), ("lt", 1e-9, None),
        ("le", 0.0, None), ("le", -0.1, False), ("__le__", 1, True),
        ("gt", 0.0, None), ("gt", -0.1, True), ("__gt__", 1.0, False),
        ("ge", 0.0, True), ("__ge__", 0.5, None), ("ge", 1.0, False),
        ("lt", torch.tensor(0.0), None), ("eq", 2.0, None),
    ],
)  # fmt: skip
def test_a_comparison_is_decided_only_if_every_draw_agrees(name: str, bound: object, outcome: bool | None) -> None:
    assert proven(name, bound) is outcome


def test_a_draw_changed_in_place_has_no_known_range() -> None:
    ranges, u, out = UnitRange(), torch.rand([]), torch.tensor(True)
    ranges.note("rand", ([],), {}, u)
    ranges.note("mul_", (u, -1), {}, u)
    ranges.note("lt", (u, 0.0), {}, out)
    assert ranges.proven(out) is None


def test_other_tensors_have_no_known_range() -> None:
    ranges, x, out = UnitRange(), torch.randn([]), torch.tensor(True)
    ranges.note("lt", (x, 0.0), {}, out)
    assert ranges.proven(out) is None
