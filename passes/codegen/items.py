"""The items of a unit's method, in order: its own steps and the calls of the units inside it."""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from lpcompile.passes.codegen.calls import Operation, operation
from lpcompile.passes.codegen.operators import Expr, size_text
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.tree import ModulePath, Part, View, nodes_in


@dataclass
class Item:
    """A step, or a call of a unit inside this one."""

    inputs: list[fx.Node]
    outputs: list[fx.Node]
    node: fx.Node | None = None
    unit: Part | None = None
    step: Operation | None = None

    @property
    def kind(self) -> str:
        return self.step.kind if self.step is not None else "call"


@dataclass(frozen=True)
class Contents:
    """The units of a stage in one mode, and the items of each."""

    view: View
    units: dict[ModulePath, Part]
    names: Names

    def items(self, path: ModulePath) -> list[Item]:
        start, end = self.view.spans[path]
        found, i = [], start
        while i < end:
            inner = self._unit_at(path, i, end)
            if inner is None:
                node = self.view.steps[i]
                inputs = [n for n in nodes_in((node.args, node.kwargs)) if "symbol" not in n.meta]
                found.append(Item(inputs, [node], node, None, operation(node, self.names)))
                i += 1
            else:
                inputs, outputs = self.view.interface(inner.path)
                found.append(Item(inputs, outputs, None, inner))
                i = self.view.spans[inner.path][1]
        return found

    def _unit_at(self, path: ModulePath, i: int, end: int) -> Part | None:
        """The outermost unit below the one at `path` whose steps start here."""
        owner = self.view.owners[i]
        if owner[: len(path)] != path:
            return None
        for n in range(len(path) + 1, len(owner) + 1):
            part = self.units.get(owner[:n])
            if part is not None and self.view.spans[part.path][0] == i and self.view.spans[part.path][1] <= end:
                return part
        return None

    def sizes(self, path: ModulePath, items: list[Item]) -> list[fx.Node]:
        """Batch sizes and devices that the items need, themselves or as arguments of inner units."""
        used = [] if path else [n for n in self.view.results if "symbol" in n.meta]
        for item in items:
            if item.node is not None:
                used += [n for n in item.node.all_input_nodes if "symbol" in n.meta]
            elif item.unit is not None:
                used += self.handed(item.unit.path)
        return list(dict.fromkeys(base for node in used for base in _bases(node)))

    def handed(self, path: ModulePath) -> list[fx.Node]:
        """Batch sizes and devices that a unit takes as arguments, because its inputs do not tell them."""
        if not path:
            return []
        if path not in self.view.handed:
            inputs = self.view.interface(path)[0]
            needed = self.sizes(path, self.items(path))
            self.view.handed[path] = [base for base in needed if read_off(base, inputs, {}) is None]
        return self.view.handed[path]


def read_off(base: fx.Node, inputs: list[fx.Node], variables: dict[fx.Node, str]) -> Expr | None:
    """A batch size or device, from the first input that tells it."""
    for value in inputs:
        spec = value.meta.get("spec")
        if spec is None or value.op == "get_attr":
            continue
        name = variables.get(value, "")
        if base.meta["symbol"] == "device":
            return Expr(f"{name}.device")
        for dim, multiple in enumerate(spec.multiples(base.meta["symbol"])):
            if multiple > 0:
                return size_text(name, dim, multiple)
    return None


def _bases(node: fx.Node) -> list[fx.Node]:
    """The batch size or device that a symbol is or is computed from: a size is `scale(batch, ...)`, one step away."""
    if node.meta["symbol"] != "size":
        return [node]
    return [n for n in node.all_input_nodes if "symbol" in n.meta]


def parts_of(node: fx.Node) -> int | None:
    """Number of tensors that `split`, `chunk` or `unbind` returns, if it is known."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    if name not in ("split", "chunk", "unbind") or not node.args or not isinstance(node.args[0], fx.Node):
        return None
    spec = node.args[0].meta.get("spec")
    rest = list(node.args[1:])
    amount = (
        1 if name == "unbind" else (rest.pop(0) if rest else node.kwargs.get("chunks", node.kwargs.get("split_size")))
    )
    dim = rest[0] if rest else node.kwargs.get("dim", 0)
    if spec is None or not isinstance(dim, int) or (spec.batch and spec.batch[dim]) or any(spec.edges):
        return None
    if isinstance(amount, (list, tuple)):
        return len(amount)
    if not isinstance(amount, int):
        return None
    size = spec.shape[dim]
    width = -(-size // amount) if name == "chunk" else amount
    return -(-size // width) if width else None
