"""The command `bench`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from lpcompile.cli.compare import writable
from lpcompile.core.atomic_file import write_text
from lpcompile.errors import UsageError

GIVEN = ("model", "K", "batch", "steps", "optimizer", "input", "cost", "seed", "device", "channels_last", "compile",
         "transfer", "aux_dtype", "init", "timeout")  # fmt: skip
QUICK: dict[str, Any] = {"steps": 4, "cost": "flops"}


def add_bench(parser: argparse.ArgumentParser) -> None:
    """Options in the order in which one meets them: what, how, and what is kept of it."""
    parser.description = (
        "Measure steps of MODEL by plain training, DDP, FSDP, torch's pipelines and every method of ours, on K local "
        "processes each, one core (or GPU) a process, in turns in one run; print step time, speedup, memory, traffic, "
        "idle time, and where the time goes."
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a built-in model, torchvision:NAME, timm:NAME, hf:TYPE, file.py:factory, ...")
    add("-K", type=int, default=2, help="number of ranks (default 2)")
    add("--contenders", default="all", metavar="all|A,B,...", help="who runs besides plain training: threads, limit, "
        "ddp, fsdp, torch-gpipe, torch-1f1b, torch-zb, and methods as in train (default all)")  # fmt: skip
    add("--batch", type=int, help="samples a step, of all ranks together (default 64)")
    add("--steps", type=int, help="counted steps of each contender (default 20)")
    add("--optimizer", help="sgd (default) or adamw")
    add("--input", metavar="SHAPE", help="the model's input without the batch, where nothing tells it: 3x32x32")
    add("--cost", choices=["measured", "flops"], help="where the plans' costs come from (default measured)")
    add("--device", help="cpu (default) or cuda, one GPU a rank")
    add("--channels-last", action="store_true", help="weights and images that way, for all contenders")
    add("--compile", action="store_true", help="torch.compile of models and stages, for all contenders; first steps "
        "then take minutes")  # fmt: skip
    add("--transfer", choices=["bf16"], help="boundaries of our methods and DDP's gradients travel as bfloat16")
    add("--aux-dtype", choices=["bf16"], help="AuxNets of our methods compute in bfloat16; all else stays as it is")
    add("--init", choices=["fresh", "copy", "consistent"], help="how AuxNets start, as in train, and so how small they "
        "can be (default: consistent where the model is known to be fresh, else copy)")  # fmt: skip
    add("--seed", type=int)
    add("--timeout", type=float, metavar="S", help="seconds after which a rank that does not move is taken for dead")
    add("--quick", action="store_true", help="4 steps of each, plans by FLOPs: does it run, not how fast")
    add("--gate", metavar="FILE", help="ratios to reach, as JSON; exit code 1 where one is missed")
    add("--json", metavar="FILE", help="write all numbers")
    add("--html", metavar="FILE", help="write one page with tables and figures")
    parser.set_defaults(run=_bench)


def _bench(arguments: argparse.Namespace) -> int:
    from lpcompile.bench import gate
    from lpcompile.bench.contenders import CONTENDERS
    from lpcompile.bench.page import page
    from lpcompile.bench.request import BenchRequest, check_model
    from lpcompile.bench.results import Bench
    from lpcompile.bench.run import bench, progress
    from lpcompile.bench.table import text

    given: dict[str, Any] = {n: getattr(arguments, n) for n in GIVEN if getattr(arguments, n) is not None}
    given = (QUICK if arguments.quick else {}) | given
    html, json = (writable(n, getattr(arguments, n)) for n in ("html", "json"))
    if html is not None and json is not None and html.resolve() == json.resolve():
        raise UsageError(f"--html and --json are both {html}: give two files")
    rules = gate.load(Path(arguments.gate), arguments.model) if arguments.gate else ()
    asked = arguments.contenders
    names = CONTENDERS if asked == "all" else tuple(n.strip() for n in asked.split(",") if n.strip())
    request = BenchRequest(**given, contenders=tuple(dict.fromkeys((*names, *gate.needed(rules)))))
    request.check()
    check_model(request)
    found = Bench(request)
    try:
        bench(found, progress())
    finally:  # also of what was measured before Ctrl-C
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
