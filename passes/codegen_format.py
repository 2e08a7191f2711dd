"""Break long lines of generated code as ruff and black do: inside the last bracket, then one item a line."""

from __future__ import annotations

WIDTH = 120
_OPEN, _CLOSE = "([{", ")]}"


def indent(lines: list[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" if line else line for line in lines]


def wrap(line: str, width: int = WIDTH) -> list[str]:
    """One logical line as physical lines of at most `width` characters, where brackets allow."""
    if len(line) <= width:
        return [line]
    margin = line[: len(line) - len(line.lstrip())]
    pairs = _outer_brackets(line)
    if not pairs:
        return [line]
    first, last = pairs[-1]
    if len(pairs) > 1 and last - first < 3:  # an empty call at the end: break at the one before
        first, last = pairs[-2]
    head, body, tail = line[: first + 1], line[first + 1 : last], line[last:]
    if not body.strip():
        return [line]
    inner = f"{margin}    "
    items = [item.strip() for item in split_commas(body) if item.strip()]
    comprehension = len(items) == 1 and " for " in body
    starred = any(item.startswith("*") for item in items)
    is_subscript = line[first] == "[" and first > 0 and (line[first - 1].isalnum() or line[first - 1] in "_)]")
    if len(inner) + len(body.strip()) <= width and (line[first] == "(" or comprehension) and not body.endswith(","):
        one = len(items) == 1 and line[first] == "(" and not comprehension and not _is_call(line, first)
        return (
            [head, f"{inner}{body.strip()}", f"{margin}{tail}"] if not one else [head, f"{inner}{body}", margin + tail]
        )
    lines = [head]
    for item in items:
        comma = "" if comprehension or (is_subscript and len(items) == 1) or (starred and item is None) else ","
        lines += wrap(f"{inner}{item}{comma}", width)
    return [*lines, f"{margin}{tail}"]


def _is_call(line: str, at: int) -> bool:
    return at > 0 and (line[at - 1].isalnum() or line[at - 1] in "_)]")


def split_commas(text: str) -> list[str]:
    """Split at the commas that lie outside brackets and strings."""
    parts, depth, start = [], 0, 0
    for i, c in code_characters(text):
        if c in _OPEN:
            depth += 1
        elif c in _CLOSE:
            depth -= 1
        elif c == "," and depth == 0:
            parts.append(text[start:i])
            start = i + 1
    return [*parts, text[start:]]


def _outer_brackets(line: str) -> list[tuple[int, int]]:
    found, stack = [], []
    for i, c in code_characters(line):
        if c in _OPEN:
            stack.append(i)
        elif c in _CLOSE and stack:
            first = stack.pop()
            if not stack:
                found.append((first, i))
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
