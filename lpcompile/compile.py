"""`parallelize`: the passes in order, from the user's model to a checked Program."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lpcompile.core.cost import Profile
from lpcompile.core.micro_batches import default_micro
from lpcompile.core.plan import Plan
from lpcompile.core.progress import Progress, silent, within
from lpcompile.errors import PlanError, UsageError
from lpcompile.passes.auxnet.zeroing import refuse_trained
from lpcompile.passes.capture.capture import capture
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.signature import example_call, rebuilder
from lpcompile.passes.graph.batch import batch_size, resized
from lpcompile.passes.partition.options import Pins
from lpcompile.passes.partition.partition import Link
from lpcompile.passes.profile.flops import flops_profile
from lpcompile.passes.profile.profile import SOURCES, profile
from lpcompile.passes.split.cuts import cuts
from lpcompile.passes.split.gate import gate, staged
from lpcompile.passes.split.split import Stage
from lpcompile.passes.split.units import Unit, units
from lpcompile.planning.arrange import Layout, begin, follow_plan, make_plan, plan_program, small_batch
from lpcompile.planning.auxnets import AuxOptions, default_budget
from lpcompile.planning.options import Options
from lpcompile.program import Compiled, Program, on_meta
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.launch import launch

WIDTHS = (1, 2, 3, 8)
BALANCED = 1.25  # a wider boundary is not worth it where narrower ones give a largest stage within this of the mean
WORTH_IT = 0.95  # and where they do not, it must shorten the step to this share


def parallelize(
    model: nn.Module,
    K: int | str = "auto",
    *,
    example_inputs: Any = None,
    example_kwargs: dict[str, Any] | None = None,
    cost: str = "measured",
    method: str = "multiplier",
    aux_budget: float | None = None,
    aux: str = "derived",
    aux_init: str = "fresh",
    aux_dtype: torch.dtype | None = None,
    init: str | None = None,
    auxnet: Any = None,
    plan: Plan | None = None,
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
    progress: Progress = silent,
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
        Under torchrun rank 0 measures and all follow its plan: every rank must call this.
    method: the training method to plan for; aux_budget: an AuxNet's cost as a share of its stage's, by default 0.1, and
        0.05 for "penalty" and "lagrangian" after a consistent start.
    aux: "derived" from its stage, "tied" to the stage's own weights, or "recursive": from the model's input to every
        boundary ("recursive-shared" shares the first parts).
    aux_init: "fresh" weights, a "copy" of the kept blocks' weights, or "consistent". init="consistent" is the same as
        the last: residual branches that the AuxNets leave out are set to zero *in the model*, so that λ = X before the
        first step. For fresh models only: it is refused where a norm or a gradient shows that a model was trained (one
        without norms does not show it).
    aux_dtype: torch.bfloat16 lets AuxNets compute in it by autocast (boundaries, stages and all weights stay as they
        are): the same AuxNets, in less time on devices that have it. λ is then rounded, also at a consistent start.
    auxnet: your own AuxNets: `factory(in_spec, out_spec, stage)`, a list of modules, or a dict by boundary (1, 2, ...).
    plan: a Plan of this model to follow: the same stages and AuxNets, nothing is measured or searched.
    memory_limit: bytes per rank, one number or one a rank. speeds: relative speed of each rank.
    pins: {"cut": [names], "together": [[first, last], "prefix"]} in unit names as the plan prints them.
    link: `Link(bytes_per_ms, latency_ms)` between ranks, where transfers should count.
    tied: "replicate" lets a tied parameter live in two stages; "together" forbids cuts between its uses.
    max_width: most tensors a boundary may carry; "auto" widens only where one tensor gives no balanced plan.
    leaf, concrete_args, front_end: how to capture, see `lpcompile.capture`.
    threads: intra-op threads to measure with. gate: check one step bitwise, and refuse on any difference.
    progress: called with the share that is done and what is being measured; with 1 at the end.
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
    if init not in (None, "consistent"):
        raise UsageError(f"init={init!r} is neither None (the model's weights as they are) nor 'consistent'")
    aux_init = "consistent" if init == "consistent" else aux_init
    aux_budget = default_budget(method, aux_init) if aux_budget is None else aux_budget
    auxnets = AuxOptions(aux_budget, aux, aux_init, auxnet, str(aux_dtype or "").removeprefix("torch."))
    auxnets.check()
    if plan is not None:
        K, cost, method, max_width = plan.K, plan.cost, plan.method, plan.width
        auxnets = AuxOptions(plan.aux_budget, plan.aux or aux, plan.aux_init or aux_init, auxnet, plan.aux_dtype)
    options = Options(K, cost, method, auxnets, plan, memory_limit, pins, speeds, link, tied, max_width, leaf,
                      concrete_args, front_end, threads, gate, progress, cache)  # fmt: skip
    if device is not None:
        model.to(device)

    def compile_call(args: Any, kwargs: Any, stages: int | None) -> Compiled:
        """Compile for a call; again, with as many stages, when the program is called under another autocast."""
        again: dict[str, Any] = {} if stages is None else {"K": stages, "cost": "flops", "aux": None, "plan": None}
        if stages is None and plan is None and cost == "measured" and in_torchrun():
            return _compile_together(model, args, kwargs, options)
        return compile_(model, args, kwargs, replace(options, **again))

    program = Program(model, compile_call, lambda args, kwargs: _capture(model, args, kwargs, options))
    program.__dict__["_lp_options"] = options
    if example_inputs is None and not example_kwargs:
        return program
    args, kwargs = example_call(inspect.signature(model.forward), example_inputs, example_kwargs)
    return program.compile_for(*args, **kwargs)


def follow(model: nn.Module, plan: Plan, how: Options | None, x: Any) -> Program:
    """The program of a plan again, in another process: compiled as it was, for inputs like x, and not checked again."""
    if how is None:
        raise UsageError("a program from emitted code is not compiled again; run its script under torchrun")
    aux = replace(how.aux, form=plan.aux or how.aux.form, init=plan.aux_init or how.aux.init) if how.aux else None
    options = replace(how, K=plan.K, cost=plan.cost, max_width=plan.width, plan=plan, gate=False, aux=aux)
    program = Program(
        model,
        lambda args, kwargs, stages: compile_(model, args, kwargs, options),
        lambda args, kwargs: _capture(model, args, kwargs, options),
    )
    args, kwargs = example_call(inspect.signature(model.forward), x)
    return program.compile_for(*args, **kwargs)


def _compile_together(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    """On one of several ranks: rank 0 measures and plans, and the others follow its plan."""
    launch.join(next((p.device.type for p in model.parameters()), "cpu"))
    mine: list[Compiled] = []

    def make() -> dict[str, Any]:
        mine.append(compile_(model, args, kwargs, options))
        return mine[0].plan.to_json()

    def follow(data: dict[str, Any]) -> Compiled:
        plan = Plan.from_json(data)
        return compile_(model, args, kwargs, replace(options, K=plan.K, plan=plan, max_width=plan.width, gate=False))

    return launch.from_rank_0(make, follow) or mine[0]


def compile_(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    """capture → cuts → units → profile → partition → split → gate."""
    try:
        with torch.inference_mode(False), torch.enable_grad():
            return _compile(model, args, kwargs, options)
    finally:
        options.progress(1.0, "")


def _capture(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Captured:
    return capture(model, args, kwargs, leaf=options.leaf, concrete_args=options.concrete_args,
                   front_end=options.front_end)  # fmt: skip


def _compile(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    if options.aux is not None and options.aux.init == "consistent" and options.plan is None:
        refuse_trained(model)
    options.progress(0.0, "capturing the model")
    captured = _capture(model, args, kwargs, options)
    for note in captured._lp.notes:
        if "the program does not" in note:
            warnings.warn(note, stacklevel=5)
    if options.aux is not None:
        options = replace(options, aux=replace(options.aux, batch_free=captured._lp.batch_free))
    tensors = captured._lp.signature.flat(args, {**kwargs, **(options.concrete_args or {})})
    found, width = choose_units(captured, options)
    if options.plan is not None:
        return _follow(captured, found, tensors, width, options.plan, options)
    sample, part = micro_batch(captured, found, tensors, options)
    costs = profile(captured, found, sample, cost=options.cost, threads=options.threads, cache=options.cache,
                    progress=within(options.progress, 0.05, 0.6), part=part)  # fmt: skip
    layout = plan_program(captured, found, costs, sample, options)
    options.progress(0.95, "checking one step")
    checked = run_gate(captured, layout.stages, tensors) if options.gate else "not checked: gate=False"
    layout = begin(captured, layout, tensors, options)  # last: a program that is refused leaves the model as it was
    plan = make_plan(captured, found, costs, layout, tensors, width, checked, options)
    return _compiled(captured, plan, layout)


def micro_batch(
    captured: Captured, found: list[Unit], tensors: list[torch.Tensor], options: Options
) -> tuple[list[torch.Tensor], float]:
    """What costs are measured with, and which part of the batch that is: a micro-batch, as the method will run it."""
    K, batch = options.K if isinstance(options.K, int) else 2, batch_size(tensors)
    if not batch or options.cost != "measured":
        return tensors, 1.0
    saved = sum(u.saved_bytes for u in flops_profile(captured, found).units)
    micro = default_micro(options.method, K, batch, captured._lp.batch_free, saved) or 1
    size = batch // micro
    return resized(tensors, size), size / batch


def _compiled(captured: Captured, plan: Plan, layout: Layout) -> Compiled:
    made = tuple(m.aux for m in layout.made)
    return Compiled(captured, plan, layout.stages, () if plan.heads else made, made if plan.heads else None)


def _follow(
    captured: Captured, found: list[Unit], tensors: list[torch.Tensor], width: int, plan: Plan, options: Options
) -> Compiled:
    costs = Profile(plan.units, plan.cost, plan.device)
    layout = follow_plan(captured, found, costs, plan, options)
    if options.gate:
        run_gate(captured, layout.stages, tensors)
    return _compiled(captured, plan, layout)


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
    whole = captured._lp.kept_whole
    hint = f" (kept whole: {', '.join(whole[:4])})" if whole else ""
    return PlanError(
        f"K = {K} stages are too many: the model can be cut into at most {most}{hint}; ask for K <= {most}. "
        f"Why not more: {why}",
        most=most,
    )


def run_gate(captured: Captured, stages: tuple[Stage, ...], tensors: list[torch.Tensor]) -> str:
    """One step against the model on a small batch (and small images, where the graph is the same for them)."""
    info = captured._lp
    if on_meta(info.model):
        return "not checked: the model has no weights (meta device)"
    inputs = small_batch(captured, tensors)
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
