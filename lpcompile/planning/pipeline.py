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
from typing import Any

import torch
from torch import nn

from lpcompile.core.cost import Profile
from lpcompile.core.method import BatchFacts
from lpcompile.core.plan import Plan
from lpcompile.core.progress import within
from lpcompile.passes.auxnet.zeroing import refuse_trained
from lpcompile.passes.capture.capture import capture
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.capture.explain import has_meta
from lpcompile.passes.capture.record.values import is_library
from lpcompile.passes.capture.signature import rebuilder
from lpcompile.passes.graph.batch import batch_size, resized
from lpcompile.passes.profile.flops import flops_profile
from lpcompile.passes.profile.profile import profile
from lpcompile.passes.split.gate import gate, staged
from lpcompile.passes.split.split import Stage
from lpcompile.passes.split.units import Unit
from lpcompile.planning import arrange, artefact_text, print_after
from lpcompile.planning.arrange import Arrangement
from lpcompile.planning.options import Options
from lpcompile.planning.plan_rows import make_plan
from lpcompile.planning.unit_choice import choose_units

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
    shown = print_after.requested([p.name for p in passes], [p.name for p in (*PASSES, *FOLLOW_PASSES)])
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


def take_sample(captured: Captured, units: list[Unit], tensors: Tensors, options: Options) -> tuple[Tensors, float]:
    """Choose the inputs that costs are measured with: one micro-batch of the method, and its part of the batch."""
    K, batch = options.K if isinstance(options.K, int) else 2, batch_size(tensors)
    if not batch or options.cost != "measured":
        return tensors, 1.0
    saved = sum(u.saved_bytes for u in flops_profile(captured, units).units)
    micro = options.traits.default_micro(BatchFacts(K, batch, captured._lp.batch_free, saved)) or 1
    size = batch // micro
    return resized(tensors, size), size / batch


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
        return ("not checked: gate=False",)
    options.progress(0.95, "checking one step")
    return (run_gate(captured, arrangement.stages, tensors),)


def run_gate(captured: Captured, stages: tuple[Stage, ...], tensors: Tensors) -> str:
    """One step on a small batch (and small images, where the graph is the same for them); "bitwise" if equal."""
    info = captured._lp
    if has_meta(info.model):
        return "not checked: the model has no weights (meta device)"
    inputs = arrange.small_batch(captured, tensors)
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

    gate(info.model, reference, program, inputs, set_mode, info.written)
    return "bitwise"


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
    checked: str,
    options: Options,
) -> tuple[Plan]:
    """Gather all of it into the Plan, which every tool reads."""
    return (make_plan(captured, units, costs, arrangement, tensors, width, checked, options),)


CAPTURE = Pass("capture", capture_model, ("captured", "tensors", "options"))
CUTS = Pass("cuts", cut_into_units, ("units", "width"))
GATE = Pass("gate", check_step, ("checked",))

PASSES = (
    CAPTURE,
    CUTS,
    Pass("sample", take_sample, ("sample", "part")),
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
