"""The command `bench`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lpcompile.cli.flags import Parser, refuse_unread, refuse_without, typed
from lpcompile.cli.parts.files import writable
from lpcompile.core.system.atomic_file import write_text
from lpcompile.errors import UsageError

RATES = ("10gbit", "1gbit", "100mbit", "25mbit")
QUICK: dict[str, Any] = {"steps": 4, "cost": "flops"}


def add_arguments(parser: Parser) -> None:
    """Flags in the order of the help: what to measure, how, and what to write."""
    parser.description = (
        "Measure steps of MODEL by plain training, DDP, FSDP, torch's pipelines and every method of ours, on K local "
        "processes each, one core (or GPU) a process, in turns in one run; print step time, speedup, memory, traffic, "
        "idle time, and where the time goes."
    )
    add = parser.flag
    add("model", help=_model_help)
    add("K", help="number of ranks (default 2)")
    add("contenders", default="all", metavar="all|A,B,...", help=_contenders_help)
    add("batch", help="samples a step, of all ranks together (default 64)")
    add("steps", type=int, help="counted steps of each contender (default 20)")
    for name in ("optimizer", "input", "cost"):
        add(name)
    add("device", help="cpu (default) or cuda, one GPU a rank")
    add("channels_last", help="weights and images that way, for all contenders")
    add("compile", help="torch.compile of models and stages, for all contenders; first steps then take minutes")
    add("transfer", help="boundaries of our methods travel so, and DDP's gradients as bfloat16")
    add("aux_dtype", help="AuxNets of our methods compute in bfloat16; all else stays as it is")
    add("init", help="how AuxNets start, as in train, and so how small they can be (default: consistent where the "
        "model is known to be fresh, else copy)")  # fmt: skip
    for name in ("seed", "timeout"):
        add(name)
    add("hosts", type=int, metavar="N", help="spread the ranks over N hosts: network namespaces of this machine, one "
        "core a rank, joined by links (needs root; only Linux)")  # fmt: skip
    add("rate", metavar="A,B,...", help="rates of these links, one after another: 1gbit, 100mbit (default 10gbit, "
        "1gbit, 100mbit, 25mbit); without a limit is always measured first")  # fmt: skip
    add("to_accuracy", type=float, metavar="SHARE", help="then train all of them on --data until this share of "
        "test samples is told right (0.9), and print seconds and steps")  # fmt: skip
    add("data", default="digits")
    add("epochs", help="of --to-accuracy: passes over the data at most (default 20)")
    add("lr", help="of --to-accuracy: the learning rate, constant (default 0.05, adamw 0.001)")
    add("patient", action="store_true", help="wait until no other program uses the machine")
    add("quick", action="store_true", help="4 steps of each, plans by FLOPs: does it run, not how fast")
    add("gate", metavar="FILE", help="ratios to reach, as JSON, with --hosts those over links; exit code 1 where one "
        "is missed")  # fmt: skip
    add("json", metavar="FILE", help="write all numbers")
    add("html", metavar="FILE", help="write one page with tables and figures")


def _model_help() -> str:
    from lpcompile.sources import PACKAGES

    return f"a built-in model, {', '.join(kind.form for kind in PACKAGES)}, file.py:factory, ..."


def _contenders_help() -> str:
    from lpcompile.bench.contenders.ways import CONTENDERS, OVER_LINKS, PLAIN
    from lpcompile.runtime.methods import METHODS

    others = ", ".join(name for name in CONTENDERS if name not in (PLAIN, *METHODS))
    return (
        f"who runs besides plain training: {others}, and methods as in train (default all; with --hosts "
        f"{', '.join(OVER_LINKS[1:])}); NAME+bf16 and NAME+int8 have messages of that form, stream+slack one more "
        f"micro-batch in flight"
    )


def unread_by(contenders: Sequence[str]) -> list[str]:
    """The flags that none of these contenders has a use for."""
    from lpcompile.bench.contenders.ways import DDP, base, planned_as
    from lpcompile.runtime.methods import METHODS

    planned = [METHODS[planned_as(name)] for name in contenders if planned_as(name) in METHODS]
    ours = [name for name in contenders if base(name) in (*METHODS, DDP)]
    aux = [method for method in planned if method.has_aux]
    needed: dict[str, list[Any]] = {"cost": planned, "transfer": ours, "init": aux, "aux_dtype": aux}
    return [name for name, found in needed.items() if not found]


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.bench import gate
    from lpcompile.bench.contenders.ways import CONTENDERS, OVER_LINKS
    from lpcompile.bench.page import page
    from lpcompile.bench.request import BenchRequest, check_model
    from lpcompile.bench.results import Bench
    from lpcompile.bench.run import bench, progress
    from lpcompile.bench.table import text

    html, json = (writable(n, getattr(arguments, n)) for n in ("html", "json"))
    if html is not None and json is not None and html.resolve() == json.resolve():
        raise UsageError(f"--html and --json are both {html}: give two files")
    refuse_without(arguments, "to_accuracy", ("data", "epochs", "lr"))
    rates = tuple(r.strip() for r in arguments.rate.split(",") if r.strip()) if arguments.rate else ()
    if arguments.hosts and not rates:
        rates = RATES
    rules = gate.load(Path(arguments.gate), arguments.model, rates) if arguments.gate else ()
    asked = arguments.contenders
    every = OVER_LINKS if arguments.hosts else CONTENDERS
    names = every if asked == "all" else tuple(n.strip() for n in asked.split(",") if n.strip())
    contenders = tuple(dict.fromkeys((*names, *gate.needed(rules))))
    quick = QUICK if arguments.quick else {}
    given = {**quick, **typed(arguments, BenchRequest), "contenders": contenders, "rate": rates}
    request = BenchRequest(**given)
    request.check()
    refuse_unread(arguments, f"--contenders {asked}", unread=unread_by(contenders))
    check_model(request)
    found = Bench(request)
    try:
        bench(found, progress())
    finally:  # also for partial results, after Ctrl-C
        if found.rows:
            print(text(found), flush=True)
            if json is not None:
                found.save(json)
            if html is not None:
                write_text(html, page(found))
            for file in (f for f in (json, html) if f is not None):
                print(f"written to {file}", file=sys.stderr)
    judged = gate.judge(found, rules)
    if judged:
        print(f"\n{gate.gate_text(judged)}")
    failed = any(row.why.startswith("failed") for row in found.rows)
    return 1 if failed or not all(j.holds for j in judged) else 0
