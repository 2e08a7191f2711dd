"""`multiplier`: the augmented Lagrangian with its multipliers at their optimum, κ_{k+1} := p_{k+1}.

Stage k descends along p_{k+1} + β ∂ψ/∂X_{k+1}: the true gradient of the loss, taken at λ instead of X. It needs p from
the rank above, so ranks are skewed by micro-batches: in slot s rank r runs the backward of micro-batch s - (K-1-r) with
the p that rank r+1 made in the slot before, then the forward of the next one from a λ that is there already.

    slot            s           s+1          s+2            K = 3
    rank 0    B s-2  F s-1   B s-1  F s    B s   F s+1
    rank 1    B s-1  F s     B s    F s+1  B s+1 F s+2
    rank 2    F s    B s     F s+1  B s+1  F s+2 B s+2

Optimizers step between a backward and the next forward, so forward and backward of a micro-batch see the same weights
and only one graph is alive. λ of the step's next micro-batch is made before a forward, so that no rank waits for it. An
AuxNet learns late, with β ∂ψ/∂λ_k + p_k, through the graph and the weights that made λ_k, which are kept until then
(`runtime.engine.versions`). Where a micro-batch is the whole batch, the kept graph would be that of a whole batch: the
AuxNet's small forward is run again instead.
With `lockstep` nothing is skewed: backwards wait for each other, as in plain training.
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, LamRoutes, Method, ScheduleOptions, Tensors, Terms, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule
from lpcompile.runtime.methods.penalty import correct, correction, decoupled_forward

MIN_SAMPLES = 8  # lower limit for the samples of a micro-batch where K > 2; twice as many for K = 2


def skew_micro(facts: BatchFacts) -> int | None:
    """One micro-batch per stage: with fewer of them every gradient would be late by whole steps."""
    if facts.K == 1 or not facts.free:
        return 1
    return max(1, min(facts.K, (facts.batch or 1) // (MIN_SAMPLES if facts.K > 2 else 2 * MIN_SAMPLES)))


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes.of(plan, options)

    def write(b: Builder) -> None:
        for slot in range(options.micro):
            if options.lockstep:
                lockstep_slot(b, slot, routes)
            elif b.rank == plan.K - 1:
                last_rank_slot(b, slot, routes, options)
            else:
                skewed_slot(b, slot, routes, options)
        if options.lockstep:
            finish(b, options)

    return assemble("multiplier", plan, options, write)


def lockstep_slot(b: Builder, slot: int, routes: LamRoutes) -> None:
    r, K = b.rank, routes.K
    above, below = routes.hosts.get(r) == r, routes.hosts.get(r + 1) == r
    routes.post_lams(b, slot)
    if r < K - 1:
        b.recv("p", r + 1, slot, r + 1)
    if above:
        b.recv("X", r, slot, r - 1)
    waited = routes.make_lams(b, slot)
    decoupled_forward(b, slot, routes, waited)
    if r < K - 1 and not below:
        b.wait("lam", r + 1, slot)
    _backward(b, slot, routes)
    if above:
        _correct_above(b, slot)
    if below:
        correct(b, slot, r + 1, "distil")


def last_rank_slot(b: Builder, slot: int, routes: LamRoutes, options: ScheduleOptions) -> None:
    r = b.rank
    above = routes.hosts.get(r) == r
    routes.post_lams(b, slot)
    if above:
        b.recv("X", r, slot, r - 1)
    waited = routes.make_lams(b, slot, keep=options.micro > 1)
    decoupled_forward(b, slot, routes, waited)
    _backward(b, slot, routes)
    if above:
        _correct_above(b, slot - 1, None if options.micro > 1 else routes)
    if slot == options.micro - 1:
        finish(b, options)


def skewed_slot(b: Builder, slot: int, routes: LamRoutes, options: ScheduleOptions) -> None:
    r = b.rank
    delay = routes.K - 1 - r
    above, below = routes.hosts.get(r) == r, routes.hosts[r + 1] == r
    again = None if options.micro > 1 else routes

    def make_lams(slot: int) -> None:
        routes.post_lams(b, slot)
        routes.make_lams(b, slot, keep=options.micro > 1)

    b.recv("p", r + 1, slot + 1 - delay, r + 1)  # rank r+1 makes it in this slot, it is used in the next
    if above:
        b.recv("X", r, slot - delay, r - 1)
    if slot == 0:
        make_lams(0)
    if not below:
        b.wait("lam", r + 1, slot - delay)
    _backward(b, slot - delay, routes)
    if below:
        correct(b, slot - delay, r + 1, "distil", again=again)
    if above:
        _correct_above(b, slot - delay - 1, again)
    if slot == options.micro - 1:
        finish(b, options)
    else:
        make_lams(slot + 1)
    there = {r} if routes.chain and below else set()  # waited for when it went into the AuxNet
    decoupled_forward(b, slot - delay + 1, routes, there)


def _backward(b: Builder, slot: int, routes: LamRoutes) -> None:
    r, K = b.rank, routes.K
    reads = [("graph", r), *([("lam", r)] if r > 0 else [])]
    if r < K - 1:
        b.do("penalize", slot, r + 1, [("lam", r + 1), ("X", r + 1)], [("d", r + 1)])
        b.wait("p", r + 1, slot)
        reads += [("d", r + 1), ("p", r + 1)]
    b.do("backward", slot, reads=reads, writes=[("p", r)] if r > 0 else [])
    if r > 0:
        b.send("p", r, slot, r - 1)


def _correct_above(b: Builder, slot: int, again: LamRoutes | None = None) -> None:
    """Rank r makes λ_r and has p_r; X_r has come from below."""
    r = b.rank
    b.wait("X", r, slot)
    b.do("penalize", slot, r, [("lam", r), ("X", r)], [("d", r)])
    correct(b, slot, r, "distil", again=again)


def adjoint(t: Terms) -> Tensors:
    """p_{k+1} + β ∂ψ(λ_{k+1}, X_{k+1})/∂X_{k+1}."""
    return tuple(p - d for d, p in zip(t.d, t.p, strict=True))


MULTIPLIER = Method(
    "multiplier",
    "the augmented Lagrangian with κ at its optimum: the loss's own gradient, taken at λ; needs AuxNets that follow X",
    schedule,
    adjoint,
    correction,
    aux="auxnet",
    beta="relative",
    default_micro=skew_micro,
    reruns_auxnets=True,
    locksteps=True,
)
