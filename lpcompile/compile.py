"""`parallelize`: the passes in order, from the user's model to a checked Program."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from lpcompile.core.plan import Plan
from lpcompile.core.system.progress import Progress, Shown, rising, silent
from lpcompile.errors import UsageError, options_checked
from lpcompile.passes.auxnet.smaller import SmallerModel
from lpcompile.passes.capture.signature import example_call
from lpcompile.passes.partition.evaluate import Link
from lpcompile.passes.partition.options import Pins
from lpcompile.passes.profile.measure import MEASURING_SECONDS
from lpcompile.planning.auxiliary.auxnets import AuxOptions
from lpcompile.planning.link import link_of
from lpcompile.planning.options import Options
from lpcompile.planning.pipeline import FOLLOW_PASSES, PASSES, capture_call, run_passes
from lpcompile.program import Compiled, Program
from lpcompile.runtime.comm.handshake import in_torchrun
from lpcompile.runtime.launch import board, launch
from lpcompile.runtime.methods import DEFAULT, get_method
from lpcompile.runtime.methods.recipe import Given, Phase, main_phase, recipe_of, recipe_text, refuse_inexact
from lpcompile.runtime.penalty.published import METHOD as PUBLISHED_METHOD


@options_checked
def parallelize(
    model: nn.Module,
    K: int | str = "auto",
    *,
    example_inputs: Any = None,
    example_kwargs: dict[str, Any] | None = None,
    cost: str = "measured",
    method: Given = DEFAULT,
    exact: bool = False,
    aux_budget: float | None = None,
    aux: str = "derived",
    aux_init: str = "fresh",
    aux_dtype: torch.dtype | None = None,
    init: str | None = None,
    auxnet: Any = None,
    placement: str | None = None,
    balance: str | None = None,
    as_published: bool = False,
    plan: Plan | None = None,
    memory_limit: float | Sequence[float] | None = None,
    pins: Pins | dict[str, Any] | None = None,
    device: torch.device | str | None = None,
    speeds: Sequence[float] | None = None,
    link: Link | str | None = None,
    tied: str = "replicate",
    max_width: int | str = "auto",
    leaf: Iterable[str | type[nn.Module]] = (),
    concrete_args: dict[str, Any] | None = None,
    front_end: str = "auto",
    threads: int | None = None,
    gate: bool = True,
    progress: Progress | None = None,
    cache: bool = True,
    measure_seconds: float = MEASURING_SECONDS,
    compile: bool = False,
) -> Program:
    """Split `model` into K balanced stages that compose to exactly the model.

    >>> program = parallelize(model, K=4, example_inputs=x)
    >>> print(program.plan)
    >>> program(x)                       # bitwise model(x)

    model: any nn.Module; it is shared, not copied, and not changed (`device` moves it, as `model.to` does).
    K: number of ranks, or "auto". Each has one stage, or two of a method with virtual stages (`zbv`, ...).
    example_inputs: a tensor, a tuple of arguments or a dict of keyword arguments; without them (and without
        `example_kwargs`) the program compiles at its first call.
    cost: "measured" times every unit in real steps; "flops" counts, needs no weights and is the same everywhere.
        Under torchrun rank 0 measures and all follow its plan: every rank must call this.
    method: the training method to plan for; "auto" is an exact pipeline without bubble (`zbh2`), so that accuracy is
        plain training's whatever the optimizer. Or a recipe (`lpcompile.runtime.methods.recipe`): stages are planned
        for the phase with the largest share of training.
    aux_budget: an AuxNet's cost as a share of its stage's, by default 0.1, and 0.05 for "penalty" and "lagrangian"
        after a consistent start.
    exact: refuse a method (or a phase of a recipe) whose gradients are not plain training's, here and in all training
        of the program.
    aux: "derived" from its stage, "tied" to the stage's own weights, or "recursive": from the model's input to every
        boundary ("recursive-shared" shares the first parts).
    aux_init: "fresh" weights, a "copy" of the kept blocks' weights, or "consistent". init="consistent" is the same as
        the last: residual branches that the AuxNets leave out are set to zero *in the model*, so that λ = X before the
        first step. For fresh models only: it is refused where a norm or a gradient shows that a model was trained (one
        without norms does not show it).
    aux_dtype: torch.bfloat16 lets AuxNets compute in it by autocast (boundaries, stages and all weights stay as they
        are): the same AuxNets, in less time on devices that have it. λ is then rounded, also at a consistent start.
    auxnet: your own AuxNets: `factory(in_spec, out_spec, stage)`, a list of modules, or a dict by boundary (1, 2, ...).
        Or a smaller model of the family, as the paper has ResNet-20 for ResNet-110: it is captured and cut where its
        tensors have the boundaries' shapes, nearest in depth, with adapters where only channels differ. Its weights are
        copied as they are.
    placement: AuxNets run on the "best" rank, below or above their boundary (default), or always "below" it. balance:
        stages are of equal length with the "work" of their AuxNets (default), or as "stages" alone.
    as_published: the paper's own settings: method "penalty", fresh AuxNets below their boundaries, stages balanced
        alone, and a trainer as in `lpcompile.runtime.penalty.published`. Options that are given beside it override it.
    plan: a Plan of this model to follow: the same stages and AuxNets, nothing is measured or searched.
    memory_limit: bytes per rank, one number or one per rank. speeds: relative speed of each rank.
    pins: {"cut": [names], "together": [[first, last], "prefix"]} in unit names as the plan prints them.
    link: `Link(bytes_per_ms, latency_ms)` between ranks, where transfers should count; "measure" measures it, between
        the ranks under torchrun, where every rank must call this.
    tied: "replicate" lets a tied parameter live in two stages; "together" forbids cuts between its uses.
    max_width: the largest number of tensors at a boundary; "auto" widens only where one tensor gives no balanced plan.
    leaf, concrete_args, front_end: how to capture, see `lpcompile.capture`.
    threads: intra-op threads to measure with. gate: check one step bitwise, and refuse on any difference.
    progress: called with the finished share of the work and the current step; with 1 at the end. By default a bar on a
        terminal, else lines on stderr (or in the log "lpcompile" at level INFO), once it takes longer than 2 seconds.
    cache: use costs that were measured before on this machine. measure_seconds: how long to measure, about; every unit
        is measured in at least two steps. compile: measure units that torch.compile made, for training with
        compile=True; units that are alike share their code, and torch keeps it on disk.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"expected a torch.nn.Module, got {type(model).__name__}; pass the model itself")
    if init not in (None, "consistent"):
        raise UsageError(f"init={init!r} is neither None (the model's weights as they are) nor 'consistent'")
    aux_init = "consistent" if init == "consistent" else aux_init
    if as_published and method == DEFAULT:
        method = PUBLISHED_METHOD
    recipe = recipe_of(method)
    planned = get_method(main_phase(recipe).method)
    if len({get_method(phase.method).ranks(2) for phase in recipe}) > 1:
        raise UsageError(
            f"the phases of {recipe_text(recipe)} have other stages on their ranks, and a program has one plan; use "
            f"methods with one stage a rank, or with the same stages on each"
        )
    if exact:
        refuse_inexact(recipe if plan is None else recipe_of(plan.training))
        plan = None if plan is None else replace(plan, exact=True)
    aux_budget = planned.default_budget(aux_init) if aux_budget is None else aux_budget
    if plan is None and not any(get_method(phase.method).aux == "auxnet" for phase in recipe):
        refuse_auxnet_options(planned.name, init=init, aux_dtype=aux_dtype)
    given = SmallerModel(auxnet) if isinstance(auxnet, nn.Module) else auxnet
    auxnets = AuxOptions(aux_budget, aux, aux_init, given, str(aux_dtype or "").removeprefix("torch."))
    options = Options(
        K=K,
        cost=cost,
        method=planned.name,
        recipe=recipe_text(recipe) if recipe != (Phase(planned.name),) else "",
        aux=auxnets,
        placement=placement or ("below" if as_published else "best"),
        balance=balance or ("stages" if as_published else "work"),
        as_published=as_published,
        exact=exact,
        memory_limit=memory_limit,
        pins=pins,
        speeds=speeds,
        link=link_of(link, next((p.device.type for p in model.parameters()), "cpu")),
        tied=tied,
        max_width=max_width,
        leaf=leaf,
        concrete_args=concrete_args,
        front_end=front_end,
        threads=threads,
        gate=gate,
        progress=progress or silent,
        cache=cache,
        measure_seconds=measure_seconds,
        compile=compile,
    ).checked()
    if plan is not None:
        options = options.following(plan)
    if device is not None:
        model.to(device)

    def compile_again(args: Any, kwargs: Any, stages: int | None) -> Compiled:
        """Compile for a call; again, with as many stages, when the program is called under another autocast."""
        first = (dist.get_rank() if dist.is_initialized() else launch.torchrun_rank() or 0) == 0
        again: dict[str, Any] = {} if stages is None else {"K": stages, "cost": "flops", "aux": None, "plan": None}
        if stages is None and plan is None and cost == "measured" and in_torchrun():
            return _compile_together(model, args, kwargs, options, progress is None)
        with _shown(progress is None and first) as shown:
            return compile_call(
                model, args, kwargs, replace(options, **{"progress": shown or options.progress, **again})
            )

    program = Program(model, compile_again, lambda args, kwargs: capture_call(model, args, kwargs, options))
    program.__dict__["_lp_options"] = options
    if example_inputs is None and not example_kwargs:
        return program
    args, kwargs = example_call(inspect.signature(model.forward), example_inputs, example_kwargs)
    return program.compile_for(*args, **kwargs)


