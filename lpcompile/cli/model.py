"""The options that `inspect` and `emit` have in common: which model, and how it is to be split."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.core.plan import Plan

MODEL_HELP = (
    "resnet110 and other built-in models, torchvision:resnet50, timm:convnext_tiny, hf:bert or hf:config.json, "
    "package.module:factory, file.py:factory, or a saved plan (.json)"
)
DEFAULTS = {"method": "multiplier", "cost": "measured", "aux": "derived", "aux_init": "fresh", "tied": "replicate"}
ONLY_FOR_MODELS = ("input", "save", "memory_limit", "cut", "together", "tied", "channels_last", "threads", "no_cache")


def model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=MODEL_HELP)
    parser.add_argument("-K", default="auto", help="number of stages, or auto (default)")
    parser.add_argument("--batch", type=count, help="batch size of the example inputs")
    parser.add_argument("--input", metavar="SHAPE", help="input shape without the batch: 3x32x32, or 16:int64")
    parser.add_argument("--method", help="training method to plan for (default multiplier)")
    parser.add_argument("--cost", choices=["measured", "flops"], help="where costs come from (default measured)")
    parser.add_argument("--aux-budget", type=float, metavar="SHARE",
                        help="cost of an AuxNet as a share of its stage's (default 0.1; penalty and "
                        "lagrangian with a consistent start 0.05)")  # fmt: skip
    parser.add_argument("--aux", choices=["derived", "tied", "recursive", "recursive-shared"],
                        help="AuxNets derived from their stages (default), on the stages' own weights, or from the "
                        "model's input")  # fmt: skip
    parser.add_argument("--aux-init", choices=["fresh", "copy", "consistent"],
                        help="AuxNets start fresh (default), as copies, or with the branches that they drop at zero "
                        "in the model")  # fmt: skip
    parser.add_argument("--aux-dtype", choices=["bf16"], help="AuxNets compute in bfloat16; all else stays as it is")
    parser.add_argument("--memory-limit", type=_gibibytes, metavar="GIB", help="memory of each rank in GiB")
    parser.add_argument("--cut", action="append", default=[], metavar="UNIT", help="cut after this unit")
    parser.add_argument("--together", action="append", default=[], metavar="UNITS",
                        help="keep together: a prefix, or FIRST..LAST")  # fmt: skip
    parser.add_argument("--tied", choices=["replicate", "together"],
                        help="may tied parameters live in two stages? (default replicate)")  # fmt: skip
    parser.add_argument("--channels-last", action="store_true", help="weights and images that way")
    parser.add_argument("--threads", type=count, help="intra-op threads to measure with")
    parser.add_argument("--no-cache", action="store_true", help="measure again, do not use the profile cache")


def is_plan(model: str) -> bool:
    """A saved plan, that is; `hf:folder/config.json` is a model."""
    return model.endswith(".json") and not model.startswith("hf:")


def check_saved(arguments: argparse.Namespace, plan: Plan) -> None:
    """A plan is shown as it is: what would change it, or needs the model, is refused and not ignored."""
    if arguments.cuts or arguments.graph:
        raise UsageError("a saved plan has neither cuts nor a graph; name the model instead of the plan")
    same = {"batch": plan.batch, "method": plan.method, "cost": plan.cost, "aux_budget": plan.aux_budget,
            "aux": plan.aux, "aux_init": plan.aux_init, "aux_dtype": "bf16" if plan.aux_dtype else None}  # fmt: skip
    asked = {name: getattr(arguments, name) for name in (*same, *ONLY_FOR_MODELS)}
    given = {name: value for name, value in asked.items() if value is not None and value is not False and value != []}
    wrong = [f"--{name.replace('_', '-')}" for name, value in given.items() if value != same.get(name)]
    if arguments.K not in ("auto", str(plan.K)):
        wrong.insert(0, "-K")
    for option in wrong:
        raise UsageError(
            f"{option} cannot be applied to a saved plan, which is shown as it is (K = {plan.K}, batch {plan.batch}, "
            f"method {plan.method}, costs {plan.cost}); leave it out, or name the model instead of the plan"
        )


def fill(arguments: argparse.Namespace) -> None:
    """Defaults, once nobody needs to know any more what was typed."""
    for name, value in DEFAULTS.items():
        if getattr(arguments, name) is None:
            setattr(arguments, name, value)


def count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number of 1 or more")
    return int(text)


def _gibibytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: give GiB, such as 16 or 0.5")
    return value
