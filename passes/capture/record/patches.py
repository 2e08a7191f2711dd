"""Patches of torch during a recording: module calls, scripts and autocast regions reach the recorder."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import nn

from lpcompile.passes.capture.record.functions import FunctionListener, functions_patched

AutocastRegion = tuple[str, torch.dtype, bool, bool]  # device type, dtype, enabled, cache enabled


class Listener(FunctionListener, Protocol):
    autocasts: list[AutocastRegion]

    def module_called(self, module: nn.Module, call: Callable[[], Any], args: Any, kwargs: Any) -> Any: ...
    def flag_read(self) -> None: ...
    def script_called(self, function: Any, call: Callable[[], Any], args: Any, kwargs: Any) -> Any: ...


class _Flag:
    """`module.training` as before, but each read is reported to the listener."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def __get__(self, module: nn.Module | None, kind: Any = None) -> Any:
        if module is None or "training" not in module.__dict__:
            raise AttributeError("training")
        self.listener.flag_read()
        return module.__dict__["training"]

    def __set__(self, module: nn.Module, value: bool) -> None:
        module.__dict__["training"] = value


@contextmanager
def patched(listener: Listener) -> Iterator[None]:
    """Route `module(...)` and `Function.apply(...)` of this thread through the listener."""
    thread = threading.get_ident()
    module_call = nn.Module.__call__

    def call(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return module_call(self, *args, **kwargs)
        return listener.module_called(self, lambda: module_call(self, *args, **kwargs), args, kwargs)

    script_call = torch.jit.ScriptFunction.__call__

    def scripted(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() != thread:
            return script_call(self, *args, **kwargs)
        return listener.script_called(self, lambda: script_call(self, *args, **kwargs), args, kwargs)

    autocast_enter, autocast_exit = torch.autocast.__enter__, torch.autocast.__exit__

    def enter(self: torch.autocast) -> Any:
        result = autocast_enter(self)  # type: ignore[no-untyped-call]
        listener.autocasts.append((self.device, self.fast_dtype, self._enabled, self._cache_enabled))
        return result

    def leave(self: torch.autocast, *error: Any) -> Any:
        listener.autocasts.pop()
        return autocast_exit(self, *error)

    validate = torch.distributions.Distribution._validate_args  # validation reads values
    torch.distributions.Distribution.set_default_validate_args(False)
    torch.autocast.__enter__ = enter  # type: ignore[method-assign]
    torch.autocast.__exit__ = leave  # type: ignore[method-assign]
    torch.jit.ScriptFunction.__call__ = scripted  # type: ignore[method-assign]
    nn.Module.training = _Flag(listener)  # type: ignore[assignment]
    nn.Module.__call__ = call  # type: ignore[method-assign]
    try:
        with functions_patched(listener, thread):
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(validate)
        torch.autocast.__enter__ = autocast_enter  # type: ignore[method-assign]
        torch.autocast.__exit__ = autocast_exit  # type: ignore[method-assign]
        torch.jit.ScriptFunction.__call__ = script_call  # type: ignore[method-assign]
        del nn.Module.training
        nn.Module.__call__ = module_call  # type: ignore[method-assign]
