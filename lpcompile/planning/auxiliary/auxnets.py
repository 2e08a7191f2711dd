"""The AuxNets of a program (derived, recursive or the user's own), each with its cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import nn

from lpcompile.core.cost import Profile
from lpcompile.core.memory_format import laid_out_as
from lpcompile.core.tables import Column, Table, made_of, table_of, tenths
from lpcompile.errors import UsageError
from lpcompile.passes.auxnet.derive import AuxNet, aux_io, derive
from lpcompile.passes.auxnet.layers import INITS, take_weights
from lpcompile.passes.auxnet.measure import REPEATS, Effort, MeasuredShare, boundary_inputs, calibrate, measure_share
from lpcompile.passes.auxnet.recursive import compose, record
from lpcompile.passes.auxnet.smaller import SmallerModel
from lpcompile.passes.auxnet.user import auxnets_of_model, given_module, wrap
from lpcompile.passes.auxnet.zeroing import set_to_zero
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.split.split import Stage, stage_io
from lpcompile.passes.split.units import Unit

FORMS = ("derived", "tied", "recursive", "recursive-shared")
DTYPES = ("", "bfloat16")
BUDGET = 0.1  # default cost of an AuxNet as a share of its stage
NodeCosts = Mapping[str, tuple[float, float]]
THOROUGH = Effort()


@dataclass(frozen=True)
class AuxOptions:
    """Options for making AuxNets."""

    budget: float = BUDGET
    form: str = "derived"
    init: str = "fresh"
    given: Any = None  # the user's factory or modules, or a SmallerModel
    dtype: str = ""  # autocast dtype, "bfloat16"; "" for the model's own
    batch_free: bool = True  # the model runs at any batch size

    def check(self) -> None:
        if isinstance(self.budget, bool) or not isinstance(self.budget, (int, float)) or not 0 <= self.budget <= 1:
            raise UsageError(f"aux_budget={self.budget!r} is no share of a stage: give a number from 0 to 1.")
        if self.form not in FORMS:
            raise UsageError(f"aux={self.form!r} is not one of {', '.join(FORMS)}")
        if self.init not in INITS:
            raise UsageError(f"aux_init={self.init!r} is not one of {', '.join(INITS)}")
        if self.dtype not in DTYPES:
            raise UsageError(f"aux_dtype is {self.dtype}, and AuxNets compute as the model does (None) or in bfloat16")
        if self.given is not None and self.form != "derived":
            raise UsageError(f"auxnet= gives the networks, so aux={self.form!r} has nothing to do; drop one of the two")
        if self.given is not None and self.init != "fresh":
            raise UsageError(
                f"auxnet= gives the networks with their weights; aux_init={self.init!r} cannot apply to them"
            )


@dataclass(frozen=True)
class CostedNet:
    """One AuxNet, the budget it was derived with, and its cost as a share of its stage's."""

    aux: AuxNet
    budget: float
    forward: float
    backward: float
    total: float


def node_costs(captured: Captured, units: Sequence[Unit], profile: Profile) -> dict[str, tuple[float, float]]:
    """Cost of each node: its unit's time, shared out by FLOPs."""
    live = liveness(captured._lp_graphs[True], captured._lp.model)
    found: dict[str, tuple[float, float]] = {}
    for unit, cost in zip(units, profile.units, strict=True):
        steps = live.steps[unit.first : unit.last + 1]
        forward = sum(n.meta["flops"] for n in steps) or 1
        backward = sum(n.meta["backward_flops"] for n in steps) or 1
        for n in steps:
            found[n.name] = (
                cost.forward * n.meta["flops"] / forward,
                cost.backward * n.meta["backward_flops"] / backward,
            )
    return found


