"""Measured step times of the rows: K processes, one core each, in turn with plain training.

Rows with more stages than the machine has cores keep their predicted times.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import torch.distributed as dist

from lpcompile.errors import LpError
from lpcompile.paper.formula import formula
from lpcompile.paper.networks import build
from lpcompile.paper.train_run import compiled, factories, trainer_of
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import get_method
from lpcompile.study import records
from lpcompile.study.config import PLAIN, Entry, RunSpec
from lpcompile.study.networks import loss_fn
from lpcompile.study.times import MEASURED, time_key
from lpcompile.training.measures import machine

WARM_UP, STEPS = 4, 20


def time_all(specs: Sequence[RunSpec], folder: Path, steps: int = STEPS) -> list[dict[str, Any]]:
    """A record for each of these runs that has at most as many stages as there are cores."""
    file, cores = folder / records.TIMES, machine()["cores"]
    known = {record["key"]: record for record in records.read(file)}
    about = records.provenance()
    for spec in specs:
        key = time_key(spec.network, spec.entry, spec.K, spec.size)
        if key in known or spec.K == 1 or spec.K > cores:
            continue
        record = {"key": key, "run": str(spec), **about, **timed(spec, steps)}
        records.append(file, record)
        known[key] = record
        said = f"ρ = {record['rho']:.2f}" if "rho" in record else record["why"]
        print(f"{spec}: {said}", file=sys.stderr, flush=True)
    return list(known.values())


def timed(spec: RunSpec, steps: int) -> dict[str, Any]:
    """The median step between two blocks of plain training."""
    plain = replace(spec, entry=Entry(PLAIN, PLAIN), K=1)
    spec = decoupled(spec)

    def run(one: RunSpec) -> tuple[list[float], float | None]:
        taken: tuple[list[float], float | None] = launch.launch(time_rank, (one, steps), world=one.K, K=one.K)
        return taken

    try:
        (before, _), (mine, predicted), (after, _) = run(plain), run(spec), run(plain)
    except LpError as error:
        return {"why": str(error).splitlines()[0]}
    serial, step = statistics.median([*before, *after]), statistics.median(mine)
    return {"kind": MEASURED, "step": step, "plain": serial, "rho": serial / step, "formula": predicted}


def decoupled(spec: RunSpec) -> RunSpec:
    """The run without exact steps: without its warm-up, and without those that come back where λ is far from X."""
    if not get_method(spec.entry.method).aux:
        return spec
    options = {**spec.entry.options, "warmup": 0, "recouple": 0.0, "collapse": "warn"}
    return replace(spec, entry=replace(spec.entry, options=options))


def time_rank(spec: RunSpec, steps: int) -> tuple[list[float], float | None]:
    """ms of each step, from all ranks' end of one to all ranks' end of the next; and ρ by the paper's formula from the
    measured times of the units and AuxNets."""
    torch.manual_seed(spec.seed)
    model = build(spec.network, spec.size, 10)
    g = torch.Generator().manual_seed(0)
    x, y = torch.randn(spec.network.batch, 3, spec.size, spec.size, generator=g), torch.arange(spec.network.batch) % 10
    total = steps + WARM_UP + 1
    ends = []
    control: Any = None
    predicted = None
    if spec.entry.method == PLAIN:
        optimizer = factories(spec, total)["optimizer"](list(model.parameters()))
        for _ in range(total):
            torch.autograd.backward(loss_fn(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            ends.append(perf_counter())
    else:
        program = compiled(spec, model, cost="measured", threads=1)
        predicted = formula(program.plan)
        trainer = trainer_of(replace(spec, epochs=1), program, total)
        control, index = trainer.control, torch.arange(len(x))
        for _ in range(total):
            trainer.step(x, y, index)
            ends.append(perf_counter())
    if dist.is_initialized() and dist.get_world_size() > 1:
        everyone = exchange.gathered(ends, control)
        ends = [max(at) for at in zip(*everyone, strict=True)]
    return [1e3 * (b - a) for a, b in pairwise(ends[WARM_UP:])], predicted
