"""The residual blocks of a stage: where a branch is added back to the stream.

>>> for block in residuals(stage._lp_graphs[True], stage):
...     print(block.group, block.keeps)

Dropping a block replaces the sum by its shortcut. A sum of two tensors of one shape is a residual block if both come
from the same activation.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx, nn

from lpcompile.passes.graph.calls import Switched, switch
from lpcompile.passes.graph.module import submodule

ADDS = {operator.add, operator.iadd, torch.add, "add", "add_", "__add__", "__iadd__"}
# Layers of torch.nn that are residual blocks, with their norms in order (which follow the sums unless norm_first).
BLOCK_LAYERS: dict[type[nn.Module], tuple[str, ...]] = {
    nn.TransformerEncoderLayer: ("norm1", "norm2"),
    nn.TransformerDecoderLayer: ("norm1", "norm2", "norm3"),
}


@dataclass(frozen=True)
class Residual:
    """`node` is `shortcut` + `branch`. A block that is one layer of torch.nn has itself as its branch."""

    node: fx.Node
    shortcut: fx.Node
    branch: fx.Node
    inside: frozenset[fx.Node]  # nodes that only the branch needs
    keeps: bool  # the shortcut is the stream itself, not a projection of it
    group: str  # the module it belongs to: attention and MLP of one transformer block are one group
    norms: tuple[str, ...] = ()  # norms that stay if a block layer is dropped


def residuals(graph: fx.Graph, modules: nn.Module) -> list[Residual]:
    """The residual blocks in program order, without those nested in another one's branch."""
    import networkx as nx

    makes: nx.DiGraph[fx.Node] = nx.DiGraph()
    makes.add_nodes_from(graph.nodes)
    makes.add_edges_from((source, node) for node in graph.nodes for source in node.all_input_nodes)
    activations = {n for n in graph.nodes if n.op != "get_attr" and _look(n) is not None}
    found = []
    for node in graph.nodes:
        block = _layer(node, modules) if node.op == "call_module" else _skippable(node)
        if block is None and _is_sum(node):
            sides = {side: {side, *nx.ancestors(makes, side)} for side in node.args}
            block = _sum(node, sides, activations, modules)
        if block is not None:
            found.append(block)
    return _numbered(_outermost(found))


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two different activations of one shape."""
    if node.target not in ADDS or len(node.args) != 2 or node.kwargs:
        return False
    left, right = node.args
    if not isinstance(left, fx.Node) or not isinstance(right, fx.Node) or left is right:
        return False
    return _look(node) is not None and _look(left) == _look(node) == _look(right)


def _sum(
    node: fx.Node, sides: dict[fx.Node, set[fx.Node]], activations: set[fx.Node], modules: nn.Module
) -> Residual | None:
    """The residual block that ends in the sum `node`; `sides` maps each operand to itself and its ancestors."""
    left, right = sides
    common = sides[left] & sides[right] & activations
    if not common:
        return None
    alone = {left: sides[left] - sides[right], right: sides[right] - sides[left]}
    # The shortcut is the side that is the stream. Where both changed it, the shorter way; not the cheaper one: a
    # projection can cost more than a thin bottleneck.
    streams = {side: _is_stream(side, common, modules) for side in alone}
    depth = {side: (sum(_flops(n) > 0 for n in alone[side]), sum(map(_flops, alone[side]))) for side in alone}
    order = {side: (not streams[side], *depth[side]) for side in alone}
    shortcut, branch = (left, right) if order[left] <= order[right] else (right, left)
    if not depth[branch][1] or streams[branch]:
        return None
    path = str(node.meta.get("path") or "")
    return Residual(node, shortcut, branch, frozenset(alone[branch]), streams[shortcut], _group(path) or node.name)


def _is_stream(node: fx.Node, common: set[fx.Node], modules: nn.Module) -> bool:
    """Whether a value is a common ancestor of both sides, passed on unchanged or with something added to it."""
    if node in common:
        return True
    if node.target in ADDS and len(node.args) == 2:
        return any(
            isinstance(a, fx.Node) and _look(a) == _look(node) and _is_stream(a, common, modules) for a in node.args
        )
    source = node.args[0] if node.args else None
    same = isinstance(source, fx.Node) and _look(source) == _look(node) and len(node.all_input_nodes) == 1
    handed_on = node.op == "call_module" and not _has_parameters(node, modules)
    return same and handed_on and _is_stream(source, common, modules)  # type: ignore[arg-type]


def _layer(node: fx.Node, modules: nn.Module) -> Residual | None:
    layer = submodule(modules, str(node.target))
    norms = next((n for kind, n in BLOCK_LAYERS.items() if isinstance(layer, kind)), None)
    stream = node.args[0] if node.args else None
    if norms is None or not isinstance(stream, fx.Node) or _look(stream) != _look(node):
        return None
    after = () if getattr(layer, "norm_first", False) else norms
    return Residual(node, stream, node, frozenset([node]), True, str(node.target), after)


def _skippable(node: fx.Node) -> Residual | None:
    """A layer that the model itself skips at random: the value that then stands for its result is the shortcut."""
    call = node.args[0] if node.target is operator.getitem else node
    if not isinstance(call, fx.Node) or (call.target is not switch and not isinstance(call.target, Switched)):
        return None
    otherwise: Any = call.args[2]
    if call is not node:
        index = node.args[1]
        held = isinstance(otherwise, (tuple, list)) and isinstance(index, int) and index < len(otherwise)
        otherwise = otherwise[index] if held else None
    if not isinstance(otherwise, fx.Node) or _look(node) is None or _look(otherwise) != _look(node):
        return None
    part = call.meta.get("part") or str(call.meta["path"])
    inside = frozenset({node, call, *(n for n in node.graph.nodes if n.meta.get("part") == part)})
    return Residual(node, otherwise, node, inside, True, part)


def _outermost(found: list[Residual]) -> list[Residual]:
    """Drop sums inside another block's branch, and skips over several blocks (which are not blocks)."""
    inner = {block: [b for b in found if b is not block and b.node in block.inside] for block in found}
    blocks = [b for b in found if len({i.group for i in inner[b]} - {b.group}) < 2]
    nested = {i for b in blocks for i in inner[b]}
    return [b for b in blocks if b not in nested]


