"""What a training method is: its schedule, its two gradients, and the traits that every other room reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule, build
from lpcompile.errors import UsageError

Tensors = tuple[torch.Tensor, ...]
Order = tuple[tuple[tuple[str, int, int], ...], ...]  # for each rank its actions (kind, micro-batch, stage) in order


@dataclass(frozen=True)
class ScheduleOptions:
    """Options of a method's schedule.

    micro: micro-batches per step. lockstep: `multiplier` without skew. recursive: every AuxNet starts from the model's
    input. kappa: "stored" or "auxnet". hosts: host ranks of the AuxNets, if not the plan's. tied: some
    parameters live in several stages. norm: the gradient's norm is taken over all ranks. replicas:
    how many train side by side, each on its part of the batch. stash: how `pipedream` keeps weights, "all" or "2bw".
    slack: by how many micro-batches more than it must each rank of `stream` follows the one below.
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
    slack: int = 0


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
class BatchFacts:
    """What the default number of micro-batches depends on.

    batch: samples of a mini-batch, None if no dimension is the batch. free: the model runs at other batch sizes.
    saved: bytes of activations that a backward of the whole batch keeps. stash: how `pipedream` keeps weights. norm:
    the model has BatchNorm, whose statistics are those of a micro-batch.
    """

    K: int
    batch: int | None
    free: bool = True
    saved: int = 0
    stash: str = "all"
    norm: bool = False


def no_choice(facts: BatchFacts) -> tuple[int, ...]:
    """No numbers to time: the default does not depend on speed."""
    return ()


def one_micro_batch(facts: BatchFacts) -> int | None:
    """The whole batch at once: the default of methods that gain nothing from micro-batches."""
    return 1


def no_bubble(K: int, micro: int) -> float:
    """No bubble: the slowest rank never waits for another one."""
    return 0.0


def any_micro(K: int, micro: int) -> bool:
    return True


@dataclass(frozen=True)
class Method:
    """A training method: its schedule, its gradients, and the traits that planner, simulator, runtime and tools read.

    A method is defined in one file of `runtime/methods`; nothing else compares its name.

    >>> get_method("penalty").aux, get_method("1f1b").exact
    ('auxnet', True)

    name, summary: as on the command line, and one line for help texts and the README.
    schedule: `schedule(plan, options)` gives the instructions of every rank.
    adjoint: the gradient that a stage's backward starts from at its output X.
    correction: the gradient of the Lagrangian in λ, from which the AuxNet (or the store) learns.
    """

    name: str
    summary: str
    schedule: Callable[[Plan, ScheduleOptions], Schedule]
    adjoint: Callable[[Terms], Tensors]
    correction: Callable[[Terms], Tensors] | None = None

    # gradients
    exact: bool = False  # plain training's gradients
    delayed: bool = False  # plain training's gradients, some steps late
    beta: str = "rising"  # default rule of β, see `runtime.penalty.beta`

    # the source of λ, and what trains beside the model
    aux: str = ""  # source of λ: "" (no λ), "auxnet" or "store"
    chained: bool = False  # λ_k arrives through the chain of AuxNets within the step, so ranks wait for it
    kappa: bool = False  # keeps multipliers κ, per sample or in a network
    indices: bool = False  # needs the sample numbers of a batch
    heads: bool = False  # every stage has its own loss through a head; no gradient crosses a boundary
    replay_buffers: bool = False  # boundaries have replay buffers: ranks may be many steps apart
    first_sight: str = ""  # helper method for the step in which a sample is seen for the first time
    aux_budget: float = 0.1  # default cost of an AuxNet as a share of its stage
    aux_budget_consistent: float = 0.1  # the same after a consistent start (λ = X before the first step)

    # cost
    default_micro: Callable[[BatchFacts], int | None] = one_micro_batch  # None: this batch cannot be cut as needed
    micro_choices: Callable[[BatchFacts], tuple[int, ...]] = no_choice  # numbers that the planner times and picks from
    accepts_micro: Callable[[int, int], bool] = any_micro  # whether (K, micro) can run
    bubble: Callable[[int, int], float] = no_bubble  # share of the other ranks' work that the slowest rank waits for
    torch_schedule: str = ""  # class of torch.distributed.pipelining whose order a pipeline follows
    own_order: Callable[[int, int], Order] | None = None  # (K, micro) to the order of a pipeline that torch lacks
    chunks: int = 1  # stages a rank (virtual stages)
    folded: bool = False  # of 2K such stages rank r has stages r and 2K-1-r, in place of every K-th one
    splits_backward: bool = False  # input and weight gradients are computed apart
    reruns_stage: bool = False  # stages run a second forward
    double_buffers: bool = False  # has the option stash="2bw"
    locksteps: bool = False  # has the option lockstep=True: no skew
    slackens: bool = False  # has the option slack: micro-batches for which messages may be under way
    reruns_auxnets: bool = False  # AuxNets run a second forward if a step has one micro-batch

    # the paper's Table 1 as printed, in the order of `compare.properties.NAMES`; "" where the paper has no row
    table_1: str = ""

    @property
    def has_aux(self) -> bool:
        """Whether a small network works at every boundary: an AuxNet or a head."""
        return self.predicts or self.heads

    @property
    def predicts(self) -> bool:
        """Whether λ comes from AuxNets."""
        return self.aux == "auxnet"

    @property
    def inexact(self) -> bool:
        """Whether gradients are not plain training's, so that exact steps differ from its own."""
        return not self.exact

    @property
    def decouples(self) -> bool:
        """Whether exact steps may come before its own: a method with heads has nothing to prepare in them."""
        return self.inexact and not self.heads

    @property
    def prepares(self) -> bool:
        """Whether it is a helper: exact steps in which AuxNets or stores learn λ."""
        return self.exact and self.aux != ""

    @property
    def pipeline(self) -> bool:
        """Whether a step is an exact pipeline of equal micro-batches."""
        return bool(self.torch_schedule or self.own_order)

    def ranks(self, K: int) -> tuple[int, ...]:
        """The rank of each stage, on K ranks that have several; empty where every rank has one."""
        if self.chunks == 1 or K == 1:
            return ()
        return tuple(2 * K - 1 - s if self.folded and s >= K else s % K for s in range(self.chunks * K))

    def keeps_samples(self, kappa: str) -> bool:
        """Whether values are kept for each sample; `kappa` is the setting of that name."""
        return self.indices or (self.kappa and kappa == "stored")

    def default_budget(self, init: str) -> float:
        return self.aux_budget_consistent if init == "consistent" else self.aux_budget


