"""The modules of a stage as a tree of parts, and the steps of its graph by the container that made them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

from lpcompile.passes.codegen.leaf import Leaf
from lpcompile.passes.codegen.text.names import is_plain, quote

ModulePath = tuple[str, ...]


@dataclass
class Part:
    """A module of the stage: a layer (`leaf`) or a container of others."""

    path: ModulePath
    module: nn.Module
    original: str = "Module"  # the name of the user's class
    sequential: bool = False  # whether that is a kind of nn.Sequential
    cut: bool = False  # whether a part of the user's module lies in another stage
    leaf: Leaf | None = None
    children: dict[str, Part] = field(default_factory=dict)
    unit: bool = False  # whether it is one of `units.Units`
    kind: str = "plain"  # or "sequential", "list", "dict": the kind of container that is written

    @property
    def is_counted(self) -> bool:
        """Whether the children are named 0, 1, 2, ... in order."""
        return list(self.children) == [str(i) for i in range(len(self.children))]

    def at(self, path: ModulePath) -> Part | None:
        part: Part | None = self
        for name in path:
            part = part.children.get(name) if part is not None else None
        return part

    def walk(self) -> list[Part]:
        """This part and everything below it, children first."""
        return [p for child in self.children.values() for p in child.walk()] + [self]


def build_tree(module: nn.Module, model: nn.Module | None, path: ModulePath = ()) -> Part:
    """The tree below a stage; children in the order of the user's model."""
    twin = _submodule(model, path)
    part = Part(path, module, type(twin).__name__ if twin is not None else "Module")
    if path and type(module) is not nn.Module:
        part.original = type(module).__name__
        return part
    order = {name: i for i, name in enumerate(twin._modules)} if twin is not None else {}
    for name in sorted(module._modules, key=lambda n: order.get(n, len(order))):
        child = module._modules[name]
        if child is not None:
            part.children[name] = build_tree(child, model, (*path, name))
    part.sequential = isinstance(twin, nn.Sequential)
    part.cut = twin is not None and any(
        name not in part.children and next(child.parameters(), None) is not None
        for name, child in twin._modules.items()
        if child is not None
    )
    part.cut = part.cut or any(child.cut for child in part.children.values())
    return part


def _submodule(model: nn.Module | None, path: ModulePath) -> nn.Module | None:
    for name in path:
        model = model._modules.get(name) if model is not None else None
    return model


def is_container(part: Part) -> bool:
    return not part.path or type(part.module) is nn.Module


def access(root: Part, path: ModulePath) -> str:
    """`self.layer1[0].conv1` for a path below the part at `root`."""
    text, module = "self", root.module
    part: Part | None = root
    for i, name in enumerate(path):
        kind = part.kind if part is not None else "plain"
        last = i == len(path) - 1
        if part is not None and kind in ("list", "sequential") and name.isdigit() and part.is_counted:
            text += f"[{name}]"
        elif kind == "dict":
            text += f"[{quote(name)}]"
        elif is_plain(name):
            text += f".{name}"
        elif last and name in module._parameters:
            text += f"._parameters[{quote(name)}]"
        elif last and name in module._buffers:
            text += f"._buffers[{quote(name)}]"
        else:
            text += f"._modules[{quote(name)}]"
        part = part.children.get(name) if part is not None else None
        module = module._modules.get(name, module)  # type: ignore[assignment]
    return text


class View:
    """One graph of a stage: its steps in order, and the interval of steps of each container."""

    def __init__(self, graph: fx.Graph, root: Part) -> None:
        self.root = root
        self.arguments = [n for n in graph.nodes if n.op == "placeholder"]
        self.steps = [n for n in graph.nodes if n.op not in ("placeholder", "output", "get_attr")
                      and "symbol" not in n.meta]  # fmt: skip
        result = next(n for n in graph.nodes if n.op == "output").args[0]
        self.results: list[fx.Node] = list(result) if isinstance(result, (tuple, list)) else [result]
        self.single = not isinstance(result, (tuple, list))
        self.owners = [self._owner(n) for n in self.steps]
        self.spans: dict[ModulePath, tuple[int, int]] = self._spans()
        self.spans[()] = (0, len(self.steps))
        self._interfaces: dict[ModulePath, tuple[list[fx.Node], list[fx.Node]]] = {}
        self.handed: dict[ModulePath, list[fx.Node]] = {}  # sizes that a unit takes as arguments (cache)

    def _owner(self, node: fx.Node) -> ModulePath:
        """The innermost container whose forward made this step."""
        path = node.meta.get("path", "")
        names = tuple(path.split(".")) if path else ()
        found: ModulePath = ()
        part = self.root
        for name in names:
            child = part.children.get(name)
            if child is None or not is_container(child):
                break
            part, found = child, (*found, name)
        return found

    def _spans(self) -> dict[ModulePath, tuple[int, int]]:
        """For each container, the longest run of its steps."""
        spans: dict[ModulePath, tuple[int, int]] = {}
        open_runs: dict[ModulePath, int] = {}

        def close(path: ModulePath, end: int) -> None:
            start = open_runs.pop(path)
            if path not in spans or end - start > spans[path][1] - spans[path][0]:
                spans[path] = (start, end)

        for i, owner in enumerate([*self.owners, ()]):
            current = {owner[:n] for n in range(1, len(owner) + 1)}
            for path in [p for p in open_runs if p not in current]:
                close(path, i)
            for path in current:
                open_runs.setdefault(path, i)
        for path in list(open_runs):
            close(path, len(self.steps))
        return spans

    def interface(self, path: ModulePath) -> tuple[list[fx.Node], list[fx.Node]]:
        """Values from outside that the steps of a unit use, and values of theirs that are used outside."""
        if path not in self._interfaces:
            self._interfaces[path] = self._interface(path)
        return self._interfaces[path]

    def _interface(self, path: ModulePath) -> tuple[list[fx.Node], list[fx.Node]]:
        start, end = self.spans[path]
        inside = set(self.steps[start:end])
        inputs: dict[fx.Node, None] = {}
        outputs = []
        for node in self.steps[start:end]:
            for value in node.all_input_nodes:
                if value not in inside and not self.is_own(value, path) and "symbol" not in value.meta:
                    inputs.setdefault(value)
            if node in self.results or any(u not in inside and u.op != "output" for u in node.users):
                outputs.append(node)
        return sorted(inputs, key=lambda n: not is_stream(n)), outputs

    @staticmethod
    def is_own(node: fx.Node, path: ModulePath) -> bool:
        """Whether a node reads state of the module at `path` or below."""
        return node.op == "get_attr" and tuple(str(node.target).split("."))[: len(path)] == path


def is_stream(node: fx.Node) -> bool:
    """Whether a value is an activation, not a mask, an index or a parameter."""
    spec = node.meta.get("spec")
    return spec is not None and bool(spec.is_float) and node.op != "get_attr"


def nodes_in(value: Any) -> list[fx.Node]:
    """Every occurrence of a node in an argument, in order."""
    found: list[fx.Node] = []
    fx.map_arg(value, lambda node: found.append(node))
    return found
