"""The steps of one unit as the body of a method."""

from __future__ import annotations

import operator
from collections import Counter
from dataclasses import dataclass, field
from itertools import chain, count

from torch import fx

from lpcompile.passes.codegen.calls import (
    Expr,
    Operation,
    argument,
    expression,
    symbol_text,
)
from lpcompile.passes.codegen.items import Contents, Item, parts_of, read_off
from lpcompile.passes.codegen.names import RESERVED, identifier, is_plain, quote
from lpcompile.passes.codegen.tree import ModulePath, Part, View, is_stream
from lpcompile.passes.codegen.values import Names
from lpcompile.passes.codegen.variables import hint, mixes, module_hint

SHORT, LONG = 64, 88


@dataclass(frozen=True)
class ForwardMethod:
    """One mode's forward: argument names, lines, and how many values it returns."""

    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    results: int


def access(root: Part, path: ModulePath, names: Names) -> str:
    """`self.layer1[0].conv1` for a path below the unit at `root`."""
    text, part, module = "self", root, root.module
    for i, name in enumerate(path):
        kind = part.kind if part is not None else "plain"
        if (
            kind in ("list", "sequential")
            and name.isdigit()
            and list(part.children) == [str(n) for n in range(len(part.children))]
        ):
            text += f"[{name}]"
        elif kind == "dict":
            text += f"[{quote(name)}]"
        elif is_plain(name):
            text += f".{name}"
        elif i == len(path) - 1 and name in module._parameters:
            text += f"._parameters[{quote(name)}]"
        elif i == len(path) - 1 and name in module._buffers:
            text += f"._buffers[{quote(name)}]"
        else:
            text += f"._modules[{quote(name)}]"
        part = part.children.get(name) if part is not None else None  # type: ignore[assignment]
        module = module._modules.get(name, module)  # type: ignore[assignment]
    return text


