"""Cuts of the training graph with their counterparts in the evaluation graph, where the two graphs differ."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from lpcompile.passes.graph.calls import switch
from lpcompile.passes.graph.liveness import Liveness

if TYPE_CHECKING:
    from lpcompile.passes.split.cuts import Cut

Uses = Mapping[str, Sequence[int]]  # steps that use each parameter and buffer
Mode = tuple["list[Cut]", Liveness, Uses]  # all positions of the graph of a mode


def in_both_modes(train: Mode, evaluate: Mode) -> list[Cut]:
    """The positions of the training graph; those without a legal counterpart become illegal."""
    positions, others = train[0], evaluate[0]
    paired = []
    # The same function may stand on different lines for the two modes, or be called more often before in one of them.
    for lines, last in itertools.product((True, False), (False, True)):
        train_roles, eval_roles = _roles(train[1], lines, last), _roles(evaluate[1], lines, last)
        by_roles: dict[tuple[object, ...], Cut] = {}
        for cut in others:
            by_roles.setdefault(tuple(eval_roles[name] for name in cut.values), cut)
        found = [_pair(cut, by_roles.get(tuple(train_roles[name] for name in cut.values))) for cut in positions]
        paired.append(_in_order(found))
    best = max(paired, key=lambda found: sum(c.legal for c in found))
    if all(now.legal for cut, now in zip(positions, best, strict=True) if cut.legal):
        return best
    return _in_order(_paired_by_layers(best, train, evaluate))


def _paired_by_layers(found: list[Cut], train: Mode, evaluate: Mode) -> list[Cut]:
    """Give a cut without a counterpart the last one in evaluation with the same layers on both sides and tensors of
    the same shapes: what is done with the result of a layer may differ (it is scaled in training alone)."""
    spans, other_spans = ({name: (min(s), max(s)) for name, s in mode[2].items()} for mode in (train, evaluate))
    alike = {_divides(cut, other_spans): cut for cut in evaluate[0] if cut.legal}
    filled = []
    for cut, now in zip(train[0], found, strict=True):
        other = alike.get(_divides(cut, spans)) if cut.legal and not now.legal else None
        filled.append(now if other is None else replace(cut, eval_position=other.position))
    return filled


def _divides(cut: Cut, spans: Mapping[str, tuple[int, int]]) -> tuple[object, ...]:
    """The parameters and buffers that are used before a cut and after it, and the shapes of what crosses."""
    before = frozenset(name for name, (first, _) in spans.items() if first <= cut.position)
    after = frozenset(name for name, (_, last) in spans.items() if last > cut.position)
    return before, after, tuple((spec.shape, spec.dtype) for spec in cut.specs)


def _in_order(paired: list[Cut]) -> list[Cut]:
    """Cuts whose counterparts in the evaluation graph come in the same order; the others are illegal."""
    found, last = [], -1
    for cut in paired:
        if cut.legal and cut.eval_position <= last:
            cut = replace(cut, reason="the evaluation graph has it in another order")
        last = cut.eval_position if cut.legal else last
        found.append(cut)
    return found


def _pair(cut: Cut, other: Cut | None) -> Cut:
    """A cut of the training graph with its counterpart in the evaluation graph."""
    if not cut.legal:
        return cut
    if other is None:
        return replace(cut, reason="the evaluation graph has no such position")
    if not other.legal:
        return replace(cut, reason=f"in evaluation, {other.reason}")
    return replace(cut, eval_position=other.position)


def _roles(live: Liveness, lines: bool, last: bool) -> dict[str, tuple[object, ...]]:
    """Identifies nodes across the two graphs, whose names are numbered differently: the n-th such call of a module, or
    the n-th `last`.

    With `lines`, functions are told apart by their source line too: dropout may add functions in training.
    """
    found: dict[str, tuple[object, ...]] = {}
    times: Counter[tuple[object, ...]] = Counter()
    for node in reversed(live.steps) if last else live.steps:
        if node.meta.get("other_arm"):  # of the two branches of a draw, one is counted
            found[node.name] = ("other arm", node.name)
            continue
        skippable = node.target is switch  # evaluation calls the layer itself
        op, target = node.meta.get("unswitched", (node.op, node.target))
        role: tuple[object, ...] = (op, node.meta["path"], str(target))
        role = (*role, node.meta["source"]) if lines and node.op != "call_module" else role
        role = ("call_module", node.meta["path"], node.meta["path"]) if skippable else role
        times[role] += 1
        found[node.name] = (*role, times[role])
    return found
