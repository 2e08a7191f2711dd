"""The command `zoo`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lpcompile.cli.flags import Parser, count
from lpcompile.errors import UsageError


def add_arguments(parser: Parser) -> None:
    add = parser.flag
    add(
        "models", nargs="*", default=(), help="names such as timm:convnext_tiny, or suites (default: all but strangers)"
    )
    add("K", type=count, default=4, help="number of stages (default 4)")
    add("jobs", type=count, default=1, help="models checked at the same time, one core each")
    add("seconds", type=float, default=240, help="time limit per model (default 240)")
    add("heavy", action="store_true", help="also the models that need much time or memory")
    add("no_peers", action="store_true", help="leave out symbolic_trace and pipelining.pipeline")
    add("emit", action="store_true", help="also check AuxNets, and emit, load and compare each program")
    add("output", metavar="FILE", help="JSON lines; models already in FILE are not run again")


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.zoo import SUITES, find, zoo
    from lpcompile.zoo.run import report
    from lpcompile.zoo.run import run as check_all

    entries = []
    for name in arguments.models or [suite for suite in SUITES if suite != "strangers"]:
        entries += zoo(name) if name in SUITES else [find(name)]
    if arguments.heavy and arguments.models and not any(name in SUITES for name in arguments.models):
        raise UsageError("--heavy has no effect on models that are named, which are checked in any case; leave it out")
    entries = [e for e in entries if arguments.heavy or not e.heavy or e.name in arguments.models]
    output = Path(arguments.output) if arguments.output else None
    rows = check_all(entries, K=arguments.K, jobs=arguments.jobs, seconds=arguments.seconds,
                     peers=not arguments.no_peers, emit=arguments.emit, output=output)  # fmt: skip
    print(report(rows, arguments.K))
    return 0 if all(r["status"] in ("exact", "refused", "does not build", "not installed") for r in rows) else 1
