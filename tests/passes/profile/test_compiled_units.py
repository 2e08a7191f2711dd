"""Units that torch.compile makes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lpcompile.errors import UsageError
from lpcompile.passes.profile.compiled_units import compiled_units, compiling_explained


def test_every_unit_is_compiled_by_itself_for_one_size(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(torch, "compile", lambda part, dynamic: asked.append((part, dynamic)) or part)
    parts: Any = [nn.Linear(2, 2), nn.ReLU()]
    assert compiled_units(parts) == parts and asked == [(part, False) for part in parts]


def test_only_errors_of_the_compiler_are_explained() -> None:
    failed = type("CppCompileError", (Exception,), {"__module__": "torch._inductor.exc"})
    with pytest.raises(UsageError, match=r"\(no g\+\+\); it needs a C\+\+ compiler"), compiling_explained():
        raise failed("no g++\nmore")
    with pytest.raises(ZeroDivisionError), compiling_explained():
        raise ZeroDivisionError
