"""Custom autograd functions during a recording: each call of one reaches the recorder, under whatever name."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import torch

Function = type[torch.autograd.Function]


class FunctionListener(Protocol):
    def function_applied(self, function: Function, args: Any, kwargs: Any) -> Any: ...
    def function_ran(self, function: Function, args: Any, forward: Callable[[], Any]) -> Any: ...


@contextmanager
def functions_patched(listener: FunctionListener, thread: int) -> Iterator[None]:
    """Route `Function.apply(...)` of a thread through the listener.

    An alias that was bound before (`f = MyFunction.apply`) is torch's own builtin and is not routed; there the
    function's forward, which torch looks up at every call, tells the listener.
    """
    base: Any = torch.autograd.Function
    function_apply = base.__dict__["apply"]
    inside = False  # the listener applies the real function itself

    def apply(cls: Function, *args: Any, **kwargs: Any) -> Any:
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

    def aliased(cls: Function, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        nonlocal inside
        if inside or threading.get_ident() != thread:
            return forward(*args, **kwargs)
        inside = True
        given = args if cls.setup_context is not base.setup_context else args[1:]
        try:
            return listener.function_ran(cls, given, lambda: forward(*args, **kwargs))
        finally:
            inside = False

    functions = [(f, f.__dict__.get("forward"), f.forward) for f in _functions(base)]
    base.apply = classmethod(apply)
    for function, _, forward in functions:
        function.forward = staticmethod(partial(aliased, function, forward))
    try:
        yield
    finally:
        base.apply = function_apply
        for function, own, _ in functions:
            if own is None:
                del function.forward
            else:
                function.forward = own


def _functions(base: Any) -> list[Any]:
    """The autograd functions that users have defined."""
    found = []
    for kind in base.__subclasses__():
        found += [kind] if not kind.__module__.startswith("torch.") else []
        found += _functions(kind)
    return found
