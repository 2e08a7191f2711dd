"""A program written as code, loaded again and compared with the model it came from, bitwise."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from lpcompile.emit.read import load
from lpcompile.errors import LpError
from lpcompile.program import Program
from lpcompile.zoo.aux_check import chain
from lpcompile.zoo.check import differences, short
from lpcompile.zoo.entry import Inputs, ZooRow


def emit_check(model: nn.Module, program: Program, inputs: Inputs) -> ZooRow:
    """`emit`: "exact", or what went wrong; `emit_seconds`: how long writing took. Never raises."""
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        try:
            program.emit(Path(folder) / "program")
            seconds = time.perf_counter() - start
            loaded = load(Path(folder) / "program")
            wrong = differences(model, loaded, inputs, owner=loaded.module)
            wrong += aux_differences(program, loaded, inputs)
        except LpError as error:
            return {"emit": f"refused: {short(error)}"}
        except Exception as error:
            return {"emit": f"fails: {short(error)}"}
    if loaded.plan != program.plan:
        wrong.append("the plan")
    if list(loaded.state_dict()) != list(model.state_dict()):
        wrong.append("the keys of the state_dict")
    return {"emit": f"wrong: {'; '.join(wrong[:3])}" if wrong else "exact", "emit_seconds": seconds}


def aux_differences(program: Program, loaded: Program, inputs: Inputs) -> list[str]:
    """The loaded AuxNets on the same stages, against those that were emitted."""
    args, kwargs = inputs
    ours, theirs = (chain(program, p.auxnets, args, kwargs) for p in (program, loaded))
    pairs = [zip(a[1], b[1], strict=True) for a, b in zip(ours, theirs, strict=True)]
    return [f"AuxNet {k}" for k, pair in enumerate(pairs) if not all(torch.equal(x, y) for x, y in pair)]
