"""The command `compare`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from lpcompile.cli.flags import Parser, refuse_two_sizes, refuse_unread, typed
from lpcompile.cli.parts.files import writable
from lpcompile.core.system.atomic_file import write_text


def add_arguments(parser: Parser) -> None:
    """Flags in the order of the help: what to compare, how, and what to write."""
    parser.description = (
        "Train MODEL by every method on K local processes, one core each, for the same samples, and plainly on one "
        "core; print accuracy, speedup, memory, traffic and idle time, and what each method's schedule locks."
    )
    add = parser.flag
    for name in ("model", "K"):
        add(name)
    add("methods", default="all", metavar="all|A,B,...", help="which methods or recipes (default all)")
    add("data")
    add("epochs", help="passes over the data (default 4)")
    add("batch")
    add("lr", help="largest learning rate (default 0.1)")
    add("optimizer")
    add("micro", help="micro-batches a step, for all methods (default: each method's own)")
    add("target", type=float, metavar="ACC", help="accuracy for the time to it, from 0 to 1 (default: 0.95 of plain "
        "training's last)")  # fmt: skip
    for name in ("init", "auxnet", "cost", "size", "input", "seed", "timeout"):
        add(name)
    add("html", metavar="FILE", help="write one page with the tables, accuracy over time, and a timeline of three "
        "mini-batches on every worker, drawn from traces")  # fmt: skip
    add("json", metavar="FILE", help="write all numbers, after every method")


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.compare.page import page
    from lpcompile.compare.request import CompareRequest
    from lpcompile.compare.results import Comparison
    from lpcompile.compare.run import compare
    from lpcompile.compare.table import text

    methods = method_names(arguments.methods)
    refuse_two_sizes(arguments)
    refuse_unread(arguments, f"--methods {arguments.methods}", unread=unread_by(methods))
    found = Comparison(CompareRequest(**{**typed(arguments, CompareRequest), "methods": methods}))
    html, json = (writable(n, getattr(arguments, n)) for n in ("html", "json"))

    def keep() -> None:
        if json is not None:
            found.save(json)

    try:
        compare(found, keep)
    finally:  # also for partial results, after Ctrl-C
        if found.serial is not None:
            print(text(found), flush=True)
            if html is not None:
                write_text(html, page(found))
                print(f"written to {html}", file=sys.stderr)
    return 1 if any(row.why.startswith("failed") for row in found.rows) else 0


def unread_by(methods: Sequence[str]) -> list[str]:
    """The flags that none of these methods, or phases of recipes, has a use for."""
    from lpcompile.runtime.methods import get_method
    from lpcompile.runtime.methods.recipe import recipe_of

    traits = [get_method(phase.method) for one in methods for phase in recipe_of(one)]
    needed = {"init": [m.has_aux for m in traits], "auxnet": [m.predicts for m in traits]}
    return [name for name, found in needed.items() if not any(found)]


def method_names(given: str) -> tuple[str, ...]:
    from lpcompile.runtime.methods import METHODS
    from lpcompile.runtime.methods.recipe import recipe_text, recipes_of

    if given == "all":
        return tuple(METHODS)
    names = given.strip(" ,")
    return tuple(dict.fromkeys(recipe_text(recipe) for recipe in recipes_of(names))) if names else ()
