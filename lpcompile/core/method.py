"""What a training method is: a schedule, and the two gradients that make it different from the others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule, build

Tensors = tuple[torch.Tensor, ...]


@dataclass(frozen=True)
class ScheduleOptions:
    """What shapes a method's schedule.

    micro: micro-batches a step. lockstep: `multiplier` without skew. recursive: every AuxNet starts from the model's
    input. kappa: "stored" or "auxnet". hosts: the rank of each boundary's AuxNet where it is not the plan's. tied: some
    parameters live in several stages. norm: the gradient's norm is taken over all ranks. replicas:
    how many train side by side, each on its part of the batch. stash: how `pipedream` keeps weights, "all" or "2bw".
    """

    micro: int = 1
    lockstep: bool = False
    recursive: bool = False
    kappa: str = "stored"
    hosts: tuple[int, ...] = ()
    tied: bool = False
    norm: bool = False
    replicas: int = 1
    stash: str = "all"


@dataclass(frozen=True)
class Terms:
    """What the gradients at one boundary are made of, for the tensors that have gradients.

    d = β ∂ψ/∂λ = -β ∂ψ/∂X, p = ∂(local loss of the stage above)/∂λ, κ the multiplier; all for the weight that the
    micro-batch has in its step. `lam_weight` is the weight of the penalty's λ side against its X side.
    """

    d: Tensors = ()
    p: Tensors = ()
    kappa: Tensors = ()
    lam_weight: float = 1.0

    @property
    def pull(self) -> Tensors:
        """d on λ's side: what draws λ to X."""
        return self.d if self.lam_weight == 1.0 else tuple(t * self.lam_weight for t in self.d)


@dataclass(frozen=True)
class Method:
    """A method by name.

    `schedule(plan, options)` says who does what when. `adjoint` gives the gradient that a stage's backward starts from
    at its output X; `correction` the gradient of the Lagrangian in λ, from which the AuxNet (or the store) learns.
    """

    name: str
    schedule: Callable[[Plan, ScheduleOptions], Schedule]
    adjoint: Callable[[Terms], Tensors]
    correction: Callable[[Terms], Tensors] | None = None
    aux: str = ""  # how λ is made: "" (there is none), "auxnet" or "store"
    indices: bool = False  # needs to know which samples are in a batch
    exact: bool = False  # gives plain training's gradients
    beta: str = "rising"  # the rule of β where nobody says another
    heads: bool = False  # every stage has a loss of its own, and no gradient crosses a boundary
    replay: bool = False  # boundaries have replay buffers: ranks may be many steps apart
    delayed: bool = False  # gives plain training's gradients, but late


def hosts_of(plan: Plan, options: ScheduleOptions) -> dict[int, int]:
    """The rank that makes λ of each boundary; below it where the plan does not say."""
    given = options.hosts or tuple(b.aux_rank if b.aux_rank >= 0 else b.index - 1 for b in plan.boundaries)
    return {b.index: rank for b, rank in zip(plan.boundaries, given, strict=True)}


@dataclass(frozen=True)
class Layout:
    """Who makes λ of each boundary and who needs it: what the schedules of all methods with λ have in common."""

    K: int
    hosts: dict[int, int]
    chain: bool  # AuxNet k-1 starts from λ of boundary k-1, not from the model's input
    stage_input: bool = True  # stages start from λ, and their penalty needs it

    def targets(self, k: int) -> list[int]:
        """The ranks that λ of boundary k is sent to."""
        needed = {k - 1, k} if self.stage_input else set()
        if self.chain and k + 1 in self.hosts:
            needed.add(self.hosts[k + 1])
        return sorted(needed - {self.hosts[k]})

    def hosted(self, rank: int) -> list[int]:
        return [k for k, host in self.hosts.items() if host == rank]

    def receives(self, rank: int) -> list[int]:
        """The boundaries whose λ this rank is sent."""
        return self._received.get(rank, [])

    @cached_property
    def _received(self) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        for k in self.hosts:
            for rank in self.targets(k):
                found.setdefault(rank, []).append(k)
        return found

    def post_lams(self, b: Builder, slot: int) -> None:
        for k in self.receives(b.rank):
            b.recv("lam", k, slot, self.hosts[k])

    def make_lams(self, b: Builder, slot: int, op: str = "aux_forward", keep: bool = True) -> set[int]:
        """The AuxNets of this rank (or its stores), and their λ on the way; gives the boundaries whose λ was waited
        for. keep: their graphs, for what they will learn."""
        waited = set()
        for k in self.hosted(b.rank):
            reads = []
            if self.chain and k > 1:
                reads = [("lam", k - 1)]
                if self.hosts[k - 1] != b.rank and k - 1 not in waited:
                    b.wait("lam", k - 1, slot)
                    waited.add(k - 1)
            b.do(op, slot, k, reads, [("lam", k), *([("aux", k)] if keep and op == "aux_forward" else [])])
            for target in self.targets(k):
                b.send("lam", k, slot, target)
        return waited


def finish(b: Builder, options: ScheduleOptions) -> None:
    """The end of a step: what all methods do alike."""
    if options.replicas > 1:
        b.do("average")
    if options.tied:
        b.do("tied")
    if options.norm:
        b.do("norm")
    b.do("step")


def assemble(name: str, plan: Plan, options: ScheduleOptions, write: Callable[[Builder], None]) -> Schedule:
    """One list a rank, written by `write`."""
    builders = [Builder(rank) for rank in range(plan.K)]
    for b in builders:
        write(b)
    return build(name, options.micro, builders)
