"""The Python file of a stage or an AuxNet, as a person would write it.

>>> text = stage_source(stage, model, "Stage0", ["Stage 0 of 4 of ResNet"])

Requires: an fx graph module over layers under their own names (a `Stage` or an AuxNet). Ensures: one class for the
stage and one for each kind of block in it; imports of torch and of the packages that the layers come from, nothing
else; the `state_dict` keys of the stage; results that are bitwise those of the stage.
"""

from __future__ import annotations

import contextlib
import inspect
import re
import sys

from torch import nn

from lpcompile.passes.codegen.calls import operation
from lpcompile.passes.codegen.classes import Classes, SharedConstructor, UnitClass
from lpcompile.passes.codegen.forward import ForwardMethod
from lpcompile.passes.codegen.init import Constructor
from lpcompile.passes.codegen.leaf import leaf
from lpcompile.passes.codegen.loops import loop
from lpcompile.passes.codegen.modes import merge
from lpcompile.passes.codegen.text.format import LINE_WIDTH, indent, wrap
from lpcompile.passes.codegen.text.names import prose
from lpcompile.passes.codegen.text.values import Names, Unprintable
from lpcompile.passes.codegen.tree import Part, View, access, build_tree, is_container
from lpcompile.passes.codegen.units import Units
from lpcompile.passes.graph.calls import as_read, as_recorded, chosen, structure_of
from lpcompile.passes.graph.drawn_calls import as_drawn
from lpcompile.passes.graph.module import TwoModeModule