def _numbered(found: list[Residual]) -> list[Residual]:
    """Number the runs of a module that runs several times (ALBERT has one layer for all): each is a block."""
    sites: dict[str, set[tuple[str, str]]] = {}
    times: dict[str, int] = {}
    numbered = []
    for block in found:
        site = (str(block.node.meta.get("path")), str(block.node.meta.get("source")))
        if site in sites.get(block.group, ()):
            times[block.group] = times.get(block.group, 1) + 1
            sites[block.group] = set()
        sites.setdefault(block.group, set()).add(site)
        time = times.get(block.group, 1)
        numbered.append(block if time == 1 else replace(block, group=f"{block.group}#{time}"))
    return numbered


def _group(path: str) -> str:
    """A module path up to its last part with a digit: `encoder.layer.3` for `encoder.layer.3.attention.output`."""
    parts = path.split(".")
    last = max((i for i, part in enumerate(parts) if any(c.isdigit() for c in part)), default=len(parts) - 1)
    return ".".join(parts[: last + 1])


def _look(node: fx.Node) -> Any:
    spec = node.meta.get("spec")
    return None if spec is None or not spec.is_float else (spec.shape, spec.batch, spec.dtype)


def _flops(node: fx.Node) -> int:
    return int(node.meta.get("flops", 0)) + int(node.meta.get("backward_flops", 0)) if node.op != "placeholder" else 0


def _has_parameters(node: fx.Node, modules: nn.Module) -> bool:
    if node.op == "call_module":
        return next(submodule(modules, str(node.target)).parameters(), None) is not None
    return node.op == "get_attr"
