"""The command `inspect`."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from typing import TYPE_CHECKING

from lpcompile.cli.flags import Parser, model_or_plan_help, option, refuse_unread
from lpcompile.cli.parts.files import writable
from lpcompile.cli.parts.model import add_model_flags, check_model_flags, compile_program, is_plan, load_source
from lpcompile.cli.parts.outlook import add_outlook, check_outlook, expected, print_plan
from lpcompile.cli.parts.report import add_report, check_report, write_report
from lpcompile.core.system.gc_pause import gc_paused
from lpcompile.draw.terminal import show
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.core.plan import Plan

ONLY_FOR_MODELS = ("arg", "input", "save", "memory_limit", "cut", "together", "tied", "channels_last", "threads",
                   "no_cache", "print_after", "auxnet", "as_published")  # fmt: skip


def add_arguments(parser: Parser) -> None:
    add = parser.flag
    add("model", help=model_or_plan_help)
    add_model_flags(parser)
    add("cuts", action="store_true", help="list every legal and illegal boundary with reasons")
    add("graph", action="store_true", help="show the captured graph")
    add("units", action="store_true", help="show the cost of every unit between cuts")
    add("json", action="store_true", help="print the plan as JSON")
    add("save", metavar="FILE", help="write the plan to FILE as JSON")
    add("graph_file", metavar="FILE", help="write the captured graph with its stages and costs for other tools, as "
        "FILE.graphml, FILE.dot or FILE.json")  # fmt: skip
    add("print_after", metavar="PASS[,PASS]", help="print what these passes of the compiler have made, or "
        "all (a wrong name lists them)")  # fmt: skip
    add_outlook(parser)
    add_report(parser)


def run(arguments: argparse.Namespace) -> int:
    counted = arguments.cost == "flops"  # no weights are allocated, so nothing large can become garbage
    with gc_paused() if counted else nullcontext():  # a sixth of the time, imports included
        return _show(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from lpcompile.core.plan import Plan

    if arguments.json:
        refuse_unread(arguments, "--json", unread=("graph", "cuts", "units"))
    stored = Plan.load(arguments.model) if is_plan(arguments.model) else None
    if stored is not None:
        check_saved(arguments, stored)
    else:
        check_model_flags(arguments)
    _check(arguments)
    return _show_model(arguments) if stored is None else _show_plan(arguments, stored)


def _check(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done, before anything is measured."""
    check_outlook(arguments)
    check_report(arguments)
    writable("save", arguments.save)
    if writable("graph-file", arguments.graph_file) is not None:
        from lpcompile.draw.graph_file import check_suffix

        check_suffix(arguments.graph_file, option("graph_file"))
    if arguments.print_after is not None:
        request_prints(arguments.print_after)


def _show_plan(arguments: argparse.Namespace, plan: Plan) -> int:
    from lpcompile.core.tables import unit_table

    found = expected(arguments, plan)
    write_report(arguments, None, plan, found)
    if arguments.units:
        show(unit_table(plan), end="\n\n")
    print_plan(arguments, plan, found)
    return 0


def _show_model(arguments: argparse.Namespace) -> int:
    from lpcompile.core.tables import cut_table, unit_table
    from lpcompile.passes.split.cuts import cuts
    from lpcompile.planning.auxiliary.auxnets import on_demand_table

    meta = arguments.cost == "flops"  # counting needs no weights, however large the model
    source = load_source(arguments, "meta" if meta else "cpu")
    program = compile_program(arguments, source)
    plan = program.plan
    if arguments.save:
        plan.save(arguments.save)
    if arguments.graph_file:
        from lpcompile.draw.graph_file import write_graph

        write_graph(program.graph(), arguments.graph_file)
    found = expected(arguments, plan)
    write_report(arguments, program, plan, found)
    if arguments.graph:
        print(program.captured.graph, end="\n\n")
    if arguments.cuts:
        show(cut_table(cuts(program.captured, max_width=plan.width, tied=arguments.tied)), end="\n\n")
    if arguments.units:
        show(unit_table(plan), end="\n\n")
    print_plan(arguments, plan, found)
    if not plan.aux and not plan.heads and plan.K > 1 and not arguments.json:
        show(f"\nAuxNets on demand ({plan.method} trains without them):\n\n{on_demand_table(program.auxnets)}")
    for note in source.notes if not arguments.json else ():
        show(f"note: {note}")
    return 0


def check_saved(arguments: argparse.Namespace, plan: Plan) -> None:
    """A plan is shown as it is: flags that would change it, or need the model, are refused and not ignored."""
    if arguments.cuts or arguments.graph or arguments.graph_file:
        raise UsageError("a saved plan has neither cuts nor a graph; name the model instead of the plan")
    same = {"batch": plan.batch, "method": plan.training, "cost": plan.cost, "aux_budget": plan.aux_budget,
            "aux": plan.aux, "aux_init": plan.aux_init, "aux_dtype": "bf16" if plan.aux_dtype else None}  # fmt: skip
    wrong = [] if arguments.K in ("auto", str(plan.world)) else ["K"]
    wrong += [name for name in same if name in arguments.typed and getattr(arguments, name) != same[name]]
    wrong += [name for name in ONLY_FOR_MODELS if name in arguments.typed]
    for name in wrong:
        raise UsageError(
            f"{option(name)} cannot be applied to a saved plan, which is shown as it is (K = {plan.world}, batch "
            f"{plan.batch}, method {plan.method}, costs {plan.cost}); leave it out, or name the model instead of the "
            f"plan"
        )


def request_prints(given: str) -> None:
    """Print the artefacts of these passes, named with commas between them, as they are made."""
    from lpcompile.planning import print_after
    from lpcompile.planning.pipeline import PASSES

    names = [name.strip() for name in given.split(",")]
    print_after.check(names, [one.name for one in PASSES])
    print_after.set_requested(names)
