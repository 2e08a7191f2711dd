"""Units as torch.compile makes them, to measure what they cost in training that is compiled.

Units that are alike have the same graph, for which torch finds the code that it made for the first one, also in a cache
on disk that later processes read (`TORCHINDUCTOR_CACHE_DIR`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from lpcompile.errors import UsageError
from lpcompile.passes.split.split import Stage


def compiled_units(parts: Sequence[Stage]) -> list[Callable[..., Any]]:
    """Callables that make their code when they are first called."""
    return [torch.compile(part, dynamic=False) for part in parts]


@contextmanager
def compiling_explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not type(error).__module__.startswith(("torch._dynamo", "torch._inductor")):
            raise
        first = str(error).strip().splitlines()[0]
        raise UsageError(
            f"compile=True: torch.compile cannot make code for the units of this model ({first}); it needs a C++ "
            f"compiler such as g++ on the CPU; or leave it out"
        ) from error
