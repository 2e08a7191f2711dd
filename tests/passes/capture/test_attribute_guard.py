"""Attributes that a recording has turned into constants."""

from __future__ import annotations

from typing import Any

from torch import nn

from lpcompile.passes.capture.attribute_guard import AttributeGuard


def guarded() -> tuple[Any, AttributeGuard]:
    model: Any = nn.Sequential(nn.Sequential(nn.Dropout(0.5)), nn.ReLU())
    model[0].rate = 0.5
    return model, AttributeGuard(model, {"0.0", "1"})


def test_a_changed_number_is_named_with_both_values_until_it_is_accepted() -> None:
    model, guard = guarded()
    assert guard.changed(True) is None
    model[0].rate = 0.25
    assert guard.changed(True) == "0.rate is 0.25 now and was 0.5"
    guard.accept(True)
    assert guard.changed(True) is None


def test_attributes_and_flags_of_leaves_may_change() -> None:
    model, guard = guarded()
    model[0][0].p = 0.1
    model[0][0].eval()
    assert guard.changed(True) is None


def test_each_mode_expects_its_own_flag() -> None:
    model, guard = guarded()
    model.eval()
    assert guard.changed(False) is None
    assert guard.changed(True) == "training is False now and was True"


def test_a_new_hook_is_a_change() -> None:
    model, guard = guarded()
    model[0].register_forward_hook(lambda *_: None)
    assert (guard.changed(True) or "").startswith("0.forward hooks is ")
