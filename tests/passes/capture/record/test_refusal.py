"""Which module is to blame for a refusal."""

from __future__ import annotations

from lpcompile.passes.capture.record.refusal import ModuleTrail


def test_the_innermost_module_is_blamed() -> None:
    trail = ModuleTrail()
    trail.stack += ["layer1", "layer1.0"]
    refusal = trail.refuse("it branches")
    assert (refusal.path, refusal.reason) == ("layer1.0", "it branches")
    assert refusal.source.startswith(__file__)


def test_a_failure_stays_where_it_began() -> None:
    trail = ModuleTrail()
    trail.stack += ["layer1", "layer1.0"]
    trail.fail()
    trail.stack.pop()
    trail.fail()
    assert trail.failed_at is not None and trail.failed_at[0] == "layer1.0"


def test_the_first_refusal_is_remembered_though_forward_may_catch_it() -> None:
    trail = ModuleTrail()
    first = trail.refuse("one")
    assert trail.refuse("two") is not first and trail.refused is first
