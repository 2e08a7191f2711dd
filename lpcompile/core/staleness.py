"""The delay of gradients in updates, read off a schedule.

>>> staleness(pipedream(plan, ScheduleOptions()))      # K = 3
(2, 1, 0)
"""

from __future__ import annotations

from collections.abc import Sequence

from lpcompile.core.method import Method
from lpcompile.core.schedule import Instruction, Schedule, moment

Time = tuple[int, int]  # step relative to the micro-batch's, position in the list


def staleness(schedule: Schedule) -> tuple[int, ...]:
    """For each rank, the number of updates between the weights of a micro-batch's forward and the weights that its
    gradient changes; the maximum over the micro-batches of a step. 0 in plain training.

    The weights of a forward are the stashed ones where there are any, else those of the first forward.
    """
    return tuple(max(_delays(items, schedule.micro), default=0) for items in schedule.ranks)


def mean_staleness(schedule: Schedule) -> tuple[float, ...]:
    """The same as a mean over the micro-batches of a step: (K-1-r)/M for `stream`."""
    return tuple(sum(found) / len(found) for found in (_delays(r, schedule.micro) or [0] for r in schedule.ranks))


def delay_text(schedule: Schedule, method: Method) -> str:
    """What is late in a step, in words."""
    late = mean_staleness(schedule)
    if any(late):
        return f"gradients late by {', '.join(f'{n:.2g}' for n in late)} steps on ranks 0 to {len(late) - 1}"
    return "plain training's gradients" if method.exact else "no gradient late"


def _delays(items: Sequence[Instruction], M: int) -> list[int]:
    """For each micro-batch of a step, by how many updates its gradient is late."""
    steps = [at for at, item in enumerate(items) if item.op == "step"]
    found = []
    for c in range(M):
        mine = [(item.op, moment(item, at, M)) for at, item in enumerate(items) if item.slot % M == c]
        met = min((time for op, time in mine if op in ("stash", "predict", "forward")), default=None)
        used = max((time for op, time in mine if op.startswith("backward")), default=None)
        if met is not None and used is not None:
            found.append(sum(_between(met, used, at) for at in steps))
    return found


def _between(first: Time, last: Time, at: int) -> int:
    """How often the instruction at this position runs between two moments."""
    begin = first[0] if at > first[1] else first[0] + 1
    end = last[0] if at < last[1] else last[0] - 1
    return max(0, end - begin + 1)
