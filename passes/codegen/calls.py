"""One step of a graph as a Python expression."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from torch import fx

from lpcompile.passes.codegen.operators import (
    ATOM,
    IN_PLACE,
    IN_PLACE_METHODS,
    INFIX,
    METHODS,
    Expr,
    infix,
    is_operator,
    scaled,
    size_text,
)
from lpcompile.passes.codegen.text.names import quote
from lpcompile.passes.codegen.text.values import Names, Unprintable, is_default, refuse
from lpcompile.passes.graph import calls, drawn_calls

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
    skipped: tuple[Any, ...] = ()  # flag, outcome and otherwise of a step that is skipped at random
    named: bool = False  # whether a step names it that runs where it is skipped

    @property
    def in_block(self) -> bool:
        """Whether it stands in a block of its own, a `with` or an `if`."""
        return bool(self.contexts) or self.guarded

    @property
    def guarded(self) -> bool:
        """Whether it is skipped at random with everything that reads it, so that it has no other value."""
        return bool(self.skipped) and self.skipped[2] is None and not self.named

    @property
    def in_place(self) -> str | None:
        """The augmented assignment (`+=`, ...) that is this call, if any."""
        if len(self.args) != 2 or self.kwargs or self.skipped:
            return None
        if self.op == "call_method":
            return IN_PLACE_METHODS.get(self.target)
        return IN_PLACE.get(self.target) if self.op == "call_function" else None

    @property
    def is_assignment(self) -> bool:
        return self.op == "call_function" and self.target is operator.setitem and not self.skipped

    @property
    def kind(self) -> str:
        if self.skipped:
            return "infix"
        if self.op == "call_module":
            return "call"
        if self.op == "call_method":
            infix = self.target in METHODS and len(self.args) == 2 and not self.kwargs
            return "infix" if infix else "method"
        if self.target in (operator.getitem, getattr):
            return "index"
        return "infix" if is_operator(self.target) else "function"


def operation(node: fx.Node, names: Names) -> Operation:
    """A call without our wrappers: `no_grad` and autocast regions become `with` contexts."""
    op, args, kwargs = node.op, tuple(node.args), dict(node.kwargs)
    target: Any = node.target
    contexts: list[str] = []
    together = True
    skipped: tuple[Any, ...] = ()
    while True:
        if target is calls.switch:
            skipped, target, args = args[:3], calls.call_module, args[3:]
        elif isinstance(target, calls.Switched):
            skipped, target, args = args[:3], target.function, args[3:]
        elif isinstance(target, calls.NoGrad):
            contexts.append(f"{names.use('torch')}.no_grad()")
            target = target.function
        elif isinstance(target, calls.Autocast):
            for device_type, dtype, enabled, cache in target.details:
                rest = f", enabled={enabled}" if not enabled else ""
                rest += "" if cache else ", cache_enabled=False"
                contexts.append(f"{names.use('torch')}.autocast({quote(device_type)}, {dtype}{rest})")
                # in a shared region a weight is cast once for both steps, and its gradients add up in another order
                together = together and not enabled
            target = target.function
        else:
            break
    if target is calls.call_module:
        op, target, args = "call_module", args[0], args[1:]
    elif target is calls.call_method:
        op, target, args = "call_method", args[0], args[1:]
    named = bool(skipped) and any(_skipped_as(user) != skipped[:2] for user in node.users)
    return Operation(op, target, args, kwargs, tuple(contexts), together, skipped, named)


def _skipped_as(node: fx.Node) -> tuple[Any, ...]:
    """Flag and outcome of a step that is skipped at random; empty for any other."""
    return node.args[:2] if node.target is calls.switch or isinstance(node.target, calls.Switched) else ()


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


def condition(step: Operation, value: Value, names: Names) -> str:
    """When a step that is skipped at random runs."""
    return _condition(step, _Arguments(value, names))


def _condition(step: Operation, arguments: _Arguments) -> str:
    flag, outcome, _ = step.skipped
    text = arguments.expr(flag).within(4)
    return text if outcome else f"not {text}"


def _expression(step: Operation, arguments: _Arguments, module: Callable[[str], str], names: Names) -> Expr:
    args, kwargs, target = step.args, step.kwargs, step.target
    if step.skipped:
        run = _expression(replace(step, skipped=()), arguments, module, names)
        if step.guarded:
            return run
        condition, otherwise = _condition(step, arguments), arguments.expr(step.skipped[2])
        return Expr(f"{run.within(4)} if {condition} else {otherwise.within(4)}", 1, "infix")
    if step.op == "call_module":
        path = str(target.target) if isinstance(target, fx.Node) else str(target)
        return Expr(f"{module(path)}({arguments.call(args, kwargs)})", kind="call")
    if step.op == "call_method":
        if step.kind == "infix":
            return infix(METHODS[target], arguments.expr(args[0]), arguments.expr(args[1]))
        owner = arguments.expr(args[0]).within(ATOM)
        return Expr(f"{owner}.{target}({arguments.call(args[1:], kwargs)})", kind="method")
    if target is operator.getitem:
        return Expr(f"{arguments.expr(args[0]).within(ATOM)}[{arguments.index(args[1])}]", kind="index")
    if target is getattr and str(args[1]).isidentifier():
        return Expr(f"{arguments.expr(args[0]).within(ATOM)}.{args[1]}", kind="index")
    if target in (operator.neg, operator.invert):
        return Expr(f"{'-' if target is operator.neg else '~'}{arguments.expr(args[0]).within(12)}", 12, "infix")
    if is_operator(target):
        return infix(INFIX[target][0], arguments.expr(args[0]), arguments.expr(args[1]))
    ours = _our_call(step, arguments, module, names)
    if ours is not None:
        return ours
    function = names.ref(target.function if isinstance(target, calls.Script) else target)
    told = {k: v for k, v in kwargs.items() if not is_default(target, k, v)}
    return Expr(f"{function}({arguments.call(args, told)})", kind="function")


def _our_call(step: Operation, arguments: _Arguments, module: Callable[[str], str], names: Names) -> Expr | None:
    """A step that calls one of `passes.graph.calls`."""
    args, kwargs, target = step.args, step.kwargs, step.target
    if target is calls.read_attribute:
        owner = module(str(args[1].target))
        return Expr(f"{owner}.{args[2]}" if str(args[2]).isidentifier() else f"getattr({owner}, {quote(args[2])})")
    if isinstance(target, calls.Draw):
        names.use(target.function.partition(".")[0])
        draw = f"{target.function}({arguments.call(args, kwargs)})"
        return Expr(f"{names.use('torch')}.tensor({draw}, dtype=torch.float64)", kind="function")
    if isinstance(target, drawn_calls.ByName):
        names.use(target.function.partition(".")[0])
        return Expr(f"{target.function}({arguments.call(args, kwargs)})", kind="function")
    if isinstance(target, drawn_calls.Replayed):
        return Expr(f"{names.ref(target.function)}({arguments.call(args, kwargs)})", kind="function")
    if target is drawn_calls.as_drawn:
        names.helpers.add("as_drawn")
        names.use("numpy")
        return Expr(f"as_drawn({arguments.call(args, kwargs)})", kind="function")
    if isinstance(target, calls.Chosen):
        names.helpers.add("chosen")
        names.use("torch")
        return Expr(f"chosen({names.ref(target.function)}, {arguments.call(args, kwargs)})", kind="function")
    if target is calls.as_read:
        names.helpers.add("as_read")
        return Expr(f"as_read({arguments.call(args, kwargs)})", kind="function")
    if target is calls.as_recorded:
        names.helpers.add("as_recorded")
        names.use("torch")
        return Expr(f"as_recorded({arguments.call(args, kwargs)})", kind="function")
    if isinstance(target, calls.Apply):
        return Expr(f"{names.ref(target.function)}.apply({arguments.call(args, kwargs)})", kind="function")
    return None


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
