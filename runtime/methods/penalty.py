"""`penalty`: Algorithm 1 of the paper. Every stage starts at once from λ and pays β ψ(λ, X) for not meeting it.

Stage k < K-1 minimises β ψ(λ_{k+1}, X_{k+1}), the last the user's loss; λ_k follows -(β ∂ψ/∂λ_k + p_k), and its
AuxNet learns that by one backward with the same gradient (κ ≡ 0 in the augmented Lagrangian).

With `recursive`, λ_k comes straight from the model's input (ReAuxNet), so that no AuxNet waits for another.
"""

from __future__ import annotations

from lpcompile.core.method import BatchFacts, LamRoutes, Method, ScheduleOptions, Tensors, Terms, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule

# After a consistent start half the usual AuxNet trains as well, since stages only have to stay at λ. From copies that
# are far from X, WideResNet-16-4 collapsed with either size.
HALF_BUDGET = 0.05
LARGE_ACTIVATIONS = 2**26  # bytes of a batch's activations from which on halves are worth their overhead
MIN_SAMPLES_PER_HALF = 16


def halves_of_large_batches(facts: BatchFacts) -> int | None:
    """Two micro-batches, to keep the activations of one at a time, where these are large."""
    if facts.K == 1 or not facts.free or facts.saved < LARGE_ACTIVATIONS:
        return 1
    return max(1, min(2, (facts.batch or 1) // MIN_SAMPLES_PER_HALF))


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    routes = LamRoutes.of(plan, options)

    return assemble("penalty", plan, options, lambda b: decoupled_step(b, routes, options))


def decoupled_step(
    b: Builder, routes: LamRoutes, options: ScheduleOptions, *, stored: bool = False, kappa: str = ""
) -> None:
    """A step of a decoupled method: of every micro-batch λ, then forward and backward, then what λ and κ learn.

    λ of the next micro-batch is made before a forward, and what is learnt from p, which the rank above makes in the
    same slot, comes after the next backward: so that neither of the two ranks waits for the other. Weights stay as they
    are until the step is over, so this is only a matter of order.
    stored: λ per sample instead of AuxNets. kappa: "", "stored" or "auxnet" (which reads λ).
    """
    r, last = b.rank, options.micro - 1
    above, below = routes.hosts.get(r) == r, routes.hosts.get(r + 1) == r  # this rank makes λ_r; λ_{r+1}
    learn = "store" if stored else "distil"

    def begin(slot: int) -> set[int]:
        routes.post_lams(b, slot)
        if below:
            b.recv("p", r + 1, slot, r + 1)
        if above:
            b.recv("X", r, slot, r - 1)
            if kappa:
                b.recv("kappa", r, slot, r - 1)
        return routes.make_lams(b, slot, "recall" if stored else "aux_forward")

    def learn_below(slot: int) -> None:
        if below:
            b.wait("p", r + 1, slot)
            correct(b, slot, r + 1, learn, bool(kappa))

    waited = begin(0)
    for slot in range(options.micro):
        next_waited = begin(slot + 1) if slot < last else set()
        decoupled_forward(b, slot, routes, waited)
        decoupled_backward(b, slot, routes, kappa)
        if above:
            b.wait("X", r, slot)
            b.do("penalize", slot, r, [("lam", r), ("X", r)], [("d", r)])
            if kappa:
                b.wait("kappa", r, slot)
            correct(b, slot, r, learn, bool(kappa))
        if kappa and r < routes.K - 1:
            b.do("multiply", slot, r + 1, [("lam", r + 1), ("X", r + 1), ("kappa", r + 1)])
        if slot:
            learn_below(slot - 1)
        waited = next_waited
    learn_below(last)
    finish(b, options)


def decoupled_forward(b: Builder, slot: int, routes: LamRoutes, waited: set[int]) -> None:
    """The stage's forward from λ, and X on its way to a rank that makes λ above the boundary."""
    r, K = b.rank, routes.K
    if r > 0 and routes.hosts[r] != r and r not in waited:
        b.wait("lam", r, slot)
    reads, writes = ([("lam", r)] if r > 0 else []), [("graph", r), *([("X", r + 1)] if r < K - 1 else [])]
    b.do("forward", slot, reads=reads, writes=writes)
    if r < K - 1 and routes.hosts[r + 1] == r + 1:
        b.send("X", r + 1, slot, r + 1)


def decoupled_backward(b: Builder, slot: int, routes: LamRoutes, kappa: str) -> None:
    """The stage's backward from the loss, or from its penalty (and κ) at the boundary above; p on its way down."""
    r, hosts = b.rank, routes.hosts
    reads = [("graph", r), *([("lam", r)] if r > 0 else [])]
    if r < routes.K - 1:
        if hosts[r + 1] != r:
            b.wait("lam", r + 1, slot)
        b.do("penalize", slot, r + 1, [("lam", r + 1), ("X", r + 1)], [("d", r + 1)])
        reads.append(("d", r + 1))
        if kappa:
            b.do("kappa", slot, r + 1, [("lam", r + 1)] if kappa == "auxnet" else [], [("kappa", r + 1)])
            reads.append(("kappa", r + 1))
            if hosts[r + 1] != r:
                b.send("kappa", r + 1, slot, r + 1)
    b.do("backward", slot, reads=reads, writes=[("p", r)] if r > 0 else [])
    if r > 0 and hosts[r] != r:
        b.send("p", r, slot, r - 1)


def correct(b: Builder, slot: int, k: int, learn: str, kappa: bool = False, again: LamRoutes | None = None) -> None:
    """The correction of λ_k, and its AuxNet (or store) learning it. again: the AuxNet runs again, for nothing of its
    first run is left."""
    b.do("correct", slot, k, [("d", k), ("p", k), *([("kappa", k)] if kappa else [])], [("g", k)])
    if learn == "store":
        b.do("store", slot, k, [("g", k), ("lam", k), ("X", k)])
    elif again is None:
        b.do("distil", slot, k, [("g", k), ("aux", k)])
    else:
        b.do("distil", slot, k, [("g", k), *([("lam", k - 1)] if again.chain and k > 1 else [])])


def adjoint(t: Terms) -> Tensors:
    """P_{k+1} = β ∂ψ(λ_{k+1}, X_{k+1})/∂X_{k+1}."""
    return tuple(-d for d in t.d)


def correction(t: Terms) -> Tensors:
    """β ∂ψ(λ_k, X_k)/∂λ_k + p_k."""
    return tuple(d + p for d, p in zip(t.pull, t.p, strict=True))


PENALTY = Method(
    "penalty",
    "the paper's Algorithm 1: AuxNets predict λ, a penalty pulls stages to it; never waits for a slow link",
    schedule,
    adjoint,
    correction,
    aux="auxnet",
    chained=True,
    aux_budget_consistent=HALF_BUDGET,
    default_micro=halves_of_large_batches,
    table_1="✓✓✓✓✓×✓",
)
