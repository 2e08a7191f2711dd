"""What a random branch does in either outcome, learnt from recordings with different outcomes.

Two recordings, `full` and `bare`, take one outcome everywhere each. After each read of a drawn value, what both end
with is common, and what each begins with is its arm; an empty arm skips. Further recordings mix outcomes and tell which
value stands for a result of an arm that was not taken.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import fx

from lpcompile.passes.capture.switches import Branches, NotASwitch, segments

MOST_ROUNDS = 5
STATE = ("placeholder", "get_attr")
Site = tuple[fx.Node, int]  # an argument of a step, by its place


@dataclass(frozen=True)
class Ends:
    """Recordings with one outcome everywhere each, and their steps after each read; the first part is before all."""

    full: fx.Graph
    bare: fx.Graph
    branches: Branches  # of `full`
    other: Branches  # of `bare`
    parts: list[list[fx.Node]]
    rest: list[list[fx.Node]]
    arms: list[tuple[int, int]]  # steps of each part that are its arm, in `full` and in `bare`

    @property
    def two_sided(self) -> bool:
        return any(bare for _, bare in self.arms)

    def skippable(self) -> list[list[fx.Node]]:
        """The steps after each read that are left out in the other outcome, where that has none of its own."""
        return [part[:a] if not b else [] for part, (a, b) in zip(self.parts[1:], self.arms[1:], strict=True)]

    def armed(self) -> list[int]:
        """The reads after which the outcomes differ."""
        return [k for k, arms in enumerate(self.arms, -1) if arms != (0, 0)]


def ends(full: tuple[fx.Graph, Branches], bare: tuple[fx.Graph, Branches], lines: bool) -> Ends:
    """`lines`: a step is common to both outcomes only if the same source line makes it."""
    if len(full[1].flags) != len(bare[1].flags):
        raise NotASwitch("the number of draws depends on what was drawn")
    parts, rest = segments(*full), segments(*bare)
    arms = []
    for mine, theirs in zip(parts, rest, strict=True):
        common = _common(mine, theirs, lines)
        arms.append((len(mine) - common, len(theirs) - common))
    if arms[0] != (0, 0):
        raise NotASwitch("the outcomes differ before the first draw")
    return Ends(full[0], bare[0], full[1], bare[1], parts, rest, arms)


def _common(mine: list[fx.Node], theirs: list[fx.Node], lines: bool) -> int:
    count = 0
    for a, b in zip(reversed(mine), reversed(theirs), strict=False):
        if not _alike(a, b) or (lines and any(a.meta[key] != b.meta[key] for key in ("source", "path"))):
            break
        count += 1
    return count


def _alike(a: fx.Node, b: fx.Node) -> bool:
    return a.op == b.op and a.target == b.target and _constants(a) == _constants(b)


def _constants(node: fx.Node) -> str:
    return str(fx.map_arg((node.args, node.kwargs), lambda n: None))


def nodes_of(node: fx.Node) -> list[fx.Node]:
    found: list[fx.Node] = []
    fx.map_arg((node.args, node.kwargs), lambda n: found.append(n))
    return found


class Merger:
    """Steps are those of `full`, and those of the arms of `bare`."""

    def __init__(self, ends: Ends) -> None:
        self.ends = ends
        self.instead: dict[fx.Node, fx.Node] = {}  # the value of a step whose arm is not taken
        self.starts: dict[
            Site, fx.Node
        ] = {}  # what a step takes, where its own outcome leaves a value that the other changes
        self.arm: dict[fx.Node, tuple[int, bool]] = {}  # the read of a step in an arm, and whether it is one of `bare`
        for k, (mine, theirs, (a, b)) in enumerate(zip(ends.parts, ends.rest, ends.arms, strict=True), -1):
            self.arm.update(dict.fromkeys(mine[:a], (k, False)) | dict.fromkeys(theirs[:b], (k, True)))
        self.state = {str(n.target): n for n in ends.full.nodes if n.op in STATE}
        for node in (n for n in ends.bare.nodes if n.op in STATE):  # an arm of `bare` may read tensors of its own
            self.state.setdefault(str(node.target), node)
        self.bares = self._steps(ends.bare, ends.rest, set(ends.armed()))

    def _steps(self, graph: fx.Graph, parts: list[list[fx.Node]], skipped: set[int]) -> dict[fx.Node, fx.Node]:
        """The step that each node of another recording is."""
        ends = self.ends
        if len(parts) != len(ends.parts):
            raise NotASwitch("the number of draws differs")
        twin: dict[fx.Node, fx.Node] = {}
        for node in graph.nodes:
            if node.op in STATE and str(node.target) not in self.state:
                raise NotASwitch("it reads other tensors")
            if node.op in STATE:
                twin[node] = self.state[str(node.target)]
            elif node.op == "output":
                twin[node] = next(n for n in reversed(ends.full.nodes) if n.op == "output")
        for k, part in enumerate(parts, -1):
            mine, theirs, (a, b) = ends.parts[k + 1], ends.rest[k + 1], ends.arms[k + 1]
            steps = [*theirs[:b], *mine[a:]] if k in skipped else mine
            if len(part) != len(steps):
                raise NotASwitch("what is done depends on other draws")
            twin.update(zip(part, steps, strict=True))
        return twin

    def learn(self, recordings: list[tuple[fx.Graph, Branches, set[int]]]) -> None:
        """Align recordings that take the outcome of `bare` after some reads, until each agrees with what all tell."""
        for _ in range(MOST_ROUNDS):
            known = dict(self.instead), dict(self.starts)
            for other, branches, skipped in recordings:
                self._align(other, branches, skipped)
            if known == (self.instead, self.starts):
                return
        raise NotASwitch("what stands for a skipped value depends on other draws")

    def _align(self, other: fx.Graph, branches: Branches, skipped: set[int]) -> None:
        twin = self._steps(other, segments(other, branches), skipped)
        for node, step in twin.items():
            if node.op in STATE:
                continue
            if not _alike(step, node):
                raise NotASwitch(f"{step.format_node()} against {node.format_node()}")
            own = [self.bares[n] for n in nodes_of(step)] if self._is_bare(step) else nodes_of(step)
            found = [twin[n] for n in nodes_of(node)]
            for place, (expected, value) in enumerate(zip(own, found, strict=True)):
                self._match((step, place), expected, value, skipped)

    def _is_bare(self, step: fx.Node) -> bool:
        return step in self.arm and self.arm[step][1]

    def _match(self, site: Site, expected: fx.Node, value: fx.Node, skipped: set[int]) -> None:
        """Let the step take `value` in this recording. What stands for a value is made before it."""
        chain: list[fx.Node] = []  # values that are not made in this recording, the latest first
        step = self.starts.get(site, expected)
        while step is not value and not self._is_taken(step, skipped) and step in self.instead:
            chain.append(step)
            step = self.instead[step]
        if step is value:
            return
        if not self._is_taken(step, skipped) and self._read(value) <= self._read(step):
            self.instead[step] = value
            return
        later = [s for s in chain if self._read(s) > self._read(value)]
        below = [*chain, step][len(later)]
        if not self._is_taken(value, skipped) or self._read(below) >= self._read(value):
            raise NotASwitch(f"{step} is used where another outcome uses {value}")
        self.instead.setdefault(value, below)  # the arm of one outcome makes it, that of the other nothing
        if later:
            self.instead[later[-1]] = value
        else:
            self.starts[site] = value

    def _read(self, step: fx.Node) -> int:
        """The read in whose arm a step is; of all others, one before all reads."""
        return self.arm[step][0] if step in self.arm else -1

    def _is_taken(self, step: fx.Node, skipped: set[int]) -> bool:
        if step not in self.arm:
            return True
        read, bare = self.arm[step]
        return (read in skipped) == bare

    def learned(self, outcome: bool) -> Learned:
        """The steps of `full` run where the flag is `outcome`."""
        for b, a in [*self.instead.items()]:  # what an arm of `full` makes in place of one of `bare`, it is for both
            same = self._is_bare(b) and a in self.arm and self.arm[a] == (self.arm[b][0], False)
            if same and self.instead.setdefault(a, b) is not b:
                raise NotASwitch(f"{a} stands for two values")
        order = {n: i for i, n in enumerate([*self.ends.full.nodes, *self.ends.bare.nodes])}
        states = {n: order[self.bares[n]] for n in self.ends.bare.nodes if n in self.bares}
        return Learned(
            outcome,
            (len(self.ends.full.nodes), len(self.ends.bare.nodes)),
            tuple((order[a], order[b]) for a, b in self.instead.items()),
            tuple((order[step], place, order[start]) for (step, place), start in self.starts.items()),
            tuple((order[n], place) for n, place in states.items()),
            tuple(self.ends.arms[1:]),
        )


@dataclass(frozen=True)
class Learned:
    """What was learnt, by numbers: the nodes of a recording `full`, then those of a recording `bare`."""

    outcome: bool
    sizes: tuple[int, int]
    pairs: tuple[tuple[int, int], ...]
    starts: tuple[tuple[int, int, int], ...]
    twins: tuple[tuple[int, int], ...]  # the step that each node of `bare` is
    arms: tuple[tuple[int, int], ...]  # after each read; (0, 0) where both outcomes do the same

    @property
    def two_sided(self) -> bool:
        return any(bare for _, bare in self.arms)

    def nodes(self, full: fx.Graph, bare: fx.Graph | None) -> list[fx.Node]:
        found: list[fx.Node] = [*full.nodes, *(bare.nodes if bare is not None else ())]
        if len(full.nodes) != self.sizes[0] or (bare is not None and len(bare.nodes) != self.sizes[1]):
            raise NotASwitch(f"{len(full.nodes)} nodes against {self.sizes[0]}")
        return found
