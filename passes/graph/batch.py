"""Free a recorded graph from the batch size it was recorded at.

Two recordings at two batch sizes must be the same graph but for integers; each integer that differs must be
c x batch + d. Those integers are then computed from the batch; everything else does not depend on it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.graph.calls import batch_of, device_of, scale


class Affine(NamedTuple):
    """An integer that is multiple x batch + offset, or of the number of edges of a graph."""

    multiple: int
    offset: int
    of: str = "batch"


class Different(Exception):
    """The two graphs are not the same program."""


def batch_size(tensors: list[torch.Tensor]) -> int | None:
    """The leading size of the first input that has one."""
    return next((int(t.shape[0]) for t in tensors if t.dim() > 0), None)


def resized(tensors: list[torch.Tensor], batch: int) -> list[torch.Tensor]:
    """The inputs at another batch size: rows are dropped or repeated; inputs without a batch stay."""
    now = batch_size(tensors)
    if now is None or now == batch or now == 0:
        return tensors
    return [t[torch.arange(batch) % now] if t.dim() > 0 and t.shape[0] == now else t for t in tensors]


def cropped(tensors: list[torch.Tensor], size: int) -> list[torch.Tensor]:
    """The inputs with images of at least twice this size cropped to it; `tensors` itself if there are none."""

    def is_image(t: torch.Tensor) -> bool:
        return t.dim() == 4 and t.is_floating_point() and min(t.shape[2:]) >= 2 * size

    if not any(map(is_image, tensors)):
        return tensors
    return [t[:, :, :size, :size].contiguous() if is_image(t) else t for t in tensors]


def same_graph(
    left: fx.Graph,
    right: fx.Graph,
    batches: tuple[int, int] | None = None,
    other_sizes: bool = False,
    sized: bool = True,
) -> dict[fx.Node, Any]:
    """Compare node for node. Returns, per node of `left`, the argument positions whose integers follow the batch.

    Raises `Different` with the first difference. Without `batches`, integers must agree. `other_sizes` says that the
    images have another size in `right`: shapes may differ in more than the batch, integers may not. `sized=False`
    leaves the specs of `left` as they are.
    """
    left_nodes, right_nodes = list(left.nodes), list(right.nodes)
    if len(left_nodes) != len(right_nodes):
        raise Different(f"{len(left_nodes)} nodes against {len(right_nodes)}")
    twin = dict(zip(left_nodes, right_nodes, strict=True))
    found: dict[fx.Node, Any] = {}
    specs: dict[fx.Node, TensorSpec | None] = {}
    for a, b in twin.items():
        if a.op != b.op or a.target != b.target:
            raise Different(f"{a.format_node()} against {b.format_node()}")
        pairs = ((a.args, b.args), (dict(a.kwargs), dict(b.kwargs)))
        found[a] = tuple(_match(x, y, twin, batches, other_sizes) for x, y in pairs)
        if batches and sized:
            specs[a] = _batch_spec(a.meta.get("spec"), b.meta.get("spec"), batches, other_sizes)
    for node, spec in specs.items():  # only now that all agree
        node.meta["spec"] = spec
    return found


def same_call(left: fx.Node, right: fx.Node, batches: tuple[int, int]) -> None:
    """Raise `Different` if no graph with `right` can be the one with `left` for images of another size."""
    if left.op != right.op or left.target != right.target:
        raise Different(f"{left.format_node()} against {right.format_node()}")
    for a, b in ((left.args, right.args), (dict(left.kwargs), dict(right.kwargs))):
        _match(a, b, None, batches, other_sizes=True)


def _match(
    a: Any, b: Any, twin: dict[fx.Node, fx.Node] | None, batches: tuple[int, int] | None, other_sizes: bool
) -> Any:
    """The structure of `a` with (c, d) where an integer follows the batch, and None elsewhere. Without `twin` any two
    nodes match."""
    if isinstance(a, fx.Node):
        if not isinstance(b, fx.Node) or (twin is not None and twin[a] is not b):
            raise Different(f"{a} is used where the other uses {b}")
        return None
    if type(a) is not type(b):
        raise Different(f"{a!r} against {b!r}")
    if isinstance(a, (tuple, list)):
        if len(a) != len(b):
            raise Different(f"{a!r} against {b!r}")
        return [_match(x, y, twin, batches, other_sizes) for x, y in zip(a, b, strict=True)]
    if isinstance(a, dict):
        if a.keys() != b.keys():
            raise Different(f"{a!r} against {b!r}")
        return {k: _match(v, b[k], twin, batches, other_sizes) for k, v in a.items()}
    if isinstance(a, slice):
        return [_match(getattr(a, k), getattr(b, k), twin, batches, other_sizes) for k in ("start", "stop", "step")]
    if a == b or (a != a and b != b):
        return None
    if batches is None or isinstance(a, bool) or not isinstance(a, int):
        raise Different(f"{a!r} against {b!r}")
    slope, offset, _ = _affine(a, b, batches)
    if other_sizes and offset:  # an image size, not the batch, may have made the difference
        raise Different(f"{a} at batch {batches[0]} and {b} at batch {batches[1]}")
    return Affine(slope, offset)


def _affine(a: int, b: int, batches: tuple[int, int]) -> Affine:
    slope, rest = divmod(a - b, batches[0] - batches[1])
    if rest or slope < 0:
        raise Different(f"{a} at batch {batches[0]} and {b} at batch {batches[1]}")
    return Affine(slope, a - slope * batches[0])


def _batch_spec(
    a: TensorSpec | None, b: TensorSpec | None, batches: tuple[int, int], other_sizes: bool
) -> TensorSpec | None:
    if a is None or b is None:
        return a
    if len(a.shape) != len(b.shape) or a.dtype != b.dtype:
        raise Different(f"{a} against {b}")
    multiples = []
    for x, y in zip(a.shape, b.shape, strict=True):
        if other_sizes:
            multiples.append(x // batches[0] if x != y and x * batches[1] == y * batches[0] else 0)
            continue
        slope, offset = (0, 0) if x == y else _affine(x, y, batches)[:2]
        if offset:
            raise Different(f"a size of {x} at batch {batches[0]} and {y} at batch {batches[1]}")
        multiples.append(slope)
    return a.with_batch(tuple(multiples))


def confirm(marks: dict[fx.Node, Any], graph: fx.Graph, batch: int, edges: int = 0) -> None:
    """Raise `Different` unless a recording at a third batch size has the integers that `marks` predict."""
    sizes = {"batch": batch, "edges": edges}
    nodes = list(graph.nodes)
    if len(nodes) != len(marks):
        raise Different(f"{len(marks)} nodes against {len(nodes)} at batch {batch}")
    for (left, (args, kwargs)), right in zip(marks.items(), nodes, strict=True):
        if left.op != right.op or left.target != right.target:
            raise Different(f"{left.format_node()} against {right.format_node()} at batch {batch}")
        _confirm(left.args, args, right.args, sizes)
        _confirm(dict(left.kwargs), kwargs, dict(right.kwargs), sizes)


def _confirm(value: Any, marks: Any, other: Any, sizes: dict[str, int]) -> None:
    if isinstance(marks, Affine):
        if other != marks.multiple * sizes[marks.of] + marks.offset:
            expected = f"{marks.multiple} x {marks.of} + {marks.offset}"
            raise Different(f"{other} at batch {sizes['batch']} where {expected} was expected")
    elif isinstance(marks, dict):
        for key, mark in marks.items():
            _confirm(value[key], mark, other[key], sizes)
    elif isinstance(marks, list):
        parts = [(v.start, v.stop, v.step) if isinstance(v, slice) else v for v in (value, other)]
        for mark, v, o in zip(marks, *parts, strict=True):
            _confirm(v, mark, o, sizes)
    elif not isinstance(value, fx.Node) and value != other and value == value:
        raise Different(f"{value!r} against {other!r} at batch {sizes['batch']}")


def follows(marks: Any) -> bool:
    """Whether any integer was found to follow the batch."""
    parts = marks.values() if isinstance(marks, dict) else marks if isinstance(marks, (list, tuple)) else ()
    return isinstance(marks, Affine) or any(map(follows, parts))


def follow_batch(graph: fx.Graph, found: dict[fx.Node, Any]) -> None:
    """Rewrite `graph` in place: integers found to follow the batch become nodes computed from an input's shape."""
    made: dict[Affine, fx.Node] = {}
    inputs = [n for n in graph.nodes if n.op == "placeholder"]

    def size(affine: Affine) -> fx.Node:
        if affine not in made:
            whole = Affine(1, 0, affine.of)
            batch = size(whole) if affine != whole else None
            after = list(made.values())[-1] if made else _last_placeholder(graph)
            with graph.inserting_after(after):
                if batch is None:
                    node = graph.call_function(batch_of, _told_by(inputs, affine.of))
                    node.meta.update(symbol(affine.of))
                else:
                    node = graph.call_function(scale, (batch, affine.multiple, affine.offset))
                    node.meta.update(symbol("size"))
            made[affine] = node
        return made[affine]

    for node, (args, kwargs) in found.items():
        node.args = _replace(node.args, args, size)
        node.kwargs = _replace(dict(node.kwargs), kwargs, size)


