"""Training methods by name. Each is one file: its schedule, its gradients and its traits (`core.method.Method`).

To add a method, write such a file and name it below; planner, simulator, runtime, help texts and tables read the rest.
May import core only.
"""

from __future__ import annotations

from difflib import get_close_matches

from lpcompile.core.method import Method, ScheduleOptions
from lpcompile.errors import UsageError
from lpcompile.runtime.methods.bp import BP
from lpcompile.runtime.methods.dgl import DGL, DGL_ASYNC
from lpcompile.runtime.methods.fr import FR
from lpcompile.runtime.methods.lagrangian import LAGRANGIAN
from lpcompile.runtime.methods.multiplier import MULTIPLIER
from lpcompile.runtime.methods.penalty import PENALTY
from lpcompile.runtime.methods.pipedream import DDG, PIPEDREAM
from lpcompile.runtime.methods.pipelines import GPIPE, ONE_F_ONE_B, ZERO_BUBBLE
from lpcompile.runtime.methods.stored import STORED
from lpcompile.runtime.methods.stream import STREAM
from lpcompile.runtime.methods.warmup import WARMUP, WARMUP_STORED

EXACT = (BP, GPIPE, ONE_F_ONE_B, ZERO_BUBBLE)
LATE = (STREAM, PIPEDREAM, DDG, FR)
DEFAULT = MULTIPLIER.name
METHODS = {m.name: m for m in (*EXACT, *LATE, DGL, DGL_ASYNC, STORED, PENALTY, LAGRANGIAN, MULTIPLIER)}
HELPERS = {m.name: m for m in (WARMUP, WARMUP_STORED)}

__all__ = ["DEFAULT", "HELPERS", "METHODS", "Method", "ScheduleOptions", "get_method"]


def get_method(name: str) -> Method:
    found = METHODS.get(name) or HELPERS.get(name)
    if found is None:
        close = get_close_matches(name, METHODS, n=1, cutoff=0.0)
        raise UsageError(f"there is no method {name!r}; the closest is {close[0]!r}, all are {', '.join(METHODS)}")
    return found
