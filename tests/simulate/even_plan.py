"""Plans whose times can be told by hand: units that all cost the same."""

from __future__ import annotations

from lpcompile.core.cost import Profile, UnitCost
from lpcompile.core.plan import Plan
from lpcompile.planning.partition import partition
from lpcompile.planning.replan import from_split
from lpcompile.simulate.device_spec import DeviceSpec, LinkSpec

FREE = LinkSpec(1e9, 0.0)
# A device on which only compute costs anything: 1 TFLOP/s, or what was measured.
IDEAL = DeviceSpec("ideal", 1e9, FREE, FREE, flops=1e12, scale=1.0)


def even_plan(K, method="multiplier", units=None, batch=128, output_bytes=10**6, share=0.1):
    """Every unit takes 1 ms forward and 2 ms backward."""
    count = units or 4 * K
    costs = tuple(
        UnitCost(f"block{i}", 1.0, 2.0, forward_flops=10**9, backward_flops=2 * 10**9, parameters=1000,
                 parameter_bytes=4000, saved_bytes=10**6, output_bytes=output_bytes)
        for i in range(count)
    )  # fmt: skip
    base = Plan(
        "Even", 1, "bp", "measured", "cpu", batch, True, share, "derived", "fresh", 1, costs, (), (), 3.0 * count,
        3.0 * count, 3.0 * count, 3.0 * count, "bitwise",
    )  # fmt: skip
    return from_split(base, partition(Profile(costs, "measured", "cpu"), K, method=method, aux_budget=share))
