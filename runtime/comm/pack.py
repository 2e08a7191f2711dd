"""Pickle for processes that we start ourselves, with lambdas and inner functions, which training scripts are full of.

It only carries objects of this program to its own ranks; files are never read with it.
"""

from __future__ import annotations

import importlib
import io
import marshal
import pickle
import types
from typing import Any

from lpcompile.errors import UsageError


def dumps(value: Any, what: str) -> bytes:
    """`value` as bytes for a fresh process."""
    out = io.BytesIO()
    try:
        _Pickler(out, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(
            f"{what} cannot be given to new processes: {error}; define its classes in a module, or run the script "
            f"under torchrun, where nothing needs to be sent"
        ) from error
    return out.getvalue()


loads = pickle.loads


class _Pickler(pickle.Pickler):
    """Sends functions that cannot be imported as code, with the globals that it names."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, types.ModuleType):
            return importlib.import_module, (value.__name__,)
        if not isinstance(value, types.FunctionType) or _importable(value):
            return NotImplemented
        cells = [_content(cell) for cell in value.__closure__ or ()]
        names = {name: value.__globals__[name] for name in sorted(_names(value.__code__)) if name in value.__globals__}
        names.pop(value.__name__, None)
        made = (marshal.dumps(value.__code__), value.__module__, value.__name__, len(cells))
        rest = (names, value.__defaults__, value.__kwdefaults__, cells)
        return _function, made, rest, None, None, _fill


def _importable(function: types.FunctionType) -> bool:
    if function.__module__ == "__main__" or "<" in function.__qualname__:
        return False
    found: Any = importlib.import_module(function.__module__)
    for name in function.__qualname__.split("."):
        found = getattr(found, name, None)
    return found is function


def _names(code: types.CodeType) -> set[str]:
    inner = [_names(c) for c in code.co_consts if isinstance(c, types.CodeType)]
    return set(code.co_names).union(*inner)


def _content(cell: Any) -> tuple[Any, ...]:
    try:
        return (cell.cell_contents,)
    except ValueError:  # not bound yet
        return ()


def _function(code: bytes, module: str, name: str, cells: int) -> types.FunctionType:
    """The function without its globals and cells, which may refer back to it."""
    names = {"__builtins__": __builtins__, "__name__": module}
    return types.FunctionType(marshal.loads(code), names, name, None, tuple(types.CellType() for _ in range(cells)))


def _fill(function: types.FunctionType, state: Any) -> None:
    names, function.__defaults__, function.__kwdefaults__, cells = state
    function.__globals__.update(names)
    function.__globals__.setdefault(function.__name__, function)
    for cell, content in zip(function.__closure__ or (), cells, strict=True):
        if content:
            cell.cell_contents = content[0]
