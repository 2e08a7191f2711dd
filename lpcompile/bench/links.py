"""A bench over hosts that are apart: the same contenders again over links of each rate.

A link is measured before planning. Where a method's stages would be cut elsewhere for it, so that messages are smaller,
its processes are started anew with that plan; all others go on as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from lpcompile.bench.contenders.ways import PLAIN, base, planned_as, slack_of, transfer_of
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow, LinkResults
from lpcompile.bench.runner import WARM_UP_STEPS, Runner
from lpcompile.core.plan import Plan
from lpcompile.errors import LpError
from lpcompile.passes.partition.evaluate import Link
from lpcompile.runtime.comm import link
from lpcompile.runtime.comm.link import LinkTimes
from lpcompile.runtime.engine.schedules import schedule_of
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.launch import launch
from lpcompile.runtime.launch.hosts import Hosts, bits_per_s
from lpcompile.runtime.methods import METHODS, get_method
from lpcompile.simulate.device_spec import DeviceSpec, LinkSpec, apart
from lpcompile.simulate.step import simulate

SECONDS = 8.0  # of steps that each contender has at each rate; at least one step
SLOW = 4.0  # seconds of a step from which it is measured without a step before it
SHARE_OF_BYTES = {None: 1.0, "bf16": 0.5, "int8": 0.25}  # of a float32 message


def links_of(hosts: Hosts, request: BenchRequest, tell: Callable[[str], None]) -> dict[str, LinkTimes]:
    """Measure the link at each rate, from the fastest to the slowest."""
    found: dict[str, LinkTimes] = {}
    for rate in sorted(request.rate, key=bits_per_s, reverse=True):
        hosts.limit(rate)
        found[rate] = launch.launch(link.measure, world=request.hosts, timeout=request.timeout, hosts=hosts)
        tell(f"link of {rate}: {found[rate].bytes_per_ms / 1e3:.1f} MB/s, {found[rate].latency_ms:.2f} ms")
    hosts.limit(None)
    return found


def forms_of(links: Mapping[str, LinkTimes], request: BenchRequest) -> dict[str, dict[str | None, Link]]:
    """The links as planners see them, for every form in which messages of this bench travel."""
    forms = dict.fromkeys(transfer_of(n, request.transfer) for n in request.contenders if base(n) in METHODS)
    return {
        rate: {form: Link(t.bytes_per_ms / SHARE_OF_BYTES[form], t.latency_ms) for form in forms or [None]}
        for rate, t in links.items()
    }


def over_links(found: Bench, runner: Runner, links: Mapping[str, LinkTimes], hosts: Hosts) -> None:
    """Measure all contenders that run on several ranks at each rate."""
    for rate, times in links.items():
        one = LinkResults(rate, times.bytes_per_ms / 1e6, 1e3 * times.latency_ms)
        found.links.append(one)
        hosts.limit(None)  # starting anew is not what is measured
        rows = [row for row in found.rows if row.name in runner.teams and row.name != PLAIN]
        for row in rows:
            _use_plan(one, row, runner)
        one.rows = [replace(row, step=[], steps=0, why="", ranks=[]) for row in rows if row.name in runner.teams]
        runner.tell(f"links of {rate}: {len(one.rows)} contenders")
        hosts.limit(rate)
        runner.forget()
        expected = {row.name: _expected(row, rate) for row in rows}
        fast = [row for row in one.rows if expected[row.name] < SLOW]
        try:
            runner.take_turns(fast, {r.name: _steps(expected[r.name], runner.request) for r in fast})
            slow = [row for row in one.rows if row not in fast]
            runner.take_turns(slow, {r.name: _steps(expected[r.name], runner.request) for r in slow}, warm_up=0)
        finally:
            runner.measure(one.rows)
            plain = found.row(PLAIN)
            for row in one.rows:
                row.rho = plain.step[0] / row.step[0] if plain is not None and row.step else None
                predicted = simulated(row, runner, times) if row.step else None
                if predicted is not None:
                    one.simulated[row.name] = predicted
    hosts.limit(None)


def _expected(row: BenchRow, rate: str) -> float:
    """Seconds of a step, not less than its bytes take: what decides how often it can be repeated."""
    return row.step[0] / 1e3 + max((r["sent"] for r in row.ranks), default=0) * 8 / bits_per_s(rate)


def _steps(expected: float, request: BenchRequest) -> int:
    return max(1, min(request.steps, int(SECONDS / expected) - WARM_UP_STEPS))


def _use_plan(one: LinkResults, row: BenchRow, runner: Runner) -> None:
    """Start a contender anew if its best plan for this link is another one."""
    form = transfer_of(row.name, runner.request.transfer)
    plan = runner.planned.over.get(one.rate, {}).get((planned_as(row.name), form))
    if plan is None:
        plan = runner.planned.plans.get(planned_as(row.name))
    elif base(row.name) in METHODS:
        one.moved.append(row.name)
    if plan is not None and runner.plan_of[row.name] != plan:
        runner.restart(row, plan)


def simulated(row: BenchRow, runner: Runner, times: LinkTimes) -> float | None:
    """ms of a step that the simulator predicts; None for contenders that it does not know."""
    plan: Plan | None = runner.plan_of.get(row.name)
    if plan is None or base(row.name) not in METHODS:
        return None
    try:
        settings = Settings(slack=slack_of(row.name))
        schedule = schedule_of(plan, get_method(base(row.name)), settings, row.micro)
        return simulate(
            plan, device_over(times, transfer_of(row.name, runner.request.transfer)), schedule=schedule
        ).step
    except LpError:
        return None


def device_over(times: LinkTimes, form: str | None) -> DeviceSpec:
    """This machine with a rank on each host. Messages in fewer bits are as if the link were that much faster."""
    share = SHARE_OF_BYTES[form]
    return apart(LinkSpec(times.bytes_per_ms / 1e6 / share, 1e3 * times.latency_ms))
