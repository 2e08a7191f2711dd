"""The flags that `inspect` and `emit` have in common, and the program that they ask for."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from lpcompile.cli.flags import DEFAULT_METHOD, FLAGS, Parser, count, refuse_unread
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from torch import nn

    from lpcompile.program import Program
    from lpcompile.sources import Source


def add_model_flags(parser: Parser) -> None:
    """Flags of the compiler; their defaults are those of `lpcompile.parallelize`."""
    add = parser.flag
    add("K", type=str, default="auto", help="number of stages, or auto (default)")
    add("batch", type=count, help="batch size of the example inputs")
    add("arg", action="append", metavar="NAME=VALUE", help="argument of the model's constructor, as depth=20; may be "
        "repeated")  # fmt: skip
    add("input", help="input shape without the batch: 3x32x32, or 16:int64")
    add("method", default=DEFAULT_METHOD, help=f"training method or recipe to plan for (default {DEFAULT_METHOD})")
    add("cost", default="measured", help="where costs come from (default measured)")
    add("aux_budget")
    add("aux", default="derived", help="AuxNets derived from their stages (default), on the stages' own weights, or "
        "from the model's input")  # fmt: skip
    add("aux_init", choices=FLAGS["init"]["choices"], default="fresh", help="AuxNets start fresh (default), as "
        "copies, or with the branches that they drop at zero in the model")  # fmt: skip
    add("auxnet")
    add("as_published")
    add("aux_dtype")
    add("memory_limit", type=_gibibytes, metavar="GIB", help="memory of each rank in GiB")
    add("cut", action="append", metavar="UNIT", help="cut after this unit")
    add("together", action="append", metavar="UNITS", help="keep together: a prefix, or FIRST..LAST")
    add("tied", choices=["replicate", "together"], default="replicate", help="may tied parameters live in two stages? "
        "(default replicate)")  # fmt: skip
    add("channels_last")
    add("threads", type=count, help="intra-op threads to measure with")
    add("no_cache", action="store_true", help="measure again, do not use the profile cache")


def is_plan(model: str) -> bool:
    """Whether a saved plan is named; `hf:folder/config.json` is a model."""
    return model.endswith(".json") and not model.startswith("hf:")


def check_model_flags(arguments: argparse.Namespace) -> None:
    from lpcompile.runtime.methods import get_method
    from lpcompile.runtime.methods.recipe import recipe_of

    if arguments.cost == "flops":  # nothing is measured
        refuse_unread(arguments, "--cost flops", unread=("threads", "no_cache"))
    if arguments.auxnet:
        refuse_unread(arguments, f"--auxnet {arguments.auxnet}", unread=("aux", "aux_init", "aux_budget"))
    methods = [get_method(phase.method) for phase in recipe_of(arguments.method)]
    if any(m.heads for m in methods) and not any(m.predicts for m in methods):
        refuse_unread(arguments, f"--method {arguments.method}, which has heads", unread=("aux", "auxnet"))
    if arguments.K != "auto":
        _stages(arguments.K)


def load_source(arguments: argparse.Namespace, device: str) -> Source:
    from lpcompile import sources

    given = sources.parse_arguments(arguments.arg)
    return sources.load(arguments.model, batch=arguments.batch, input_shape=arguments.input, device=device,
                        channels_last=arguments.channels_last, **given)  # fmt: skip


def compile_program(arguments: argparse.Namespace, source: Source) -> Program:
    import torch

    from lpcompile.compile import parallelize
    from lpcompile.core.system.progress import Shown, silent
    from lpcompile.runtime.launch.launch import keep_freed_memory

    if arguments.cost == "measured":
        keep_freed_memory()  # as the ranks do, so that costs are those of training
    measured = arguments.cost == "measured"
    at_once = measured and sys.stderr.isatty()
    bar: Any = Shown("inspect", after=0.0) if at_once else nullcontext(None if measured else silent)
    with bar as progress:
        return parallelize(
            source.model,
            arguments.K if arguments.K == "auto" else _stages(arguments.K),
            example_inputs=source.example_args,
            example_kwargs=source.example_kwargs,
            cost=arguments.cost,
            method=arguments.method,
            aux_budget=arguments.aux_budget,
            aux=arguments.aux,
            aux_init=arguments.aux_init,
            aux_dtype=torch.bfloat16 if arguments.aux_dtype else None,
            auxnet=_smaller(arguments, source),
            as_published=arguments.as_published,
            memory_limit=None if arguments.memory_limit is None else arguments.memory_limit * 2**30,
            pins={"cut": arguments.cut, "together": [_pair(t) for t in arguments.together]},
            tied=arguments.tied,
            threads=arguments.threads,
            cache=not arguments.no_cache,
            progress=progress,
        )


def _smaller(arguments: argparse.Namespace, source: Source) -> nn.Module | None:
    """The model that --auxnet names, on the same device as the other."""
    from lpcompile import sources

    if not arguments.auxnet:
        return None
    device = next((p.device.type for p in source.model.parameters()), "cpu")
    return sources.load(arguments.auxnet, batch=arguments.batch, input_shape=arguments.input, device=device,
                        channels_last=arguments.channels_last).model  # fmt: skip


def _stages(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise UsageError(f"-K {text}: give a number of stages (1 or more), or auto")
    return value


def _pair(text: str) -> str | list[str]:
    first, dots, last = text.partition("..")
    return [first, last] if dots else first


def _gibibytes(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no amount of memory: give GiB, such as 16 or 0.5")
    return value
