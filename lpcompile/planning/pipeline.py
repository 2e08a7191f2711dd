"""The compile pipeline: a list of named passes, each a function from artefacts to new artefacts.

    capture → cuts → sample → profile → partition → gate → start → plan

A pass needs the artefacts that its function's parameters name and ensures those that it lists. Nothing else is passed
around, and no pass changes an artefact. `LPCOMPILE_PRINT_AFTER=cuts,plan` (or `inspect --print-after cuts`) prints what
a pass made.
"""

from __future__ import annotations

import inspect
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from lpcompile.core.cost import Profile
from lpcompile.core.plan import Plan
from lpcompile.core.system.progress import within
from lpcompile.errors import GateError
from lpcompile.passes.auxnet.smaller import SmallerModel
from lpcompile.passes.auxnet.zeroing import refuse_trained
from lpcompile.passes.capture.capture import capture
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.explain import has_meta
from lpcompile.passes.capture.record.refusal import SIZED_BY_DATA
from lpcompile.passes.capture.record.values import is_library
from lpcompile.passes.capture.signature import rebuilder
from lpcompile.passes.graph.batch import batch_size, resized
from lpcompile.passes.profile.profile import profile
from lpcompile.passes.split.gate import ModelFails, gate, gate_second_call, staged
from lpcompile.passes.split.idle_mask import idle_mask, masking, near
from lpcompile.passes.split.split import Stage
from lpcompile.passes.split.units import Unit
from lpcompile.planning import arrange, artefact_text, print_after
from lpcompile.planning.arrange import Arrangement
from lpcompile.planning.balance import caches, how_unsure, settled, why_uneven
from lpcompile.planning.choice import choice
from lpcompile.planning.micro_choice import choose_micro
from lpcompile.planning.options import Options
from lpcompile.planning.plan_rows import make_plan
from lpcompile.planning.unit_choice import choose_units

RANDOM_SEEDS = 4  # of the gate, where a module that was kept whole may draw

Tensors = list[torch.Tensor]
Artefacts = dict[str, Any]


@dataclass(frozen=True)
class Pass:
    """A named step of compilation. `run` takes the artefacts that its parameters name and returns those in `ensures`.

    >>> print([p.name for p in PASSES])
    """

    name: str
    run: Callable[..., tuple[Any, ...]]
    ensures: tuple[str, ...]

    @property
    def needs(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.run).parameters)

    @property
    def summary(self) -> str:
        return (inspect.getdoc(self.run) or "").split("\n")[0]


def run_passes(passes: Sequence[Pass], artefacts: Artefacts) -> Artefacts:
    """All artefacts after the last pass, by name."""
    known = list(dict.fromkeys(p.name for p in (*PASSES, *FOLLOW_PASSES)))
    shown = print_after.requested([p.name for p in passes], known)
    for each in passes:
        made = each.run(**{name: artefacts[name] for name in each.needs})
        artefacts = {**artefacts, **dict(zip(each.ensures, made, strict=True))}
        if each.name in shown:
            print_after.show(each.name, [artefact_text.text_of(name, artefacts) for name in each.ensures])
    return artefacts


def capture_model(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> tuple[Any, ...]:
    """Record the model's operations as a graph under its own names."""
    if options.aux is not None and options.aux.init == "consistent" and options.plan is None:
        refuse_trained(model)
    options.progress(0.0, "capturing the model")
    captured = capture_call(model, args, kwargs, options)
    for note in captured._lp.notes:
        if "the program does not" in note:
            warn_user(note)
    if options.aux is not None:
        if isinstance(options.aux.given, SmallerModel):
            options.aux.given.capture(lambda smaller: capture_call(smaller, args, kwargs, options))
        options = replace(options, aux=replace(options.aux, batch_free=captured._lp.batch_free))
    tensors = captured._lp.signature.flat(args, {**kwargs, **(options.concrete_args or {})})
    return captured, tensors, options


def capture_call(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], options: Options) -> Captured:
    return capture(
        model,
        args,
        kwargs,
        leaf=options.leaf,
        concrete_args=options.concrete_args,
        front_end=options.front_end,
    )


def cut_into_units(captured: Captured, options: Options) -> tuple[list[Unit], int]:
    """Find every legal cut, and the units between neighbouring cuts."""
    return choose_units(captured, options)


