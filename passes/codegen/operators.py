"""Python's operators: their signs and precedence, and expressions that put brackets only where they are needed."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any

ATOM = 20
INFIX: dict[Any, tuple[str, int]] = {
    operator.add: ("+", 10), operator.sub: ("-", 10), operator.mul: ("*", 11), operator.truediv: ("/", 11),
    operator.floordiv: ("//", 11), operator.mod: ("%", 11), operator.matmul: ("@", 11), operator.pow: ("**", 13),
    operator.and_: ("&", 8), operator.or_: ("|", 6), operator.xor: ("^", 7), operator.lshift: ("<<", 9),
    operator.rshift: (">>", 9), operator.lt: ("<", 5), operator.le: ("<=", 5), operator.gt: (">", 5),
    operator.ge: (">=", 5), operator.eq: ("==", 5), operator.ne: ("!=", 5),
}  # fmt: skip
# Tensor methods that Python's operators call.
METHODS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "pow": "**", "lt": "<", "le": "<=",
            "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}  # fmt: skip
_LEVELS = dict(INFIX.values())
IN_PLACE = {
    operator.iadd: "+=", operator.isub: "-=", operator.imul: "*=", operator.itruediv: "/=", operator.ifloordiv: "//=",
    operator.imod: "%=", operator.ipow: "**=", operator.iand: "&=", operator.ior: "|=", operator.ixor: "^=",
    operator.ilshift: "<<=", operator.irshift: ">>=",
}  # fmt: skip
IN_PLACE_METHODS = {"add_": "+=", "sub_": "-=", "mul_": "*=", "div_": "/="}


@dataclass(frozen=True)
class Expr:
    """Source text and its precedence."""

    text: str
    level: int = ATOM
    kind: str = "name"  # "method", "index", "call", "function" or "infix"

    def within(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


def is_operator(target: Any) -> bool:
    try:
        return target in INFIX or target in (operator.neg, operator.invert)
    except TypeError:
        return False


def infix(sign: str, left: Expr, right: Expr) -> Expr:
    level = _LEVELS[sign]
    if sign == "**":  # binds to the right, and tighter than a sign on its left
        sign = "**" if _simple(left, right) else " ** "
        return Expr(f"{left.within(level + 1)}{sign}{right.within(level)}", level, "infix")
    low = level + 1 if level == 5 else level  # comparisons do not chain
    return Expr(f"{left.within(low)} {sign} {right.within(level + 1)}", level, "infix")


def _simple(*sides: Expr) -> bool:
    """Whether ruff writes `x**2` without spaces: names, numbers and attributes."""
    return all(s.level >= 12 and all(c.isalnum() or c in "._-" for c in s.text) for s in sides)


def size_text(tensor: str, dim: int, multiple: int) -> Expr:
    """The batch size, from a dimension that is `multiple` times as large."""
    if multiple == 1:
        return Expr(f"{tensor}.shape[{dim}]")
    return Expr(f"{tensor}.shape[{dim}] // {multiple}", 11)


def scaled(batch: Expr, multiple: int, offset: int) -> Expr:
    """`multiple * batch + offset`."""
    text = batch if multiple == 1 else Expr(f"{multiple} * {batch.within(12)}", 11)
    if not offset:
        return text
    return Expr(f"{text.text} {'+' if offset > 0 else '-'} {abs(offset)}", 10)
