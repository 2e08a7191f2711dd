"""Units: the steps between two neighbouring cuts, the planner's unit of work.

Many legal cuts differ by a negligible cost (before or after a ReLU). One of each such run is kept: fewest tensors
first, then the outermost module boundary, no in-place write right after it, and fewest bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import fx

from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.liveness import Liveness, liveness
from lpcompile.passes.split.cuts import Cut
from lpcompile.passes.split.split import common_depth

NEGLIGIBLE_SHARE = 1 / 2000  # of the model's forward and backward FLOPs


@dataclass(frozen=True)
class Unit:
    """Steps `first`..`last` of the training graph; `cut` ends it (None for the last unit)."""

    name: str
    first: int
    last: int
    cut: Cut | None


def units(captured: Captured, cuts: Sequence[Cut], every_shape: bool = False) -> list[Unit]:
    """Group the steps by the legal cuts among `cuts`, keeping one cut of each run of negligible cost; with
    `every_shape` one for each shape of tensors in it."""
    live = liveness(captured._lp_graphs[True], captured._lp.model)
    chosen = _representatives(live, [c for c in cuts if c.legal], every_shape)
    bounds = [(c.position, c) for c in chosen] + [(len(live.steps) - 1, None)]
    found: list[Unit] = []
    names: dict[str, int] = {}
    first = 0
    for last, cut in bounds:
        name = _name(live.steps[first : last + 1])
        names[name] = names.get(name, 0) + 1
        found.append(Unit(name if names[name] == 1 else f"{name}#{names[name]}", first, last, cut))
        first = last + 1
    return found


def _representatives(live: Liveness, legal: list[Cut], every_shape: bool = False) -> list[Cut]:
    """The best cut of each run, or of each shape in it."""
    cost = [n.meta["flops"] + n.meta["backward_flops"] for n in live.steps]
    limit = NEGLIGIBLE_SHARE * sum(cost)
    runs: list[list[Cut]] = []
    spent = 0.0
    for previous, cut in zip([None, *legal], legal, strict=False):
        spent += sum(cost[previous.position + 1 : cut.position + 1]) if previous else 0
        if not runs or spent > limit:
            runs.append([])
            spent = 0.0
        runs[-1].append(cut)
    if every_shape:
        runs = [[c for c in run if shapes(c) == one] for run in runs for one in dict.fromkeys(map(shapes, run))]
    return sorted((min(run, key=lambda c: _rank(live, c)) for run in runs), key=lambda c: c.position)


def shapes(cut: Cut) -> tuple[tuple[int, ...], ...]:
    """Of the tensors that cross it."""
    return tuple(tuple(spec.shape) for spec in cut.specs)


def _rank(live: Liveness, cut: Cut) -> tuple[float, ...]:
    """Lower is better; of equal cuts the last."""
    before, after = live.steps[cut.position], live.steps[cut.position + 1]
    crossing = {v.meta["storage"] for v in live.live[cut.position]}
    written_next = any(key in crossing for key in after.meta["writes"])
    return (cut.width, _depth(before, after), written_next, cut.nbytes, -cut.position)


def _depth(before: fx.Node, after: fx.Node) -> float:
    """Depth of a cut in the module tree, plus a half inside one module's own forward."""
    a, b = _enclosing(before), _enclosing(after)
    common = common_depth(a, b)
    return common + (0.5 if common == len(a) == len(b) and common else 0.0)


def _enclosing(node: fx.Node) -> list[str]:
    """Path of the module whose forward contains the node."""
    parts = str(node.meta["path"]).split(".") if node.meta["path"] else []
    return parts[:-1] if node.op == "call_module" else parts


def _name(steps: list[fx.Node]) -> str:
    """The innermost module with 80% of a unit's FLOPs."""
    weights: dict[tuple[str, ...], int] = {}
    for node in steps:
        path = tuple(str(node.meta["path"]).split("."))
        weights[path] = weights.get(path, 0) + node.meta["flops"] + 1
    total = sum(weights.values())
    prefix: tuple[str, ...] = ()
    while True:
        children: dict[tuple[str, ...], int] = {}
        for path, weight in weights.items():
            if path[: len(prefix)] == prefix and len(path) > len(prefix):
                child = path[: len(prefix) + 1]
                children[child] = children.get(child, 0) + weight
        best = max(children, key=lambda c: children[c], default=None)
        if best is None or best == ("",) or children[best] < 0.8 * total:
            return ".".join(prefix) or steps[-1].name
        prefix = best