def take_sample(
    captured: Captured, units: list[Unit], tensors: Tensors, options: Options
) -> tuple[Tensors, float, int]:
    """Choose the micro-batches of a step, and one of them as the inputs that costs are measured with."""
    batch, micro = batch_size(tensors), choose_micro(captured, units, tensors, options)
    if not batch or options.cost != "measured":
        return tensors, 1.0, micro
    size = -(-batch // micro)
    return resized(tensors, size), size / batch, micro


def cost_units(captured: Captured, units: list[Unit], sample: Tensors, part: float, options: Options) -> tuple[Profile]:
    """Measure or count what every unit costs, forward and backward."""
    found = profile(
        captured,
        units,
        sample,
        cost=options.cost,
        threads=options.threads,
        cache=options.cache,
        progress=within(options.progress, 0.05, 0.6),
        part=part,
        seconds=options.measure_seconds,
        compiled=options.compile,
        settled=partial(settled, options),
    )
    return (found,)


def arrange_stages(
    captured: Captured, units: list[Unit], costs: Profile, sample: Tensors, options: Options
) -> tuple[Arrangement]:
    """Find the best split into K stages, with the AuxNets or heads that the method needs."""
    return (arrange.plan_program(captured, units, costs, sample, options),)


def follow_plan(captured: Captured, units: list[Unit], options: Options) -> tuple[Arrangement, Plan]:
    """Make the stages and AuxNets of a given plan: nothing is measured or searched."""
    assert options.plan is not None
    costs = Profile(options.plan.units, options.plan.cost, options.plan.device)
    return arrange.follow_plan(captured, units, costs, options.plan, options), options.plan


def check_step(captured: Captured, arrangement: Arrangement, tensors: Tensors, options: Options) -> tuple[str]:
    """Compare one training step of the stages with the model's own, bitwise, and refuse any difference."""
    if not options.gate:
        return ("no, by gate=False",)
    options.progress(0.95, "checking one step")
    return (run_gate(captured, arrangement.stages, tensors),)


def run_gate(captured: Captured, stages: tuple[Stage, ...], tensors: Tensors) -> str:
    """One step on a small batch (and small images, where the graph is the same for them); "bitwise" if equal."""
    info = captured._lp
    if has_meta(info.model):
        return "not possible, for the model has no weights (meta device)"
    small = arrange.small_batch(captured, tensors)
    rebuild = rebuilder(info.signature)

    def reference(leaves: Tensors) -> Any:
        args, kwargs = rebuild(leaves)
        return info.model(*args, **kwargs)

    def program(leaves: Tensors) -> Any:
        tree = info.trees[stages[0].training]
        return tree.unflatten(staged(stages, leaves, tree.count))

    def set_mode(training: bool) -> None:
        for stage in stages:
            stage._lp_use_mode(training)

    check = partial(gate, info.model, reference, program, set_mode=set_mode, written=info.written)
    seeds = RANDOM_SEEDS if draws_inside(captured) else 1
    said, names = "bitwise", [name for name, _ in info.signature.inputs]
    try:
        check(small, seeds=seeds)
    except ModelFails:  # perhaps only on fewer samples: rows that refer to other rows by number
        if small is tensors:
            raise
        small = tensors
        check(tensors, seeds=seeds)
    except GateError as error:
        hint = "" if isinstance(error, ModelFails) else _cause(captured, tensors, str(error))
        if not hint:
            raise
        idle = idle_mask(names, small)
        if idle is None or not near(info.model, reference, program, small, set_mode, info.written):
            raise GateError(f"{error}; {hint}") from error
        check(masking(small, idle), seeds=seeds)
        said = (
            f"bitwise where {names[idle]} masks something; with one of ones alone, for which the model takes another "
            "path, equal but for rounding"
        )
    if info.kept_whole:
        gate_second_call(info.model, reference, program, small, info.written)
    return said


def _cause(captured: Captured, tensors: Tensors, error: str) -> str:
    """What a difference often comes from in a model like this; empty if nothing is known."""
    info = captured._lp
    if "past_key_values" in error and caches(captured):
        return caches(captured)
    sized = next((note for note in info.notes if SIZED_BY_DATA in note), "")
    if sized:
        return f"shapes that depend on data leave a module ({sized})"
    names = [name for name, _ in info.signature.inputs]
    if (idle := idle_mask(names, tensors)) is not None:
        return (
            f"{names[idle]} masks nothing, and models of transformers take another path then: leave it out, or compile "
            f"with one that masks something"
        )
    return ""


def draws_inside(captured: Captured) -> bool:
    """Whether a module that was kept whole may do something else from another seed: draws of its own are not seen."""
    kept = set(captured._lp.kept_whole)
    return any(n.op in ("call_module", "get_attr") and n.target in kept for n in captured._lp_graphs[True].nodes)


def start_auxnets(
    captured: Captured, arrangement: Arrangement, tensors: Tensors, options: Options
) -> tuple[Arrangement]:
    """Give AuxNets their first weights; last, so that a refused program leaves the model unchanged."""
    begun = arrange.begin(captured, arrangement, tensors, options)
    for k, violation in enumerate(begun.violations):
        if violation > 0:
            why = "an adapter cannot start there" if begun.made[k].aux.record.kind == "adapter" else "please report it"
            warn_user(
                f"the start is not consistent at boundary {k + 1}: λ and X differ by {violation:.3g} of the square of "
                f"X ({why}); train with a warm-up"
            )
    return (begun,)


def write_plan(
    captured: Captured,
    units: list[Unit],
    costs: Profile,
    arrangement: Arrangement,
    tensors: Tensors,
    width: int,
    micro: int,
    checked: str,
    options: Options,
) -> tuple[Plan]:
    """Gather all of it into the Plan, which every tool reads."""
    plan = make_plan(captured, units, costs, arrangement, tensors, width, micro, checked, options)
    plan = replace(plan, choice=choice(plan))
    uneven = why_uneven(captured, units, plan)
    unsure = how_unsure(plan)
    for text in filter(None, (uneven, unsure)):
        warn_user(text)
        plan = replace(plan, notes=(*plan.notes, text))
    return (plan,)


CAPTURE = Pass("capture", capture_model, ("captured", "tensors", "options"))
CUTS = Pass("cuts", cut_into_units, ("units", "width"))
GATE = Pass("gate", check_step, ("checked",))

PASSES = (
    CAPTURE,
    CUTS,
    Pass("sample", take_sample, ("sample", "part", "micro")),
    Pass("profile", cost_units, ("costs",)),
    Pass("partition", arrange_stages, ("arrangement",)),
    GATE,
    Pass("start", start_auxnets, ("arrangement",)),
    Pass("plan", write_plan, ("plan",)),
)
FOLLOW_PASSES = (CAPTURE, CUTS, Pass("follow", follow_plan, ("arrangement", "plan")), GATE)


def warn_user(text: str) -> None:
    """A warning that points to the user's own line, however deep the pipeline is."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and is_library(frame.f_code.co_filename):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level + 1)
