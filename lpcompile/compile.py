"""`parallelize`: the passes in order, from the user's model to a checked Program."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.batch import batch_size, resized
from lpcompile.passes.capture import Captured, capture, rebuilder
from lpcompile.passes.cost import Profile
from lpcompile.passes.cuts import Cut, cuts, state_uses
from lpcompile.passes.flops import flops_profile
from lpcompile.passes.gate import gate, staged
from lpcompile.passes.liveness import liveness
from lpcompile.passes.measure import Progress
from lpcompile.passes.partition import Link, Partition, auto_stages, partition
from lpcompile.passes.partition_options import Pins
from lpcompile.passes.profile import SOURCES, profile
from lpcompile.passes.signature import example_call
from lpcompile.passes.split import Stage, split, stage_io
from lpcompile.passes.units import Unit, units
from lpcompile.plan import BoundaryPlan, Plan, StagePlan
from lpcompile.program import Compiled, Program, on_meta

WIDTHS = (1, 2, 3, 8)
BALANCED = 1.25  # a wider boundary is not worth it where narrower ones give a largest stage within this of the mean
WORTH_IT = 0.95  # and where they do not, it must shorten the step to this share


@dataclass(frozen=True)
class Options:
    """The arguments of `parallelize` that the passes read."""

    K: int | str
    cost: str
    method: str
    aux_budget: float
    memory_limit: float | Sequence[float] | None
    pins: Pins | dict[str, Any] | None
    speeds: Sequence[float] | None
    link: Link | None
    tied: str
    max_width: int | str
    leaf: Iterable[str | type[nn.Module]]
    concrete_args: dict[str, Any] | None
    front_end: str
    threads: int | None
    gate: bool
    progress: Progress | None
    cache: bool

    def planner(self) -> dict[str, Any]:
        return {
            "method": self.method,
            "aux_budget": self.aux_budget,
            "memory_limit": self.memory_limit,
            "pins": self.pins,
            "speeds": self.speeds,
            "link": self.link,
        }


def parallelize(
    model: nn.Module,
    K: int | str = "auto",
    *,
    example_inputs: Any = None,
    example_kwargs: dict[str, Any] | None = None,
    cost: str = "measured",
    method: str = "multiplier",
    aux_budget: float = 0.1,
    memory_limit: float | Sequence[float] | None = None,
    pins: Pins | dict[str, Any] | None = None,
    device: torch.device | str | None = None,
    speeds: Sequence[float] | None = None,
    link: Link | None = None,
    tied: str = "replicate",
    max_width: int | str = "auto",
    leaf: Iterable[str | type[nn.Module]] = (),
    concrete_args: dict[str, Any] | None = None,
    front_end: str = "auto",
    threads: int | None = None,
    gate: bool = True,
    progress: Progress | None = None,
    cache: bool = True,
) -> Program:
    """Split `model` into K balanced stages that compose to exactly the model.

    >>> program = parallelize(model, K=4, example_inputs=x)
    >>> print(program.plan)
    >>> program(x)                       # bitwise model(x)

    model: any nn.Module; it is shared, not copied, and not changed (`device` moves it, as `model.to` does).
    K: number of stages, or "auto".
    example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments; without them (and without
        `example_kwargs`) the program compiles at its first call.
    cost: "measured" times every unit in real steps; "flops" counts, needs no weights and is the same everywhere.
    method: the training method to plan for; aux_budget: an AuxNet's cost as a share of its stage's.
    memory_limit: bytes per rank, one number or one a rank. speeds: relative speed of each rank.
    pins: {"cut": [names], "together": [[first, last], "prefix"]} in unit names as the plan prints them.
    link: `Link(bytes_per_ms, latency_ms)` between ranks, where transfers should count.
    tied: "replicate" lets a tied parameter live in two stages; "together" forbids cuts between its uses.
    max_width: most tensors a boundary may carry; "auto" widens only where one tensor gives no balanced plan.
    leaf, concrete_args, front_end: how to capture, see `lpcompile.capture`.
    threads: intra-op threads to measure with. gate: check one step bitwise, and refuse on any difference.
    """
    if cost not in SOURCES:
        raise UsageError(f"cost={cost!r} is not one of {', '.join(SOURCES)}")
    if not (K == "auto" or (isinstance(K, int) and not isinstance(K, bool) and K >= 1)):
        raise UsageError(f"K={K!r} is neither a number of stages (1 or more) nor 'auto'")
    if not (max_width == "auto" or (isinstance(max_width, int) and max_width >= 1)):
        raise UsageError(f"max_width={max_width!r} is neither a number of tensors (1 or more) nor 'auto'")
    if threads is not None and (not isinstance(threads, int) or threads < 1):
        raise UsageError(f"threads={threads!r} is not a number of threads (1 or more)")
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(model).__name__}; pass the model itself")
    options = Options(K, cost, method, aux_budget, memory_limit, pins, speeds, link, tied, max_width, leaf,
                      concrete_args, front_end, threads, gate, progress, cache)  # fmt: skip
    if device is not None:
        model.to(device)

    def compile_call(args: Any, kwargs: Any, stages: int | None) -> Compiled:
        """Compile for a call; again, with as many stages, when the program is called under another autocast."""
        again: dict[str, Any] = {} if stages is None else {"K": stages, "cost": "flops"}
        return compile_(model, args, kwargs, replace(options, **again))

    program = Program(model, compile_call, lambda args, kwargs: _capture(model, args, kwargs, options))
    if example_inputs is None and not example_kwargs:
        return program
    args, kwargs = example_call(model, example_inputs, example_kwargs)
    return program.compile_for(*args, **kwargs)


def compile_(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    """capture → cuts → units → profile → partition → split → gate."""
    with torch.inference_mode(False), torch.enable_grad():
        return _compile(model, args, kwargs, options)


def _capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Captured:
    return capture(model, args, kwargs, leaf=options.leaf, concrete_args=options.concrete_args,
                   front_end=options.front_end)  # fmt: skip


def _compile(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    captured = _capture(model, args, kwargs, options)
    for note in captured._lp.notes:
        if "the program does not" in note:
            warnings.warn(note, stacklevel=5)
    tensors = captured._lp.signature.flat(args, {**kwargs, **(options.concrete_args or {})})
    found, width = choose_units(captured, options)
    costs = profile(captured, found, tensors, cost=options.cost, threads=options.threads, cache=options.cache,
                    progress=options.progress)  # fmt: skip
    best = plan_stages(costs, options)
    chosen = [c for c in (found[b - 1].cut for b in best.cuts) if c is not None]
    stages = split(captured, chosen)
    checked = run_gate(captured, stages, tensors) if options.gate else "not checked: gate=False"
    return captured, make_plan(captured, found, costs, best, stages, tensors, width, checked, options), stages


def choose_units(captured: Captured, options: Options) -> tuple[list[Unit], int]:
    """Units from the narrowest boundaries that balance; wider ones only where they pay."""
    widths = WIDTHS if options.max_width == "auto" else (int(options.max_width),)
    K = options.K if isinstance(options.K, int) else 2
    best: tuple[float, list[Unit], int] | None = None
    most = 0
    for width in widths:
        positions = cuts(captured, max_width=width, tied=options.tied)
        found = units(captured, positions)
        most = max(most, len(found))
        if len(found) < K:
            continue
        costs = [u.forward + u.backward for u in flops_profile(captured, found).units]
        step = balance(costs, K)
        if best is None or step < WORTH_IT * best[0]:
            best = (step, found, width)
        if step * K <= BALANCED * sum(costs):
            break
    if best is None:
        raise too_many_stages(captured, K, most, options)
    return best[1], best[2]


def balance(costs: list[float], K: int) -> float:
    """The smallest possible largest part of K contiguous parts: a quick look, before the planner proper."""
    low, high = max(max(costs), sum(costs) / K), sum(costs)
    for _ in range(40):
        middle = (low + high) / 2
        parts, filled = 1, 0.0
        for c in costs:
            if filled + c > middle:
                parts, filled = parts + 1, 0.0
            filled += c
        low, high = (low, middle) if parts <= K else (middle, high)
    return high


def too_many_stages(captured: Captured, K: int, most: int, options: Options) -> PlanError:
    positions = cuts(captured, max_width=WIDTHS[-1], tied=options.tied)
    reasons: dict[str, int] = {}
    for cut in positions:
        if not cut.legal:
            key = cut.reason.split("(")[0].strip()
            reasons[key] = reasons.get(key, 0) + 1
    common = sorted(reasons, key=lambda r: -reasons[r])[:3]
    why = "; ".join(f"{reasons[r]} positions: {r}" for r in common) or "the model has no more steps"
    whole = captured._lp.whole
    hint = f" (kept whole: {', '.join(whole[:4])})" if whole else ""
    return PlanError(
        f"K = {K} stages are too many: the model can be cut into at most {most}{hint}; ask for K <= {most}. "
        f"Why not more: {why}",
        most=most,
    )


def plan_stages(costs: Profile, options: Options) -> Partition:
    if options.K == "auto":
        return auto_stages(costs, **options.planner())
    return partition(costs, int(options.K), **options.planner())


def run_gate(captured: Captured, stages: tuple[Stage, ...], tensors: list[torch.Tensor]) -> str:
    """One step against the model on a small batch (and small images, where the graph is the same for them)."""
    info = captured._lp
    if on_meta(info.model):
        return "not checked: the model has no weights (meta device)"
    inputs = info.small_inputs or tensors
    batch = batch_size(inputs)
    if info.batch_free and batch is not None and batch > 2:
        inputs = resized(inputs, 2)
    rebuild = rebuilder(info.signature)

    def reference(leaves: list[torch.Tensor]) -> Any:
        args, kwargs = rebuild(leaves)
        return info.model(*args, **kwargs)

    def program(leaves: list[torch.Tensor]) -> Any:
        tree = info.trees[stages[0].training]
        return tree.unflatten(staged(stages, leaves, tree.count))

    def set_mode(training: bool) -> None:
        for stage in stages:
            stage._lp_use_mode(training)

    gate(info.model, reference, program, inputs, set_mode, info.written)
    return "bitwise"


def make_plan(
    captured: Captured,
    found: list[Unit],
    costs: Profile,
    best: Partition,
    stages: tuple[Stage, ...],
    tensors: list[torch.Tensor],
    width: int,
    checked: str,
    options: Options,
) -> Plan:
    """Gather what the passes found into one frozen record."""
    names = [name for name, _ in captured._lp.signature.inputs]
    ends = [*best.cuts, len(found)]
    budget = options.aux_budget
    rows, boundaries = [], []
    for k, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        part = costs.units[first:end]
        rows.append(
            StagePlan(
                index=k,
                first=first,
                last=end - 1,
                forward=sum(u.forward for u in part),
                backward=sum(u.backward for u in part),
                parameters=sum(p.numel() for p in stages[k].parameters()),
                parameter_bytes=sum(p.numel() * p.element_size() for p in stages[k].parameters()),
                saved_bytes=sum(u.saved_bytes for u in part),
                memory_bytes=int(best.memory[k]),
                arrival=best.arrivals[k],
                finish=best.finish[k],
                work=best.work[k],
                inputs=tuple(names[i] for i in stage_io(stages[k], True).inputs),
            )
        )
        cut = found[end - 1].cut
        if k < len(ends) - 1 and cut is not None:
            has_aux = best.aux_ranks[k] >= 0
            aux = (budget * rows[k].forward, budget * rows[k].backward) if has_aux else (0.0, 0.0)
            boundaries.append(_boundary(k + 1, cut, best.aux_ranks[k], aux))
    return Plan(
        model=type(captured._lp.model).__name__,
        K=best.K,
        method=best.method,
        cost=costs.cost,
        device=costs.device,
        batch=batch_size(tensors),
        batch_free=captured._lp.batch_free,
        aux_budget=budget,
        width=width,
        units=costs.units,
        stages=tuple(rows),
        boundaries=tuple(boundaries),
        step=best.step,
        lower_bound=best.lower_bound,
        ideal=best.ideal,
        serial=costs.total + costs.loss,
        gate=checked,
        tied=tied_parameters(captured, [c for c in (found[b - 1].cut for b in best.cuts) if c is not None]),
        notes=(*captured._lp.notes, *costs.notes),
    )


def _boundary(index: int, cut: Cut, rank: int, aux: tuple[float, float]) -> BoundaryPlan:
    return BoundaryPlan(index, cut.position, cut.eval_position, cut.after, cut.path, cut.source, cut.values, cut.specs,
                        rank, *aux)  # fmt: skip


def tied_parameters(captured: Captured, chosen: list[Cut]) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Parameters that several stages use, with those stages."""
    model = captured._lp.model
    live = liveness(captured._lp_graphs[True], model)
    ends = [c.position for c in chosen]
    found = []
    for name, steps in state_uses(live, model).items():
        stages = tuple(sorted({sum(step > end for end in ends) for step in steps}))
        if len(stages) > 1 and name in live.parameters:
            found.append((name, stages))
    return tuple(found)
