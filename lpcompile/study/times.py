"""The step time of every method of a study on this machine, for accuracy over wall-clock time.

Up to as many stages as there are cores, a method runs in real processes, one pinned core each, between two blocks of
plain training. More stages, and recipes of several phases, are simulated from unit times measured on one core.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lpcompile.errors import LpError
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import get_method
from lpcompile.runtime.methods.recipe import recipe_of
from lpcompile.simulate.device_spec import THIS_MACHINE
from lpcompile.simulate.outlook import outlook_row
from lpcompile.simulate.whole_run import exact_rho, whole_run
from lpcompile.study import records
from lpcompile.study.config import DDP, PLAIN, Entry, RunSpec
from lpcompile.study.networks import Network, build, example, loss_fn
from lpcompile.study.train_run import compiled, factories, trainer_of
from lpcompile.training.measures import machine

WARM_UP, STEPS = 4, 20
DECOUPLED: dict[str, Any] = {"warmup": 0, "recouple": 0.0, "collapse": "warn"}
EXACT: dict[str, Any] = {"warmup": 10**6, "warmup_violation": 0.0, "collapse": "warn"}
MEASURED, SIMULATED = "measured", "simulated"


def time_key(network: Network, entry: Entry, K: int, size: int) -> str:
    """What a step's time depends on."""
    facts = [network.__dict__, entry.method, dict(entry.options), K, 0 if network.text else size]
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def time_all(
    specs: Sequence[RunSpec], folder: Path, steps: int = STEPS, timeout: float = 300.0
) -> list[dict[str, Any]]:
    """A record for every model, method and K of these runs; those that are not there yet are measured."""
    file, cores = folder / records.TIMES, machine()["cores"]
    known = {record["key"]: record for record in records.read(file)}
    wanted = {time_key(s.network, s.entry, s.K, s.size): s for s in specs}
    about = records.provenance()
    for number, (key, spec) in enumerate(wanted.items(), start=1):
        if key in known:
            continue
        record = {"key": key, "model": spec.network.name, "entry": spec.entry.name, "K": spec.K, **about}
        record |= _timed(spec, steps, cores, timeout)
        records.append(file, record)
        known[key] = record
        text = (
            f"{record['step']:.4g} ms a step, ρ = {record['rho']:.2f} ({record['kind']})"
            if "rho" in record
            else record["why"]
        )
        print(
            f"[{number}/{len(wanted)}] {record['model']} {record['entry']} K={record['K']}: {text}",
            file=sys.stderr,
            flush=True,
        )
    return [known[key] for key in wanted]


def _timed(spec: RunSpec, steps: int, cores: int, timeout: float) -> dict[str, Any]:
    method = spec.entry.method
    several = method not in (PLAIN, DDP) and len(recipe_of(method)) > 1

    def run(function: Callable[..., Any], one: RunSpec, world: int, *more: Any) -> Any:
        return launch.launch(function, (one, steps, *more), world=world, K=world, timeout=timeout)

    try:
        if method == DDP and spec.K > cores:
            return {"why": f"not measured: {spec.K} processes on {cores} cores"}
        if several or (spec.K > cores and method != PLAIN):
            return {"kind": SIMULATED, **run(simulate_step, spec, 1)}
        plain = replace(spec, entry=Entry(PLAIN, PLAIN), K=1)
        before = run(time_rank, plain, 1)
        mine = before if method == PLAIN else run(time_rank, spec, spec.K)
        warm = run(time_rank, spec, spec.K, True) if with_auxnets(spec) else []
        after = before if method == PLAIN else run(time_rank, plain, 1)
    except LpError as error:
        return {"why": str(error).splitlines()[0]}
    low, middle, high = statistics.quantiles(mine, n=4) if len(mine) > 1 else mine * 3
    serial = statistics.mean([statistics.median(before), statistics.median(after)])
    beside = {"exact step": statistics.median(warm)} if warm else {}
    return {
        **beside,
        "kind": MEASURED,
        "step": middle,
        "low": low,
        "high": high,
        "plain": serial,
        "rho": serial / middle,
    }


def with_auxnets(spec: RunSpec) -> bool:
    """Whether exact steps come before and between those of the method."""
    method = spec.entry.method
    return method not in (PLAIN, DDP) and get_method(recipe_of(method)[0].method).aux == "auxnet"


def time_rank(spec: RunSpec, steps: int, exact: bool = False) -> list[float]:
    """One rank of a method: ms of each step, from all ranks' end of one to all ranks' end of the next. Of a method with
    AuxNets the decoupled steps, or the exact ones that come before and between them."""
    torch.manual_seed(spec.seed)
    model = build(spec.network, spec.size)
    x = example(spec.network, spec.size, spec.network.batch)
    y = x if spec.network.text else torch.arange(len(x)) % 10
    spec = replace(spec, epochs=1, images=max(spec.images, (steps + WARM_UP + 1) * spec.network.batch))
    control: Any = None
    if spec.entry.method in (PLAIN, DDP):
        step = _plain_step(spec, model, x, y)
    else:
        own = (EXACT if exact else DECOUPLED) if with_auxnets(spec) else {}
        trainer = trainer_of(spec, compiled(spec, model, cost="measured", threads=1, cache=False), **own)
        control = trainer.control
        index = torch.arange(len(x))

        def step() -> None:
            trainer.step(x, y, index)

    ends = []
    for _ in range(WARM_UP + steps + 1):
        step()
        ends.append(time.perf_counter())
    if dist.is_initialized() and dist.get_world_size() > 1:
        everyone = exchange.gathered(ends, control if control is not None else dist.group.WORLD)
        ends = [max(at) for at in zip(*everyone, strict=True)]
    return [1e3 * (b - a) for a, b in pairwise(ends[WARM_UP:])]


def _plain_step(spec: RunSpec, model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Callable[[], None]:
    """Plain training, or data parallelism on this rank's part of the batch."""
    dtype = torch.bfloat16 if spec.network.dtype == "bf16" else None
    if spec.entry.method == DDP:
        rank = dist.get_rank()
        x, y = x.chunk(spec.K)[rank], y.chunk(spec.K)[rank]
        model = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = factories(spec)["optimizer"](list(model.parameters()))

    def step() -> None:
        with torch.autocast("cpu", dtype, enabled=dtype is not None):
            output = model(x)
        torch.autograd.backward(loss_fn(output, y))
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def simulate_step(spec: RunSpec, steps: int) -> dict[str, float]:
    """ms of a step on a machine like this one with K cores, from units measured on this one."""
    torch.manual_seed(spec.seed)
    program = compiled(spec, build(spec.network, spec.size), cost="measured", threads=1, cache=False)
    device = replace(THIS_MACHINE, gpus=max(spec.K, THIS_MACHINE.gpus))
    row, run = outlook_row(program.plan, device, spec.K), whole_run(program.plan, device)
    if row is None:
        raise LpError(f"{spec.entry.method} has no schedule for K = {spec.K}")
    serial = row.step * row.rho
    rho, exact = row.rho if run is None else run.rho, exact_rho(program.plan, device)
    beside = {} if exact is None else {"exact step": serial / exact}
    return {**beside, "step": serial / rho, "plain": serial, "rho": rho}
