"""The analytic profile: FLOPs and bytes counted during capture, on fake tensors, the same on every machine."""

from __future__ import annotations

import bisect
from collections.abc import Sequence

from torch import nn

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.liveness import Liveness, liveness
from lpcompile.passes.split.cuts import state_uses
from lpcompile.passes.split.units import Unit

FLOPS_PER_MS = 1e9  # a nominal device of 1 TFLOP/s, so that both kinds of profile are in ms


def flops_profile(captured: Captured, units: Sequence[Unit]) -> Profile:
    """Forward and backward FLOPs of each unit, without transfers."""
    model = captured._lp.model
    live = liveness(captured._lp_graphs[True], model)
    sizes = parameter_sizes(model, live, units)
    costs = []
    for i, unit in enumerate(units):
        steps = live.steps[unit.first : unit.last + 1]
        forward = sum(n.meta["flops"] for n in steps)
        backward = sum(n.meta["backward_flops"] for n in steps)
        count, nbytes = sizes[i]
        costs.append(
            UnitCost(
                name=unit.name,
                forward=forward / FLOPS_PER_MS,
                backward=backward / FLOPS_PER_MS,
                forward_flops=forward,
                backward_flops=backward,
                parameters=count,
                parameter_bytes=nbytes,
                saved_bytes=sum(n.meta["saved_bytes"] for n in steps),
                output_bytes=unit.cut.nbytes if unit.cut else _output_bytes(live),
            )
        )
    return Profile(tuple(costs), "flops", "nominal (1 TFLOP/s)")


def parameter_sizes(model: nn.Module, live: Liveness, units: Sequence[Unit]) -> list[tuple[int, int]]:
    """Number and bytes of the parameters of each unit; a tied parameter counts in every unit that uses it."""
    named = dict(model.named_parameters(remove_duplicate=False))
    sizes = [(0, 0) for _ in units]
    ends = [unit.last for unit in units]
    for name, steps in state_uses(live, model).items():
        if name in named:
            count = named[name].numel()
            for i in {bisect.bisect_left(ends, step) for step in steps}:
                sizes[i] = (sizes[i][0] + count, sizes[i][1] + count * named[name].element_size())
    return sizes


def _output_bytes(live: Liveness) -> int:
    return sum(n.meta["spec"].nbytes for n in live.outputs if n.meta.get("spec") is not None)
