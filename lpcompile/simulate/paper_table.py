"""The paper's speedups on V100: reported, simulated with the paper's placement, and simulated with ours.

The paper's formula for ρ adds the forward and backward of a whole small network (ResNet-20) to T/K, for any K. So in
its schedule here, rank 0 runs the AuxNet from end to end, sends every λ, and after the parallel part gathers X and p
and trains the AuxNet from end to end. T_d, the time to load data, is not overlapped. The paper does not report it: one
value is fitted to all rows, the only free parameter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Builder, Schedule, build
from lpcompile.core.tables import table
from lpcompile.core.verify import verify
from lpcompile.planning.replan import replan
from lpcompile.runtime.methods import ScheduleOptions, get_method
from lpcompile.simulate.device_spec import BUILT_IN, DeviceSpec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import costs_of
from lpcompile.simulate.step import play, simulate

# Model, AuxNet, K, ρ: the tables "different values (K)", "AuxNet with different capacities", "different ResNets".
PAPER = (
    ("resnet110", "resnet20", 2, 1.26),
    ("resnet110", "resnet20", 3, 1.45),
    ("resnet110", "resnet20", 4, 1.68),
    ("resnet110", "resnet32", 3, 1.30),
    ("resnet110", "resnet54", 3, 1.10),
    ("resnet110", "resnet110", 3, 0.71),
    ("resnet54", "resnet20", 3, 1.18),
    ("resnet32", "resnet20", 3, 1.01),
)
BATCH = 128


@dataclass(frozen=True)
class PaperRow:
    """One of the paper's speedups and its simulated step times, in ms."""

    model: str
    aux: str
    K: int
    paper: float
    serial: float
    step: float  # the paper's placement
    penalty: float  # the same method and AuxNets of the same capacity, placed by our planner
    multiplier: float  # our default method and AuxNets, the batch in one piece as in the paper

    def rho(self, load: float, step: float | None = None) -> float:
        """The speedup if both serial and parallel training wait `load` ms for data."""
        return (self.serial + load) / ((self.step if step is None else step) + load)


def paper_schedule(K: int) -> Schedule:
    """Algorithm 1 with the whole AuxNet on rank 0."""
    builders = [Builder(rank) for rank in range(K)]
    for b in builders:
        if b.rank == 0:
            _make_lams(b, K)
        else:
            for k in range(b.rank, min(b.rank + 2, K)):
                b.recv("lam", k, 0, 0)
            b.wait("lam", b.rank, 0)
        _decoupled(b, K)
        if b.rank == 0:
            _learn(b, K)
        b.do("step")
    schedule = build("penalty, the paper's placement", 1, builders)
    verify(schedule)
    return schedule


def _make_lams(b: Builder, K: int) -> None:
    """The AuxNet's forward on rank 0; the receives of X and p, which it learns from, are posted first."""
    for k in range(1, K):
        b.recv("p", k, 0, k)
        if k > 1:
            b.recv("X", k, 0, k - 1)
    for k in range(1, K):
        b.do("aux_forward", 0, k, [("lam", k - 1)] if k > 1 else [], [("lam", k), ("aux", k)])
        for target in sorted({k - 1, k} - {0}):
            b.send("lam", k, 0, target)


def _decoupled(b: Builder, K: int) -> None:
    """A rank's forward from λ, its penalty and its backward; X and p are sent to rank 0."""
    r = b.rank
    own, above = ([("lam", r)] if r > 0 else []), [("d", r + 1)] if r < K - 1 else []
    b.do("forward", reads=own, writes=[("graph", r), *([("X", r + 1)] if r < K - 1 else [])])
    if above:
        if r > 0:
            b.send("X", r + 1, 0, 0)
            b.wait("lam", r + 1, 0)
        b.do("penalize", 0, r + 1, [("lam", r + 1), ("X", r + 1)], above)
    b.do("backward", reads=[("graph", r), *own, *above], writes=[("p", r)] if r > 0 else [])
    if r > 0:
        b.send("p", r, 0, 0)


def _learn(b: Builder, K: int) -> None:
    for k in range(1, K):
        if k > 1:
            b.wait("X", k, 0)
            b.do("penalize", 0, k, [("lam", k), ("X", k)], [("d", k)])
        b.wait("p", k, 0)
        b.do("correct", 0, k, [("d", k), ("p", k)], [("g", k)])
        b.do("distil", 0, k, [("g", k), ("aux", k)])


