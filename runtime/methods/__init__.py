"""Training methods by name. Each is one file: its schedule, its gradients and its traits (`core.method.Method`).

Exact: `bp`, `pipelines`, `zero_bubble`. Delayed: `stream`, `pipedream`, `fr`. Local losses: `dgl`. With λ: `penalty`,
`stored`, `lagrangian`, `multiplier`, and `warmup` before them. A `recipe` runs several in turn.

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
from lpcompile.runtime.methods.pipelines import (
    DUAL_PIPE_V,
    GPIPE,
    INTERLEAVED,
    INTERLEAVED_ZERO_BUBBLE,
    ONE_F_ONE_B,
    ZBV,
    ZERO_BUBBLE,
)
from lpcompile.runtime.methods.stored import STORED
from lpcompile.runtime.methods.stream import STREAM
from lpcompile.runtime.methods.warmup import WARMUP, WARMUP_STORED
from lpcompile.runtime.methods.zero_bubble import ZERO_BUBBLE_H2

EXACT = (BP, GPIPE, ONE_F_ONE_B, ZERO_BUBBLE, ZERO_BUBBLE_H2, INTERLEAVED, INTERLEAVED_ZERO_BUBBLE, ZBV, DUAL_PIPE_V)
LATE = (STREAM, PIPEDREAM, DDG, FR)
AUTO = "auto"  # the fastest method that keeps plain training's accuracy: see `runtime/README.md`
DEFAULT = AUTO
CHOSEN = ZERO_BUBBLE_H2.name  # what "auto" stands for: an exact pipeline, so no optimizer or schedule can break it
METHODS = {m.name: m for m in (*EXACT, *LATE, DGL, DGL_ASYNC, STORED, PENALTY, LAGRANGIAN, MULTIPLIER)}
HELPERS = {m.name: m for m in (WARMUP, WARMUP_STORED)}  # exact steps that prepare λ for a method with AuxNets or stores
REFERENCE = BP.name  # plain training's gradients at any K and batch
PIPELINE = ONE_F_ONE_B.name  # the exact steps of a recipe, where a batch can be cut

__all__ = [
    "AUTO",
    "CHOSEN",
    "DEFAULT",
    "HELPERS",
    "METHODS",
    "PIPELINE",
    "REFERENCE",
    "Method",
    "ScheduleOptions",
    "get_method",
    "helper_of",
]


def helper_of(method: Method) -> Method:
    """The helper that prepares λ for a method."""
    return next(helper for helper in HELPERS.values() if helper.aux == method.aux)


def get_method(name: str) -> Method:
    name = CHOSEN if name == AUTO else name
    found = METHODS.get(name) or HELPERS.get(name)
    if found is None:
        close = get_close_matches(name, METHODS, n=1, cutoff=0.0)
        raise UsageError(
            f"there is no method {name!r}; the closest is {close[0]!r}, all are {', '.join((AUTO, *METHODS))}"
        )
    return found
