"""From a stage to the Python file that a person would have written for it.

>>> text = stage_source(stage, model, "Stage0", ["Stage 0 of 4 of ResNet"])

Requires: an fx graph module over layers under their own names (a `Stage` or an AuxNet). Ensures: a file of one class
for the stage and one for each kind of block in it, which imports torch, and what the model's own layers need, and
nothing else; `state_dict` has the stage's keys; calling it is bitwise calling the stage.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from typing import Any

from torch import nn

from lpcompile.passes.codegen.arguments import apart, class_arguments
from lpcompile.passes.codegen.calls import operation
from lpcompile.passes.codegen.format import LINE_WIDTH, indent, wrap
from lpcompile.passes.codegen.forward import ForwardMethod, ForwardWriter
from lpcompile.passes.codegen.init import Constructor, Instance, Slot, is_expression, make, own_tensors, slots
from lpcompile.passes.codegen.items import Contents, Item
from lpcompile.passes.codegen.leaf import leaf
from lpcompile.passes.codegen.loops import loop
from lpcompile.passes.codegen.modes import merge
from lpcompile.passes.codegen.names import RESERVED, camel, class_name, prose
from lpcompile.passes.codegen.tree import ModulePath, Part, View, access, build_tree, is_container
from lpcompile.passes.codegen.values import Names, Unprintable
from lpcompile.passes.graph.module import TwoModeModule

REBUILD = '''
def rebuild(kind, attributes=(), parameters=(), buffers=(), modules=(), frozen=(), transient=()):
    """A module of a class whose constructor is not run: its attributes, parameters and submodules are given."""
    module = kind.__new__(kind)
    nn.Module.__init__(module)
    for name, value in dict(attributes).items():
        object.__setattr__(module, name, value)
    for name, value in dict(parameters).items():
        module._parameters[name] = None if value is None else nn.Parameter(value, requires_grad=name not in frozen)
    module._buffers.update(buffers)
    module._modules.update(modules)
    module._non_persistent_buffers_set.update(transient)
    return module
'''.strip().splitlines()


def stage_source(stage: TwoModeModule, model: nn.Module | None, name: str, doc: list[str]) -> str:
    """The file for one stage. `model` lends the names of its classes; `doc` are the lines of the docstring."""
    return _File(stage, model, name, doc).text()


@dataclass
class Class:
    """A class of the file: units that share it, and what differs between them."""

    name: str
    units: list[Part]
    methods: dict[bool, ForwardMethod]
    arguments: dict[Slot, str]  # which slots are arguments of the constructor, under which name
    defaults: dict[str, Any]
    values: dict[ModulePath, dict[str, Any]]


class _File:
    def __init__(self, stage: TwoModeModule, model: nn.Module | None, name: str, doc: list[str]) -> None:
        self.names, self.name, self.doc = Names(), name, doc
        self.names.taken.add(name)
        graphs = stage._lp_graphs
        self.root = build_tree(stage, model)
        for part in self.root.walk():
            if not is_container(part):
                part.leaf = leaf(part.module, ".".join(part.path), self.names)
        self.views = {True: View(graphs[True], self.root)}
        self.views[False] = self.views[True] if graphs[False] is graphs[True] else View(graphs[False], self.root)
        self._import_functions()
        self.units: dict[ModulePath, Part] = {}
        self._choose_units()
        self.classes: list[Class] = []
        self.made: dict[ModulePath, Instance] = {}

    def _import_functions(self) -> None:
        """First, so that no variable takes the name of a function."""
        for view in self.views.values():
            for node in view.steps:
                step = operation(node, self.names)
                if step.op == "call_function":
                    try:
                        self.names.ref(getattr(step.target, "function", step.target))
                    except Unprintable:
                        continue  # an error where it is written, with its place

    # ---- units

    def _choose_units(self) -> None:
        for part in self.root.walk():
            if part.path and is_container(part):
                numbered = all(n.isdigit() for n in part.children) and part.children and not own_tensors(part)
                part.kind = ("list" if part.is_counted else "dict") if numbered else "plain"
                if any(part.path in v.spans for v in self.views.values()):
                    self.units[part.path] = part
        for part in self.root.walk():
            if part.path in self.units:
                self._settle(part)
            if part.kind == "list" and not all(is_expression(child) for child in part.children.values()):
                part.kind = "dict"  # its children take statements, and a list is made at once

    def _settle(self, part: Part) -> None:
        """A chain becomes a Sequential; a single step, or modes that are called differently, become no unit."""
        views = [v for v in dict.fromkeys(self.views.values()) if part.path in v.spans]
        if all(self._is_chain(part, v) for v in views):
            part.unit, part.kind = True, "sequential"
            return
        lengths = [v.spans[part.path][1] - v.spans[part.path][0] for v in views]
        interfaces = {(m.arguments, m.results) for m in (self._method(part, v) for v in views)}
        if max(lengths) < 2 or len(interfaces) > 1 or part.kind in ("list", "dict"):
            del self.units[part.path]
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
        return Contents(view, self.units, self.names)

    def _methods(self, part: Part) -> dict[bool, ForwardMethod]:
        found: dict[bool, ForwardMethod] = {}
        for mode, view in self.views.items():
            if part.path in view.spans:
                same = mode is False and view is self.views[True]
                found[mode] = found[True] if same else self._method(part, view)
        return found

    # ---- classes

    def _make_classes(self) -> None:
        """Units of the same make share a class; inner ones first, for outer ones name them."""
        todo = [p for p in self.root.walk() if p.path in self.units and p.kind != "sequential"]
        height = {p.path: self._height(p) for p in todo}
        for level in sorted(set(height.values())):
            groups: dict[Any, list[Part]] = {}
            methods = {}
            for part in [p for p in todo if height[p.path] == level]:
                methods[part.path] = self._methods(part)
                key = (part.original, _key(methods[part.path]), make(part, self.made))
                groups.setdefault(key, []).append(part)
            groups = apart(groups, self.made)
            often = sorted(groups.values(), key=lambda parts: (parts[0].cut, -len(parts)))
            names = {id(parts): self._class_name(parts[0], [g[0] for g in often[:i]]) for i, parts in enumerate(often)}
            for parts in groups.values():
                self._add_class(names[id(parts)], parts, methods[parts[0].path])

    def _height(self, part: Part) -> int:
        below = [p for p in part.walk() if p is not part and p.path in self.units and p.kind != "sequential"]
        return 1 + max((self._height(p) for p in below), default=0)

    def _class_name(self, part: Part, others: list[Part]) -> str:
        name = base = class_name(part.original)
        twins = [o for o in others if o.original == part.original]
        if twins and part.cut:
            at = min(v.spans[part.path][0] for v in self.views.values() if part.path in v.spans)
            name = base + ("Tail" if at < len(self.views[True].steps) / 2 else "Head")
        elif twins:  # say what it has that the other has not
            extra = [n for n in part.children if n not in twins[0].children and not n.isdigit()]
            name = base + (camel(extra[0]) if extra else "")
        count = 2
        while name in self.names.taken or name in RESERVED:
            name, count = f"{base}{count}", count + 1
        self.names.taken.add(name)
        return name

    def _add_class(self, name: str, parts: list[Part], methods: dict[bool, ForwardMethod]) -> None:
        values = [slots(part, self.made) for part in parts]
        arguments, defaults, vectors = class_arguments(parts, values)
        made = {}
        order = sorted(vectors, key=lambda n: n in defaults)
        for i, part in enumerate(parts):
            made[part.path] = {n: vectors[n][i] for n in order}
            self.made[part.path] = Instance(name, made[part.path], defaults)
        self.classes.append(Class(name, parts, methods, arguments, defaults, made))

    def _class_lines(self, found: Class) -> list[str]:
        constructor = _Shared(found, self.made, self.names)
        parameters = [n if n not in found.defaults else f"{n}={self.names.literal(found.defaults[n])}"
                      for n in next(iter(found.values.values()))]  # fmt: skip
        head = f"def __init__({', '.join(['self', *parameters])}):"
        body = constructor.write()
        self.names.use("nn")
        lines = [f"class {found.name}(nn.Module):", *indent([f'"""{_where(found.units)}"""', ""])]
        if body:
            lines += [*indent([head]), *indent(["super().__init__()", *body], 2), ""]
        return [*lines, *indent(self._forward(found.methods, found.units[0]))]

    def _forward(self, methods: dict[bool, ForwardMethod], part: Part) -> list[str]:
        bodies = {mode: self._loops(m, part) for mode, m in methods.items()}
        first = next(iter(methods.values()))
        if len(bodies) == 1 or methods[True].arguments == methods[False].arguments:
            body = merge(bodies[True], bodies[False]) if len(bodies) == 2 else next(iter(bodies.values()))
            return [f"def forward({', '.join(['self', *first.arguments])}):", *indent(body)]
        lines = ["def forward(self, *inputs):"]
        lines += indent(
            ["return self.forward_training(*inputs) if self.training else self.forward_evaluation(*inputs)"]
        )
        for mode, name in ((True, "training"), (False, "evaluation")):
            head = f"def forward_{name}({', '.join(['self', *methods[mode].arguments])}):"
            lines += ["", head, *indent(bodies[mode])]
        return lines

    def _loops(self, method: ForwardMethod, part: Part) -> list[str]:
        """Calls of all children of a list, one after another on the same variable, as a loop."""
        containers = {access(part, p.path[len(part.path) :]): p for p in part.walk() if p.kind in ("list", "dict")}
        lines = list(method.lines)
        for text, holder in containers.items():
            lines = loop(lines, text, holder)
        return lines

    # ---- the file

    def text(self) -> str:
        self._make_classes()
        methods = self._methods(self.root)
        constructor = Constructor(self.root, self.made, self.names, lambda slot, value: self.names.literal(value))
        body = constructor.write()
        self.names.use("nn")
        classes = [self._class_lines(c) for c in self.classes]
        doc = [f'"""{prose(self.doc[0])}', *map(prose, self.doc[1:])]
        doc = [f'{doc[0]}"""'] if len(doc) == 1 else [*doc, '"""']
        stage = [f"class {self.name}(nn.Module):", *indent([*doc, ""])]
        if body:
            stage += [*indent(["def __init__(self):"]), *indent(["super().__init__()", *body], 2), ""]
        stage += indent(self._forward(methods, self.root))
        used = "\n".join(line for block in (*classes, stage, *self.names.constants_lines()) for line in block)
        if self.names.helpers:
            used += "nn."
        blocks = [[f'"""{prose(self.doc[0])}"""', "", *_imports({i for i in self.names.lines if _is_used(i, used)})]]
        for constant in self.names.constants_lines():
            blocks[0] += ["", *constant]
        if self.names.helpers:
            blocks.append(REBUILD)
        blocks += [*classes, stage]
        lines = [part for block in blocks for line in (*block, "", "") for part in wrap(line)]
        return "\n".join(lines).rstrip() + "\n"


