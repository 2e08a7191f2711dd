"""Which passes print their artefacts: `inspect --print-after PASS` or `LPCOMPILE_PRINT_AFTER=PASS[,PASS]`."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches

from lpcompile.errors import UsageError

VARIABLE = "LPCOMPILE_PRINT_AFTER"
ALL = "all"
_requested: tuple[str, ...] = ()


def set_requested(names: Sequence[str]) -> None:
    """Print after these passes in this process, as the environment variable does."""
    global _requested
    _requested = tuple(names)


def check(names: Sequence[str], known: Sequence[str]) -> None:
    """UsageError for a name that is no pass."""
    for name in names:
        if name not in known and name != ALL:
            close = get_close_matches(name, known, n=1, cutoff=0.0)[0]
            raise UsageError(f"there is no pass {name!r}; the closest is {close!r}, all are {', '.join(known)}")


def requested(running: Sequence[str], known: Sequence[str]) -> set[str]:
    """The passes of this pipeline to print after. `known`: the passes of all pipelines, which may be named as well."""
    names = [*_requested, *(n.strip() for n in os.environ.get(VARIABLE, "").split(",") if n.strip())]
    check(names, known)
    return set(running) if ALL in names else set(names) & set(running)


def show(name: str, texts: Sequence[str]) -> None:
    """To stderr, so that `inspect --json` stays JSON."""
    print(f"== after {name} ==", *texts, sep="\n", end="\n\n", file=sys.stderr, flush=True)