def _told_by(inputs: list[fx.Node], of: str) -> tuple[fx.Node, int, int]:
    """The first input that has a size, its dimension, and how many times it has it."""
    return next((n, d, c) for n in inputs for d, c in enumerate(n.meta["spec"].multiples(of)) if c > 0)


def _replace(value: Any, marks: Any, size: Any) -> Any:
    if marks is None:
        return value
    if isinstance(marks, Affine):
        return size(marks)
    if isinstance(value, dict):
        return {k: _replace(v, marks[k], size) for k, v in value.items()}
    if isinstance(value, slice):
        ends = (value.start, value.stop, value.step)
        return slice(*(_replace(v, m, size) for v, m in zip(ends, marks, strict=True)))
    parts = [_replace(v, m, size) for v, m in zip(value, marks, strict=True)]
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def follow_device(graph: fx.Graph, device: torch.device) -> None:
    """Rewrite `graph` in place: `device=x.device`, recorded as a constant, follows the inputs' device again."""
    first = next((n for n in graph.nodes if n.op == "placeholder"), None)
    nodes = [n for n in graph.nodes if device in n.args or device in n.kwargs.values()]
    if first is None or not nodes:
        return
    with graph.inserting_after(_last_placeholder(graph)):
        here = graph.call_function(device_of, (first,))
        here.meta.update(symbol("device"))
    for node in nodes:
        node.args = tuple(here if a == device and isinstance(a, torch.device) else a for a in node.args)
        node.kwargs = {k: here if isinstance(v, torch.device) and v == device else v for k, v in node.kwargs.items()}


def _last_placeholder(graph: fx.Graph) -> fx.Node:
    last: fx.Node = [n for n in graph.nodes if n.op == "placeholder"][-1]
    return last


def symbol(kind: str) -> dict[str, Any]:
    """Meta of a node that holds a number or a device, not a tensor: any stage can compute it from its inputs."""
    return {"symbol": kind, "spec": None, "storage": None, "path": "", "source": "", "flops": 0, "backward_flops": 0,
            "saved_bytes": 0, "random": False, "writes": (), "state_writes": (), "varies": True}  # fmt: skip
