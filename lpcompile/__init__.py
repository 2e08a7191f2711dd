"""lpcompile layer-parallelizes residual models by itself.

>>> import lpcompile
>>> program = lpcompile.parallelize(model, K=4, example_inputs=x)
>>> print(program.plan)
>>> program(x)                       # bitwise what model(x) gives
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lpcompile.errors import CaptureError, EmitError, GateError, InputError, LpError, PlanError, UsageError

if TYPE_CHECKING:
    from lpcompile import models
    from lpcompile.compile import parallelize
    from lpcompile.load import load
    from lpcompile.passes.capture import capture
    from lpcompile.passes.cuts import cuts
    from lpcompile.passes.partition import Link, partition
    from lpcompile.passes.partition_options import Pins
    from lpcompile.plan import Plan
    from lpcompile.program import Program

__version__ = "0.1.0"

# Imported at first use, so that `import lpcompile` costs next to nothing beside `import torch`.
_LAZY = {
    "parallelize": "lpcompile.compile",
    "capture": "lpcompile.passes.capture",
    "cuts": "lpcompile.passes.cuts",
    "partition": "lpcompile.passes.partition",
    "Link": "lpcompile.passes.partition",
    "Pins": "lpcompile.passes.partition_options",
    "Plan": "lpcompile.plan",
    "load": "lpcompile.load",
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
