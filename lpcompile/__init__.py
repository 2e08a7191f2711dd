"""lpcompile layer-parallelizes residual models by itself.

>>> import lpcompile
>>> program = lpcompile.parallelize(model, K=4, example_inputs=x)
>>> print(program.plan)
>>> program(x)                       # bitwise what model(x) gives
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lpcompile.core import __version__ as __version__
from lpcompile.errors import CaptureError, EmitError, GateError, InputError, LpError, PlanError, UsageError

if TYPE_CHECKING:
    from lpcompile import models
    from lpcompile.compile import parallelize
    from lpcompile.core.plan import Plan
    from lpcompile.emit.read import load
    from lpcompile.passes.capture.capture import capture
    from lpcompile.passes.partition.evaluate import Link
    from lpcompile.passes.partition.options import Pins
    from lpcompile.passes.split.cuts import cuts
    from lpcompile.planning.partition import partition
    from lpcompile.program import Program

# Imported at first use, so that `import lpcompile` costs next to nothing beside `import torch`.
_LAZY = {
    "parallelize": "lpcompile.compile",
    "capture": "lpcompile.passes.capture.capture",
    "cuts": "lpcompile.passes.split.cuts",
    "partition": "lpcompile.planning.partition",
    "Link": "lpcompile.passes.partition.evaluate",
    "Pins": "lpcompile.passes.partition.options",
    "Plan": "lpcompile.core.plan",
    "load": "lpcompile.emit.read",
    "Program": "lpcompile.program",
    "models": "lpcompile.models",
}

__all__ = ["CaptureError", "EmitError", "GateError", "InputError", "Link", "LpError", "Pins", "Plan", "PlanError",
           "Program", "UsageError", "capture", "cuts", "load", "models", "parallelize", "partition"]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'lpcompile' has no attribute {name!r}")
    module = importlib.import_module(_LAZY[name])
    value = module if name == "models" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_LAZY])
