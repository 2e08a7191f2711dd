"""How even and how sure a plan is: whether costs are known well enough, and the unit that cannot be divided."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from lpcompile.core.cost import Profile
from lpcompile.core.plan import Plan
from lpcompile.core.tables import uncertainty
from lpcompile.errors import PlanError
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.split.cuts import cuts, kind_of
from lpcompile.passes.split.units import Unit
from lpcompile.planning.arrange import plan_stages, terms_of
from lpcompile.planning.options import Options
from lpcompile.planning.partition import evaluate

UNEVEN = 1.5  # largest stage over the mean above which a plan is reported
UNSURE = 0.5  # spread of a stage over its cost from which the plan is reported as unsure
SURE = 0.02  # of the step: what more measuring could gain, from which on there is none
ERROR = 0.93  # standard error of a median of n values over their interquartile range by the root of n, if normal


def settled(options: Options, costs: Profile, runs: int) -> bool:
    """Whether more measuring can no longer find stages that are better by more than SURE: the best split of costs that
    were measured so often, with every unit an error longer, is that near to the planner's lower bound with every unit
    an error shorter."""
    if options.K in ("auto", 1):
        return False
    error, terms = ERROR / runs**0.5, terms_of(options, options.planner()["aux_budget"])
    try:
        best, least = plan_stages(costs, options), plan_stages(_shifted(costs, -error), options).lower_bound
        longest = evaluate(_shifted(costs, error), best.cuts, best.aux_ranks, **terms).step
    except PlanError:  # said when the plan is made
        return False
    return longest <= (1 + SURE) * least


def _shifted(costs: Profile, errors: float) -> Profile:
    """Every unit longer by so many of its spreads, or shorter."""
    units = tuple(
        replace(
            u,
            forward=max(0.0, u.forward + errors * u.forward_spread),
            backward=max(0.0, u.backward + errors * u.backward_spread),
        )
        for u in costs.units
    )
    return replace(costs, units=units)


def how_unsure(plan: Plan) -> str:
    """One line for the user where measurements vary as much as what they measure, else ""."""
    off = uncertainty(plan)
    if off < UNSURE:
        return ""
    return (
        f"the machine is busy: measured costs vary by {off:.0%}, and the plan may be off by as much; plan again when "
        f"it is idle (cache=False, or --no-cache), or by counted costs (cost='flops')"
    )


def why_uneven(captured: Captured, units: list[Unit], plan: Plan) -> str:
    """One line for the user, "" for a plan that is even enough."""
    if plan.K < 2 or plan.imbalance <= UNEVEN:
        return ""
    costs = [u.forward + u.backward for u in plan.units]
    largest = max(range(len(costs)), key=costs.__getitem__)
    share = costs[largest] / (sum(costs) or 1.0)
    head = f"the plan is uneven: the largest stage is {plan.imbalance:.2f} times the mean"
    if share * plan.K < UNEVEN:
        return f"{head}, and no other split is better for method {plan.method!r}; try another K"
    return f"{head}, because {units[largest].name} is {share:.0%} of the work and stays in one piece: " + _reason(
        captured, units[largest], plan.width
    )


def caches(captured: Captured) -> str:
    """What to do about a model of transformers that returns its caches, which depend on the layers that it skips."""
    config = getattr(captured._lp.model, "config", None)
    if not getattr(config, "use_cache", False):
        return ""
    return "it fills caches (config.use_cache), which training does not need: set model.config.use_cache = False"


def _reason(captured: Captured, unit: Unit, width: int) -> str:
    """Why there is no cut inside a unit."""
    live = liveness(captured._lp_graphs[True], captured._lp.model)
    steps = live.steps[unit.first : unit.last + 1]
    heaviest = max(steps, key=lambda n: n.meta["flops"] + n.meta["backward_flops"])
    part = (heaviest.meta["flops"] + heaviest.meta["backward_flops"]) / max(
        1, sum(n.meta["flops"] + n.meta["backward_flops"] for n in steps)
    )
    path = str(heaviest.meta["path"])
    if part > 0.5:
        notes = [n for n in captured._lp.notes if n.startswith(f"{path} is kept whole")]
        return "; ".join(filter(None, (notes[0], caches(captured)))) if notes else f"{path} is a single layer"
    inside = [c.reason for c in cuts(captured, max_width=width) if unit.first <= c.position < unit.last and c.reason]
    reasons = Counter(kind_of(reason) for reason in inside)
    return reasons.most_common(1)[0][0] if reasons else "it has no inner position"
