"""The part of `inspect` that writes a page and figures: `--html FILE` and `--figures DIR`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from lpcompile.cli.flags import Parser
from lpcompile.cli.parts.files import writable
from lpcompile.errors import UsageError

if TYPE_CHECKING:
    from lpcompile.core.plan import Plan
    from lpcompile.program import Program
    from lpcompile.simulate.outlook import Outlook


def add_report(parser: Parser) -> None:
    parser.flag("html", metavar="FILE", help="write one page with the graph, load, memory, timelines, tables and the "
                "source of every stage; it needs no network")  # fmt: skip
    parser.flag("figures", metavar="DIR", help="write the page's figures into DIR, as SVG and as PNG")


def check_report(arguments: argparse.Namespace) -> None:
    """Refuse files that cannot be written, before anything is measured."""
    writable("html", arguments.html)
    if arguments.figures is None:
        return
    if Path(arguments.figures).exists() and not Path(arguments.figures).is_dir():
        raise UsageError(f"--figures {arguments.figures} is a file; give a folder to write to")
    try:
        Path(arguments.figures).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"--figures {arguments.figures} cannot be made ({error.strerror}); give a folder to write to"
        ) from None


def write_report(arguments: argparse.Namespace, program: Program | None, plan: Plan, found: Outlook | None) -> None:
    if not (arguments.html or arguments.figures):
        return
    from lpcompile.report.data import report_data
    from lpcompile.report.page import page, write_figures
    from lpcompile.report.played import with_outlook
    from lpcompile.simulate.device_spec import device_spec

    name = plan.model if program is None else arguments.model
    data = report_data(program, plan, name=name)
    if found is not None:
        data = with_outlook(data, found, arguments.device_spec and device_spec(arguments.device_spec))
    if arguments.html:
        Path(arguments.html).write_text(page(data), encoding="utf-8")
        print(f"written to {arguments.html}", file=sys.stderr)
    if arguments.figures:
        written = write_figures(data, Path(arguments.figures))
        print(f"written to {arguments.figures}: {', '.join(f.name for f in written)}", file=sys.stderr)