def refuse_auxnet_options(method: str, **given: Any) -> None:
    """Refuse options of AuxNets for a method that trains without them."""
    for name, value in given.items():
        if value is not None:
            raise UsageError(
                f"{name}={value!r} is for AuxNets, and {method!r} trains without them; name a method that has them "
                f"(method='penalty'), or leave {name} out"
            )


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


def _shown(shown: bool) -> Any:
    return Shown("parallelize") if shown else nullcontext()


def _compile_together(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options, shown: bool
) -> Compiled:
    """On one of several ranks: rank 0 measures and plans, and the others follow its plan."""
    launch.join(next((p.device.type for p in model.parameters()), "cpu"))
    mine: list[Compiled] = []

    def make() -> dict[str, Any]:
        mood = board.RESTS if options.compile else board.WORKS  # torch.compile makes code in processes of its own
        with _shown(shown) as progress, board.away(0, "planning", mood):
            mine.append(compile_call(model, args, kwargs, replace(options, progress=progress or options.progress)))
        return mine[0].plan.to_json()

    def follow(data: dict[str, Any]) -> Compiled:
        plan = Plan.from_json(data)
        return compile_call(model, args, kwargs, replace(options.following(plan), gate=False))

    return launch.from_rank_0(make, follow) or mine[0]


def compile_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Compiled:
    """Run the pipeline, or the shorter one that follows a given plan."""
    options = replace(options, progress=rising(options.progress))
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
