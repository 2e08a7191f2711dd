"""Every position of the graph, whether the model may be cut there, and if not, why.

>>> for cut in cuts(captured):
...     print(cut)
after layer1.0.relu_1: float32[B, 64, 56, 56]
after layer1.1.conv1: no: 2 tensors are live (layer1_0_relu_1, layer1_1_conv1)
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from torch import fx, nn

from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import UsageError
from lpcompile.passes.capture.captured import Captured
from lpcompile.passes.graph.calls import Switched, read_attribute, switch
from lpcompile.passes.graph.liveness import Liveness, liveness
from lpcompile.passes.split.both_modes import in_both_modes

MAX_INTEGERS = 2  # integer tensors beside the floats of a boundary


@dataclass(frozen=True)
class Cut:
    """A position between two steps. `reason` says why it is illegal; it is empty for a legal cut."""

    position: int  # the last step before the cut
    after: str
    path: str
    source: str
    values: tuple[str, ...]
    specs: tuple[TensorSpec, ...]
    reason: str = ""
    eval_position: int = -1  # the same cut in the evaluation graph

    @property
    def legal(self) -> bool:
        return not self.reason

    @property
    def width(self) -> int:
        return len(self.values)

    @property
    def nbytes(self) -> int:
        return sum(s.nbytes for s in self.specs)

    def __str__(self) -> str:
        what = f"no: {self.reason}" if self.reason else ", ".join(map(str, self.specs))
        return f"after {self.path or self.after}: {what}"


def cuts(captured: Captured, *, max_width: int = 1, tied: str = "replicate") -> list[Cut]:
    """All positions of the training graph in order. Boundaries of more than one tensor need `max_width`.

    `tied="together"` forbids cuts between two uses of one parameter; by default both sides hold it and the runtime
    sums its gradients.
    """
    if tied not in ("replicate", "together"):
        raise UsageError(f"tied={tied!r} is not 'replicate' or 'together'")
    graphs, model = captured._lp_graphs, captured._lp.model
    train = _positions(liveness(graphs[True], model), model, max_width, tied)
    if graphs[False] is graphs[True]:
        return [replace(c, eval_position=c.position) for c in train]
    evaluate = liveness(graphs[False], model)
    training = liveness(graphs[True], model)
    others = _positions(evaluate, model, max_width, tied)
    return in_both_modes(
        (train, training, state_uses(training, model)), (others, evaluate, state_uses(evaluate, model))
    )


def _positions(live: Liveness, model: nn.Module, max_width: int, tied: str) -> list[Cut]:
    forbidden = _Forbidden(live, model, tied)
    found = []
    for position, node in enumerate(live.steps[:-1]):
        values = live.live[position]
        reason = _illegal(values, max_width) or forbidden.at(position, values)
        tensors = [v for v in values if v.meta["spec"] is not None]
        found.append(
            Cut(
                position,
                node.name,
                node.meta["path"],
                node.meta["source"],
                tuple(v.name for v in values),
                tuple(v.meta["spec"] for v in tensors),
                reason,
            )
        )
    return found


def _illegal(values: list[fx.Node], max_width: int) -> str:
    if not values:
        return "nothing that must be carried crosses here"
    for value in values:
        spec = value.meta["spec"]
        if spec is None:
            return f"{made_at(value)} is not a tensor yet"
        if (value.target is switch or isinstance(value.target, Switched)) and value.args[2] is None:
            return f"{made_at(value)} lies inside a part that is skipped at random"
    for value in values:
        if any(value.meta["spec"].edges):
            return f"{made_at(value)} has a size that the number of nodes does not tell"
    floats = [v for v in values if v.meta["spec"].is_float]  # integers (drawn time steps, indices) ride beside them
    if not floats:
        return f"{made_at(values[0])} is {values[0].meta['spec']}: a boundary needs a float tensor"
    if not any(v.meta["spec"].requires_grad for v in floats):
        return "no gradient flows across"
    if len(floats) > max_width or len(values) - len(floats) > MAX_INTEGERS:
        return f"{len(values)} tensors are live ({', '.join(v.name for v in values[:6])})"
    return ""


def kind_of(reason: str) -> str:
    """A reason without the names in brackets, to count those that are alike."""
    return re.sub(r" \([^()]*\)", "", reason)


def made_at(value: fx.Node) -> str:
    """A value by the line of the user's code that made it."""
    path, source = value.meta["path"], value.meta["source"]
    if ":" not in source:
        return str(value.name)
    return f"the value of {source}" + (f" (module {path})" if path else "")


