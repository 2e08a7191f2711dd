"""Break long lines of generated code as ruff and black do: inside the last bracket, then one item per line."""

from __future__ import annotations

LINE_WIDTH = 120
_OPEN, _CLOSE = "([{", ")]}"


def indent(lines: list[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" if line else line for line in lines]


def wrap(line: str, width: int = LINE_WIDTH) -> list[str]:
    """One logical line as lines of at most `width` characters, as far as brackets allow."""
    pairs = _outer_brackets(line) if len(line) > width else []
    pairs = [(first, last) for first, last in pairs if line[first + 1 : last].strip()]
    if not pairs:
        return [line]
    first, last = pairs[-1]
    head, body, tail = line[: first + 1], line[first + 1 : last].strip(), line[last:]
    margin = line[: len(line) - len(line.lstrip())]
    inner = f"{margin}    "
    items = [item.strip() for item in split_commas(body) if item.strip()]
    comprehension = len(items) == 1 and " for " in body
    if len(inner) + len(body) <= width and (line[first] == "(" or comprehension) and not body.endswith(","):
        return [head, f"{inner}{body}", f"{margin}{tail}"]
    comma = "" if comprehension else ","
    return [head, *(part for item in items for part in wrap(f"{inner}{item}{comma}", width)), f"{margin}{tail}"]


def split_commas(text: str) -> list[str]:
    """Split at commas outside brackets and strings."""
    parts, depth, start = [], 0, 0
    for i, c in code_characters(text):
        depth += (c in _OPEN) - (c in _CLOSE)
        if c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _outer_brackets(line: str) -> list[tuple[int, int]]:
    """Positions of the outermost brackets, as pairs."""
    found, depth, start = [], 0, 0
    for i, c in code_characters(line):
        if c in _OPEN:
            start = i if depth == 0 else start
            depth += 1
        elif c in _CLOSE:
            depth -= 1
            if depth == 0:
                found.append((start, i))
    return found


def code_characters(text: str) -> list[tuple[int, str]]:
    """Characters outside string literals, with their positions."""
    found, quote, i = [], "", 0
    while i < len(text):
        c = text[i]
        if quote:
            if c == "\\":
                i += 1
            elif c == quote:
                quote = ""
        elif c in "'\"":
            quote = c
        else:
            found.append((i, c))
        i += 1
    return found
