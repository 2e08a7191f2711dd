"""The command line: `python -m lpcompile COMMAND`.

Exit codes: 0 fine, 1 cannot be done (the message says what to do), 2 wrong usage.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.cli.bench import add_bench
from lpcompile.cli.compare import add_compare, writable
from lpcompile.cli.model import check_saved, count, fill, is_plan, model_arguments
from lpcompile.cli.outlook import add_outlook, check_outlook, expected, print_plan
from lpcompile.cli.report import add_report, check_report, write_report
from lpcompile.cli.simulate import add_simulate
from lpcompile.cli.train import add_export, add_train
from lpcompile.core.gc_pause import gc_paused
from lpcompile.draw.terminal import show
from lpcompile.errors import LpError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from lpcompile.program import Program
    from lpcompile.sources import Source

BAR = 30  # characters of the progress bar


def main(argv: Sequence[str] | None = None) -> int:
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except UsageError as error:
        if arguments.debug:
            raise
        print(f"lpcompile: {error}", file=sys.stderr)
        return 2
    except LpError as error:
        if arguments.debug:
            raise
        print(f"lpcompile: {error}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        if arguments.debug:
            raise
        print(f"lpcompile: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        "lpcompile", description="Layer-parallelize a model: see the plan, check it, measure it."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    inspect = commands.add_parser("inspect", help="show how a model would be split, and what to expect of it")
    model_arguments(inspect)
    inspect.add_argument("--cuts", action="store_true", help="list every legal and illegal boundary with reasons")
    inspect.add_argument("--graph", action="store_true", help="show the captured graph")
    inspect.add_argument("--units", action="store_true", help="show the cost of every unit between cuts")
    inspect.add_argument("--json", action="store_true", help="print the plan as JSON")
    inspect.add_argument("--save", metavar="FILE", help="write the plan to FILE as JSON")
    add_outlook(inspect)
    add_report(inspect)
    inspect.set_defaults(run=_inspect)

    emit = commands.add_parser("emit", help="write the stages of a model as Python files with their weights")
    model_arguments(emit)
    emit.add_argument("-o", "--output", metavar="DIR", required=True, help="the folder to write")
    emit.add_argument("--weights", metavar="FILE", help="a state_dict to load first (safetensors, or a torch file)")
    emit.add_argument("--force", action="store_true", help="replace what emit wrote to DIR before")
    emit.set_defaults(run=_emit)

    zoo = commands.add_parser("zoo", help="check capture and exactness on torchvision, timm and transformers models")
    zoo.add_argument("models", nargs="*", help="names such as timm:convnext_tiny, or suites (default: all suites)")
    zoo.add_argument("-K", type=count, default=4, help="number of stages (default 4)")
    zoo.add_argument("--jobs", type=count, default=1, help="models checked at the same time, one core each")
    zoo.add_argument("--seconds", type=float, default=240, help="time limit per model (default 240)")
    zoo.add_argument("--heavy", action="store_true", help="also the models that need much time or memory")
    zoo.add_argument("--no-peers", action="store_true", help="leave out symbolic_trace and pipelining.pipeline")
    zoo.add_argument("--emit", action="store_true", help="also check AuxNets, and emit, load and compare each program")
    zoo.add_argument("--output", metavar="FILE", help="JSON lines; models already in FILE are not run again")
    zoo.set_defaults(run=_zoo)
    train = commands.add_parser("train", help="train a model on K local ranks, or as one rank under torchrun")
    add_train(train)
    export = commands.add_parser("export", help="write the weights in a checkpoint as a plain safetensors file")
    add_export(export)
    comparison = commands.add_parser("compare", help="train a model by every method and measure them side by side")
    add_compare(comparison)
    speed = commands.add_parser(
        "bench", help="measure how fast a model trains, against DDP, FSDP and torch's pipelines"
    )
    add_bench(speed)
    simulation = commands.add_parser("simulate", help="play a model's schedules on devices that you may not have")
    add_simulate(simulation)
    for command in (inspect, emit, zoo, train, export, comparison, speed, simulation):
        command.add_argument("--debug", action="store_true", help="show Python tracebacks")
    return parser


def _inspect(arguments: argparse.Namespace) -> int:
    counted = arguments.cost == "flops"  # no weights are allocated, so nothing large can become garbage
    with gc_paused() if counted else nullcontext():  # a sixth of the time, imports included
        return _show(arguments)


def _show(arguments: argparse.Namespace) -> int:
    from lpcompile.core.plan import Plan
    from lpcompile.draw.tables import cut_table, unit_table

    stored = Plan.load(arguments.model) if is_plan(arguments.model) else None
    if stored is not None:
        check_saved(arguments, stored)
    fill(arguments)
    check_outlook(arguments)
    check_report(arguments)
    writable("save", arguments.save)
    if stored is not None:
        plan = stored
        found = expected(arguments, plan)
        write_report(arguments, None, plan, found)
        if arguments.units and not arguments.json:
            show(unit_table(plan), end="\n\n")
        print_plan(arguments, plan, found)
        return 0
    from lpcompile.passes.split.cuts import cuts

    meta = arguments.cost == "flops"  # counting needs no weights, however large the model
    source = _source(arguments, "meta" if meta else "cpu")
    program = _program(arguments, source)
    plan = program.plan
    if arguments.save:
        plan.save(arguments.save)
    found = expected(arguments, plan)
    write_report(arguments, program, plan, found)
    if arguments.json:
        print_plan(arguments, plan, found)
        return 0
    if arguments.graph:
        print(program.captured.graph, end="\n\n")
    if arguments.cuts:
        show(cut_table(cuts(program.captured, max_width=plan.width, tied=arguments.tied)), end="\n\n")
    if arguments.units:
        show(unit_table(plan), end="\n\n")
    print_plan(arguments, plan, found)
    for note in source.notes:
        show(f"note: {note}")
    return 0


def _source(arguments: argparse.Namespace, device: str) -> Source:
    from lpcompile import sources

    return sources.load(arguments.model, batch=arguments.batch, input_shape=arguments.input, device=device,
                        channels_last=arguments.channels_last)  # fmt: skip


def _program(arguments: argparse.Namespace, source: Source) -> Program:
    import torch

    from lpcompile.compile import parallelize
    from lpcompile.core.progress import silent
    from lpcompile.runtime.launch.launch import keep_freed_memory

    if arguments.cost == "measured":
        keep_freed_memory()  # as ranks do: costs are what they will take there
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
        memory_limit=None if arguments.memory_limit is None else arguments.memory_limit * 2**30,
        pins={"cut": arguments.cut, "together": [_pair(t) for t in arguments.together]},
        tied=arguments.tied,
        threads=arguments.threads,
        cache=not arguments.no_cache,
        progress=_progress if sys.stderr.isatty() and arguments.cost == "measured" else silent,
    )


def _emit(arguments: argparse.Namespace) -> int:
    from lpcompile.emit.write import check_target

    fill(arguments)
    check_target(Path(arguments.output), arguments.force)  # before a minute of compiling
    source = _source(arguments, "cpu")
    if arguments.weights:
        load_weights(source.model, Path(arguments.weights))
    program = _program(arguments, source)
    folder = program.emit(arguments.output, overwrite=arguments.force)
    show(str(program.plan))
    for note in source.notes:
        show(f"note: {note}")
    print(f"written to {folder}: {', '.join(sorted(p.name for p in folder.iterdir()))}")
    return 0


def load_weights(model: nn.Module, file: Path) -> None:
    """A state dict from safetensors, or from a torch file that holds nothing but tensors."""
    import torch

    state: Any
    try:
        if file.suffix == ".safetensors":
            from safetensors.torch import load_file

            state = load_file(file)
        else:
            state = torch.load(file, map_location="cpu", weights_only=True)
    except Exception as error:
        raise UsageError(
            f"--weights {file} cannot be read ({error}); give a safetensors file, or one that torch.save made of a "
            f"state_dict"
        ) from None
    if isinstance(state, dict) and isinstance(state.get("state_dict"), dict):
        state = state["state_dict"]
    try:
        model.load_state_dict(state, strict=True)
    except (RuntimeError, TypeError) as error:
        raise UsageError(f"--weights {file} does not fit {type(model).__name__}: {error}") from None


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


def _progress(share: float, what: str) -> None:
    """A bar on a terminal, on one line whatever its width, and gone when all is measured."""
    full = int(BAR * share)
    bar = f"{'█' * full}{'░' * (BAR - full)} {what}"[: shutil.get_terminal_size().columns - 1]
    print(f"\r\x1b[K{bar if share < 1 else ''}", end="", file=sys.stderr, flush=True)


def _zoo(arguments: argparse.Namespace) -> int:
    from lpcompile.zoo import SUITES, find, zoo
    from lpcompile.zoo.run import report, run

    entries = []
    for name in arguments.models or list(SUITES):
        entries += zoo(name) if name in SUITES else [find(name)]
    entries = [e for e in entries if arguments.heavy or not e.heavy or e.name in arguments.models]
    rows = run(entries, K=arguments.K, jobs=arguments.jobs, seconds=arguments.seconds, peers=not arguments.no_peers,
               emit=arguments.emit, output=Path(arguments.output) if arguments.output else None)  # fmt: skip
    print(report(rows, arguments.K))
    return 0 if all(r["status"] in ("exact", "refused", "does not build") for r in rows) else 1
