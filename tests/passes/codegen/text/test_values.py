"""Constants, functions and classes as source text."""

from __future__ import annotations

import functools
import math
import operator
from collections import OrderedDict
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.passes.codegen.text.values import Names, Unprintable, location, refuse


@pytest.mark.parametrize(
    "value",
    [
        None, ..., True, 3, 1e300, -0.0, math.inf, 2 - 1j, "a\"b", b"\x00", (), (1,), [1, [2]], {"a": (1, None)}, set(),
        {3, 1}, frozenset({2}), range(1, 9, 2), slice(1, None), torch.float64, torch.device("cpu"), torch.Size([2]),
        torch.channels_last, functools.partial(F.gelu, approximate="tanh"),
    ],
)  # fmt: skip
def test_a_literal_evaluates_to_the_value(value: Any) -> None:
    names = Names()
    text = names.literal(value)
    scope: dict[str, Any] = {}
    exec("\n".join(names.lines), scope)
    again = eval(text, scope)
    assert type(again) is type(value)
    assert repr(again) == repr(value)


def test_torch_is_written_by_its_short_names() -> None:
    names = Names()
    assert [names.ref(f) for f in (nn.Linear, F.gelu, torch.cat)] == ["nn.Linear", "F.gelu", "torch.cat"]
    assert names.lines == {"from torch import nn", "import torch.nn.functional as F", "import torch"}


def test_two_imports_of_one_name_get_an_alias() -> None:
    names = Names()
    names.taken.add("Counter")
    from collections import Counter

    assert names.ref(Counter) == names.ref(Counter) == "Counter2"
    assert names.lines == {"from collections import Counter as Counter2"}
    assert names.ref(operator.add) == "operator.add"


def test_an_object_without_source_is_unprintable() -> None:
    with pytest.raises(Unprintable, match="a builtins.object object"):
        Names().literal(object())
    with pytest.raises(Unprintable, match="made inside a function"):
        location(lambda: None)


def test_a_replaced_function_is_unprintable(monkeypatch: pytest.MonkeyPatch) -> None:
    original = math.hypot
    monkeypatch.setattr(math, "hypot", lambda *_: 0)
    with pytest.raises(Unprintable, match="importing finds another object of that name"):
        location(original)
    assert location(OrderedDict) == ("collections", "OrderedDict")


def test_a_refusal_says_where_why_and_what_to_do() -> None:
    assert str(refuse("fc", "it moves", "hold it")) == "fc cannot be written as code: it moves; hold it"
