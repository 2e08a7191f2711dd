"""The command `emit`."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lpcompile.cli.flags import Parser, model_help
from lpcompile.cli.parts.model import add_model_flags, check_model_flags, compile_program, is_plan, load_source
from lpcompile.draw.terminal import show
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from torch import nn


def add_arguments(parser: Parser) -> None:
    parser.flag("model", help=model_help)
    add_model_flags(parser)
    parser.flag("output", "-o", metavar="DIR", required=True, help="the folder to write")
    parser.flag("weights", metavar="FILE", help="a state_dict to load first (safetensors, or a torch file)")
    parser.flag("force", action="store_true", help="replace what emit wrote to DIR before")


def run(arguments: argparse.Namespace) -> int:
    from lpcompile.emit.write import check_target

    if is_plan(arguments.model):
        raise UsageError(f"{arguments.model} is a saved plan, which holds no code or weights; name the model instead")
    check_model_flags(arguments)
    check_target(Path(arguments.output), arguments.force)  # before a minute of compiling
    source = load_source(arguments, "cpu")
    if arguments.weights:
        load_weights(source.model, Path(arguments.weights))
    program = compile_program(arguments, source)
    folder = program.emit(arguments.output, overwrite=arguments.force)
    show(str(program.plan))
    for note in source.notes:
        show(f"note: {note}")
    print(f"written to {folder}: {', '.join(sorted(p.name for p in folder.iterdir()))}")
    return 0


def load_weights(model: nn.Module, file: Path) -> None:
    """Load a state dict from safetensors, or from a torch file that holds nothing but tensors."""
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
