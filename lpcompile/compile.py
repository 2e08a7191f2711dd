"""`parallelize`: the passes in order, from the user's model to a checked Program."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from lpcompile.core.plan import Plan
from lpcompile.core.progress import Progress, silent
from lpcompile.errors import UsageError
from lpcompile.passes.capture.signature import example_call
from lpcompile.passes.partition.evaluate import Link
from lpcompile.passes.partition.options import Pins
from lpcompile.planning.auxnets import AuxOptions
from lpcompile.planning.options import Options
from lpcompile.planning.pipeline import FOLLOW_PASSES, PASSES, capture_call, run_passes
from lpcompile.program import Compiled, Program
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.launch import launch
from lpcompile.runtime.methods import DEFAULT, get_method


def parallelize(
    model: nn.Module,
    K: int | str = "auto",
    *,
    example_inputs: Any = None,
    example_kwargs: dict[str, Any] | None = None,
    cost: str = "measured",
    method: str = DEFAULT,
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
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(model).__name__}; pass the model itself")
    if init not in (None, "consistent"):
        raise UsageError(f"init={init!r} is neither None (the model's weights as they are) nor 'consistent'")
    aux_init = "consistent" if init == "consistent" else aux_init
    aux_budget = get_method(method).default_budget(aux_init) if aux_budget is None else aux_budget
    auxnets = AuxOptions(aux_budget, aux, aux_init, auxnet, str(aux_dtype or "").removeprefix("torch."))
    options = Options(
        K=K,
        cost=cost,
        method=method,
        aux=auxnets,
        memory_limit=memory_limit,
        pins=pins,
        speeds=speeds,
        link=link,
        tied=tied,
        max_width=max_width,
        leaf=leaf,
        concrete_args=concrete_args,
        front_end=front_end,
        threads=threads,
        gate=gate,
        progress=progress,
        cache=cache,
    ).checked()
    if plan is not None:
        options = options.following(plan)
    if device is not None:
        model.to(device)

    def compile_again(args: Any, kwargs: Any, stages: int | None) -> Compiled:
        """Compile for a call; again, with as many stages, when the program is called under another autocast."""
        again: dict[str, Any] = {} if stages is None else {"K": stages, "cost": "flops", "aux": None, "plan": None}
        if stages is None and plan is None and cost == "measured" and in_torchrun():
            return _compile_together(model, args, kwargs, options)
        return compile_call(model, args, kwargs, replace(options, **again))

    program = Program(model, compile_again, lambda args, kwargs: capture_call(model, args, kwargs, options))
    program.__dict__["_lp_options"] = options
    if example_inputs is None and not example_kwargs:
        return program
    args, kwargs = example_call(inspect.signature(model.forward), example_inputs, example_kwargs)
    return program.compile_for(*args, **kwargs)


def follow(model: nn.Module, plan: Plan, how: Options | None, x: Any) -> Program:
    """The program of a plan again, in another process: compiled as it was, for inputs like x, and not checked again."""
    if how is None:
        raise UsageError("a program from emitted code is not compiled again; run its script under torchrun")
    options = replace(how.following(plan), gate=False)
    program = Program(
        model,
        lambda args, kwargs, stages: compile_call(model, args, kwargs, options),
        lambda args, kwargs: capture_call(model, args, kwargs, options),
    )
    args, kwargs = example_call(inspect.signature(model.forward), x)
    return program.compile_for(*args, **kwargs)


def _compile_together(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    """On one of several ranks: rank 0 measures and plans, and the others follow its plan."""
    launch.join(next((p.device.type for p in model.parameters()), "cpu"))
    mine: list[Compiled] = []

    def make() -> dict[str, Any]:
        mine.append(compile_call(model, args, kwargs, options))
        return mine[0].plan.to_json()

    def follow(data: dict[str, Any]) -> Compiled:
        plan = Plan.from_json(data)
        return compile_call(model, args, kwargs, replace(options.following(plan), gate=False))

    return launch.from_rank_0(make, follow) or mine[0]


def compile_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    """Run the pipeline, or the shorter one that follows a given plan."""
    call: dict[str, Any] = {"model": model, "args": args, "kwargs": kwargs, "options": options}
    try:
        with torch.inference_mode(False), torch.enable_grad():
            made = run_passes(PASSES if options.plan is None else FOLLOW_PASSES, call)
    finally:
        options.progress(1.0, "")
    plan, arrangement = made["plan"], made["arrangement"]
    nets = tuple(m.aux for m in arrangement.made)
    return Compiled(
        made["captured"], plan, arrangement.stages, () if plan.heads else nets, nets if plan.heads else None
    )
