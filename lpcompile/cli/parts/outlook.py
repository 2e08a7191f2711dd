"""The part of `inspect` that predicts times: flags, text and JSON of the simulator's outlook on a plan."""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.cli.flags import Parser, device_help
from lpcompile.cli.parts.files import writable
from lpcompile.draw.terminal import show
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.core.plan import Plan
    from lpcompile.simulate.outlook import Outlook

CHOICES = ("zbh2", "1f1b", "stream", "penalty")  # methods to choose from that every outlook lists: exact, late, AuxNets


def add_outlook(parser: Parser) -> None:
    add = parser.flag
    add("device_spec", help=lambda: f"what to predict times for: {device_help()}")
    add("sweep", metavar="K=1..16", help="predict speedup, memory and traffic for a range of K")
    add("compare_methods", action="store_true", help="predict all methods, not only one of each kind")
    add("trace", metavar="FILE", help="write the simulated timeline as a Chrome trace")


def check_outlook(arguments: argparse.Namespace) -> None:
    """Refuse what cannot be done, before anything is measured."""
    from lpcompile.runtime.methods.recipe import recipe_of
    from lpcompile.simulate.device_spec import device_spec

    writable("trace", arguments.trace)
    recipe_of(arguments.method)
    if arguments.device_spec is not None:
        device_spec(arguments.device_spec)
    if arguments.sweep is not None:
        sweep_range(arguments.sweep)


def print_plan(arguments: argparse.Namespace, plan: Plan, found: Outlook | None) -> None:
    """Print the plan and its outlook, as text or as JSON."""
    from lpcompile.simulate.outlook_text import outlook_json, outlook_text
    from lpcompile.simulate.step_text import chrome_trace

    if arguments.trace is not None and found is not None:
        Path(arguments.trace).write_text(json.dumps(chrome_trace(found.simulation)))
    if arguments.json:
        data: dict[str, Any] = plan.to_json()
        if found is not None:
            data["outlook"] = outlook_json(found)
        print(json.dumps(data, indent=1))
        return
    show(str(plan), end="\n\n")
    if found is not None:
        show(outlook_text(plan, found), strong=(found.advice,))
    else:
        show(f"nothing is simulated: {plan.method!r} has no schedule for K = {plan.world} and a batch of {plan.batch}")


def expected(arguments: argparse.Namespace, plan: Plan) -> Outlook | None:
    from lpcompile.runtime.methods import METHODS
    from lpcompile.simulate.device_spec import device_spec
    from lpcompile.simulate.outlook import outlook

    device = device_spec(arguments.device_spec) if arguments.device_spec is not None else None
    stages = sweep_range(arguments.sweep, len(plan.units)) if arguments.sweep is not None else []
    few = dict.fromkeys((plan.method, *CHOICES)) if plan.K > 1 else ()
    return outlook(plan, device, stages, tuple(METHODS if arguments.compare_methods else few))


def sweep_range(given: str, most: int | None = None) -> list[int]:
    """The K of "K=1..16", as far as the model can be cut."""
    found = re.fullmatch(r"(?:K=)?(\d+)\.\.(\d+)", given.strip())
    if not found or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"--sweep {given}: give a range of K, as K=1..16")
    if most is None:
        return []
    if int(found[1]) > most:
        raise UsageError(f"--sweep {given}: the model can be cut into at most {most} stages")
    return list(range(int(found[1]), min(int(found[2]), most) + 1))