@dataclass
class ForwardWriter:
    """Writes the method of one unit in one mode."""

    contents: Contents
    unit: Part
    lines: list[tuple[tuple[str, ...], bool, str]] = field(default_factory=list)  # contexts, may share, statement
    variables: dict[fx.Node, str] = field(default_factory=dict)
    items: list[Item] = field(default_factory=list)
    last: dict[fx.Node, int] = field(default_factory=dict)  # the item that needs a value last
    uses: Counter[fx.Node] = field(default_factory=Counter)
    pending: dict[fx.Node, Expr] = field(default_factory=dict)
    carried: dict[fx.Node, list[str]] = field(default_factory=dict)  # names that a pending value may take over
    symbols: set[str] = field(default_factory=set)
    fixed: set[str] = field(default_factory=set)  # arguments of a stage keep their names
    _texts: dict[fx.Node, str] = field(default_factory=dict)

    @property
    def view(self) -> View:
        return self.contents.view

    @property
    def names(self) -> Names:
        return self.contents.names

    def write(self) -> ForwardMethod:
        path = self.unit.path
        inputs, outputs = self.view.interface(path)
        if not path:
            inputs, outputs = self.view.arguments, self.view.results
        self.items = self.contents.items(path)
        inputs = [*inputs, *self.contents.handed(path)]
        for i, item in enumerate(self.items):
            for value in item.inputs:
                self.last[value] = i
        for value in outputs:
            self.last[value] = len(self.items)
        self.uses = Counter(v for item in self.items for v in item.inputs) + Counter(outputs)
        for value in inputs:
            self.variables[value] = self._argument_name(value)
        arguments = tuple(self.variables[v] for v in inputs)
        self.fixed = set(arguments) - {"x"} if not path else set()
        self._symbols(inputs)
        for i, item in enumerate(self.items):
            self._write(i, item, outputs)
        self._return(outputs)
        return ForwardMethod(arguments, tuple(_blocks(self.lines)), len(outputs))

    # ---- names

    def _live(self, at: int) -> set[str]:
        """Names that hold something still needed after item `at`."""
        return {name for value, name in self.variables.items() if self.last.get(value, -1) > at} | self.symbols

    def _argument_name(self, value: fx.Node) -> str:
        if not self.unit.path and value.op == "placeholder":
            name = str(value.target)
            return self._free(identifier(name, "x"), set(self.variables.values()))
        name = "x" if not self.variables and is_stream(value) else hint(value)
        if "symbol" in value.meta:
            name = "batch" if value.meta["symbol"] == "batch" else value.meta["symbol"]
        if name == "out":
            name = "x"
        return self._free(name, set(self.variables.values()))

    def _free(self, name: str, used: set[str]) -> str:
        """The name, or one like it, that is not in use."""
        more = ["out", "y", "z"] if name in ("out", "x") else []
        for choice in chain([name, *more], (f"{name}{n}" for n in count(2))):
            if choice not in used and choice not in RESERVED and choice not in self.names.taken:
                break
        return choice

    def _name(self, at: int, item: Item, value: fx.Node) -> str:
        """Carry on the name of an input that is done with, where the result stands in its place."""
        live = self._live(at)
        node = item.node
        dying = [d for d in self._dying(at, item) if d not in live and d not in self.fixed]
        wanted = module_hint(".".join(item.unit.path)) if item.unit is not None else hint(value)
        if len(item.outputs) == 1 and dying and not (node is not None and mixes(node)) and is_stream(value):
            special = wanted in ("query", "key", "value", "identity")
            if "x" in dying and not special:
                return "x"
            if not special:
                return dying[0]
        if wanted == "out" and "x" not in live and "x" not in self.fixed:
            wanted = "x"
        return self._free(wanted, live | self.fixed)

    def _dying(self, at: int, item: Item) -> list[str]:
        """Names of inputs that nothing after this item needs."""
        found = []
        for value in item.inputs:
            if value in self.variables and self.last.get(value) == at and is_stream(value):
                found.append(self.variables[value])
            found += self.carried.get(value, [])
        return found

    # ---- statements

    def _value(self, node: fx.Node) -> Expr:
        if node in self.pending:
            return self.pending[node]
        if node in self.variables:
            return Expr(self.variables[node])
        if "symbol" in node.meta:
            return self._symbol(node)
        if node.op == "get_attr":
            return Expr(self._module(str(node.target)))
        raise AssertionError(f"{node} has no value here")

    def _module(self, path: str) -> str:
        return access(self.unit, tuple(path.split("."))[len(self.unit.path) :], self.names)

    def _where(self, node: fx.Node) -> str:
        path = node.meta.get("path") or "the model"
        source = node.meta.get("source")
        return f"a step of {path}" + (f" ({source})" if source else "")

    def _write(self, at: int, item: Item, outputs: list[fx.Node]) -> None:
        contexts = item.step.contexts if item.step is not None else ()
        together = item.step.together if item.step is not None else True
        if item.step is not None and item.node is not None and self._statement(at, item, contexts, together):
            return
        expr = self._expression(item)
        used = [v for v in item.outputs if self.last.get(v, -1) > at]
        if self._inlines(at, item, expr, outputs):
            self.pending[item.outputs[0]] = expr
            self.carried[item.outputs[0]] = self._dying(at, item)
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
            name = self._name(at, item, value)
            if name in taken:
                name = self._free(name, {*self._live(at), *taken, *self.fixed})
            taken.append(name)
        for value, name in zip(item.outputs, taken, strict=True):
            self.variables[value] = name
        self._line(contexts, together, f"{', '.join(taken)} = {expr.text}" if taken else expr.text)

    def _line(self, contexts: tuple[str, ...], together: bool, text: str) -> None:
        self.lines.append((contexts, together, text))

    def _statement(self, at: int, item: Item, contexts: tuple[str, ...], together: bool) -> bool:
        """Write `x += y` and `x[i] = y` as such."""
        step, node = item.step, item.node
        assert step is not None and node is not None
        target = step.args[0] if step.args else None
        if step.in_place and isinstance(target, fx.Node) and target in self.variables:
            right = argument(step.args[1], self._value, self.names, self._where(node))
            self._line(contexts, together, f"{self.variables[target]} {step.in_place} {right}")
            self.variables[node] = self.variables[target]
            self.last[target] = max(self.last.get(target, -1), self.last.get(node, -1))
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

    def _inlines(self, at: int, item: Item, expr: Expr, outputs: list[fx.Node]) -> bool:
        """Whether the value is written right where the next step, its only user, needs it."""
        if len(item.outputs) != 1 or self.uses[item.outputs[0]] != 1 or (item.step and item.step.contexts):
            return False
        value = item.outputs[0]
        if at + 1 == len(self.items):
            if item.unit is not None and self._in_list(item.unit):
                return False  # it may be the last turn of a loop
            return outputs == [value] and len(expr.text) <= LONG and value not in self.variables
        following = self.items[at + 1]
        if value not in following.inputs or (following.step is not None and following.step.contexts):
            return False
        first = following.step is not None and bool(following.step.args) and following.step.args[0] is value
        kind, after = item.kind, following.kind
        if following.step is not None and following.step.in_place and first:
            return False
        if after == "index" and first and kind in ("call", "function", "method", "index"):
            return len(expr.text) <= LONG
        if kind in ("method", "index") and after == "method" and first:
            return len(expr.text) <= SHORT
        if kind in ("infix", "function") and after in ("infix",):
            return len(expr.text) <= SHORT
        if kind == "infix" and after == "function":
            return len(expr.text) <= SHORT // 2
        return kind == "call" and len(expr.text) <= SHORT and self._joins(at)

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
        """Names for `a, b, c = x.chunk(3)`: what follows takes every part of a result whose length is known."""
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
        live = self._live(at) | self.fixed
        for k in range(parts):
            name = "_" if k not in gets else self._free(hint(gets[k]), live | set(names))
            names.append(name)
            if k in gets:
                self.variables[gets[k]] = name
        self.items[at + 1 :] = [i for i in self.items[at + 1 :] if i.node not in gets.values()]
        self._recount(at)
        return names

    def _recount(self, at: int) -> None:
        """Items were taken away: positions after `at` have moved."""
        self.last = {v: i for v, i in self.last.items() if i <= at or v in self._results}
        for i, item in enumerate(self.items):
            for value in item.inputs:
                if i > at:
                    self.last[value] = i
        for value in self._results:
            self.last[value] = len(self.items)

    @property
    def _results(self) -> list[fx.Node]:
        return self.view.results if not self.unit.path else self.view.interface(self.unit.path)[1]

    def _return(self, outputs: list[fx.Node]) -> None:
        if not outputs:
            return
        texts = [self._value(v).text for v in outputs]
        if not self.unit.path and not self.view.single and len(texts) == 1:
            texts.append("")
        self._line((), True, f"return {', '.join(texts)}".rstrip())

    # ---- sizes and devices

    def _symbols(self, inputs: list[fx.Node]) -> None:
        """Read sizes and devices off the inputs before anything changes."""
        for base in self.contents.sizes(self.unit.path, self.items):
            if base in self.variables:
                continue
            text = symbol_text(base, self._value) if not self.unit.path else read_off(base, inputs, self.variables)
            assert text is not None
            name = "device" if base.meta["symbol"] == "device" else "batch"
            same = next((v for v, n in self.variables.items() if n == name and "symbol" in v.meta), None)
            if same is None or self._texts[same] != text.text:
                name = self._free(name, set(self.variables.values()))
                self._line((), True, f"{name} = {text.text}")
            self._texts[base] = text.text
            self.variables[base] = name
        self.symbols = {n for v, n in self.variables.items() if "symbol" in v.meta}

    def _symbol(self, node: fx.Node) -> Expr:
        return symbol_text(node, self._value)


def _blocks(lines: list[tuple[tuple[str, ...], bool, str]]) -> list[str]:
    """Statements with their `with` blocks; neighbours share one."""
    found: list[str] = []
    before: tuple[tuple[str, ...], bool] = ((), True)
    for contexts, together, text in lines:
        if contexts and ((contexts, together) != before or not together):
            found.append(f"with {', '.join(contexts)}:")
        found.append(f"    {text}" if contexts else text)
        before = (contexts, together)
    return found
