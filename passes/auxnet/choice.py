"""Which blocks of a stage its AuxNet keeps, and with how many channels, to stay within a budget."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from torch import fx, nn

from lpcompile.passes.auxnet import low_rank
from lpcompile.passes.auxnet.channels import ChannelSet, channel_sets
from lpcompile.passes.auxnet.drop_blocks import boundary_values, needed, rewrite, shortcuts, writers
from lpcompile.passes.auxnet.zeroing import zeroing
from lpcompile.passes.graph.module import submodule
from lpcompile.passes.graph.residual import Residual, residuals
from lpcompile.passes.split.split import Stage, stage_io

CHANNEL_SHARES = tuple(n / 32 for n in range(32, 1, -1))  # of a set's channels, widest first
MIN_UNSPENT = 0.08  # of the budget: less is not worth another block
ENOUGH_SPENT = 0.85  # of the budget: stop trying thinned blocks
MAX_EXTRA_BLOCKS = 4  # thinned blocks to try
BUDGET_TOLERANCE = 1e-9  # relative: half of two equal blocks is one of them, whatever the rounding
MAX_OVERRUN = 2.0  # budgets: a head that costs more after thinning is replaced by an adapter
MAX_SPLIT_COST = 0.8  # of a layer's cost, for the two thinner layers that replace it

Thinned = dict[str, tuple[int | None, int | None, int | None]]  # channels by layer: output, input, per-channel


@dataclass(frozen=True)
class Choice:
    """A graph without the dropped blocks, and the new sizes of its layers."""

    graph: fx.Graph
    dropped: tuple[Residual, ...]
    partial: tuple[Residual, ...]  # kept with fewer channels inside
    thinned: Thinned
    scales: dict[str, float]  # factor on a node's cost, by name; 1 if not listed
    cost: float
    blocks: tuple[Residual, ...] = ()  # all droppable blocks
    zeroed: tuple[str, ...] = ()  # parameters that must start at zero
    ranks: dict[str, int] = field(default_factory=dict)  # layers to be split in two, and the rank


class Chooser:
    """Prices choices for one stage: `costs` by node name, `limit` the most an AuxNet may cost."""

    def __init__(self, stage: Stage, graph: fx.Graph, costs: dict[str, float], limit: float, tied: bool) -> None:
        self.stage, self.graph, self.costs, self.limit = stage, graph, costs, limit
        self.values = boundary_values(graph, len(stage_io(stage, True).boundary))
        self.writing = writers(graph)
        self.shares = (1.0,) if tied else CHANNEL_SHARES

    def cost(self, dropped: Iterable[Residual]) -> float:
        """Cost of the stage without these blocks."""
        instead = shortcuts(self.graph, self.stage, dropped)
        running = needed(self.values, instead, self.writing)
        return sum(self.costs.get(n.name, 0.0) for n in self.graph.nodes if n in running)  # in order: same rounding

    def attempt(self, dropped: Sequence[Residual], thinnable: Sequence[Residual] | None) -> Choice:
        """The widest form within the limit, or else the thinnest. Channels are removed from the branches of
        `thinnable` only, or everywhere if it is None."""
        made = rewrite(self.graph, self.stage, self.values, dropped)
        sets = channel_sets(made, self.stage) if len(self.shares) > 1 else []
        if thinnable is not None:
            inside = {n.name for block in thinnable for n in block.inside}
            sets = [s for s in sets if all(n.name in inside for n in s.nodes)]
        for share in self.shares if sets else (1.0,):
            thinned, scales = _thin(sets, share)
            cost = sum(self.costs.get(n.name, 0.0) * scales.get(n.name, 1.0) for n in made.nodes)
            if cost <= self.limit:
                break
        partial = tuple(thinnable or ()) if thinned else ()
        return Choice(made, tuple(dropped), partial, thinned, scales, cost)

    def learns(self, choice: Choice) -> bool:
        """Whether any parameters are left. A layer that the model skips at random is held by a `get_attr`."""
        held: dict[str, object] = {**dict(self.stage.named_parameters()), **dict(self.stage.named_modules())}
        for node in choice.graph.nodes:
            owner = held.get(str(node.target)) if node.op in ("call_module", "get_attr") else None
            if isinstance(owner, nn.Parameter):
                return True
            if isinstance(owner, nn.Module) and next(owner.parameters(), None) is not None:
                return True
        return False


def choose(
    stage: Stage,
    graph: fx.Graph,
    costs: dict[str, float],
    budget: float,
    *,
    tied: bool,
    init: str,
    shared: Collection[int] = (),
    head: bool = False,
) -> Choice | None:
    """The blocks to keep within `budget`, a share of the stage's cost; None if the stage has no droppable block.

    `shared`: ids of parameters that other stages use too, which are never set to zero. `head`: thin also without
    blocks; None if the result is still far above the budget.
    """
    total = sum(costs.get(n.name, 0.0) for n in graph.nodes)
    chooser = Chooser(stage, graph, costs, budget * total * (1 + BUDGET_TOLERANCE), tied)
    blocks = [b for b in residuals(graph, stage) if _droppable(b, chooser.writing)]
    consistent = init == "consistent"
    zeros = {b: _own_zeros(b, graph, stage, shared) for b in blocks} if consistent else {}
    if consistent:
        blocks = [b for b in blocks if zeros[b] is not None]
    plain, changing = [b for b in blocks if b.keeps], [b for b in blocks if not b.keeps]
    if not blocks and not head:
        return None
    if chooser.cost(plain) <= chooser.limit:
        found = _deepest(chooser, plain)
    else:
        found = _thinnest(chooser, plain, changing, everywhere=not consistent)
    if not blocks and found.cost > MAX_OVERRUN * chooser.limit:
        return None
    if not chooser.learns(found):
        found = _one_block(chooser, found, blocks)
        found = found if consistent or tied else _split(chooser, found)
    gone = {name for b in (*found.dropped, *found.partial) for name in zeros.get(b) or ()}
    return replace(found, blocks=tuple(blocks), zeroed=tuple(sorted(gone)))


def _deepest(chooser: Chooser, plain: list[Residual]) -> Choice:
    """As many whole blocks as fit, evenly spread, and a thinned one for the rest of the budget."""
    groups = list(dict.fromkeys(b.group for b in plain))
    kept: list[str] = []
    for count in range(1, len(groups) + 1):
        wanted = even(groups, count)
        if chooser.cost([b for b in plain if b.group not in wanted]) > chooser.limit:
            break
        kept = wanted
    dropped = [b for b in plain if b.group not in kept]
    best = chooser.attempt(dropped, [])
    if not dropped or chooser.limit - best.cost <= MIN_UNSPENT * chooser.limit:
        return best
    for name in by_distance(groups, kept)[:MAX_EXTRA_BLOCKS]:
        extra = [b for b in dropped if b.group == name]
        for part in [extra, *([b] for b in extra)] if len(extra) > 1 else [extra]:
            tried = chooser.attempt([b for b in dropped if b not in part], part)
            if best.cost < tried.cost <= chooser.limit:
                best = tried
        if best.cost >= ENOUGH_SPENT * chooser.limit:
            break
    return best


def _thinnest(chooser: Chooser, plain: list[Residual], changing: list[Residual], everywhere: bool) -> Choice:
    """Without all shape-preserving blocks it is still too expensive: thin channels, then drop the other branches."""
    weigh = {b: sum(chooser.costs.get(n.name, 0.0) for n in b.inside) for b in changing}
    order = sorted(changing, key=lambda b: -weigh[b])
    for count in range(len(order) + 1):
        found = chooser.attempt([*plain, *order[:count]], None if everywhere else order[count:])
        if found.cost <= chooser.limit:
            break
    return _split(chooser, found) if everywhere and len(chooser.shares) > 1 else found


def _split(chooser: Chooser, found: Choice) -> Choice:
    """Still too expensive: split layers that write to the stream itself, such as a stem, into two thinner ones."""
    able = low_rank.candidates(found.graph, chooser.stage)
    able = {n: size for n, size in able.items() if str(n.target) not in found.thinned}
    best = found
    for share in [s for s in CHANNEL_SHARES if s <= 0.5] if found.cost > chooser.limit else ():
        ranks = {n: low_rank.rank(size, share) for n, size in able.items()}
        cheaper = {n: low_rank.scale(able[n], r) for n, r in ranks.items()}
        cheaper = {n: s for n, s in cheaper.items() if s < MAX_SPLIT_COST}
        saved = sum(chooser.costs.get(n.name, 0.0) * (1 - s) for n, s in cheaper.items())
        if saved:
            scales = found.scales | {n.name: s for n, s in cheaper.items()}
            names = {str(n.target): ranks[n] for n in cheaper}
            best = replace(found, scales=scales, ranks=names, cost=found.cost - saved)
        if best.cost <= chooser.limit:
            break
    return best


def _one_block(chooser: Chooser, found: Choice, blocks: list[Residual]) -> Choice:
    """Keep the cheapest block, as thin as possible, whatever the budget: something must learn."""
    tried = [chooser.attempt([b for b in found.dropped if b is not block], [block]) for block in blocks]
    able = [t for t in tried if chooser.learns(t)]
    return min(able, key=lambda t: t.cost) if able else found


def even(items: Sequence[str], count: int) -> list[str]:
    """`count` of the items, evenly spread."""
    return [items[int((i + 0.5) * len(items) / count)] for i in range(count)]


def by_distance(items: Sequence[str], taken: Sequence[str]) -> list[str]:
    """The items not taken, farthest from taken items and from the ends first."""
    at = [-1, *(i for i, item in enumerate(items) if item in taken), len(items)]
    free = [i for i in range(len(items)) if i not in at]
    return [items[i] for i in sorted(free, key=lambda i: -min(abs(i - j) for j in at))]


def _own_zeros(block: Residual, graph: fx.Graph, stage: Stage, shared: Collection[int]) -> tuple[str, ...] | None:
    """Parameters that silence the branch at zero; None if there are none, or if anything else uses them."""
    names = zeroing(block, stage)
    parameters = dict(stage.named_parameters(remove_duplicate=False))
    wanted = {id(parameters[name]) for name in names or ()}
    for node in graph.nodes:
        if node not in block.inside and node.op == "call_module":
            used = {id(p) for p in submodule(stage, str(node.target)).parameters()}
        else:
            used = {id(parameters.get(str(node.target)))} if node.op == "get_attr" else set()
            used = used if any(user not in block.inside for user in node.users) else set()
        if used & wanted:
            return None
    return names if not wanted & set(shared) else None


def _droppable(block: Residual, writing: dict[object, list[fx.Node]]) -> bool:
    """Whether nothing writes in place into the sum later: without the block it would write into the stream."""
    return not any(block.node < w for w in writing.get(block.node.meta.get("storage"), []))


def _thin(sets: list[ChannelSet], share: float) -> tuple[Thinned, dict[str, float]]:
    """New sizes of the layers in these sets, and the factors on their nodes' costs."""
    thinned: Thinned = {}
    scales: dict[str, float] = {}
    for group in sets:
        channels = group.thinned(share)
        if channels == group.channels:
            continue
        for place, nodes in enumerate((group.makers, group.takers, group.between)):
            for node in nodes:
                scales[node.name] = scales.get(node.name, 1.0) * channels / group.channels
                if node.op == "call_module":
                    now = list(thinned.get(str(node.target), (None, None, None)))
                    now[place] = channels
                    thinned[str(node.target)] = (now[0], now[1], now[2])
    return thinned, scales
