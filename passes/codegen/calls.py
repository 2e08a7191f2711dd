"""One step of a graph as a Python expression."""

from __future__ import annotations

import functools
import inspect
import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import fx

from lpcompile.passes.codegen.names import quote
from lpcompile.passes.codegen.values import Names, Unprintable, refuse
from lpcompile.passes.graph import calls

ATOM = 20
_INFIX: dict[Any, tuple[str, int]] = {
    operator.add: ("+", 10), operator.sub: ("-", 10), operator.mul: ("*", 11), operator.truediv: ("/", 11),
    operator.floordiv: ("//", 11), operator.mod: ("%", 11), operator.matmul: ("@", 11), operator.pow: ("**", 13),
    operator.and_: ("&", 8), operator.or_: ("|", 6), operator.xor: ("^", 7), operator.lshift: ("<<", 9),
    operator.rshift: (">>", 9), operator.lt: ("<", 5), operator.le: ("<=", 5), operator.gt: (">", 5),
    operator.ge: (">=", 5), operator.eq: ("==", 5), operator.ne: ("!=", 5),
}  # fmt: skip
# Tensor methods that Python's operators call.
_METHODS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "matmul": "@", "pow": "**", "lt": "<", "le": "<=",
            "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}  # fmt: skip
_LEVELS = dict(_INFIX.values())
_IN_PLACE = {
    operator.iadd: "+=", operator.isub: "-=", operator.imul: "*=", operator.itruediv: "/=", operator.ifloordiv: "//=",
    operator.imod: "%=", operator.ipow: "**=", operator.iand: "&=", operator.ior: "|=", operator.ixor: "^=",
    operator.ilshift: "<<=", operator.irshift: ">>=",
}  # fmt: skip
_IN_PLACE_METHODS = {"add_": "+=", "sub_": "-=", "mul_": "*=", "div_": "/="}


@dataclass(frozen=True)
class Expr:
    """Source text and its precedence."""

    text: str
    level: int = ATOM
    kind: str = "name"  # "method", "index", "call", "function" or "infix"

    def within(self, level: int) -> str:
        return self.text if self.level >= level else f"({self.text})"


Value = Callable[[fx.Node], Expr]


@dataclass(frozen=True)
class Operation:
    """A step without our wrappers: the call itself and the `with` contexts around it."""

    op: str
    target: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    contexts: tuple[str, ...] = ()
    together: bool = True  # whether neighbours may share one block

    @property
    def in_place(self) -> str | None:
        """The augmented assignment (`+=`, ...) that is this call, if any."""
        if len(self.args) != 2 or self.kwargs:
            return None
        if self.op == "call_method":
            return _IN_PLACE_METHODS.get(self.target)
        return _IN_PLACE.get(self.target) if self.op == "call_function" else None

    @property
    def is_assignment(self) -> bool:
        return self.op == "call_function" and self.target is operator.setitem

    @property
    def kind(self) -> str:
        if self.op == "call_module":
            return "call"
        if self.op == "call_method":
            infix = self.target in _METHODS and len(self.args) == 2 and not self.kwargs
            return "infix" if infix else "method"
        if self.target in (operator.getitem, getattr):
            return "index"
        return "infix" if _is_operator(self.target) else "function"


def _is_operator(target: Any) -> bool:
    try:
        return target in _INFIX or target in (operator.neg, operator.invert)
    except TypeError:
        return False


def operation(node: fx.Node, names: Names) -> Operation:
    """A call without our wrappers: `no_grad` and autocast regions become `with` contexts."""
    op, args, kwargs = node.op, tuple(node.args), dict(node.kwargs)
    target: Any = node.target
    contexts: list[str] = []
    together = True
    while isinstance(target, (calls.NoGrad, calls.Autocast)):
        names.use("torch")
        if isinstance(target, calls.NoGrad):
            contexts.append("torch.no_grad()")
        else:
            for device_type, dtype, enabled, cache in target.details:
                rest = f", enabled={enabled}" if not enabled else ""
                rest += "" if cache else ", cache_enabled=False"
                contexts.append(f"torch.autocast({quote(device_type)}, {dtype}{rest})")
                # in a shared region a weight is cast once for both steps, and its gradients add up in another order
                together = together and not enabled
        target = target.function
    if target is calls.call_module:
        op, target, args = "call_module", args[0], args[1:]
    elif target is calls.call_method:
        op, target, args = "call_method", args[0], args[1:]
    return Operation(op, target, args, kwargs, tuple(contexts), together)