def make_auxnets(
    model: nn.Module,
    stages: Sequence[Stage],
    costs: NodeCosts,
    options: AuxOptions,
    inputs: list[torch.Tensor] | None = None,
    budgets: Sequence[float] | None = None,
    effort: Effort = THOROUGH,
    only: int | None = None,
) -> list[CostedNet]:
    """One for each stage but the last. With `inputs` the budget is met by measured time. budgets: the final budgets of
    an earlier run, used as they are. effort: how thoroughly to measure. only: the index of a single AuxNet to make.

    The budget is met in the model's own precision, so that an AuxNet is the same in every dtype; its cost is then
    measured in its own dtype."""
    builders = [partial(_laid_out, model, build) for build in _builders(stages, costs, options)]
    asked = [options.budget] * len(builders) if budgets is None else list(budgets)
    if inputs is None or budgets is not None:
        return [estimated(build(budget), budget) for build, budget in zip(builders, asked, strict=True)]
    with untouched(model):
        model.train()
        for stage in stages:
            stage._lp_use_mode(True)
        runs = boundary_inputs(stages, inputs)
        made = []
        for k in range(len(builders)) if only is None else (only,):
            effort.progress(k / len(builders), f"measuring AuxNet {k + 1} of {len(builders)}")
            measure = _measurer(stages[k], runs[k], inputs, effort)
            aux, budget, share = calibrate(asked[k], builders[k], measure, effort.rounds)
            share = measure(aux, options.dtype) if options.dtype else share
            made.append(CostedNet(aux, budget, share.forward, share.backward, share.total))
        return made


def _measurer(
    stage: Stage, given: list[torch.Tensor], inputs: list[torch.Tensor], effort: Effort
) -> Callable[..., MeasuredShare]:
    """A function that measures AuxNets of this stage. A slow stage is timed once, with the first AuxNet."""
    before: list[MeasuredShare] = []

    def measure(aux: AuxNet, dtype: str = "") -> MeasuredShare:
        own = given if aux_io(aux).lams else [inputs[i] for i in aux_io(aux).inputs]
        known = before[0].stage if before and effort.repeats < REPEATS else ()
        before.append(measure_share(stage, aux, given, own, effort.repeats, known, dtype))
        return before[-1]

    return measure


def derived_auxnets(captured: Captured, stages: Sequence[Stage], options: AuxOptions | None) -> tuple[AuxNet, ...]:
    """AuxNets for stages that were planned without them. The model stays as it is: no branch is set to zero."""
    options = options or AuxOptions()
    live = liveness(captured._lp_graphs[True], captured._lp.model)
    costs = {n.name: (n.meta["flops"], n.meta["backward_flops"]) for n in live.steps}
    made = make_auxnets(captured._lp.model, stages, costs, options)
    start(captured._lp.model, made, replace(options, init="copy" if options.init == "consistent" else options.init))
    return tuple(m.aux for m in made)


def on_demand_table(nets: Sequence[AuxNet]) -> Table:
    """The table of AuxNets that the plan's method does not use but `program.auxnets` would derive."""
    columns: list[Column[tuple[int, AuxNet]]] = [
        Column("AuxNet for", lambda at: at[0]),
        Column("forward of its stage", lambda at: at[1].record.forward_share, tenths),
        Column("parameters", lambda at: sum(p.numel() for p in at[1].parameters()), "{:,}".format),
        Column("made of", lambda at: at[1].record, made_of),
    ]
    return table_of(list(enumerate(nets, start=1)), columns)


def start(model: nn.Module, made: Sequence[CostedNet], options: AuxOptions) -> None:
    """Set initial weights. A consistent start sets residual branches that AuxNets leave out to zero in the model."""
    if options.init == "consistent":
        set_to_zero(model, [name for m in made for name in m.aux.record.zeroed])
    if options.init != "fresh":
        for m in made:
            if m.aux.record.kind not in ("tied", "user", "cut"):
                take_weights(m.aux, model, m.aux.record.split)


def violations(
    model: nn.Module, stages: Sequence[Stage], auxnets: Sequence[AuxNet], inputs: list[torch.Tensor]
) -> list[float]:
    """|λ_k - X_k|² / |X_k|² at each boundary before the first step: in training mode if the stages are deterministic,
    else in evaluation mode."""
    training = not any(n.meta.get("random") for s in stages for n in s._lp_graphs[True].nodes)
    found, lam = [], list[torch.Tensor]()
    with ExitStack() as stack:
        for module in (model, *auxnets):
            stack.enter_context(untouched(module))
        stack.enter_context(torch.no_grad())
        model.train(training)
        for stage, aux in zip(stages, auxnets, strict=False):
            stage._lp_use_mode(training)
            aux.train(training)
            io = stage_io(stage)
            theirs = _tuple(stage(*lam, *(inputs[i] for i in io.inputs)))[: len(io.boundary)]
            ours = aux_io(aux)
            lam = list(_tuple(aux(*(lam if ours.lams else ()), *(inputs[i] for i in ours.inputs))))
            pairs = [(a.double(), b.double()) for a, b in zip(lam, theirs, strict=True) if b.is_floating_point()]
            off = sum(float((a - b).square().sum()) for a, b in pairs)
            found.append(off / (sum(float(b.square().sum()) for _, b in pairs) or 1.0))
    return found


