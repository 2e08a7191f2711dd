"""Numbers that forward reads from its inputs alone, as `int(batch.max()) + 1` counts the graphs of a batch.

Such a number is a constant of the graph, and a first step, `as_read`, refuses inputs in which it is another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes

from lpcompile.passes.graph.calls import as_read

NUMBER_READS = {"item", "tolist", "__int__", "__float__", "__index__"}


def origin(node: fx.Node) -> list[fx.Node]:
    """The steps that make a value from inputs alone, in order, inputs first; empty if anything else is in it."""
    found: set[fx.Node] = set()
    pending = [node]
    while pending:
        value = pending.pop()
        if value not in found:
            found.add(value)
            pending += value.all_input_nodes
    written = {key for n in node.graph.nodes for key in n.meta.get("writes", ())}
    for value in found:
        if value.op not in ("placeholder", "call_function", "call_method") or value.meta.get("random"):
            return []
        if value.meta.get("writes") or value.meta.get("storage") in written:
            return []
    steps = [n for n in node.graph.nodes if n in found]
    return steps if any(n.op == "placeholder" for n in steps) else []


def value_of(steps: list[fx.Node], inputs: Mapping[str, torch.Tensor]) -> Any:
    """The value of the last of the steps, computed on real inputs."""
    values: dict[fx.Node, Any] = {}
    with _disable_current_modes(), torch.no_grad():
        for node in steps:
            args, kwargs = fx.map_arg((node.args, dict(node.kwargs)), values.__getitem__)
            if node.op == "placeholder":
                values[node] = inputs[str(node.target)]
            elif node.op == "call_method":
                values[node] = getattr(args[0], str(node.target))(*args[1:], **kwargs)
            else:
                values[node] = node.target(*args, **kwargs)  # type: ignore[operator]
    return values[steps[-1]]


def checked(
    func: Callable[..., Any], steps: list[fx.Node], inputs: Mapping[str, torch.Tensor], check: Callable[..., None]
) -> Any:
    """The number that forward reads; `check` appends the step that compares it at every call."""
    tensor = value_of(steps, inputs)
    with _disable_current_modes():
        number = func(tensor)
    check(as_read, steps[-1], number, ", ".join(str(n.target) for n in steps if n.op == "placeholder"))
    return number


def check_first(graph: fx.Graph) -> None:
    """Move the checks of such numbers before all layers: a call that is refused has then changed nothing."""
    last = next((n for n in reversed(graph.nodes) if n.op == "placeholder"), None)
    for check in checks(graph):
        moved = [n for n in _before(check) if last is None or n > last]
        for node in moved:
            if last is not None:
                last.append(node)
            last = node


def _before(check: fx.Node) -> list[fx.Node]:
    found, pending = {check}, [check]
    while pending:
        for value in pending.pop().all_input_nodes:
            if value not in found and value.op != "placeholder":
                found.add(value)
                pending.append(value)
    return [n for n in check.graph.nodes if n in found]


def checks(graph: fx.Graph) -> list[fx.Node]:
    return [n for n in graph.nodes if n.target is as_read]
