"""Markdown tables: readable in a terminal, and ready to paste."""

from __future__ import annotations

from collections.abc import Sequence

NO_VALUE = "–"
MAX_REASON = 72  # characters of a reason in a table


def markdown(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    from tabulate import tabulate

    plain = [[cell.replace("|", "/") for cell in row] for row in rows]
    return tabulate(plain, headers, tablefmt="github", disable_numparse=True, stralign="left")


def shortened(reason: str) -> str:
    """The first line of a reason, cut to fit into a table."""
    first = reason.splitlines()[0]
    return first if len(first) <= MAX_REASON else f"{first[:MAX_REASON]}…"


def without_empty(
    headers: Sequence[str], rows: Sequence[Sequence[str]]
) -> tuple[list[str], list[list[str]], list[str]]:
    """The table without the columns that have a value in no row, and the headers of these."""
    empty = [i for i in range(1, len(headers)) if rows and all(row[i] in (NO_VALUE, "") for row in rows)]
    kept = [i for i in range(len(headers)) if i not in empty]
    return [headers[i] for i in kept], [[row[i] for i in kept] for row in rows], [headers[i] for i in empty]
