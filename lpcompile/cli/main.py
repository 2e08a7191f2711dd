"""The command line: `python -m lpcompile COMMAND`.

Exit codes: 0 fine, 1 cannot be done (the message says what to do), 2 wrong usage.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from lpcompile.cli import bench, checkpoint, compare, emit, export, inspect, paper, simulate, study, train, zoo
from lpcompile.cli.flags import Parser, settle
from lpcompile.errors import LpError, UsageError

COMMANDS = {
    "inspect": (inspect, "show how a model would be split, and what to expect of it"),
    "emit": (emit, "write the stages of a model as Python files with their weights"),
    "zoo": (zoo, "check capture and exactness on torchvision, timm and transformers models"),
    "train": (train, "train a model on K local ranks, or as one rank under torchrun"),
    "export": (export, "write the weights in a checkpoint as a plain safetensors file"),
    "checkpoint": (checkpoint, "find damaged files in checkpoints and emitted programs"),
    "compare": (compare, "train a model by every method and measure them side by side"),
    "study": (study, "measure accuracy against time: models x methods x K x seeds, resumable"),
    "bench": (bench, "measure how fast a model trains, against DDP, FSDP and torch's pipelines"),
    "paper": (paper, "run the paper's experiments at a scale that one can afford, beside its figures"),
    "simulate": (simulate, "play a model's schedules on devices that you may not have"),
}


def main(argv: Sequence[str] | None = None) -> int:
    arguments = build_parser().parse_args(argv)
    settle(arguments, arguments.flag_defaults)
    try:
        code = int(arguments.run(arguments))
        sys.stdout.flush()  # here, where a reader that has gone is no error
        return code
    except BrokenPipeError:  # the reader of our output has gone, as `| head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except (LpError, OSError) as error:
        if arguments.debug:
            raise
        print(f"lpcompile: {error}", file=sys.stderr)
        return 2 if isinstance(error, UsageError) else 1
    except KeyboardInterrupt:
        return 130


def build_parser() -> Parser:
    parser = Parser("lpcompile", description="Layer-parallelize a model: see the plan, check it, measure it.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for name, (module, about) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        module.add_arguments(command)
        command.flag("debug")
        command.set_defaults(run=module.run, flag_defaults=command.flag_defaults)
    return parser
