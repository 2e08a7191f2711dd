"""The graph of an AuxNet: a stage's graph without its dropped blocks, without dropout, and without in-place writes."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.dropout import _DropoutNd

from lpcompile.passes.graph.calls import Switched, plain_call, switch
from lpcompile.passes.graph.module import forward_of, submodule
from lpcompile.passes.graph.residual import Residual

DROPOUTS = set("dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout".split())
DROPOUTS |= {"dropout_", "stochastic_depth", "drop_path"}
IDEMPOTENT = (nn.ReLU, nn.ReLU6)
OPERATORS = {getattr(operator, f"i{name}"): getattr(operator, name) for name in
             ("add", "sub", "mul", "truediv", "floordiv", "pow", "and_", "or_", "xor", "matmul")
             if hasattr(operator, f"i{name}")}  # fmt: skip


def boundary_values(graph: fx.Graph, count: int) -> list[fx.Node]:
    """The values a stage sends to the next one: the first `count` of its results."""
    result = next(n for n in graph.nodes if n.op == "output").args[0]
    values = list(result) if isinstance(result, (tuple, list)) else [result]
    return values[:count]


def shortcuts(graph: fx.Graph, modules: nn.Module, dropped: Iterable[Residual]) -> dict[fx.Node, fx.Node]:
    """Replacements by node: the shortcut for a dropped sum, the input for dropout, the inner ReLU for a ReLU of it."""
    instead: dict[fx.Node, fx.Node] = {block.node: block.shortcut for block in dropped}
    for node in graph.nodes:
        if node in instead:
            continue
        if _is_dropout(node, modules):
            instead[node] = node.args[0]
        elif kind := _idempotent(node, modules):
            source = follow(node.args[0], instead)
            before = _before_pooling(source, instead, modules)
            if _idempotent(before, modules) == kind:
                instead[node] = source
    return instead


def _before_pooling(node: fx.Node, instead: Mapping[fx.Node, fx.Node], modules: nn.Module) -> fx.Node:
    """The input of a chain of max-poolings: ReLU and max-pooling commute."""
    while node.op == "call_module" and isinstance(submodule(modules, str(node.target)), nn.MaxPool2d):
        node = follow(node.args[0], instead)  # type: ignore[arg-type]
    return node


def follow(node: fx.Node, instead: Mapping[fx.Node, fx.Node]) -> fx.Node:
    """The node that a node is finally replaced by."""
    while node in instead:
        node = instead[node]
    return node


def writers(graph: fx.Graph) -> dict[Any, list[fx.Node]]:
    """Nodes whose in-place writes cannot be avoided, by the storage they write into."""
    found: dict[Any, list[fx.Node]] = {}
    for node in graph.nodes:
        if node.meta.get("writes") and not is_convertible(node, graph):
            for key in node.meta["writes"]:
                found.setdefault(key, []).append(node)
    return found


def needed(
    values: Iterable[fx.Node],
    instead: Mapping[fx.Node, fx.Node],
    writing: Mapping[Any, list[fx.Node]],
    sources: Callable[[fx.Node], Iterable[fx.Node]] = lambda node: node.all_input_nodes,
) -> set[fx.Node]:
    """The nodes that still run: those that the values depend on, by data flow or by writes into their storage."""
    # By hand: it runs for every choice of blocks, each a graph of its own, which networkx takes four times as long to
    # build and search (0.66 against 0.16 ms on the tails of DenseNet-121).
    found: set[fx.Node] = set()
    pending = [follow(v, instead) for v in values]
    while pending:
        node = pending.pop()
        if node not in found:
            found.add(node)
            pending += [follow(n, instead) for n in sources(node)]
            pending += writing.get(node.meta.get("storage"), [])
    return found


def rewrite(
    graph: fx.Graph,
    modules: nn.Module,
    values: list[fx.Node],
    dropped: Iterable[Residual],
    replace: Mapping[fx.Node, tuple[fx.Node, Callable[[fx.Graph, fx.Node], fx.Node]]] | None = None,
) -> fx.Graph:
    """The stage's graph cut down to `values`, without the `dropped` blocks. `replace` maps a node to the source and the
    builder of its replacement (adapters)."""
    dropped = list(dropped)
    instead = shortcuts(graph, modules, dropped)
    norms = {b.node: b for b in dropped if b.norms}
    for node in norms:
        del instead[node]
    replace = replace or {}
    made = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}

    def get(node: fx.Node) -> fx.Node:
        return copies[follow(node, instead)]

    def sources(node: fx.Node) -> Iterable[fx.Node]:
        if node in norms:
            return [norms[node].shortcut]
        if _is_switched(node):  # an AuxNet does not draw: it runs the layer
            return [n for n in node.all_input_nodes if n is not node.args[0]]
        return [replace[node][0]] if node in replace else node.all_input_nodes

    keep = needed(values, instead, writers(graph), sources)
    for node in graph.nodes:
        if node.op == "placeholder" or (node in keep and node.op != "output"):
            if node in replace:
                source, make = replace[node]
                copies[node] = make(made, get(source))
                copies[node].meta = {**node.meta, "path": copies[node].meta["path"], "writes": ()}
            elif node in norms:
                copies[node] = _norm_chain(made, norms[node], get(norms[node].shortcut))
            else:
                copies[node] = _copy(made, node, get, graph)
    results = tuple(get(v) for v in values)
    made.output(results[0] if len(results) == 1 else results)
    made.lint()
    return made


def _norm_chain(graph: fx.Graph, block: Residual, value: fx.Node) -> fx.Node:
    for norm in block.norms:
        target = f"{block.node.target}.{norm}"
        value = graph.create_node("call_module", target, (value,))
        value.meta = {**block.node.meta, "path": target, "flops": 0, "backward_flops": 0}
    return value


def _is_switched(node: fx.Node) -> bool:
    return node.target is switch or isinstance(node.target, Switched)


def _copy(graph: fx.Graph, node: fx.Node, get: Callable[[fx.Node], fx.Node], source: fx.Graph) -> fx.Node:
    if _is_switched(node):
        target, rest = plain_call(node)
        arguments, keywords = fx.map_arg((rest, dict(node.kwargs)), get)
        copied = graph.call_function(target, tuple(arguments), keywords)
    else:
        copied = graph.node_copy(node, get)
    copied.meta = dict(node.meta)
    if node.op == "call_function" and "dropout_p" in node.kwargs:  # scaled_dot_product_attention
        copied.kwargs = {**copied.kwargs, "dropout_p": 0.0}
    if node.meta.get("writes") and is_convertible(node, source):
        _out_of_place(copied)
        copied.meta["writes"] = ()
    return copied


def is_convertible(node: fx.Node, graph: fx.Graph) -> bool:
    """Whether an in-place write can create a new tensor instead: neither the old one nor a view is read again."""
    keys = set(node.meta.get("writes", ()))
    twin = node.op == "call_module" or _twin(node) is not None
    later, seen = False, True
    for other in graph.nodes:
        if other is node:
            later = True
        elif later:
            seen = seen and not any(
                n is not node and n.meta.get("storage") in keys and n < node for n in other.all_input_nodes
            )
    return twin and seen


def _twin(node: fx.Node) -> tuple[Any, dict[str, Any]] | None:
    """The out-of-place call that computes the same, with its keyword arguments."""
    if node.op == "call_function" and node.target in OPERATORS:
        return OPERATORS[node.target], dict(node.kwargs)
    if node.op == "call_method" and str(node.target).endswith("_") and not str(node.target).endswith("__"):
        name = str(node.target)[:-1]
        return (name, dict(node.kwargs)) if hasattr(torch.Tensor, name) else None
    if node.op == "call_function":
        try:
            names = list(inspect.signature(node.target).parameters)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None
        if "inplace" in names and names.index("inplace") >= len(node.args):
            return node.target, {**node.kwargs, "inplace": False}
    return None


def _out_of_place(node: fx.Node) -> None:
    if node.op != "call_module" and (twin := _twin(node)) is not None:
        node.target, node.kwargs = twin


def _is_dropout(node: fx.Node, modules: nn.Module) -> bool:
    """Dropout, stochastic depth and identities, which an AuxNet leaves out. Hand-written ones are recognised as layers
    without state that read `self.training` and keep the shape."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return False
    if node.op == "call_module":
        layer = submodule(modules, str(node.target))
        if isinstance(layer, (_DropoutNd, nn.Identity)):
            return True
        code = getattr(forward_of(layer), "__code__", None)
        own = not type(layer).__module__.startswith("torch.nn.")
        empty = next(layer.parameters(), None) is None and next(layer.buffers(), None) is None
        same = node.meta.get("spec") is not None and node.meta.get("spec") == node.args[0].meta.get("spec")
        return own and empty and same and code is not None and "training" in code.co_names
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    return node.op in ("call_function", "call_method") and name in DROPOUTS


def _idempotent(node: fx.Node, modules: nn.Module) -> str | None:
    """Either "relu" or "relu6" for such an activation, else None."""
    if not node.args or not isinstance(node.args[0], fx.Node):
        return None
    if node.op == "call_module":
        layer = submodule(modules, str(node.target))
        return next((k.__name__.lower() for k in IDEMPOTENT if type(layer) is k), None)
    if node.op in ("call_function", "call_method"):
        name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
        return name.rstrip("_") if name.rstrip("_") in ("relu", "relu6") else None
    return None
