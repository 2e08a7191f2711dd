"""One body for training and evaluation: common lines are written once."""

from __future__ import annotations

import re

from lpcompile.passes.codegen.text.format import code_characters

_TOKEN = re.compile(r"(\w[\w.]*)")
_LITERAL = re.compile(r"True|False|None|\d[\d.]*")


def merge(train: list[str], evaluate: list[str]) -> list[str]:
    """Lines that do what `train` does in training and what `evaluate` does otherwise."""
    if train == evaluate:
        return train
    if len(train) == len(evaluate):
        merged = [_merge_line(a, b) for a, b in zip(train, evaluate, strict=True)]
        if None not in merged:
            return [line for line in merged if line is not None]
    start = _common(train, evaluate)
    end = _common(train[start:][::-1], evaluate[start:][::-1])
    while start and any(_inner(lines, start) for lines in (train, evaluate)):
        start -= 1
    while end and any(_inner(lines, len(lines) - end) for lines in (train, evaluate)):
        end -= 1
    middle = [lines[start : len(lines) - end] for lines in (train, evaluate)]
    indented = [[f"    {line}" for line in lines] for lines in middle]
    head, tail = train[:start], train[len(train) - end :]
    if middle[0] and middle[0][-1].startswith("return"):
        return [*head, "if self.training:", *indented[0], *middle[1]]
    if not middle[0]:
        return [*head, "if not self.training:", *indented[1], *tail]
    other = ["else:", *indented[1]] if middle[1] else []
    return [*head, "if self.training:", *indented[0], *other, *tail]


def _common(a: list[str], b: list[str]) -> int:
    """Number of leading lines that two bodies have in common."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def _inner(lines: list[str], i: int) -> bool:
    return i < len(lines) and lines[i].startswith("    ")


def _merge_line(a: str, b: str) -> str | None:
    """One line for both modes, if they differ only in literals of keyword arguments."""
    if a == b:
        return a
    left, right = _TOKEN.split(a), _TOKEN.split(b)
    if len(left) != len(right):
        return None
    code = {i for i, _ in code_characters(a)}
    position = 0
    for i, (x, y) in enumerate(zip(left, right, strict=True)):
        position += len(x)
        if x == y:
            continue
        if position - 1 not in code:  # inside a string
            return None
        is_argument = i > 1 and left[i - 1] == "=" and i + 1 < len(left) and left[i + 1][:1] in (",", ")")
        if not is_argument or not _LITERAL.fullmatch(x) or not _LITERAL.fullmatch(y):
            return None
        if {x, y} == {"True", "False"}:
            left[i] = "self.training" if x == "True" else "not self.training"
        else:
            left[i] = f"{x} if self.training else {y}"
    return "".join(left)
