"""The units of a stage: containers whose steps become one method, of a class of their own.

A container whose steps lie side by side in the graph is a unit, with the values from outside as arguments. A unit that
is a plain chain of its children is written as `nn.Sequential`. The steps of any other container are written in the
unit around it.
"""

from __future__ import annotations

from lpcompile.passes.codegen.forward import ForwardMethod, ForwardWriter
from lpcompile.passes.codegen.init import is_expression, own_tensors
from lpcompile.passes.codegen.items import Contents, Item
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.tree import ModulePath, Part, View, is_container


class Units:
    """The units below `root`, by path; choosing them settles the `kind` of every container."""

    def __init__(self, root: Part, views: dict[bool, View], names: Names) -> None:
        self.root, self.views, self.names = root, views, names
        self.parts: dict[ModulePath, Part] = {}
        self._choose()

    def _choose(self) -> None:
        for part in self.root.walk():
            if part.path and is_container(part):
                numbered = all(n.isdigit() for n in part.children) and part.children and not own_tensors(part)
                part.kind = ("list" if part.is_counted else "dict") if numbered else "plain"
                if any(part.path in v.spans for v in self.views.values()):
                    self.parts[part.path] = part
        for part in self.root.walk():
            if part.path in self.parts:
                self._settle(part)
            if part.kind == "list" and not all(is_expression(child) for child in part.children.values()):
                part.kind = "dict"  # its children take statements, and a list is made at once

    def _settle(self, part: Part) -> None:
        """A chain becomes a Sequential; a single step, or modes with different arguments, become no unit."""
        views = [v for v in dict.fromkeys(self.views.values()) if part.path in v.spans]
        if all(self._is_chain(part, v) for v in views):
            part.unit, part.kind = True, "sequential"
            return
        lengths = [v.spans[part.path][1] - v.spans[part.path][0] for v in views]
        interfaces = {(m.arguments, m.results) for m in (self._method(part, v) for v in views)}
        if max(lengths) < 2 or len(interfaces) > 1 or part.kind in ("list", "dict"):
            del self.parts[part.path]
            return
        part.unit = True

    def _is_chain(self, part: Part, view: View) -> bool:
        inputs, outputs = view.interface(part.path)
        named = not all(n.isdigit() for n in part.children) and not part.sequential
        if len(inputs) != 1 or len(outputs) != 1 or own_tensors(part) or not part.children or named:
            return False
        contents = self._contents(view)
        items = contents.items(part.path)
        if len(items) != len(part.children) or contents.sizes(part.path, items):
            return False
        value = inputs[0]
        for item, child in zip(items, part.children.values(), strict=True):
            if item.inputs != [value] or len(item.outputs) != 1 or _called(item) != child.path:
                return False
            value = item.outputs[0]
        return value is outputs[0]

    def _method(self, part: Part, view: View) -> ForwardMethod:
        return ForwardWriter(self._contents(view), part).write()

    def _contents(self, view: View) -> Contents:
        return Contents(view, self.parts, self.names)

    def methods(self, part: Part) -> dict[bool, ForwardMethod]:
        found: dict[bool, ForwardMethod] = {}
        for mode, view in self.views.items():
            if part.path in view.spans:
                same = mode is False and view is self.views[True]
                found[mode] = found[True] if same else self._method(part, view)
        return found


def _called(item: Item) -> ModulePath | None:
    """The path of what an item calls plainly, on one value and nothing else."""
    if item.unit is not None:
        return item.unit.path
    step = item.step
    if step is None or step.op != "call_module" or step.contexts or step.kwargs or len(step.args) != 1:
        return None
    return tuple(str(step.target).split(".")) if isinstance(step.target, str) else None