def _tuple(result: Any) -> tuple[torch.Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def estimated(aux: AuxNet, budget: float) -> CostedNet:
    """The AuxNet with the estimated cost of its record."""
    known = aux.record
    total = (known.forward_share + 2 * known.backward_share) / 3  # backward is twice the work of forward
    return CostedNet(aux, budget, known.forward_share, known.backward_share, total)


def _builders(stages: Sequence[Stage], costs: NodeCosts, options: AuxOptions) -> list[Callable[[float], AuxNet]]:
    """For each AuxNet a function from a budget to the AuxNet."""
    count = len(stages) - 1
    uses = Counter(i for stage in stages for i in {id(p) for p in stage.parameters()})
    shared = [i for i, times in uses.items() if times > 1]

    def single(k: int, share: float = 1.0) -> Callable[[float], AuxNet]:
        form = "tied" if options.form == "tied" else "derived"
        return lambda budget: derive(
            stages[k],
            budget=share * budget,
            costs=costs,
            form=form,
            init=options.init,
            seed=k,
            batch_free=options.batch_free,
            shared=shared,
        )

    def user(k: int) -> Callable[[float], AuxNet]:
        module = given_module(options.given, k, stages)
        return single(k) if module is None else lambda budget: wrap(module, k, stages[k])

    def recursive(k: int) -> Callable[[float], AuxNet]:
        """λ_{k+1} from the model's input: each of the k + 1 thinned stages gets its part of the budget."""
        makers = [single(j, 1 / (k + 1)) for j in range(k + 1)]
        return lambda budget: _recursive([make(budget) for make in makers], stages, costs, options.form)

    if isinstance(options.given, SmallerModel):
        return [partial(_as_it_is, aux) for aux in auxnets_of_model(options.given, stages)]
    if options.given is not None:
        return [user(k) for k in range(count)]
    if options.form == "recursive":
        return [recursive(k) for k in range(count)]
    if options.form == "recursive-shared":
        parts = [single(k, 1 / count)(options.budget) for k in range(count)]
        return [partial(_shared, parts[: k + 1], stages, costs, options.form) for k in range(count)]
    return [single(k) for k in range(count)]


def _as_it_is(aux: AuxNet, budget: float) -> AuxNet:
    return aux


def _laid_out(model: nn.Module, build: Callable[[float], AuxNet], budget: float) -> AuxNet:
    return laid_out_as(model, build(budget))


def _shared(parts: list[AuxNet], stages: Sequence[Stage], costs: NodeCosts, form: str, budget: float) -> AuxNet:
    """Parts share their weights, so the budget was spent when they were made."""
    return _recursive(parts, stages, costs, form)


def _recursive(parts: list[AuxNet], stages: Sequence[Stage], costs: NodeCosts, form: str) -> AuxNet:
    whole = compose(parts)
    prices = [_stage_cost(stage, costs) for stage in stages[: len(parts)]]
    forward = sum(p.record.forward_share * f for p, (f, _) in zip(parts, prices, strict=True))
    backward = sum(p.record.backward_share * b for p, (_, b) in zip(parts, prices, strict=True))
    own = prices[-1]
    whole._lp_set_record(record(parts, form, forward / (own[0] or 1.0), backward / (own[1] or 1.0)))
    return whole


def _stage_cost(stage: Stage, costs: NodeCosts) -> tuple[float, float]:
    found = [costs[n.name] for n in stage._lp_graphs[True].nodes if n.name in costs and n.op != "placeholder"]
    return sum(f for f, _ in found), sum(b for _, b in found)