def expression(operation: Operation, value: Value, module: Callable[[str], str], names: Names, where: str) -> Expr:
    """The source of a step; `value` gives the source of an input, `module` that of the layer at a path."""
    try:
        return _expression(operation, _Arguments(value, names), module, names)
    except Unprintable as error:
        raise refuse(where, f"it uses {error}", "keep the module that this belongs to whole with leaf=[...], or pass "
                     "a plain value") from None  # fmt: skip


def argument(value: Any, values: Value, names: Names, where: str) -> str:
    """The source of one argument of a step."""
    try:
        return _Arguments(values, names).expr(value).text
    except Unprintable as error:
        raise refuse(where, f"it uses {error}", "pass a plain value") from None


def _expression(step: Operation, arguments: _Arguments, module: Callable[[str], str], names: Names) -> Expr:
    args, kwargs, target = step.args, step.kwargs, step.target
    if step.op == "call_module":
        path = str(target.target) if isinstance(target, fx.Node) else str(target)
        return Expr(f"{module(path)}({arguments.call(args, kwargs)})", kind="call")
    if step.op == "call_method":
        if step.kind == "infix":
            return _infix(_METHODS[target], arguments.expr(args[0]), arguments.expr(args[1]))
        owner = arguments.expr(args[0]).within(ATOM)
        return Expr(f"{owner}.{target}({arguments.call(args[1:], kwargs)})", kind="method")
    if target is operator.getitem:
        return Expr(f"{arguments.expr(args[0]).within(ATOM)}[{arguments.index(args[1])}]", kind="index")
    if target is getattr and str(args[1]).isidentifier():
        return Expr(f"{arguments.expr(args[0]).within(ATOM)}.{args[1]}", kind="index")
    if target in (operator.neg, operator.invert):
        return Expr(f"{'-' if target is operator.neg else '~'}{arguments.expr(args[0]).within(12)}", 12, "infix")
    if _is_operator(target):
        return _infix(_INFIX[target][0], arguments.expr(args[0]), arguments.expr(args[1]))
    if target is calls.read_attribute:
        owner = module(str(args[1].target))
        return Expr(f"{owner}.{args[2]}" if str(args[2]).isidentifier() else f"getattr({owner}, {quote(args[2])})")
    if isinstance(target, calls.Apply):
        return Expr(f"{names.ref(target.function)}.apply({arguments.call(args, kwargs)})", kind="function")
    function = names.ref(target.function if isinstance(target, calls.Script) else target)
    told = {k: v for k, v in kwargs.items() if not _is_default(target, k, v)}
    return Expr(f"{function}({arguments.call(args, told)})", kind="function")


def _is_default(function: Any, name: str, value: Any) -> bool:
    """Whether a keyword argument equals the function's default. `training` is always written."""
    if not isinstance(value, (bool, int, float, str, type(None))) or name == "training":
        return False
    default = _defaults(function).get(name, inspect.Parameter.empty)
    return type(default) is type(value) and default == value


@functools.lru_cache(maxsize=1024)
def _defaults(function: Any) -> dict[str, Any]:
    if function is F.scaled_dot_product_attention:  # a builtin: it has no signature to ask
        return {"attn_mask": None, "is_causal": False, "scale": None, "enable_gqa": False}
    if getattr(function, "__module__", None) not in ("torch.nn.functional", "torch.functional"):
        return {}
    try:
        return {n: p.default for n, p in inspect.signature(function).parameters.items()}
    except (TypeError, ValueError):
        return {}