class _Forbidden:
    """Positions ruled out by state or memory that both sides share."""

    def __init__(self, live: Liveness, model: nn.Module, tied: str) -> None:
        self.live = live
        self.ranges: list[tuple[int, int, str]] = []  # first <= position < last is forbidden
        uses = state_uses(live, model)
        written = {name for node in live.steps for name in node.meta["state_writes"]}
        for name, steps in uses.items():
            if name in written:
                self._span(steps, f"buffer {name} is updated on one side and used on the other")
            elif tied == "together" and name in live.parameters:
                self._span(steps, f"parameter {name} is used on both sides and tied='together'")
        trained = [i for name in uses if name in live.parameters for i in uses[name]]
        first, last = (min(trained), max(trained)) if trained else (len(live.steps), -1)
        self.ranges += [(0, first, "no parameter comes before"), (last, len(live.steps), "no parameter comes after")]
        for node in live.steps:
            if node.target is read_attribute and node.args[0] in live.index:
                reason = f"{node.args[2]} of {node.meta['path']} is read where that module has run"
                self._span([live.index[node.args[0]], live.index[node]], reason)
        self._shared_memory()

    def _span(self, steps: Iterable[int], reason: str) -> None:
        self.ranges.append((min(steps), max(steps), reason))

    def _shared_memory(self) -> None:
        """Collect in-place writes and aliases: a write after a cut must not change memory held before it."""
        live = self.live
        self.late_writes: dict[int, int] = {}
        for key, writers in live.writers.items():
            steps = [live.index[w] for w in writers if w in live.index]
            if steps:
                self.late_writes[key] = max(steps)
        for node in live.graph.nodes:
            key = node.meta.get("storage")
            if node.op == "placeholder" and key in self.late_writes:
                users = [live.index[u] for n in live.graph.nodes if n.meta.get("storage") == key
                         for u in n.users if u in live.index]  # fmt: skip
                first = min(live.index[w] for w in live.writers[key] if w in live.index)
                self._span([first, *users], f"input {node.name} is changed in place")
        self.emitted: dict[int | None, int] = {}
        for n in live.outputs:
            if n in live.index:
                storage = n.meta.get("storage")
                self.emitted[storage] = min(live.index[n], self.emitted.get(storage, live.index[n]))
        self.aliases: dict[int | None, int] = {}  # aliases of each storage: the tensor itself and its views
        for n in live.graph.nodes:
            storage = n.meta.get("storage")
            self.aliases[storage] = self.aliases.get(storage, 0) + (storage not in n.meta.get("writes", ()))

    def at(self, position: int, values: list[fx.Node]) -> str:
        """Why the position is forbidden, or an empty string."""
        for first, last, reason in self.ranges:
            if first <= position < last:
                return reason
        storages = [v.meta["storage"] for v in values]
        for value, key in zip(values, storages, strict=True):
            if self.late_writes.get(key, -1) > position:
                if storages.count(key) > 1:
                    return f"{value.name} is changed in place after the cut while another live tensor shares its memory"
                if self.aliases[key] > 1 or value.meta["is_view"]:
                    return f"{value.name} is or has a view, and is changed in place after the cut"
                if self.emitted.get(key, position + 1) <= position:
                    return f"{value.name} is an output and is changed in place after the cut"
        return ""


def state_uses(live: Liveness, model: nn.Module) -> dict[str, list[int]]:
    """Steps that use each parameter and buffer, by canonical name: tied parameters are one."""
    canonical: dict[int, str] = {}
    for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
        canonical.setdefault(id(tensor), name)
    uses: dict[str, list[int]] = {}
    sharing: dict[int | None, list[fx.Node]] = {}  # nodes by the memory of their results
    for node in live.graph.nodes:
        sharing.setdefault(node.meta.get("storage"), []).append(node)
    for node in live.graph.nodes:
        if node.op == "call_module":
            module = model.get_submodule(str(node.target))
            names = {canonical[id(t)] for t in [*module.parameters(), *module.buffers()]}
            steps = [live.index[node]]
        elif node.op == "get_attr":
            owner = _attribute(model, str(node.target))
            tensors = [*owner.parameters(), *owner.buffers()] if isinstance(owner, nn.Module) else [owner]
            names = {canonical[id(t)] for t in tensors if id(t) in canonical}
            storage = node.meta.get("storage")
            aliases = [node] if storage is None else sharing[storage]  # in-place writes return one
            steps = [live.index[u] for n in aliases for u in (n, *n.users) if u in live.index]
        else:
            continue
        for name in names:
            uses.setdefault(name, []).extend(steps)
    return {name: steps for name, steps in uses.items() if steps}


def _attribute(model: nn.Module, target: str) -> object:
    value: object = model
    for part in target.split("."):
        value = getattr(value, part, None)
    return value
