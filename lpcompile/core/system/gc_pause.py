"""Pauses Python's garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def gc_paused() -> Iterator[None]:
    """For work that allocates hundreds of thousands of objects and keeps them. The collector would walk all of them,
    and all of torch's, each time their number has grown by a quarter, and free nothing."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