def paper_row(model: Plan, aux: Plan, K: int, paper: float, device: DeviceSpec, names: tuple[str, str]) -> PaperRow:
    """model, aux: undivided plans of the network and of the paper's AuxNet."""
    equal = replan(model, K, "gpipe")  # stages of equal cost: AuxNets do not count in the paper's split
    costs = costs_of(equal, device, 1)
    small = costs_of(aux, device, 1)
    parts = {k: 1 / (K - 1) for k in range(1, K)}
    whole = replace(
        costs,
        aux_forward={k: part * small.forward[0] for k, part in parts.items()},
        aux_backward={k: part * small.backward[0] for k, part in parts.items()},
        parameters=(costs.parameters[0] + small.parameters[0], *costs.parameters[1:]),
    )
    step = play(paper_schedule(K), whole, Interconnect(device, K)).step
    share = (small.forward[0] + small.backward[0]) / (sum(costs.forward) + sum(costs.backward))

    def whole_batches(method: str, budget: float) -> float:
        split = replan(replace(model, aux_budget=budget), K, method)
        return simulate(split, device, schedule=get_method(method).schedule(split, ScheduleOptions())).step

    ours, default = whole_batches("penalty", min(1.0, share)), whole_batches("multiplier", 0.1)
    return PaperRow(*names, K, paper, costs.serial, step, ours, default)


def fitted_load(rows: Sequence[PaperRow]) -> float:
    """The time to load data, as a share of the serial step, that fits all rows best."""

    def error(share: float) -> float:
        return sum(math.log(row.rho(share * row.serial) / row.paper) ** 2 for row in rows)

    return min((percent / 200 for percent in range(201)), key=error)


def paper_rows(device: DeviceSpec | None = None) -> list[PaperRow]:
    """All rows, from counted costs (FLOPs and bytes), independent of this machine."""
    from lpcompile import sources
    from lpcompile.compile import parallelize

    def undivided(name: str) -> Plan:
        source = sources.load(name, batch=BATCH, device="meta")
        return parallelize(source.model, 1, example_inputs=source.example_args, cost="flops", method="bp").plan

    plans = {name: undivided(name) for name in dict.fromkeys(n for row in PAPER for n in row[:2])}
    device = device or BUILT_IN["v100"]
    return [paper_row(plans[m], plans[a], K, rho, device, (m, a)) for m, a, K, rho in PAPER]


def paper_text(rows: Sequence[PaperRow], device: str = "v100") -> str:
    share = fitted_load(rows)
    cells = []
    for row in rows:
        load = share * row.serial
        simulated = row.rho(load)
        cells.append(
            [row.model, row.aux, row.K, f"{row.paper:.2f}", f"{simulated:.2f}",
             f"{100 * (simulated / row.paper - 1):+.0f} %", f"{row.rho(load, row.penalty):.2f}",
             f"{row.rho(load, row.multiplier):.2f}", f"{row.rho(0):.2f}", f"{row.rho(0, row.multiplier):.2f}"]
        )  # fmt: skip
    headers = ["model", "AuxNet", "K", "paper", "simulated", "off by", "penalty, our placement", "multiplier, ours",
               "paper's, no T_d", "ours, no T_d"]  # fmt: skip
    worst = max(abs(row.rho(share * row.serial) / row.paper - 1) for row in rows)
    first = [row for row in rows if (row.model, row.aux) == ("resnet110", "resnet20")]
    values = ", ".join(f"{row.rho(share * row.serial):.2f}" for row in first)
    return "\n".join(
        [
            f"speedups of the paper on V100, and simulated on {device} with its placement and with ours",
            "",
            table(cells, headers),
            "",
            f"K = {', '.join(str(row.K) for row in first)}: {values} simulated for the paper's "
            f"{', '.join(f'{row.paper:.2f}' for row in first)}; over all rows at most {100 * worst:.0f} % off.",
            f"T_d, the time to load data, is not in the paper: one value, {100 * share:.1f} % of the serial step, is "
            f"fitted to all rows and charged to all columns but the last two.",
        ]
    )
