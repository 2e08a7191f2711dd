"""Recursive AuxNets: ReAuxNet_k maps the model's input to boundary k, through thinned stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import fx, nn

from lpcompile.passes.auxnet.derive import AuxNet, AuxRecord, aux_io
from lpcompile.passes.graph.module import submodule
from lpcompile.passes.split.split import StageIO, registered


def compose(parts: Sequence[AuxNet]) -> AuxNet:
    """AuxNets chained into one network, `aux(*inputs)`, on the parts' own modules.

    A part used in several ReAuxNets shares its weights between them. Parameters keep the model's names; only a layer
    that two stages share gets a second name.
    """
    graph = fx.Graph()
    wanted = sorted({i for part in parts for i in aux_io(part).inputs})
    inputs: dict[int, fx.Node] = {}
    for part in parts:
        io = aux_io(part)
        placeholders = [n for n in part._lp_graphs[True].nodes if n.op == "placeholder"]
        for i, node in zip(io.inputs, placeholders[len(io.lams) :], strict=True):
            if i not in inputs:
                inputs[i] = node
    made: dict[int, fx.Node] = {}
    for i in wanted:
        made[i] = graph.placeholder(str(inputs[i].target))
        made[i].meta = dict(inputs[i].meta)
    lam: list[fx.Node] = []
    state: dict[str, Any] = {}
    for j, part in enumerate(parts):
        own = _state(part)
        names = {t: t if state.get(t, v) is v else f"{t}_{j}" for t, v in own.items()}  # a layer that stages share
        state |= {names[t]: v for t, v in own.items()}
        lam = _inline(graph, part, lam, made, names)
    graph.output(lam[0] if len(lam) == 1 else tuple(lam))
    graph.lint()
    last = aux_io(parts[-1])
    io = StageIO((), tuple(wanted), last.boundary, ())
    whole = AuxNet({True: graph, False: graph}, f"Re{parts[-1]._lp_name}", _lp_io={True: io, False: io})
    whole._lp_fill(_Tree(parts), state)
    return whole


def _inline(
    graph: fx.Graph, part: AuxNet, lam: list[fx.Node], inputs: dict[int, fx.Node], names: dict[str, str]
) -> list[fx.Node]:
    io = aux_io(part)
    given = [*lam, *(inputs[i] for i in io.inputs)]
    copies: dict[fx.Node, fx.Node] = {}
    results: list[fx.Node] = []
    for node in part._lp_graphs[True].nodes:
        if node.op == "placeholder":
            copies[node] = given[len(copies)]
        elif node.op == "output":
            value = node.args[0]
            results = [copies[n] for n in (value if isinstance(value, (tuple, list)) else [value])]
        else:
            copies[node] = graph.node_copy(node, copies.__getitem__)
            copies[node].meta = dict(node.meta)
            if node.op in ("call_module", "get_attr"):
                copies[node].target = names[str(node.target)]
    return results


def _state(part: AuxNet) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for node in part._lp_graphs[True].nodes:
        if node.op == "call_module":
            found[str(node.target)] = submodule(part, str(node.target))
        elif node.op == "get_attr":
            found[str(node.target)] = registered(part, str(node.target))
    return found


class _Tree(nn.Module):
    """Looks up a submodule in whichever part has it: `_lp_fill` asks there whether a buffer is persistent."""

    def __init__(self, parts: Sequence[AuxNet]) -> None:
        super().__init__()
        self.parts = parts

    def get_submodule(self, target: str) -> nn.Module:
        for part in self.parts:
            try:
                return submodule(part, target)
            except AttributeError:
                continue
        raise AttributeError(target)


def record(parts: Sequence[AuxNet], kind: str, forward: float, backward: float) -> AuxRecord:
    """The parts' records merged."""
    records = [part.record for part in parts]
    return AuxRecord(
        kind,
        records[0].init,
        kept=tuple(n for r in records for n in r.kept),
        dropped=tuple(n for r in records for n in r.dropped),
        thinned=tuple(n for r in records for n in r.thinned),
        zeroed=tuple(sorted({n for r in records for n in r.zeroed})),
        split=tuple(n for r in records for n in r.split),
        forward_share=forward,
        backward_share=backward,
    )
