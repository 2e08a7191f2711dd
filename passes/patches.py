"""While recording, module calls and custom autograd functions report to the recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn


class Listener(Protocol):
    def module_called(self, module: nn.Module, call: Callable[[], Any], args: Any, kwargs: Any) -> Any: ...
    def function_applied(self, function: type[torch.autograd.Function], args: Any, kwargs: Any) -> Any: ...


@contextmanager
def patched(listener: Listener) -> Iterator[None]:
    """Route `module(...)` and `Function.apply(...)` of this thread through the listener."""
    thread = threading.get_ident()
    module_call = nn.Module.__call__
    function_apply = torch.autograd.Function.__dict__["apply"]
    inside = False  # the listener applies the real function itself

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return module_call(self, *args, **kwargs)
        return listener.module_called(self, lambda: module_call(self, *args, **kwargs), args, kwargs)

    def apply(cls: type[torch.autograd.Function], *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or threading.get_ident() != thread:
            return function_apply.__get__(None, cls)(*args, **kwargs)
        if cls is torch.utils.checkpoint.CheckpointFunction:
            return listener.function_applied(cls, args, kwargs)
        inside = True
        try:
            return listener.function_applied(cls, args, kwargs)
        finally:
            inside = False

    nn.Module.__call__ = call  # type: ignore[method-assign, assignment]
    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        nn.Module.__call__ = module_call  # type: ignore[method-assign]
        torch.autograd.Function.apply = function_apply
