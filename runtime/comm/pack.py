"""Pickle for processes that we start ourselves: also what a script, a notebook or `python -c` defines.

Functions and classes that a new process cannot import are sent as code (cloudpickle). It only carries objects of this
program to its own ranks; files are never read with it.
"""

from __future__ import annotations

import copyreg
import io
import pickle
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

import cloudpickle
from torch.utils.data import DataLoader

from lpcompile.errors import UsageError


def dumps(value: Any, what: str, aside: list[Connection] | None = None) -> bytes:
    """`value` as bytes for a fresh process. aside: takes the pipes in it, which only multiprocessing can hand over."""
    out = io.BytesIO()
    try:
        _Pickler(out, aside).dump(value)
    except (pickle.PicklingError, AttributeError, TypeError, NotImplementedError, RuntimeError) as error:
        raise UsageError(
            f"{what} cannot be given to new processes: {error}; leave that object out, or run the script under "
            f"torchrun, where nothing needs to be sent"
        ) from error
    return out.getvalue()


def loads(data: bytes, aside: Sequence[Connection] = ()) -> Any:
    """The value again; `aside` as `dumps` filled it."""
    return _Unpickler(data, aside).load()


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, out: io.BytesIO, aside: list[Connection] | None) -> None:
        super().__init__(out, protocol=pickle.HIGHEST_PROTOCOL)
        self.aside = aside

    def persistent_id(self, value: Any) -> int | None:
        if self.aside is None or not isinstance(value, Connection):
            return None
        self.aside.append(value)
        return len(self.aside) - 1

    def reducer_override(self, value: Any) -> Any:
        """A DataLoader is sent without the worker processes that it has: every rank starts its own."""
        if isinstance(value, DataLoader) and getattr(value, "_iterator", None) is not None:
            return copyreg.__newobj__, (type(value),), {**vars(value), "_iterator": None}  # type: ignore[attr-defined]
        return super().reducer_override(value)


class _Unpickler(pickle.Unpickler):
    def __init__(self, data: bytes, aside: Sequence[Connection]) -> None:
        super().__init__(io.BytesIO(data))
        self.aside = aside

    def persistent_load(self, pid: Any) -> Connection:
        found: Connection = self.aside[pid]
        return found
