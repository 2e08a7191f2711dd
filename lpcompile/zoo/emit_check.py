"""A program written as code, loaded again and compared with the model it came from, bitwise."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from torch import nn

from lpcompile.errors import LpError
from lpcompile.load import load
from lpcompile.program import Program
from lpcompile.zoo.check import differences, short
from lpcompile.zoo.entry import Inputs

Row = dict[str, Any]


def emit_check(model: nn.Module, program: Program, inputs: Inputs) -> Row:
    """`emit`: "exact", or what went wrong; `emit_seconds`: how long writing took. Never raises."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        try:
            program.emit(Path(folder) / "program")
            seconds = time.perf_counter() - start
            loaded = load(Path(folder) / "program")
            wrong = differences(model, loaded, inputs, owner=loaded.module)
        except LpError as error:
            return {"emit": f"refused: {short(error)}"}
        except Exception as error:
            return {"emit": f"fails: {short(error)}"}
    if loaded.plan != program.plan:
        wrong.append("the plan")
    if list(loaded.state_dict()) != list(model.state_dict()):
        wrong.append("the keys of the state_dict")
    return {"emit": f"wrong: {'; '.join(wrong[:3])}" if wrong else "exact", "emit_seconds": seconds}