def check_ranks(plan: Plan, method: Method) -> None:
    """Refuse a method that needs more or fewer stages a rank than the plan has, or others."""
    if plan.K > 1 and plan.ranks != method.ranks(plan.world):
        has = f"stages on ranks {', '.join(map(str, plan.ranks))}" if plan.ranks else "one stage on each rank"
        needs = f"stages on ranks {', '.join(map(str, method.ranks(plan.world)))}" if method.chunks > 1 else "one each"
        raise UsageError(
            f"{method.name!r} needs {needs}, and this program has {has}, as its method {plan.method!r} wants it; "
            f"compile it with method={method.name!r}"
        )


def hosts_of(plan: Plan, options: ScheduleOptions) -> dict[int, int]:
    """The host rank of each boundary's AuxNet; by default the rank below the boundary."""
    given = options.hosts or tuple(b.aux_rank if b.aux_rank >= 0 else b.index - 1 for b in plan.boundaries)
    return {b.index: rank for b, rank in zip(plan.boundaries, given, strict=True)}


@dataclass(frozen=True)
class LamRoutes:
    """The host rank of each boundary's λ and the ranks that need it: shared by the schedules of all methods with λ."""

    K: int
    hosts: dict[int, int]
    chain: bool  # AuxNet k-1 starts from λ of boundary k-1, not from the model's input
    stage_input: bool = True  # stages start from λ, and their penalty needs it

    @classmethod
    def of(cls, plan: Plan, options: ScheduleOptions, *, chain: bool = True, stage_input: bool = True) -> LamRoutes:
        """On the host ranks of a plan. With the option `recursive` there is no chain."""
        return cls(plan.K, hosts_of(plan, options), chain and not options.recursive, stage_input)

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
        """The AuxNets of this rank (or its stores), and their λ on the way; returns the boundaries whose λ was waited
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
    """The end of a step, which all methods have in common."""
    if options.replicas > 1:
        b.do("average")
    if options.tied:
        b.do("tied")
    if options.norm:
        b.do("norm")
    b.do("step")


def assemble(name: str, plan: Plan, options: ScheduleOptions, write: Callable[[Builder], None]) -> Schedule:
    """One list per rank, written by `write`."""
    builders = [Builder(rank, plan.ranks) for rank in range(plan.world)]
    for b in builders:
        write(b)
    return build(name, options.micro, builders)
