"""`python -m lpcompile bench`: the step time of every way to train, measured side by side.

Every contender has processes of its own, one core (or GPU) each. All are built first; then they take turns in short
blocks of steps, so that a machine that becomes slow is slow for all of them. Every figure is a median over the run.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from lpcompile.bench.arithmetic import add_speedups
from lpcompile.bench.contenders.ways import PLAIN, TORCH, base, planned_as
from lpcompile.bench.links import forms_of, links_of, over_links
from lpcompile.bench.plans import plans_of
from lpcompile.bench.quiet import Watched
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.runner import Runner
from lpcompile.bench.to_accuracy import to_accuracy
from lpcompile.runtime.launch.hosts import Hosts, lay
from lpcompile.runtime.methods import DEFAULT, METHODS
from lpcompile.training.measures import command, machine


def bench(found: Bench, tell: Callable[[str], None] = lambda _: None) -> None:
    """Fill in a bench. A contender that fails does not stop the others."""
    request = found.request
    request.check()
    found.machine = {**machine(), "command": command()}
    with _terminable(), lay(request.hosts) if request.hosts else nullcontext() as hosts, Watched(found, tell):
        _bench(found, tell, hosts)


def _bench(found: Bench, tell: Callable[[str], None], hosts: Hosts | None) -> None:
    request = found.request
    names = tuple(dict.fromkeys((PLAIN, *request.contenders)))
    needed = tuple(dict.fromkeys(planned_as(n) for n in names if n in TORCH or base(n) in METHODS))
    links = links_of(hosts, request, tell) if hosts is not None else {}
    over = forms_of(links, request) if request.cost == "measured" else {}  # counted costs are of another device
    tell(f"planning {request.model} for {', '.join(needed)}" if needed else f"loading {request.model}")
    planned = plans_of(request.work, needed, request.cost, request.timeout, over)
    found.start, found.scaling = planned.start, planned.scaling
    found.rows = [BenchRow(name) for name in names]
    runner = Runner(request, planned, tell, hosts)
    try:
        runner.start(found.rows)
        runner.take_turns(found.rows, dict.fromkeys(names, request.steps))
        runner.measure(found.rows)  # a failing checkpoint ends its contender, but its figures stay
        add_speedups(found)
        if hosts is not None:
            over_links(found, runner, links, hosts)
        else:
            _checkpoint(found, runner)
        if request.to_accuracy is not None:
            runner.end()  # their memory is needed, and their models have learnt noise
            to_accuracy(found, tell)
    finally:
        with _undisturbed():
            if not found.links:
                runner.measure(found.rows)  # also until Ctrl-C
                add_speedups(found)
            runner.end()


@contextmanager
def _signals(handlers: dict[int, Any]) -> Iterator[None]:
    """Inside, these handlers; only the main thread has any."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _undisturbed() -> AbstractContextManager[None]:
    """Ignore a second Ctrl-C while the first one ends all processes."""
    return _signals({signal.SIGINT: signal.SIG_IGN, signal.SIGTERM: signal.SIG_IGN})


def _terminable() -> AbstractContextManager[None]:
    """A SIGTERM ends a bench as Ctrl-C does, with what was measured."""
    return _signals({signal.SIGTERM: signal.default_int_handler})


def _checkpoint(found: Bench, runner: Runner) -> None:
    """Measure a checkpoint of one of our methods, and the time from the command to its first step."""
    ours = [n for n in runner.teams if n in METHODS]
    name = DEFAULT if DEFAULT in ours else ours[0] if ours else None
    if name is None:
        return
    row = next(row for row in found.rows if row.name == name)
    found.start |= {"build": row.built, "first step": row.first}
    with runner.noting(row):
        answers = runner.teams[name].ask("save")
        found.start |= {f"checkpoint {what}": max(a[what] for a in answers) for what in ("save", "load")}


def progress() -> Callable[[str], None]:
    """Lines on stderr, with the time since it began."""
    begin = time.perf_counter()

    def tell(text: str) -> None:
        print(f"{time.perf_counter() - begin:6.0f} s  {text}", file=sys.stderr, flush=True)

    return tell
