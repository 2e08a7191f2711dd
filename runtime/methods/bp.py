"""`bp`: plain training on K ranks. Exact, and locked: a rank waits for the one below, then for the one above.

Stage k's input is X_k itself; its backward starts from p_{k+1} = ∂loss/∂X_{k+1}: the chain rule, nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from lpcompile.core.method import Method, ScheduleOptions, Tensors, Terms, assemble, finish
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule


def schedule(plan: Plan, options: ScheduleOptions) -> Schedule:
    K = plan.K

    def write(b: Builder) -> None:
        for slot in range(options.micro):
            post(b, slot, K)
            forward(b, slot, K)
            backward(b, slot, K)
        finish(b, options)

    return assemble("bp", plan, options, write)


def post(b: Builder, slot: int, K: int) -> None:
    if b.stage > 0:
        b.recv("X", b.stage, slot, b.stage - 1)
    if b.stage < K - 1:
        b.recv("p", b.stage + 1, slot, b.stage + 1)


def forward(b: Builder, slot: int, K: int, *, reads: Sequence[tuple[str, int]] = (), makes: str = "graph") -> None:
    """`reads`: what it needs besides X. `makes`: what is left of it on this rank."""
    r = b.stage
    if r > 0:
        b.wait("X", r, slot)
    reads = [*([("X", r)] if r > 0 else []), *reads]
    writes = [(makes, r), *([("X", r + 1)] if r < K - 1 else [])]
    b.do("forward", slot, reads=reads, writes=writes)
    if r < K - 1:
        b.send("X", r + 1, slot, r + 1)


def backward(b: Builder, slot: int, K: int, *, reads: Sequence[tuple[str, int]] = ()) -> None:
    r = b.stage
    reads = [("graph", r), *([("X", r)] if r > 0 else []), *reads]
    if r < K - 1:
        b.wait("p", r + 1, slot)
        reads.append(("p", r + 1))
    b.do("backward", slot, reads=reads, writes=[("p", r)] if r > 0 else [])
    if r > 0:
        b.send("p", r, slot, r - 1)


def adjoint(t: Terms) -> Tensors:
    """∂loss/∂X_{k+1} = p_{k+1}."""
    return t.p


BP = Method(
    "bp",
    "plain training's gradients, one rank at a time; the reference",
    schedule,
    adjoint,
    exact=True,
    bubble=lambda K, micro: 1.0,  # ranks take turns
    table_1="✓××××××",
)
