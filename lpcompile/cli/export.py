"""The command `export`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lpcompile.cli.flags import Parser
from lpcompile.errors import UsageError


def add_arguments(parser: Parser) -> None:
    parser.flag("checkpoint", metavar="CKPT", help="a checkpoint, or a folder of them (the newest is taken)")
    parser.flag("ema", action="store_true", help="the average of the weights, of a run with --model-ema")
    parser.flag("file", metavar="FILE", help="the safetensors file to write")


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.runtime.checkpoint.checkpoint import export

    file = Path(arguments.file)
    if file.suffix != ".safetensors":
        raise UsageError(f"{file} must end with .safetensors: that is the format that is written")
    count = export(Path(arguments.checkpoint), file, arguments.ema)
    print(f"{count} tensors written to {file}", file=sys.stderr)
    return 0
