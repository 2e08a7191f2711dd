"""What a split costs: the equations of the step time, in one place, and the records `Link` and `Partition`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from lpcompile.core.cost import STATE_COPIES, Profile
from lpcompile.core.method import Method
from lpcompile.errors import PlanError
from lpcompile.passes.partition.options import aux_shares, check


@dataclass(frozen=True)
class Link:
    """The link that carries a boundary's tensors to the next rank."""

    bytes_per_ms: float
    latency_ms: float = 0.0

    def time(self, size: float) -> float:
        return self.latency_ms + size / self.bytes_per_ms


@dataclass(frozen=True)
class Partition:
    """K contiguous stages and where their AuxNets run. Times in ms for one step, sizes in bytes; see `evaluate`."""

    K: int
    method: str
    cuts: tuple[int, ...]  # units before each boundary
    aux_ranks: tuple[int, ...]  # the rank of AuxNet_{k-1} for boundary k: k-1 (below) or k (above); -1 for none
    step: float
    lower_bound: float  # no split has a smaller step
    ideal: float  # all work but AuxNets, spread evenly over the speeds
    arrivals: tuple[float, ...]
    finish: tuple[float, ...]
    work: tuple[float, ...]  # busy ms per rank
    memory: tuple[float, ...]
    costs: tuple[float, ...]  # forward + backward of each stage at speed 1
    crossing: int  # bytes over all boundaries
    ranks: tuple[int, ...] = ()  # of each stage, where ranks have several

    @property
    def world(self) -> int:
        """Number of ranks."""
        return max(self.ranks) + 1 if self.ranks else self.K

    @property
    def gap(self) -> float:
        """How far the step may be from the optimum, as a part of it: about 1e-9 where optimality is proven."""
        return (self.step - self.lower_bound) / self.lower_bound if self.step > self.lower_bound else 0.0

    @property
    def imbalance(self) -> float:
        mean = sum(self.costs) / self.K
        return max(self.costs) / mean if mean else 1.0

    @property
    def rho(self) -> float:
        """The speedup over one rank of speed 1."""
        total = sum(self.costs)
        return total / self.step if self.step else 1.0


def evaluate(
    profile: Profile,
    cuts: Sequence[int],
    aux_ranks: Sequence[int] | None = None,
    *,
    method: Method,
    aux_budget: float | Sequence[float] = 0.1,
    aux: str = "derived",
    speeds: Sequence[float] | None = None,
    link: Link | None = None,
    state_factor: float = STATE_COPIES,
) -> Partition:
    """What this split costs. With r = aux_budget (one share, or one for each AuxNet), AuxNet_k takes r of its stage's
    time, at the speed of its host:

    arrival_k = arrival_{k-1} + r F_{k-1} + t_k (AuxNet_{k-1} below) or + t_{k-1} + r F_{k-1} (above); 0 unless chained.
    finish_k = arrival_k + F_k + B_k + hosted AuxNet work that arrival_k does not hold yet + loss on the last rank.
    step = the largest finish_k or message time t_k; where ranks have several stages, the largest sum of a rank's work.

    `aux="recursive"` makes each lambda from the model's input, so nothing is chained; `aux="tied"` keeps every AuxNet
    below, where its weights are, as heads (`dgl`) always are. Without `aux_ranks` every AuxNet runs below.
    `lower_bound` is the trivial one.
    """
    units, K = profile.units, len(cuts) + 1
    rates = check(profile, K, aux_budget, speeds, state_factor)
    bounds = (0, *cuts, len(units))
    if any(low >= high for low, high in pairwise(bounds)):
        raise PlanError(
            f"cuts {list(cuts)} leave a stage without units: they must rise strictly between 0 and "
            f"{len(units)}, the number of units."
        )
    has_aux, heads, chain = method.has_aux, method.heads, method.chained and aux != "recursive"
    hosts = tuple(aux_ranks) if aux_ranks is not None else tuple(k if has_aux else -1 for k in range(K - 1))
    able = [(k,) if heads else (k, k + 1) if has_aux else (-1,) for k in range(K - 1)]
    if len(hosts) != K - 1 or any(rank not in ranks for rank, ranks in zip(hosts, able, strict=True)):
        what = "k-1 (below), where the stage of its head is" if heads else "k-1 (below) or k (above)"
        raise PlanError(
            f"aux_ranks {list(hosts)} do not fit K={K} and method={method.name!r}: give for each boundary k "
            f"{what if has_aux else '-1, for the method has no AuxNets'}."
        )
    r = aux_shares(aux_budget, K) if has_aux else [0.0] * (K - 1)
    stages = [units[low:high] for low, high in pairwise(bounds)]
    forward = [math.fsum(u.forward for u in stage) for stage in stages]
    backward = [math.fsum(u.backward for u in stage) for stage in stages]
    state = [sum(state_factor * u.parameter_bytes + u.saved_bytes for u in stage) for stage in stages]
    crossing = [0, *(stage[-1].output_bytes for stage in stages[:-1]), 0]  # by boundary; model input and output: none
    ranks = method.ranks(K // method.chunks)
    times = [
        link.time(size) if link and 0 < k < K and not (ranks and ranks[k - 1] == ranks[k]) else 0.0
        for k, size in enumerate(crossing)
    ]

    arrivals, finish, work, memory = [0.0], [], [], []
    for k in range(1, K):
        above = hosts[k - 1] == k
        wait = r[k - 1] * forward[k - 1] / rates[hosts[k - 1]] + times[k - 1 if above else k] if chain else 0.0
        arrivals.append(arrivals[-1] + wait)
    for k in range(K):
        hosted = [j for j in (k - 1, k) if 0 <= j < K - 1 and hosts[j] == k]
        own = forward[k] + backward[k] + (profile.loss if k == K - 1 else 0.0)
        busy = own + sum(r[j] * (forward[j] + backward[j]) for j in hosted)
        waited = r[k - 1] * forward[k - 1] if chain and k - 1 in hosted else 0.0  # that AuxNet forward made the arrival
        finish.append(arrivals[k] + (busy - waited) / rates[k])
        work.append(busy / rates[k])
        memory.append(state[k] + crossing[k] + crossing[k + 1] + sum(r[j] * state[j] for j in hosted))
    together = [math.fsum(work[s] for s in range(K) if ranks[s] == r) for r in dict.fromkeys(ranks)]
    step = max(*finish, *times, *together)
    costs = tuple(f + b for f, b in zip(forward, backward, strict=True))
    ideal = (math.fsum(costs) + profile.loss) / math.fsum(rates) * (method.chunks if ranks else 1)
    trivial = max(ideal, max(u.forward + u.backward for u in units) / max(rates))
    return Partition(
        K,
        method.name,
        tuple(cuts),
        hosts,
        step,
        min(trivial, step),
        ideal,
        tuple(arrivals),
        tuple(finish),
        tuple(work),
        tuple(memory),
        costs,
        sum(crossing),
        ranks,
    )
