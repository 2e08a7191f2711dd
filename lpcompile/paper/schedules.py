"""Tables 1 and 2 of the paper, from the schedules alone: nothing is trained.

The marks of Table 1 are those of `compare.properties`. The timelines of Table 2 are played as the paper draws them:
equal stages, a backward takes twice as long as a forward, messages take no time; AuxNets and heads take a tenth of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lpcompile.compare.properties import NAMES, PAPER_TABLE_1, Mark, bare_plan, differences, properties
from lpcompile.core.method import BatchFacts
from lpcompile.core.schedule import Schedule
from lpcompile.draw.markdown import markdown
from lpcompile.report.played import lanes
from lpcompile.runtime.methods import ScheduleOptions, get_method
from lpcompile.simulate.device_spec import NOMINAL, LinkSpec
from lpcompile.simulate.interconnect import Interconnect
from lpcompile.simulate.op_costs import InstructionCosts
from lpcompile.simulate.step import Simulation, play

TITLES = {
    "1": "Table 1: model solution, module unlocking, forward independency and auxiliary request of each method",
    "2": "Table 2: timelines of 3 workers",
}
K, BATCH = 3, 128
FORWARD, BACKWARD, AUX = 100.0, 200.0, 0.1  # ms of a stage and a mini-batch; AuxNets and heads as a share
NAMED = {"bp": "BP", "gpipe": "Gpipe", "pipedream": "PipeDream", "ddg": "DDG", "fr": "FR", "dgl": "Sync-DGL",
         "dgl-async": "Async-DGL", "penalty": "Our Method"}  # fmt: skip


@dataclass(frozen=True)
class Scheduled:
    """A method of the paper's tables. marks: of Table 1; step: of Table 2."""

    method: str
    marks: dict[str, Mark]
    step: Simulation

    @property
    def name(self) -> str:
        return f"{NAMED.get(self.method, self.method)} ({self.method})"


def scheduled() -> list[Scheduled]:
    """The methods with a row in Table 1."""
    found = []
    for name in sorted(PAPER_TABLE_1, key=list(NAMED).index):
        micro = get_method(name).default_micro(BatchFacts(K, BATCH)) or 1
        schedule = get_method(name).schedule(bare_plan(K, name, BATCH), ScheduleOptions(micro=micro))
        found.append(Scheduled(name, properties(schedule), _played(schedule)))
    return found


def _played(schedule: Schedule) -> Simulation:
    part, boundaries = 1 / schedule.micro, range(1, K)
    costs = InstructionCosts(
        forward=(FORWARD * part,) * K,
        backward=(BACKWARD * part,) * K,
        parts=((0.5, 0.5),) * K,
        aux_forward=dict.fromkeys(boundaries, AUX * FORWARD * part),
        aux_backward=dict.fromkeys(boundaries, AUX * BACKWARD * part),
        sizes={},
        gradients={},
        parameters=(0.0,) * K,
        micro=schedule.micro,
        ms_per_byte=0.0,
        overhead=0.0,
        serial=K * (FORWARD + BACKWARD),
    )
    at_once = LinkSpec(NOMINAL.inside.gigabytes_per_s, 0.0)
    return play(schedule, costs, Interconnect(replace(NOMINAL, inside=at_once), K))


def text(key: str, found: Sequence[Scheduled]) -> str:
    return "\n".join([f"### {TITLES[key]}", "", markdown(*table(key, found)), "", said(key, found)])


def table(key: str, found: Sequence[Scheduled]) -> tuple[list[str], list[list[str]]]:
    """Headers and rows."""
    if key == "1":
        return ["method", *NAMES], [[f.name, *_marks(f)] for f in found]
    rows = [[f.name, str(f.step.micro), f"{f.step.rho:.2f}", " / ".join(f"{idle:.0%}" for idle in f.step.idle)]
            for f in found]  # fmt: skip
    return ["method", "micro-batches", "ρ of at most 3", "idle of workers"], rows


def _marks(found: Scheduled) -> list[str]:
    printed = PAPER_TABLE_1[found.method]
    pairs = zip(found.marks.values(), printed, strict=True)
    return [mark.sign if mark.sign == sign else f"{mark.sign} (paper {sign})" for mark, sign in pairs]


def said(key: str, found: Sequence[Scheduled]) -> str:
    if key == "2":
        return (
            "Played from the schedules that the runtime executes, with equal stages and a backward of twice a forward "
            f"as the paper draws them; AuxNets and heads take {AUX:.0%} of a stage. The timelines are on the page."
        )
    other = [line for f in found for line in differences(f.method, f.marks)]
    count = sum(len(f.marks) for f in found)
    return f"{count - len(other)} of {count} marks are the paper's" + "".join(f"; {line}" for line in other) + "."


def drawn(found: Sequence[Scheduled]) -> list[tuple[str, Sequence[Sequence[dict[str, Any]]]]]:
    """Lanes of all methods, for a drawing."""
    return [(f.name, lanes(f.step)) for f in found]
