"""Calls of modules, functions and autocast regions reach the listener, and torch is as before afterwards."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from lpcompile.passes.capture.record.patches import patched


class Listener:
    def __init__(self) -> None:
        self.autocasts: list[Any] = []
        self.heard: list[str] = []

    def module_called(self, module: nn.Module, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        self.heard.append(type(module).__name__)
        return call()

    def flag_read(self) -> None:
        self.heard.append("training")

    def script_called(self, function: Any, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        self.heard.append("script")
        return call()

    def function_applied(self, function: type[torch.autograd.Function], args: Any, kwargs: Any) -> Any:
        self.heard.append(function.__name__)
        return function.apply(*args, **kwargs)


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


PATCHED = [(nn.Module, "__call__"), (torch.autograd.Function, "apply"), (torch.autocast, "__enter__"),
           (torch.autocast, "__exit__"), (torch.jit.ScriptFunction, "__call__")]  # fmt: skip


def state() -> list[Any]:
    return [owner.__dict__.get(name) for owner, name in PATCHED]


def test_module_calls_and_functions_are_heard() -> None:
    listener = Listener()
    with patched(listener):
        found = Twice.apply(nn.Identity()(torch.ones(1)))
    assert found.item() == 2 and listener.heard == ["Identity", "Twice"]


def test_a_read_of_training_is_heard() -> None:
    listener, layer = Listener(), nn.Identity()
    with patched(listener):
        assert layer.training is True
        layer.training = False
    assert listener.heard == ["training"] and layer.training is False


def test_autocast_regions_are_known_while_they_last() -> None:
    listener = Listener()
    with patched(listener):
        with torch.autocast("cpu", torch.bfloat16):
            assert [region[:3] for region in listener.autocasts] == [("cpu", torch.bfloat16, True)]
        assert listener.autocasts == []


def test_other_threads_are_left_alone() -> None:
    listener = Listener()
    with patched(listener):
        thread = threading.Thread(target=lambda: nn.Identity()(torch.ones(1)))
        thread.start()
        thread.join(30)
    assert not thread.is_alive() and listener.heard == []


def test_torch_is_as_before_also_after_an_error() -> None:
    before = state()
    with pytest.raises(ValueError, match="inside"), patched(Listener()):
        raise ValueError("inside")
    assert state() == before and "training" not in nn.Module.__dict__
