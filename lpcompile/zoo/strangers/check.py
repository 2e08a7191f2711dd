"""The check of a stranger: exact on several seeds and inputs, AuxNets, one step of three methods, emitted code."""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.utils._pytree as pytree
from torch import nn

from lpcompile.compile import parallelize
from lpcompile.errors import LpError, PlanError
from lpcompile.program import Program
from lpcompile.runtime.methods import get_method
from lpcompile.zoo.aux_check import problems
from lpcompile.zoo.check import differences, short, tensors_in
from lpcompile.zoo.emit_check import emit_check
from lpcompile.zoo.entry import Inputs, ZooEntry, ZooRow

SEEDS = (7, 8, 9)
BATCH = 4
METHODS = ("stream", "1f1b", "penalty")
WHOLE_METHODS = ("stream", "bp", "penalty")  # of a graph that is tied to its batch: it has no micro-batches


def check_stranger(entry: ZooEntry, K: int = 4) -> ZooRow:
    """The row of one model. Nothing is raised: an error is a result."""
    row: ZooRow = {"name": entry.name, "suite": entry.suite}
    library = entry.name.partition(":")[2].partition("/")[0]
    try:
        model, make_inputs = entry.build()
        inputs = make_inputs(BATCH)
    except ModuleNotFoundError as error:
        return row | {"status": "not installed", "why": f"{library} needs the package {error.name}"}
    except Exception as error:
        return row | {"status": "does not build", "why": short(error)}
    row["parameters"] = sum(p.numel() for p in model.parameters())
    start = time.process_time()
    try:
        program, fewer = _compiled(model, inputs, K)
    except LpError as error:
        return row | {"status": "refused", "why": short(error)}
    except Exception as error:
        return row | {"status": "crashed", "why": short(error)}
    plan = program.plan
    row |= {"cpu_seconds": time.process_time() - start, "K": plan.K, "imbalance": plan.imbalance, "fewer": fewer}
    row |= {"width": max((len(b.specs) for b in plan.boundaries), default=0), "notes": list(plan.notes)}
    try:
        wrong = [
            f"seed {seed}: {found}"
            for seed, given in zip(SEEDS, (inputs, _others(inputs), inputs), strict=True)
            for found in differences(model, program, given, evaluate=seed == SEEDS[0], seed=seed)
        ]
        wrong += problems(program, inputs) if plan.K > 1 else []
    except Exception as error:
        return row | {"status": "crashed", "why": f"when run: {short(error)}"}
    if wrong:
        return row | {"status": "wrong", "why": "; ".join(wrong[:3])}
    row |= emit_check(model, program, inputs)
    return row | (_steps(program, inputs) if plan.K > 1 else {"status": "exact"})


def _compiled(model: nn.Module, inputs: Inputs, K: int) -> tuple[Program, str]:
    """The program, with as many stages as the model has if it has fewer than K, and why."""
    options: dict[str, Any] = {"example_inputs": inputs[0], "example_kwargs": inputs[1], "cost": "flops"}
    options["method"] = "penalty"
    try:
        return parallelize(model, K, **options), ""
    except PlanError as error:
        if error.most is None or error.most < 1:
            raise
        return parallelize(model, error.most, **options), str(error)


def _others(inputs: Inputs) -> Inputs:
    """Inputs of the same shapes with other values."""

    def change(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return value * 0.5 + 0.1 if value.is_floating_point() else value.flip(0)

    changed: Inputs = pytree.tree_map(change, inputs)
    return changed


def _doubled(value: Any) -> Any:
    """Two samples in each micro-batch: batch norm takes no single one."""
    return torch.cat([value, value]) if isinstance(value, torch.Tensor) and len(value) == BATCH else value


def _steps(program: Program, inputs: Inputs) -> ZooRow:
    """What comes of one step of each method. The model learns, so this check comes last."""

    def loss(out: Any, y: Any) -> torch.Tensor:
        terms = [t.square().mean() for t in tensors_in(out) if t.is_floating_point()]
        return torch.stack(terms).mean()

    args, kwargs = inputs
    bound = program.captured._lp.signature.parameters.bind(*args, **kwargs)
    batch = {**dict(bound.arguments), **kwargs}
    for name in [n for n, p in bound.signature.parameters.items() if p.kind is p.VAR_KEYWORD]:
        batch.pop(name, None)  # what it holds stands in `kwargs`
    batch = pytree.tree_map(_doubled, batch) if program.plan.batch_free else batch
    for method in METHODS if program.plan.batch_free else WHOLE_METHODS:
        try:
            options: dict[str, Any] = {"micro": BATCH if get_method(method).pipeline else 1, "warmup": 0}
            trainer = program.trainer(loss, optimizer=lambda ps: torch.optim.SGD(ps, 1e-5), method=method, **options)
            found = trainer.step(dict(batch), torch.zeros(BATCH))
            if "loss" in found and not torch.isfinite(torch.tensor(float(found["loss"]))):
                return {"status": "wrong", "why": f"a step of {method} gives a loss of {found['loss']}"}
        except LpError as error:
            return {"status": "refused", "why": f"a step of {method}: {short(error)}"}
        except Exception as error:
            return {"status": "crashed", "why": f"a step of {method}: {short(error)}"}
    return {"status": "exact"}
