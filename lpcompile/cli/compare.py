"""The command `compare`."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from lpcompile.core.atomic_file import write_text
from lpcompile.errors import UsageError

GIVEN = ("model", "K", "data", "epochs", "batch", "lr", "optimizer", "target", "micro", "seed", "size", "input", "init",
         "cost", "timeout")  # fmt: skip


def add_compare(parser: argparse.ArgumentParser) -> None:
    """Options in the order in which one meets them: what, how, and what is kept of it."""
    parser.description = (
        "Train MODEL by every method on K local processes, one core each, for the same samples, and plainly on one "
        "core; print accuracy, speedup, memory, traffic and idle time, and what each method's schedule locks."
    )
    add = parser.add_argument
    add("model", metavar="MODEL", help="a built-in model, torchvision:NAME, timm:NAME, file.py:factory, ...")
    add("-K", type=int, default=2, help="number of stages, one process each (default 2)")
    add("--methods", default="all", metavar="all|A,B,...", help="which methods (default all)")
    add("--data", metavar="DIR|digits", help="a folder of images (train/CLASS/..., test/CLASS/...), or scikit-learn's "
        "digits (default)")  # fmt: skip
    add("--epochs", type=int, help="passes over the data (default 4)")
    add("--batch", type=int, help="samples a step (default 64)")
    add("--lr", type=float, help="largest learning rate (default 0.1)")
    add("--optimizer", help="sgd (default) or adamw")
    add("--micro", type=int, help="micro-batches a step, for all methods (default: each method's own)")
    add("--target", type=float, metavar="ACC", help="accuracy for the time to it, from 0 to 1 (default: 0.95 of plain "
        "training's last)")  # fmt: skip
    add("--init", choices=["fresh", "copy", "consistent"], help="how AuxNets start, as in train")
    add("--cost", choices=["measured", "flops"], help="where the plans' costs come from (default measured)")
    add("--size", type=int, metavar="PX", help="height and width of the images")
    add("--input", metavar="SHAPE", help="the model's input without the batch, where nothing tells it: 3x32x32")
    add("--seed", type=int)
    add("--timeout", type=float, metavar="S", help="seconds after which a rank that does not move is taken for dead")
    add("--html", metavar="FILE", help="write one page with the tables, accuracy over time, and a timeline of three "
        "mini-batches on every worker, drawn from traces")  # fmt: skip
    add("--json", metavar="FILE", help="write all numbers, after every method")
    parser.set_defaults(run=_compare)


def _compare(arguments: argparse.Namespace) -> int:
    from lpcompile.compare.page import page
    from lpcompile.compare.request import CompareRequest
    from lpcompile.compare.results import Comparison
    from lpcompile.compare.run import compare
    from lpcompile.compare.table import text

    given: dict[str, Any] = {n: getattr(arguments, n) for n in GIVEN if getattr(arguments, n) is not None}
    found = Comparison(CompareRequest(**given, methods=names(arguments.methods)))
    html, json = (writable(n, getattr(arguments, n)) for n in ("html", "json"))

    def keep() -> None:
        if json is not None:
            found.save(json)

    try:
        compare(found, keep)
    finally:  # also of what was found before Ctrl-C
        if found.serial is not None:
            print(text(found), flush=True)
            if html is not None:
                write_text(html, page(found))
                print(f"written to {html}", file=sys.stderr)
    return 1 if any(row.why.startswith("failed") for row in found.rows) else 0


def names(given: str) -> tuple[str, ...]:
    from lpcompile.runtime.methods import METHODS

    if given == "all":
        return tuple(METHODS)
    return tuple(dict.fromkeys(name.strip() for name in given.split(",") if name.strip()))


def writable(option: str, given: str | None) -> Path | None:
    """A file that can be written in the end, told before an hour of training."""
    if given is None:
        return None
    file = Path(given)
    if file.is_dir() or not file.parent.is_dir() or not _may_write(file):
        raise UsageError(f"--{option} {file} cannot be written: give a file in a folder that exists and is yours")
    return file


def _may_write(file: Path) -> bool:
    """Tried, for some folders are nobody's to write in, not even root's."""
    if file.exists():
        return os.access(file, os.W_OK)
    try:
        file.touch()
        file.unlink()
    except OSError:
        return False
    return True