class _Shared(Constructor):
    """The constructor of a class that several units share: slots that differ are arguments."""

    def __init__(self, found: Class, made: dict[ModulePath, Instance], names: Names) -> None:
        self.found = found
        super().__init__(found.units[0], made, names, self._slot)

    def _slot(self, slot: Slot, value: Any) -> str:
        return self.found.arguments.get(slot) or self.names.literal(value)

    def extra(self, relative: ModulePath) -> dict[str, Any]:
        return {k: None for (path, k) in self.found.arguments if path == relative}


def _called(item: Item) -> ModulePath | None:
    """The path of what an item calls plainly, on one value and nothing else."""
    if item.unit is not None:
        return item.unit.path
    step = item.step
    if step is None or step.op != "call_module" or step.contexts or step.kwargs or len(step.args) != 1:
        return None
    return tuple(str(step.target).split(".")) if isinstance(step.target, str) else None


def _key(methods: dict[bool, ForwardMethod]) -> Any:
    return tuple(methods.items())


def _where(units: list[Part]) -> str:
    """`layer1.N for N = 0 ... 17`, or the names themselves."""
    paths = [".".join(u.path) for u in units]
    if len(paths) == 1:
        return prose(f"{paths[0]}{', in part' if units[0].cut else ''}.")
    columns = [list(dict.fromkeys(c)) for c in zip(*(u.path for u in units), strict=False)]
    free = [i for i, c in enumerate(columns) if len(c) > 1]
    if len({len(u.path) for u in units}) == 1 and len(free) == 1 and all(c.isdigit() for c in columns[free[0]]):
        numbers = columns[free[0]]
        steady = numbers == [str(int(numbers[0]) + i) for i in range(len(numbers))] and len(numbers) > 2
        shown = f"{numbers[0]} ... {numbers[-1]}" if steady else ", ".join(numbers)
        path = ".".join("N" if i == free[0] else c[0] for i, c in enumerate(columns))
        return prose(f"{path} for N = {shown}.")[:110]
    shown = ", ".join(paths) if len(", ".join(paths)) < 100 else f"{paths[0]} ... {paths[-1]}, {len(paths)} times"
    return prose(f"{shown}.")[:110]


def _is_used(line: str, text: str) -> bool:
    """Whether an import binds a name that the text uses."""
    name = line.split()[-1]
    dotted = name if line.startswith("import") and " as " not in line else name.split(".")[0]
    return re.search(rf"(?<![\w.]){re.escape(dotted)}(?!\w)", text) is not None


def _imports(lines: set[str]) -> list[str]:
    """Standard library, then packages; `import` before `from` in each, as isort does."""
    together: dict[str, list[str]] = {}
    for line in sorted(lines):
        head, _, name = line.partition(" import ") if line.startswith("from") else (line, "", "")
        together.setdefault(head, []).append(name)
    groups: tuple[list[str], list[str]] = ([], [])
    for head in sorted(together, key=lambda h: (h.startswith("from"), h.split()[1].lower(), h)):
        package = head.split()[1].split(".")[0]
        entries = ", ".join(sorted(together[head]))
        long = len(f"{head} import {entries}") > LINE_WIDTH
        text = (
            head
            if not head.startswith("from")
            else f"{head} import ({entries})"
            if long
            else f"{head} import {entries}"
        )
        groups[package not in sys.stdlib_module_names].append(text)
    return [*groups[0], *([""] if groups[0] and groups[1] else []), *groups[1]]
