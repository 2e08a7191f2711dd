"""Which method runs when: the phases of a recipe, in turn, on all ranks at the same step.

    trainer(method="penalty", warmup=200, finish=50)      is the recipe
    warmup@violation<0.05|200steps,penalty@-50steps,1f1b

A warm-up and an exact finish are phases like any other: the settings of these names only write the list (`expand`).
In a phase with AuxNets exact steps may take the place of its method for a while: see `runtime.health.coupling`.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lpcompile.core.method import Method
from lpcompile.core.micro_batches import micro_for
from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.comm.buffer_wire import open_buffers
from lpcompile.runtime.engine.settings import Settings, settings
from lpcompile.runtime.engine.team import add_networks, add_schedulers, stage_net
from lpcompile.runtime.health import coupling
from lpcompile.runtime.methods import CHOSEN, PIPELINE, REFERENCE, get_method, helper_of
from lpcompile.runtime.methods.recipe import LEVELS, End, Phase, Recipe, recipe_of, recipe_text

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine, Prepared

log = logging.getLogger("lpcompile")
DEFAULT_WARMUP_STEPS = 200  # at most, for AuxNets that do not start consistently
STEPS_BETWEEN_VOTES = 10  # all ranks compare their violations and losses


@dataclass
class Position:
    """Where a run is in its recipe; saved with checkpoints.

    index, since: the phase, and its first step. coupled: the step since which exact steps take the place of the phase's
    method, -1 where they do not. exact, couplings: how many such steps and stretches there were so far. violation,
    boundary, loss: of the last vote, None before the first one of a phase.
    """

    index: int = 0
    since: int = 0
    coupled: int = -1
    exact: int = 0
    couplings: int = 0
    violation: float | None = None
    boundary: int = 0
    loss: float | None = None
    learnt: bool = False  # whether AuxNets have trained in this run

    def forget_votes(self) -> None:
        self.violation, self.loss = None, None


def begin(engine: Engine, recipe: Recipe) -> None:
    """Start a recipe, at step 0 or in the middle of a run, with all networks that it needs."""
    engine.asked, engine.recipe = recipe, expand(engine, recipe)
    for phase in engine.recipe:
        add_networks(engine, get_method(phase.method), options_of(engine, phase))
    add_schedulers(engine)
    engine.at.forget_votes()
    engine.at.index = -1  # no phase of this recipe runs yet
    enter(engine, _first_open(engine, 0))


def options_of(engine: Engine, phase: Phase) -> Settings:
    """The settings of a phase: those of the run, with its own."""
    return settings({**engine.options, **phase.options})


def enter(engine: Engine, index: int) -> None:
    """Begin a phase. Nothing may be in flight."""
    phase, at = engine.recipe[index], engine.at
    before, target, asked = engine.settings, get_method(phase.method), options_of(engine, phase)
    at.index, at.since, at.coupled = index, engine.steps, -1
    engine.target, engine.settings = target, asked
    for w in engine.workers if asked.autocast != before.autocast else ():
        w.stage = stage_net(engine.program, w.rank, asked)
    add_networks(engine, target, asked)
    add_schedulers(engine)
    if target.replay_buffers and engine.plan.K > 1:
        engine.buffers = open_buffers(engine)
    if not coupling.refuse(engine):
        engine.use(target)
    at.forget_votes()


def expand(engine: Engine, recipe: Recipe) -> Recipe:
    """The recipe with the phases that the settings `warmup` and `finish` stand for."""
    if engine.plan.K == 1:
        return recipe
    found: list[Phase] = []
    warm = False
    for phase in recipe:
        method, own = get_method(phase.method), options_of(engine, phase)
        steps = 0 if method.exact or warm else warmup_steps(engine, method, own, first=not found)
        if steps and method.heads:
            raise UsageError(f"warmup={steps} prepares λ for decoupling, and {method.name!r} has none; leave it out")
        if steps:
            near = [End("violation", own.warmup_violation)] if method.aux and own.warmup_violation else []
            limit = End("for" if found or (engine.steps and own.warmup is None) else "step", steps)
            if method.aux:
                found.append(Phase(helper_of(method).name, phase.options, (*near, limit)))
            else:
                found.append(replace(exact_phase(engine, own), until=(limit,)))
        warm |= bool(steps) or method.aux != ""
        found.append(phase)
    last = options_of(engine, recipe[-1])
    if last.finish and not get_method(recipe[-1].method).exact:
        found[-1] = replace(found[-1], until=(End("left", last.finish),))
        found.append(exact_phase(engine, replace(last, micro=None)))
    return recipe_of(found)


def warmup_steps(engine: Engine, method: Method, own: Settings, first: bool) -> int:
    """The most exact steps before decoupling: the setting, or a default for AuxNets that are far from X."""
    if own.warmup is not None:
        return own.warmup
    nets = [b.aux for b in engine.plan.boundaries if b.aux is not None]
    fresh = first and engine.steps == 0
    near = engine.given.auxnets is not None or all(a.violation == 0 for a in nets)
    if method.aux != "auxnet" or engine.at.learnt or (fresh and near):
        return 0
    return min(DEFAULT_WARMUP_STEPS, own.total_steps // 10) if own.total_steps else DEFAULT_WARMUP_STEPS


def exact_phase(engine: Engine, own: Settings) -> Phase:
    """An exact pipeline, with the micro-batches of `own` where it can run them, or unequal ones where the batch has no
    equal parts; `bp` where the batch cannot be cut."""
    for micro in dict.fromkeys((own.micro, None)):
        try:
            micro_for(engine.plan, get_method(PIPELINE), micro)
        except UsageError:
            continue
        return Phase(PIPELINE, {"micro": micro})
    return Phase(CHOSEN if engine.plan.batch_free else REFERENCE, {"micro": None})


def before_step(engine: Engine) -> None:
    """Ask the ranks where a vote is due, and go on to the next phase, or to and from exact steps, all at once."""
    at, phase = engine.at, engine.recipe[engine.at.index]
    _refuse_unknown_length(engine)
    voted = _votes(engine, phase) and engine.steps % STEPS_BETWEEN_VOTES == 0 and coupling.poll(engine)
    index = _first_open(engine, at.index)
    if index != at.index:
        if get_method(phase.method).aux and not voted:
            coupling.poll(engine)
        engine.flush()
        before, seen = phase, {"largest violation": at.violation, "loss": at.loss}
        enter(engine, index)
        _say_next(engine, before, seen)
    elif voted:
        coupling.decide(engine)


def _votes(engine: Engine, phase: Phase) -> bool:
    levels = any(end.kind in LEVELS for end in phase.until)
    return engine.plan.K > 1 and (levels or coupling.watched(engine))


def _first_open(engine: Engine, index: int) -> int:
    """The first phase from this one on that is not over."""
    now = engine.at.index
    while any(_over(engine, end, index == now) for end in engine.recipe[index].until):
        index += 1
    return index


def _over(engine: Engine, end: End, running: bool) -> bool:
    """Whether a phase's end has come; of a phase that does not run yet, only points of the run can have passed."""
    at, total, steps = engine.at, engine.settings.total_steps or 0, engine.steps
    if end.kind == "share":
        return bool(total) and steps >= end.value * total
    if end.kind == "step":
        return steps >= end.value
    if end.kind == "left":
        return bool(total) and steps >= total - end.value
    if not running:
        return False
    if end.kind == "for":
        return steps - at.since >= end.value
    seen = at.violation if end.kind == "violation" else at.loss
    return seen is not None and seen < end.value


