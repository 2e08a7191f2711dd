"""A stage whose ReLUs and sums run in place where that changes no result.

>>> lean = in_place(stage)          # the same layers, the same results bit for bit
>>> lean(lam)

The output of a convolution or a BatchNorm is fresh memory that their backward does not read. If one ReLU or one sum is
its only reader, the result may overwrite it, which saves an allocation and cache traffic: `F.relu(out)` and `out + x`
run like `inplace=True` and `out += x`. Unclear cases are left alone.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx, nn
from torch.nn.modules.batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from torch.nn.modules.conv import Conv1d, Conv2d, Conv3d

from lpcompile.passes.graph.module import HOOKS, submodule
from lpcompile.passes.split.split import Stage

FRESH = (Conv1d, Conv2d, Conv3d, BatchNorm1d, BatchNorm2d, BatchNorm3d)
RELUS = (F.relu, torch.relu, "relu")
SUMS = (operator.add, torch.add, "add")
REGISTRIES = ("_modules", "_parameters", "_buffers", "_non_persistent_buffers_set", *HOOKS)


def in_place(stage: Stage) -> Stage | None:
    """The stage in training mode, on the same layers; None if nothing can run in place."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    graph.output(graph.graph_copy(stage._lp_graphs[True], copies))
    written: set[fx.Node] = set()
    for node in graph.nodes:
        if _rewrite(node, stage, written):
            written.add(node)
    if not written:
        return None
    graph.lint()
    lean = Stage({True: graph, False: graph}, stage._lp_name, **stage._lp_notes)
    for kind in REGISTRIES:  # the same dicts: a layer replaced in the stage is replaced here
        lean.__dict__[kind] = stage.__dict__[kind]
    lean._lp_use_mode(True)
    return lean


def _rewrite(node: fx.Node, stage: Stage, written: set[fx.Node]) -> bool:
    """Make a ReLU or a sum of a fresh tensor in-place; returns whether it was one. `written`: nodes changed before."""
    first = node.args[0] if node.args else None
    if not isinstance(first, fx.Node) or not _is_fresh(first, stage, written):
        return False
    if _is_relu(node, stage):
        node.op, node.target, node.args, node.kwargs = "call_function", torch.relu_, node.args[:1], {}
        return True
    if _is_sum(node):
        node.op, node.target = "call_method", "add_"
        return True
    return False


def _is_fresh(value: fx.Node, stage: Stage, written: set[fx.Node]) -> bool:
    """Whether a tensor has its own memory, is not needed by its producer's backward, and is read once."""
    if sum(_count(user, value) for user in value.users) != 1:
        return False
    if value.op == "call_module":
        layer = submodule(stage, str(value.target))
        return type(layer) in FRESH and not any(getattr(layer, hooks) for hooks in HOOKS)
    return _is_sum(value) or (value in written and value.target == "add_")


def _count(user: fx.Node, value: fx.Node) -> int:
    """Number of times `user` reads `value`: x + x reads x twice."""
    found = 0

    def look(node: fx.Node) -> Any:
        nonlocal found
        found += node is value
        return node

    fx.map_arg((user.args, user.kwargs), look)
    return found


def _is_relu(node: fx.Node, stage: Stage) -> bool:
    if node.op == "call_module":
        layer = submodule(stage, str(node.target))
        return type(layer) is nn.ReLU and not any(getattr(layer, hooks) for hooks in HOOKS)
    return node.op in ("call_function", "call_method") and node.target in RELUS


def _is_sum(node: fx.Node) -> bool:
    """Whether a node adds two tensors of equal shape and dtype, without broadcasting."""
    if node.op not in ("call_function", "call_method") or node.target not in SUMS or node.kwargs or len(node.args) != 2:
        return False
    specs = [n.meta.get("spec") if isinstance(n, fx.Node) else None for n in (*node.args, node)]
    kinds = [(s.shape, s.dtype, s.batch) if s is not None else None for s in specs]
    return kinds[0] is not None and kinds[0] == kinds[1] == kinds[2]