def _infix(sign: str, left: Expr, right: Expr) -> Expr:
    level = _LEVELS[sign]
    if sign == "**":  # binds to the right, and tighter than a sign on its left
        sign = "**" if _simple(left, right) else " ** "
        return Expr(f"{left.within(level + 1)}{sign}{right.within(level)}", level, "infix")
    low = level + 1 if level == 5 else level  # comparisons do not chain
    return Expr(f"{left.within(low)} {sign} {right.within(level + 1)}", level, "infix")


def _simple(*sides: Expr) -> bool:
    """Whether ruff writes `x**2` without spaces: names, numbers and attributes."""
    return all(s.level >= 12 and all(c.isalnum() or c in "._-" for c in s.text) for s in sides)


class _Arguments:
    """Arguments of a call as text; nodes may be nested in containers."""

    def __init__(self, value: Value, names: Names) -> None:
        self.value, self.names = value, names

    def call(self, args: Any, kwargs: dict[str, Any]) -> str:
        parts = [self.expr(a).text for a in args]
        odd = {k: v for k, v in kwargs.items() if not (k.isidentifier() and k.isascii())}
        parts += [f"{k}={self.expr(v).text}" for k, v in kwargs.items() if k not in odd]
        if odd:
            parts.append("**{" + ", ".join(f"{quote(k)}: {self.expr(v).text}" for k, v in odd.items()) + "}")
        return ", ".join(parts)

    def expr(self, value: Any) -> Expr:
        if isinstance(value, fx.Node):
            return self.value(value)
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return Expr(f"{self.names.ref(type(value))}({', '.join(self.expr(v).text for v in value)})")
        if type(value) is tuple:
            inner = ", ".join(self.expr(v).text for v in value)
            return Expr(f"({inner},)" if len(value) == 1 else f"({inner})")
        if isinstance(value, list):
            return Expr(f"[{', '.join(self.expr(v).text for v in value)}]")
        if isinstance(value, dict):
            return Expr(
                "{" + ", ".join(f"{self.names.literal(k)}: {self.expr(v).text}" for k, v in value.items()) + "}"
            )
        if isinstance(value, slice):
            return Expr(f"slice({', '.join(self.expr(v).text for v in (value.start, value.stop, value.step))})")
        text = self.names.literal(value)
        return Expr(text, 12 if text.startswith("-") else ATOM)

    def index(self, value: Any) -> str:
        if type(value) is tuple and value:
            return ", ".join(map(self._one_index, value)) + ("," if len(value) == 1 else "")
        return self._one_index(value)

    def _one_index(self, value: Any) -> str:
        if not isinstance(value, slice):
            return self.expr(value).text
        start, stop, step = (None if v is None else self.expr(v) for v in (value.start, value.stop, value.step))
        simple = all(
            e is None or (e.level >= 12 and "." not in e.text and "(" not in e.text) for e in (start, stop, step)
        )
        colon = ":" if simple or sum(e is not None for e in (start, stop, step)) < 1 else " : "
        text = f"{start.text if start else ''}{colon}{stop.text if stop else ''}".strip()
        if step is not None:
            text += f"{colon}{step.text}"
        return text


def symbol_text(node: fx.Node, value: Value) -> Expr:
    """A batch size or device, read off an input of the stage."""
    source = node.args[0]
    while isinstance(source, fx.Node) and source.op == "call_method" and source.target == "clone":
        source = source.args[0]
    if node.target is calls.device_of:
        return Expr(f"{value(source).text}.device")  # type: ignore[arg-type]
    if node.target is calls.batch_of:
        _, dim, multiple = (*node.args, 1)[:3]
        return size_text(value(source).text, int(dim), int(multiple))  # type: ignore[arg-type]
    _, multiple, offset = (*node.args, 0)[:3]
    return scaled(value(source), int(multiple), int(offset))  # type: ignore[arg-type]


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