REBUILD_HELPER = '''
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

# A stage's file stands alone, so it takes the functions along; the error is ours only in lpcompile.
CHECK_HELPER = "\n\n".join(
    inspect.getsource(f).replace(": Any", "").replace(") -> Any", ")").replace("InputError", "ValueError")
    for f in (structure_of, as_recorded)
).strip().splitlines()  # fmt: skip
CHOSEN_HELPER = (
    re.sub(r"(: (Any|int|Callable\[\.\.\., Any\])| -> torch\.Tensor)", "", inspect.getsource(chosen))
    .replace("InputError", "ValueError")
    .strip()
    .splitlines()
)
DRAWN_HELPER = (
    re.sub(r": (Any|int)| -> Any", "", inspect.getsource(as_drawn))
    .replace("InputError", "ValueError")
    .strip()
    .splitlines()
)
READ_HELPER = (
    re.sub(r": (Any|str)| -> None", "", inspect.getsource(as_read))
    .replace("InputError", "ValueError")
    .strip()
    .splitlines()
)
HELPERS = {"as_read": READ_HELPER, "rebuild": REBUILD_HELPER, "as_recorded": CHECK_HELPER, "chosen": CHOSEN_HELPER,
           "as_drawn": DRAWN_HELPER}  # fmt: skip


OWN = (as_read, as_recorded, as_drawn)  # steps that the file has itself


def stage_source(stage: TwoModeModule, model: nn.Module | None, name: str, doc: list[str]) -> str:
    """The file for one stage. `model` lends the names of its classes; `doc` are the lines of the docstring."""
    return _File(stage, model, name, doc).text()


class _File:
    """One stage on its way to text."""

    def __init__(self, stage: TwoModeModule, model: nn.Module | None, name: str, doc: list[str]) -> None:
        self.names, self.name, self.doc = Names(), name, doc
        self.names.taken.add(name)
        graphs = stage._lp_graphs
        self.root = build_tree(stage, model)
        for part in self.root.walk():
            if not is_container(part):
                part.leaf = leaf(part.module, ".".join(part.path), self.names)
        views = {True: View(graphs[True], self.root)}
        views[False] = views[True] if graphs[False] is graphs[True] else View(graphs[False], self.root)
        _import_functions(views, self.names)
        self.units = Units(self.root, views, self.names)
        self.classes = Classes(self.units)

    def text(self) -> str:
        stage = self._stage_lines()
        classes = [self._class_lines(c) for c in self.classes.found]
        constants = self.names.constants_lines()
        used = "\n".join(line for block in (*classes, stage, *constants) for line in block)
        used += "nn. torch. numpy." if self.names.helpers else ""
        head = [f'"""{prose(self.doc[0])}"""', "", *_imports({i for i in self.names.lines if _is_used(i, used)})]
        head += [line for constant in constants for line in ("", *constant)]
        blocks = [head, *(lines for name, lines in HELPERS.items() if name in self.names.helpers), *classes, stage]
        lines = [part for block in blocks for line in (*block, "", "") for part in wrap(line)]
        return "\n".join(lines).rstrip() + "\n"

    def _stage_lines(self) -> list[str]:
        methods = self.units.methods(self.root)
        instances = self.classes.instances
        body = Constructor(self.root, instances, self.names, lambda slot, value: self.names.literal(value)).write()
        self.names.use("nn")
        doc = [f'"""{prose(self.doc[0])}', *map(prose, self.doc[1:])]
        doc = [f'{doc[0]}"""'] if len(doc) == 1 else [*doc, '"""']
        lines = [f"class {self.name}(nn.Module):", *indent([*doc, ""])]
        if body:
            lines += [*indent(["def __init__(self):"]), *indent(["super().__init__()", *body], 2), ""]
        return [*lines, *indent(_forward(methods, self.root))]

    def _class_lines(self, found: UnitClass) -> list[str]:
        parameters = [n if n not in found.defaults else f"{n}={self.names.literal(found.defaults[n])}"
                      for n in found.parameters]  # fmt: skip
        head = f"def __init__({', '.join(['self', *parameters])}):"
        body = SharedConstructor(found, self.classes.instances, self.names).write()
        self.names.use("nn")
        lines = [f"class {found.name}(nn.Module):", *indent([f'"""{found.where()}"""', ""])]
        if body:
            lines += [*indent([head]), *indent(["super().__init__()", *body], 2), ""]
        return [*lines, *indent(_forward(found.methods, found.units[0]))]


def _import_functions(views: dict[bool, View], names: Names) -> None:
    """Import the functions that the steps call before anything is named, so that no variable hides one."""
    for view in views.values():
        for node in view.steps:
            step = operation(node, names)
            if step.op == "call_function" and step.target not in (
                as_read,
                as_recorded,
                as_drawn,
            ):  # the file has its own
                with contextlib.suppress(Unprintable):  # the error is raised where the step is written, with its place
                    names.ref(getattr(step.target, "function", step.target))


def _forward(methods: dict[bool, ForwardMethod], part: Part) -> list[str]:
    """`forward`, or one method for each mode if their arguments differ."""
    bodies = {mode: _loops(m, part) for mode, m in methods.items()}
    first = next(iter(methods.values()))
    if len(bodies) == 1 or methods[True].arguments == methods[False].arguments:
        body = merge(bodies[True], bodies[False]) if len(bodies) == 2 else next(iter(bodies.values()))
        return [f"def forward({', '.join(['self', *first.arguments])}):", *indent(body)]
    lines = ["def forward(self, *inputs):"]
    lines += indent(["return self.forward_training(*inputs) if self.training else self.forward_evaluation(*inputs)"])
    for mode, name in ((True, "training"), (False, "evaluation")):
        head = f"def forward_{name}({', '.join(['self', *methods[mode].arguments])}):"
        lines += ["", head, *indent(bodies[mode])]
    return lines


def _loops(method: ForwardMethod, part: Part) -> list[str]:
    """Calls of all children of a list, one after another on the same variable, as a loop."""
    containers = {access(part, p.path[len(part.path) :]): p for p in part.walk() if p.kind in ("list", "dict")}
    lines = list(method.lines)
    for text, holder in containers.items():
        lines = loop(lines, text, holder)
    return lines


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
        text = head
        if head.startswith("from"):
            fits = len(f"{head} import {entries}") <= LINE_WIDTH
            text = f"{head} import {entries}" if fits else f"{head} import ({entries})"
        groups[package not in sys.stdlib_module_names].append(text)
    return [*groups[0], *([""] if groups[0] and groups[1] else []), *groups[1]]
