"""The command `paper`."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lpcompile.cli.flags import Parser, count, refuse_unread
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.paper.experiments import Experiments

DEFAULT_DATA = {"minutes": "digits", "hours": "cifar10", "full": "cifar10"}


def add_arguments(parser: Parser) -> None:
    """Flags in the order of the help: what to run, on what, and what to show."""
    parser.description = (
        "Run the experiments of the paper at a scale that this machine affords, and print each table with the paper's "
        "figures beside ours, and whether its trend holds. Runs that are in --out are not repeated: start the same "
        "command again to go on."
    )
    add = parser.flag
    parser.add_argument("tables", metavar="TABLE", nargs="*", help="1 to 10 (5f: Figure 5), ablation; default all, the "
        "most telling run first. 1 and 2 come from schedules; for V100 speedups see simulate --paper")  # fmt: skip
    add("scale", choices=["minutes", "hours", "full"], default="minutes", help="minutes (default): a smoke run; hours: "
        "small ResNets on a few thousand images of 16 px; full: the paper's own networks, epochs and data")  # fmt: skip
    add("data", help="digits, cifar10 or a folder of images (train/CLASS/..., test/CLASS/...), as in train (default: "
        "digits for minutes, else cifar10)")  # fmt: skip
    add("out", metavar="DIR", default="paper", help="where results are kept (default paper/)")
    add("seeds", type=count, help="runs of each row (default: the scale's)")
    add("jobs", type=count, default=1, help="runs at the same time, one core each (default 1)")
    add("device")
    add("times", action="store_true", help="measure the steps of all rows at K = 2 instead of training (other K are "
        "predicted); leave the machine alone meanwhile")  # fmt: skip
    add("show", action="store_true", help="train nothing: show what is in --out")


def run(arguments: argparse.Namespace) -> int:
    from dataclasses import replace

    from lpcompile.paper.experiments import Experiments, keys_of
    from lpcompile.paper.printed import DERIVED
    from lpcompile.paper.run import run_tables
    from lpcompile.paper.scales import SCALES
    from lpcompile.study import records

    if arguments.times and arguments.show:
        raise UsageError("--times measures and --show only shows; give one of them")
    scale = SCALES[arguments.scale]
    scale = scale if arguments.seeds is None else replace(scale, seeds=arguments.seeds)
    data = arguments.data or DEFAULT_DATA[arguments.scale]
    keys, experiments = keys_of(arguments.tables), Experiments(scale, data, arguments.device or "cpu")
    out = Path(arguments.out)
    runs = [key for key in keys if key not in DERIVED]
    if not runs:
        refuse_unread(arguments, "tables that need no training", reads=("out",))
    for mode, unread in (("times", ("jobs", "device")), ("show", ("jobs",))):
        if getattr(arguments, mode):
            refuse_unread(arguments, f"--{mode}", unread=unread)
    records.check_folder(out)
    if runs and arguments.show and not (out / records.RUNS).is_file():
        raise UsageError(f"{out} has no results; run the tables first, or give their --out")
    if runs and not arguments.show:
        run_tables(experiments, runs, out, arguments.jobs, arguments.times)
    return _show(experiments, runs, [key for key in keys if key in DERIVED], out)


def _show(experiments: Experiments, runs: list[str], derived: list[str], out: Path) -> int:
    from lpcompile.core.system.atomic_file import write_text
    from lpcompile.draw.markdown import markdown
    from lpcompile.paper import schedules
    from lpcompile.paper.page import page
    from lpcompile.paper.run import about, tables_of
    from lpcompile.paper.tables import OTHERS, summary, text, to_json

    tables = tables_of(experiments, runs, out)
    from_schedules = dict.fromkeys(derived, schedules.scheduled() if derived else [])
    where = about(experiments, runs, out) if runs else ""
    parts = [where, markdown(*summary(tables))] if tables else []
    parts += [schedules.text(key, found) for key, found in from_schedules.items()]
    whole = "\n\n".join([*parts, *(text(key, found) for key, found in tables.items()), OTHERS])
    print(whole, flush=True)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "tables.md", whole + "\n")
    write_text(out / "paper.html", page(tables, where, from_schedules))
    write_text(out / "tables.json", json.dumps([to_json(key, found) for key, found in tables.items()], indent=1) + "\n")
    print(f"written to {out / 'tables.md'}, {out / 'tables.json'}, {out / 'paper.html'}", file=sys.stderr)
    return 0
