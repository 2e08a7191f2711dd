"""One Chrome trace of all ranks, for Perfetto and chrome://tracing."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.core.system.atomic_file import write_text
from lpcompile.core.trace import kind_of
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.engine import memory

if TYPE_CHECKING:
    from lpcompile.runtime.engine.trainer import Trainer


def write(trainer: Trainer, file: Path) -> None:
    """All ranks call it; rank 0 writes the file."""
    mine = events(trainer)
    everyone = exchange.gathered(mine, trainer.control) if trainer.distributed else [mine]
    if trainer.main:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_text(file, json.dumps(merged(everyone)))


def events(trainer: Trainer) -> list[dict[str, Any]]:
    """This process's events: instructions as slices, memory as counters, one track a rank.

    Times are in microseconds of the wall clock, so that ranks on several machines line up as well as their clocks do.
    """
    offset = time.time() - time.perf_counter()
    found: list[dict[str, Any]] = []
    for team in trainer.teams:
        w, world = team[0], trainer.plan.world
        rank = trainer.first_rank + w.rank
        own = f"stage{'s' if len(team) > 1 else ''} {', '.join(str(one.rank) for one in team)}"
        name = f"rank {rank}: {own}" + (f" of replica {rank // world}" if trainer.replicas > 1 else "")
        at = {"pid": rank, "tid": 0}
        found.append({"ph": "M", "name": "process_name", **at, "args": {"name": name}})
        found.append({"ph": "M", "name": "process_sort_index", **at, "args": {"sort_index": rank}})
        for text, _, step, begin, end in w.trace or ():
            kind = kind_of(text)
            category = kind if kind in ("wait", "message") else "compute"
            ts, dur = 1e6 * (begin + offset), 1e6 * (end - begin)
            found.append({"ph": "X", "name": text, "cat": category, **at, "ts": ts, "dur": dur, "args": {"step": step}})
        last = max((e["ts"] for e in found if "ts" in e), default=1e6 * time.time())
        sizes = memory.of_rank(team) | ({"process": memory.process()} if trainer.distributed else {})
        amounts = {name: round(size / 2**20, 6) for name, size in sizes.items()}
        found.append({"ph": "C", "name": "memory, MiB", **at, "ts": last, "args": amounts})
    return found


def merged(everyone: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """One trace that begins at 0."""
    flat = [event for mine in everyone for event in mine]
    first = min((e["ts"] for e in flat if "ts" in e), default=0.0)
    for event in flat:
        if "ts" in event:
            event["ts"] = round(event["ts"] - first, 3)
        if "dur" in event:
            event["dur"] = round(event["dur"], 3)
    return {"traceEvents": flat, "displayTimeUnit": "ms"}
