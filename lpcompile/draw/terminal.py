"""Text on a terminal: tables fitted to its width, with colour. Piped text is unchanged.

>>> show(plan_text(plan))                                    # to stdout, in its own look
>>> print(styled(plan_text(plan), Look(80, colour=True)))    # as on a terminal of 80 columns

Colour follows NO_COLOR, FORCE_COLOR and TERM=dumb.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TextIO

RULE = re.compile(r"-+(  +-+)*")  # the line below a table's headers
UNWRAPPED_CELL = 16  # characters of a cell that is wrapped only if nothing else helps
MIN_WORD_COLUMN = 11  # characters of a column whose words are shortened
MIN_BAR = 5  # characters
GAP = "  "
BOLD, DIM, YELLOW = "1", "2", "33"
STAGES = ("36", "32", "33", "35", "34", "31")  # colours of stages and their ranks, repeated
NUMBERED = ("stage", "rank")  # first columns that hold a stage or rank number
REFUSED = ("cut", "no")  # column and value of rows that are dimmed


@dataclass(frozen=True)
class Look:
    """Width and colour of a stream; lines of any length if columns is None."""

    columns: int | None = None
    colour: bool = False


def look_of(stream: TextIO) -> Look:
    terminal = stream.isatty()
    colour = terminal and os.environ.get("TERM") != "dumb"
    if os.environ.get("FORCE_COLOR", "0") != "0":
        colour = True
    if os.environ.get("NO_COLOR"):
        colour = False
    return Look(shutil.get_terminal_size().columns if terminal else None, colour)


def show(text: str, *, strong: Sequence[str] = (), end: str = "\n") -> None:
    """Print to stdout. strong: lines in bold."""
    print(styled(text, look_of(sys.stdout), strong), end=end)


def styled(text: str, look: Look, strong: Sequence[str] = ()) -> str:
    """The text in this look; unchanged, byte for byte, without width and colour."""
    if look == Look():
        return text
    lines, found, at = text.split("\n"), list[str](), 0
    while at < len(lines):
        if at + 1 < len(lines) and RULE.fullmatch(lines[at + 1]):
            end = at + 2
            spans = [match.span() for match in re.finditer("-+", lines[at + 1])]
            while end < len(lines) and _is_row(lines[end], spans):
                end += 1
            rows = [_cells(line, spans) for line in [lines[at], *lines[at + 2 : end]]]
            found += _table(rows, [end - start for start, end in spans], look)
            at = end
        else:
            found += _line(lines[at], look, lines[at] in strong)
            at += 1
    return "\n".join(found)


def _line(line: str, look: Look, strong: bool) -> list[str]:
    parts = [line]
    if look.columns is not None and len(line) > look.columns:
        indent = " " * (len(line) - len(line.lstrip()))
        parts = textwrap.wrap(line, look.columns, subsequent_indent=indent, break_long_words=False,
                              break_on_hyphens=False) or [line]  # fmt: skip
    code = BOLD if strong else YELLOW if line.startswith(("note:", "warning:")) else ""
    return [_paint(part, code, look) for part in parts]


def _is_row(line: str, spans: Sequence[tuple[int, int]]) -> bool:
    """Whether the line has text in columns only."""
    gaps = [line[end:start] for (_, end), (start, _) in pairwise(spans)]
    return bool(line.strip()) and not "".join([*gaps, line[spans[-1][1] :]]).strip()


def _cells(line: str, spans: Sequence[tuple[int, int]]) -> list[str]:
    return [line[start:end].rstrip() for start, end in spans]


def _table(rows: list[list[str]], widths: list[int], look: Look) -> list[str]:
    """The first row is the headers."""
    widths = fitted(rows, widths, look.columns)
    longest = [max(map(len, column)) for column in zip(*rows, strict=True)]
    header, *body = [[_wrapped(*cell) for cell in zip(row, widths, longest, strict=True)] for row in rows]
    gap = GAP if look.columns is None or _total(widths) <= look.columns else GAP[1:]
    lines = _physical(header, widths, [BOLD] * len(widths), gap, look)
    lines.append(gap.join(_paint("-" * width, DIM, look) for width in widths))
    for cells, plain in zip(body, rows[1:], strict=True):
        lines += _physical(cells, widths, _codes(rows[0], plain), gap, look)
    return lines


def _codes(headers: list[str], row: list[str]) -> list[str]:
    """The colour of each cell: the stage's for its number and bar; refused rows are dim."""
    if dict(zip(headers, row, strict=True)).get(REFUSED[0]) == REFUSED[1]:
        return [DIM] * len(row)
    own = STAGES[int(row[0]) % len(STAGES)] if headers[0] in NUMBERED and row[0].isdecimal() else ""
    return [own if i == 0 or _is_bar(cell) else "" for i, cell in enumerate(row)]


def _physical(cells: list[list[str]], widths: list[int], codes: list[str], gap: str, look: Look) -> list[str]:
    """The lines of one row, whose cells may have several."""
    lines = []
    for i in range(max(map(len, cells))):
        parts = [cell[i] if i < len(cell) else "" for cell in cells]
        padded = zip(parts, widths, codes, strict=True)
        lines.append(
            gap.join(_paint(part, code, look) + " " * (width - len(part)) for part, width, code in padded).rstrip()
        )
    return lines


def fitted(rows: list[list[str]], widths: list[int], columns: int | None) -> list[int]:
    """Column widths that fit. First headers and long cells are wrapped and bars shrunk, then short cells wrapped too
    ("12.2 MiB"), then long words shortened. If that is not enough, the caller leaves one space between columns."""
    if columns is None or _total(widths) <= columns:
        return widths
    tables = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in tables]
    words = [max(len(word[:MIN_BAR] if _is_bar(word) else word) for cell in column for word in cell.split() or [""])
             for column in tables]  # fmt: skip
    whole = [max((min(len(c), UNWRAPPED_CELL) for c in column[1:] if not _is_bar(c)), default=0) for column in tables]
    for least in ([*map(max, words, whole)], words, [min(word, MIN_WORD_COLUMN) for word in words]):
        while _total(widths) > columns and (wider := [i for i, low in enumerate(least) if widths[i] > low]):
            widths[max(wider, key=lambda i: widths[i])] -= 1
    return widths


def _total(widths: list[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


def _is_bar(text: str) -> bool:
    return set(text) == {"█"}


def _wrapped(cell: str, width: int, longest: int) -> list[str]:
    """Lines of at most this width. Longer words lose their middle; bars keep their ratio to the column's longest."""
    if _is_bar(cell):
        return ["█" * max(1, round(len(cell) * min(1.0, width / longest)))]
    short = " ".join(word if len(word) <= width else _shortened(word, width) for word in cell.split(" "))
    return textwrap.wrap(short, width, break_long_words=False, break_on_hyphens=False) or [""]


def _shortened(word: str, width: int) -> str:
    """Drop the middle, which tells least: `features.denseblock4.…norm1`."""
    tail = (width - 1) // 2
    return f"{word[: width - 1 - tail]}…{word[len(word) - tail :]}"


def _paint(text: str, code: str, look: Look) -> str:
    return f"\x1b[{code}m{text}\x1b[0m" if look.colour and code and text.strip() else text
