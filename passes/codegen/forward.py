"""The forward of one unit: its steps as lines of Python."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass

from torch import fx

from lpcompile.passes.codegen.calls import Operation, argument, condition, expression, symbol_text
from lpcompile.passes.codegen.items import Contents, Item, parts_of, read_off
from lpcompile.passes.codegen.operators import Expr
from lpcompile.passes.codegen.tree import Part, access
from lpcompile.passes.codegen.variables import Scope, hint

MAX_INLINED_CHARACTERS = 64  # of an expression that is written inside another one
MAX_SUBJECT_CHARACTERS = 88  # of an expression that only an index or `return` follows
Line = tuple[tuple[str, ...], bool, str]  # `with` contexts, whether neighbours may share them, statement


@dataclass(frozen=True)
class ForwardMethod:
    """One mode's forward: argument names, lines, and how many values it returns."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: int


class ForwardWriter:
    """Writes the method of one unit in one mode, once."""

    def __init__(self, contents: Contents, unit: Part) -> None:
        self.contents, self.unit, self.view, self.names = contents, unit, contents.view, contents.names
        inputs, self.outputs = self.view.interface(unit.path)
        if not unit.path:
            inputs, self.outputs = self.view.arguments, self.view.results
        self.inputs = [*inputs, *contents.handed(unit.path)]
        self.items = contents.items(unit.path)
        self.uses = Counter(v for item in self.items for v in item.inputs) + Counter(self.outputs)
        self.scope = Scope(self.names, is_stage=not unit.path)
        self.inlined: dict[fx.Node, Expr] = {}  # values that are written where they are used
        self.lines: list[Line] = []
        self._symbol_sources: dict[fx.Node, str] = {}

    def write(self) -> ForwardMethod:
        self.scope.set_lifetimes(self.items, self.outputs)
        for value in self.inputs:
            self.scope.add_argument(value)
        arguments = tuple(self.scope.variables[v] for v in self.inputs)
        self.scope.fixed = set(arguments) - {"x"} if not self.unit.path else set()
        self._symbols()
        for i, item in enumerate(self.items):
            self._write(i, item)
        self._return()
        return ForwardMethod(arguments, tuple(_blocks(self.lines)), len(self.outputs))

    def _value(self, node: fx.Node) -> Expr:
        if node in self.inlined:
            return self.inlined[node]
        if node in self.scope.variables:
            return Expr(self.scope.variables[node])
        if "symbol" in node.meta:
            return symbol_text(node, self._value)
        if node.op == "get_attr":
            return Expr(self._module(str(node.target)))
        raise AssertionError(f"{node} has no value here")

    def _module(self, path: str) -> str:
        return access(self.unit, tuple(path.split("."))[len(self.unit.path) :])

    def _where(self, node: fx.Node) -> str:
        path = node.meta.get("path") or "the model"
        source = node.meta.get("source")
        return f"a step of {path}" + (f" ({source})" if source else "")

    def _write(self, at: int, item: Item) -> None:
        contexts = item.step.contexts if item.step is not None else ()
        together = item.step.together if item.step is not None else True
        if item.step is not None and item.step.guarded:
            contexts = (f"if {condition(item.step, self._value, self.names)}", *contexts)
        if item.step is not None and item.node is not None and self._statement(item, contexts, together):
            return
        expr = self._expression(item)
        used = [v for v in item.outputs if self.scope.last.get(v, -1) > at]
        if self._inlines(at, item, expr):
            self.inlined[item.outputs[0]] = expr
            self.scope.carried[item.outputs[0]] = self.scope.dying(at, item)
            return
        if not used and item.unit is None:
            self._line(contexts, together, expr.text)
            return
        unpacked = self._unpacked(at, item)
        if unpacked is not None:
            self._line(contexts, together, f"{', '.join(unpacked)} = {expr.text}")
            return
        taken: list[str] = []
        for value in item.outputs:
            name = self.scope.choose(at, item, value)
            if name in taken:
                name = self.scope.free(name, {*self.scope.live(at), *taken, *self.scope.fixed})
            taken.append(name)
        for value, name in zip(item.outputs, taken, strict=True):
            self.scope.variables[value] = name
        self._line(contexts, together, f"{', '.join(taken)} = {expr.text}" if taken else expr.text)

    def _line(self, contexts: tuple[str, ...], together: bool, text: str) -> None:
        self.lines.append((contexts, together, text))

    def _statement(self, item: Item, contexts: tuple[str, ...], together: bool) -> bool:
        """Write `x += y` and `x[i] = y` as such."""
        step, node = item.step, item.node
        assert step is not None and node is not None
        target = step.args[0] if step.args else None
        if step.in_place and isinstance(target, fx.Node) and target in self.scope.variables:
            right = argument(step.args[1], self._value, self.names, self._where(node))
            self._line(contexts, together, f"{self.scope.variables[target]} {step.in_place} {right}")
            self.scope.variables[node] = self.scope.variables[target]
            self.scope.last[target] = max(self.scope.last.get(target, -1), self.scope.last.get(node, -1))
            return True
        if step.is_assignment and isinstance(target, fx.Node):
            left = Operation("call_function", operator.getitem, step.args[:2], {})
            right = argument(step.args[2], self._value, self.names, self._where(node))
            place = expression(left, self._value, self._module, self.names, self._where(node)).text
            self._line(contexts, together, f"{place} = {right}")
            return True
        return False

    def _expression(self, item: Item) -> Expr:
        if item.unit is not None:
            symbols = self.contents.handed(item.unit.path)
            arguments = ", ".join(self._value(v).text for v in [*item.inputs, *symbols])
            return Expr(f"{self._module('.'.join(item.unit.path))}({arguments})", kind="call")
        assert item.step is not None and item.node is not None
        return expression(item.step, self._value, self._module, self.names, self._where(item.node))

    def _inlines(self, at: int, item: Item, expr: Expr) -> bool:
        """Whether the value is written inside the next step, its only user."""
        if len(item.outputs) != 1 or self.uses[item.outputs[0]] != 1 or (item.step and item.step.in_block):
            return False
        value = item.outputs[0]
        if at + 1 == len(self.items):
            if item.unit is not None and self._in_list(item.unit):
                return False  # it may be the last turn of a loop
            fits = len(expr.text) <= MAX_SUBJECT_CHARACTERS
            return fits and self.outputs == [value] and value not in self.scope.variables
        following = self.items[at + 1]
        if value not in following.inputs or (following.step is not None and following.step.in_block):
            return False
        first = following.step is not None and bool(following.step.args) and following.step.args[0] is value
        kind, after = item.kind, following.kind
        if following.step is not None and following.step.in_place and first:
            return False
        if after == "index" and first and kind in ("call", "function", "method", "index"):
            return len(expr.text) <= MAX_SUBJECT_CHARACTERS
        if kind in ("method", "index") and after == "method" and first:
            return len(expr.text) <= MAX_INLINED_CHARACTERS
        if kind in ("infix", "function") and after in ("infix",):
            return len(expr.text) <= MAX_INLINED_CHARACTERS
        if kind == "infix" and after == "function":
            return len(expr.text) <= MAX_INLINED_CHARACTERS // 2
        return kind == "call" and len(expr.text) <= MAX_INLINED_CHARACTERS and self._joins(at)

    def _in_list(self, unit: Part) -> bool:
        holder = self.view.root.at(unit.path[:-1])
        return holder is not None and holder.kind in ("list", "dict") and len(holder.children) > 1

    def _joins(self, at: int) -> bool:
        """Whether a call ends in a sum with another value, at most one call later: `x + self.attn(self.norm(x))`."""
        for i in (at + 1, at + 2):
            if i >= len(self.items):
                return False
            item = self.items[i]
            before = self.items[i - 1].outputs[0]
            if item.step is not None and item.step.in_place is not None:
                return item.step.args[0] is not before
            if item.kind == "infix":
                return len(set(item.inputs)) > 1
            single = len(item.outputs) == 1 and self.uses[item.outputs[0]] == 1 and len(item.inputs) == 1
            after = self.items[i + 1] if i + 1 < len(self.items) else None
            if item.kind != "call" or not single or after is None or item.outputs[0] not in after.inputs:
                return False
        return False

    def _unpacked(self, at: int, item: Item) -> list[str] | None:
        """Names for `a, b, c = x.chunk(3)`, if the length is known and every use takes one of the parts."""
        node = item.node
        if node is None or len(item.outputs) != 1 or item.kind not in ("method", "function"):
            return None
        parts = parts_of(node)
        users = [u for u in node.users if u.op != "output"]
        gets = {u.args[1]: u for u in users if u.target is operator.getitem and isinstance(u.args[1], int)}
        if parts is None or len(gets) != len(users) or node in self.view.results or not 1 < len(gets) <= parts <= 8:
            return None
        inside = {i.node for i in self.items if i.node is not None}
        if not all(u in inside for u in users):
            return None
        names: list[str] = []
        live = self.scope.live(at) | self.scope.fixed
        for k in range(parts):
            name = "_" if k not in gets else self.scope.free(hint(gets[k]), live | set(names))
            names.append(name)
            if k in gets:
                self.scope.variables[gets[k]] = name
        self.items[at + 1 :] = [i for i in self.items[at + 1 :] if i.node not in gets.values()]
        self.scope.set_lifetimes(self.items, self.outputs, at + 1)
        return names

    def _return(self) -> None:
        if not self.outputs:
            return
        texts = [self._value(v).text for v in self.outputs]
        if not self.unit.path and not self.view.single and len(texts) == 1:
            texts.append("")
        self._line((), True, f"return {', '.join(texts)}".rstrip())

    def _symbols(self) -> None:
        """Read sizes and devices off the inputs before anything changes."""
        variables = self.scope.variables
        for base in self.contents.sizes(self.unit.path, self.items):
            if base in variables:
                continue
            source = read_off(base, self.inputs, variables) if self.unit.path else symbol_text(base, self._value)
            assert source is not None
            name = base.meta["symbol"]
            same = next((v for v, n in variables.items() if n == name and "symbol" in v.meta), None)
            if same is None or self._symbol_sources[same] != source.text:
                name = self.scope.free(name, set(variables.values()))
                self._line((), True, f"{name} = {source.text}")
            self._symbol_sources[base] = source.text
            variables[base] = name
        self.scope.symbols = {n for v, n in variables.items() if "symbol" in v.meta}


def _blocks(lines: list[Line]) -> list[str]:
    """Statements with their `with` blocks; neighbours share one."""
    found: list[str] = []
    before: tuple[tuple[str, ...], bool] = ((), True)
    for contexts, together, text in lines:
        guards = [c for c in contexts if c.startswith("if ")]
        entered = contexts[len(guards) :]
        if contexts and ((contexts, together) != before or not together):
            found += [f"{guard}:" for guard in guards]
            found += [f"{'    ' * len(guards)}with {', '.join(entered)}:"] if entered else []
        found.append("    " * (len(guards) + bool(entered)) + text)
        before = (contexts, together)
    return found
