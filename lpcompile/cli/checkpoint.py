"""The command `checkpoint`."""

from __future__ import annotations

import argparse
from pathlib import Path

from lpcompile.cli.flags import Parser
from lpcompile.errors import UsageError


def add_arguments(parser: Parser) -> None:
    parser.flag("action", choices=["verify"], help="compare every file with the checksum that it was written with")
    parser.flag("checkpoint", metavar="DIR", help="a checkpoint, a folder of them, or a folder that emit wrote")


def run(arguments: argparse.Namespace) -> int:
    """Exit code 1 if anything is damaged."""
    folder = Path(arguments.checkpoint)
    reports = {path: _damage(path) for path in _found(folder)}
    if not reports:
        raise UsageError(f"there is no checkpoint and no emitted program in {folder}; give a folder with one")
    for path, damage in reports.items():
        print(f"{path}: {'whole' if damage is None else f'damaged: {damage}'}")
    return 1 if any(reports.values()) else 0


def _found(folder: Path) -> list[Path]:
    from lpcompile.emit.write import MARKER_FILE
    from lpcompile.runtime.checkpoint.checkpoint import BEST, NAME, RUN, all_in

    single = NAME.fullmatch(folder.name) or any((folder / file).is_file() for file in (RUN, MARKER_FILE))
    return [folder] if single and folder.is_dir() else [*all_in(folder), *all_in(folder / BEST)]


def _damage(folder: Path) -> str | None:
    from lpcompile.emit.read import damage as damage_of_program
    from lpcompile.emit.write import MARKER_FILE
    from lpcompile.runtime.checkpoint.checkpoint import damage

    return damage_of_program(folder) if (folder / MARKER_FILE).is_file() else damage(folder)