def _refuse_unknown_length(engine: Engine) -> None:
    if engine.settings.total_steps or engine.steps != engine.at.since:
        return
    for phase in engine.recipe:
        for end in phase.until:
            if end.needs_total:
                raise UsageError(
                    f"{phase} ends by the length of training, which is not known here; pass total_steps=..., or use "
                    f"program.fit or trainer.fit, which know it"
                )


def _say_next(engine: Engine, before: Phase, seen: dict[str, float | None]) -> None:
    """Log that a phase began. seen: the last vote of the one before."""
    phase, total, worst = engine.recipe[engine.at.index], engine.settings.total_steps, seen["largest violation"]
    known = ", ".join(f"{name} {value:.3g}" for name, value in seen.items() if value is not None)
    if engine.at.coupled >= 0:
        return  # refused, which was said
    if get_method(before.method).prepares and worst is not None:
        engine.violation_at_start = worst
        log.info("step %d: decoupled after a warm-up, largest violation %.3g", engine.steps, worst)
    elif phase is engine.recipe[-1] and engine.target.exact and total:
        log.info("step %d: the last %d steps are exact (%s)", engine.steps, total - engine.steps, phase.method)
    else:
        log.info("step %d: %s after %s%s", engine.steps, phase, before.method, f" ({known})" if known else "")


def schedule_for(engine: Engine, index: Tensor | None) -> tuple[Prepared, Method]:
    """The schedule for these samples: where λ is stored, a sample's first step is exact and makes its λ."""
    if index is None and engine.plan.K > 1 and engine.target.keeps_samples(engine.settings.kappa):
        other = "" if engine.target.indices else ", or keep κ in a network (kappa='auxnet')"
        raise InputError(
            f"{engine.target.name!r} keeps values for each sample: pass their indices, trainer.step(x, y, index=i), or "
            f"batches (x, y, index){other}"
        )
    if index is None or engine.target.aux != "store":
        return engine.prepared, engine.method
    if len(engine.seen) <= int(index.max()):
        grown = torch.zeros(int(index.max()) + 1, dtype=torch.bool)
        grown[: len(engine.seen)] = engine.seen
        engine.seen = grown
    new = not bool(engine.seen[index].all())
    engine.seen[index] = True
    if new and engine.exact is not None:
        return engine.exact, get_method(engine.method.first_sight)
    return engine.prepared, engine.method


def note_start(engine: Engine, metrics: dict[str, Any]) -> None:
    """Without a warm-up: record how far λ is from X when training begins, as far as this rank sees it."""
    seen = [value for name, value in metrics.items() if name.startswith("violation")]
    if engine.violation_at_start is None and seen and not engine.method.exact:
        engine.violation_at_start = max(seen)
        log.info("step %d: decoupled from the start, largest violation %.3g", engine.steps, engine.violation_at_start)


def saved(engine: Engine) -> dict[str, Any]:
    """The recipe and the position in it, as plain data."""
    at = {name: getattr(engine.at, name) for name in Position.__dataclass_fields__}
    return {"asked": recipe_text(engine.asked), "recipe": recipe_text(engine.recipe), "at": at,
            "method": engine.method.name}  # fmt: skip


def resume(engine: Engine, given: dict[str, Any]) -> None:
    """Go on in the phase of a saved run, with the method that ran then."""
    if given["recipe"] != recipe_text(engine.recipe):
        engine.recipe = recipe_of(given["recipe"])
    engine.at = Position()
    enter(engine, given["at"]["index"])
    engine.at = Position(**given["at"])
    if engine.method.name != given["method"]:
        engine.use(get_method(given["method"]))
