"""AuxNets that meet a measured budget and do not make their host rank the bottleneck.

Stages are cut between units, so one rank may be slower than the others. If it hosts an AuxNet, that AuxNet is made
smaller, down to three quarters of its budget, until its rank is level with the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import nn

from lpcompile.passes.auxnet.measure import Effort
from lpcompile.passes.partition.evaluate import Partition
from lpcompile.passes.split.split import Stage
from lpcompile.planning.auxiliary.auxnets import AuxOptions, CostedNet, NodeCosts, make_auxnets

MIN_BUDGET = 0.75  # lower limit as a share of the budget: with half of it shallow networks collapsed
MIN_REDUCTION = 0.05  # of an AuxNet's share: less is not worth another derivation

Price = Callable[[Sequence[CostedNet]], Partition]


def fit_auxnets(
    model: nn.Module,
    stages: Sequence[Stage],
    costs: NodeCosts,
    options: AuxOptions,
    inputs: list[torch.Tensor],
    effort: Effort,
    price: Price,
) -> tuple[tuple[CostedNet, ...], Partition]:
    """AuxNets and the split with them. price: evaluates the split with given AuxNets on their better host ranks."""
    made = make_auxnets(model, stages, costs, options, inputs, effort=effort)
    best = price(made)
    if effort.slow or options.given is not None or options.form not in ("derived", "recursive"):
        return tuple(made), best
    for k, aim in smaller(best, [m.total for m in made], options.budget).items():
        tried = make_auxnets(model, stages, costs, replace(options, budget=aim), inputs, effort=effort, only=k)
        other = [*made[:k], tried[0], *made[k + 1 :]]
        found = price(other)
        if found.step < best.step:
            made, best = other, found
    return tuple(made), best


def smaller(best: Partition, shares: Sequence[float], budget: float) -> dict[int, float]:
    """For each AuxNet of the slowest rank, the share at which that rank is level with the second slowest."""
    slowest = max(range(best.K), key=lambda rank: best.work[rank])
    excess = best.work[slowest] - max(w for rank, w in enumerate(best.work) if rank != slowest)
    hosted = [k for k, rank in enumerate(best.aux_ranks) if rank == slowest]
    found = {}
    for k in hosted:
        aim = max(MIN_BUDGET * budget, shares[k] - excess / len(hosted) / best.costs[k])
        if aim < shares[k] * (1 - MIN_REDUCTION):
            found[k] = aim
    return found
