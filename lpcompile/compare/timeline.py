"""Three mini-batches on every worker, from a run's traces: the paper's figure, measured.

>>> lanes(everyone, middle=33, micro=4)
[[{"kind": "forward", "batch": 1, "begin": 0.0, "end": 4.1, "name": "forward"}, ...], ...]      # one list per rank
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lpcompile.core.trace import Event, batch_of, kind_of

SHOWN = 3  # mini-batches


def near(events: Sequence[Event], middle: int, keeps: int) -> list[Event]:
    """The events that can fall into the window around the middle step."""
    reach = SHOWN + 2 * keeps + 1
    return [e for e in events if abs(e[2] - middle) <= reach]


def lanes(everyone: Sequence[Sequence[Event]], middle: int, micro: int) -> list[list[dict[str, Any]]]:
    """One lane per rank: all that happened from the first to the last event of three mini-batches, in ms from there on.

    Those are numbered 1 to 3; events of other mini-batches have number 0.
    """
    first = middle - 1
    chosen = [e for events in everyone for e in events if first <= batch_of(e, micro) < first + SHOWN and _counts(e)]
    if not chosen:
        return [[] for _ in everyone]
    begin, end = min(e[3] for e in chosen), max(e[4] for e in chosen)
    return [[_drawn(e, begin, end, first, micro) for e in es if e[4] > begin and e[3] < end] for es in everyone]


def _counts(event: Event) -> bool:
    """Whether an event is work on one mini-batch: receives may be posted long before, optimizer steps serve several."""
    return kind_of(event[0]) in ("forward", "backward", "auxiliary")


def _drawn(event: Event, begin: float, end: float, first: int, micro: int) -> dict[str, Any]:
    batch = batch_of(event, micro) - first + 1
    return {
        "kind": kind_of(event[0]),
        "batch": batch if 1 <= batch <= SHOWN else 0,
        "begin": round(1e3 * (max(event[3], begin) - begin), 3),
        "end": round(1e3 * (min(event[4], end) - begin), 3),
        "name": event[0],
    }
