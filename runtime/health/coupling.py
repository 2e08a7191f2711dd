"""Re-coupling: exact steps in which AuxNets learn X come back by themselves when λ leaves X.

A method with AuxNets is as good as λ is near to X. Every few steps all ranks compare the violations of their boundaries
(running means, `poll`). Where one passes the setting `recouple`, or a boundary's values no longer vary, exact steps
(the method `warmup`, a 1f1b pipeline) take the method's place, on all ranks at the same step, until the violation is
small again:

    violation      ──── recouple ────╱╲──────────────────────
                                    ╱  ╲
                   ──── 0.8 of it ─╱────╲───────────────────
                    decoupled      │exact │  decoupled

A second stretch of exact steps is twice as long as the first, and so on, so that AuxNets that cannot follow X lead to
an exact pipeline in the end and not to a collapse. Nor do stages decouple where fewer steps are left than the stretch
took: what that may break could not be mended before the end.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from lpcompile.runtime.health import collapse
from lpcompile.runtime.health.advice import advice
from lpcompile.runtime.methods import get_method, helper_of

if TYPE_CHECKING:
    from lpcompile.runtime.engine.engine import Engine

log = logging.getLogger("lpcompile")
MIN_STRETCH = 20  # exact steps of the first stretch; each later one is twice as long
MAX_STRETCH = 2000
SMALL_AGAIN = 0.8  # share of `recouple` below which stages decouple again
HOPELESS = 0.9  # a violation at which λ has nothing to do with X
RECOVERY_STEPS = 100  # exact steps after which values that still do not vary end training


def watched(engine: Engine) -> bool:
    """Whether the running phase may be re-coupled."""
    return engine.target.aux == "auxnet" and not engine.target.exact and engine.settings.recouple > 0


def poll(engine: Engine) -> bool:
    """Gather the ranks' running means into the position; False where there are none yet. All ranks call it."""
    own: dict[str, Any] = {name: value for w in engine.workers for name, value in w.means.items()}
    own |= {f"collapsed {k}": text for w in engine.workers for k, text in w.collapsed.items()}
    found = engine.gather(own)
    violations = {int(name.split()[1]): v for name, v in found.items() if name.startswith("violation")}
    at = engine.at
    if violations:
        at.boundary = max(violations, key=lambda k: violations[k])
        at.violation = violations[at.boundary]
    at.loss = found.get("loss", at.loss)
    engine.collapsed = {int(name.split()[1]): text for name, text in found.items() if name.startswith("collapsed")}
    return bool(found)


def refuse(engine: Engine) -> bool:
    """At the start of a decoupled phase: begin with exact steps if AuxNets are known to be far from X."""
    at, limit = engine.at, engine.settings.recouple
    if not watched(engine) or not (engine.collapsed or (at.violation is not None and at.violation > limit)):
        return False
    couple(engine, f"decoupling is refused: {next(iter(engine.collapsed.values()), '') or _violation(engine)}")
    return True


def decide(engine: Engine) -> None:
    """After a vote: go to exact steps, back from them, or stop where they did not help."""
    at, limit = engine.at, engine.settings.recouple
    if not watched(engine):
        return
    if at.coupled < 0:
        if engine.collapsed:
            couple(engine, next(iter(engine.collapsed.values())))
        elif at.violation is not None and at.violation > limit:
            couple(engine, _violation(engine))
        return
    stretch = engine.steps - at.coupled
    if engine.collapsed and stretch >= RECOVERY_STEPS:
        text = f"{next(iter(engine.collapsed.values()))}, also after {stretch} exact steps"
        collapse.fail(engine.settings.collapse, text, advice(engine.target, "constant"))
    wanted = min(MAX_STRETCH, MIN_STRETCH * 2 ** max(0, at.couplings - 1))
    left = (engine.settings.total_steps or engine.steps + stretch) - engine.steps
    near = not engine.collapsed and at.violation is not None and at.violation < SMALL_AGAIN * limit
    if near and stretch >= wanted and left >= stretch:
        log.info("step %d: decoupled again after %d exact steps, largest violation %.3g",
                 engine.steps, stretch, at.violation)  # fmt: skip
        _change(engine, engine.target.name)
        at.coupled = -1


def couple(engine: Engine, why: str) -> None:
    """Go to exact steps, on all ranks at the same step."""
    at = engine.at
    at.coupled, at.couplings = engine.steps, at.couplings + 1
    when = "" if why.startswith("step ") else f"step {engine.steps}: "
    text = f"{when}{why}; exact steps in which AuxNets learn X, until it is small again"
    if engine.main:
        log.log(logging.WARNING if at.couplings == 1 else logging.INFO, text)
    _change(engine, helper_of(engine.target).name)


def _change(engine: Engine, method: str) -> None:
    engine.flush()
    engine.use(get_method(method))
    engine.at.forget_votes()
    engine.collapsed = {}
    for w in engine.workers:
        w.means.clear()
        w.collapsed.clear()


def _violation(engine: Engine) -> str:
    at, limit = engine.at, engine.settings.recouple
    return f"the violation of boundary {at.boundary} is {at.violation:.3g}, more than recouple={limit:g}"
