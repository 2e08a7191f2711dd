"""The state of a capture over several recordings: modules kept whole, fake or real tensors, notes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lpcompile.core.system.gc_pause import gc_paused
from lpcompile.passes.capture import explain
from lpcompile.passes.capture.merging import Ends, Learned, Merger, ends
from lpcompile.passes.capture.record.caches import FunctionCaches, forget_fakes, live_tensors
from lpcompile.passes.capture.record.draws import Chooser, by_type_checks
from lpcompile.passes.capture.record.input_reads import check_first
from lpcompile.passes.capture.record.recorder import Recorder
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.record.shadow import Shadow, fake_tensor
from lpcompile.passes.capture.recording import BRANCHES, MIXED, PYTHONS, Again, Outcome, Recording
from lpcompile.passes.capture.signature import Rebuild, Signature
from lpcompile.passes.capture.switched_graph import SwitchWriter
from lpcompile.passes.capture.switches import Branches, NotASwitch, blocks
from lpcompile.passes.graph.batch import Different
from lpcompile.passes.graph.calls import as_read
from lpcompile.passes.graph.mutation import Change, changes, snapshot
from lpcompile.passes.graph.tree import Tree
from lpcompile.passes.graph.untouched import python_rng_state, untouched

CheckCall = Callable[[int, fx.Node], None]


@dataclass
class Attempt:
    """One configuration of the recorder. Refusals widen `kept_whole` or set `real`, then it records again."""

    model: nn.Module
    signature: Signature
    kept_whole: set[str]
    real: bool
    specialise: bool
    notes: list[str] = field(default_factory=list)
    fake_mode: FakeTensorMode = field(default_factory=lambda: FakeTensorMode(allow_non_fake_inputs=True))
    fakes: dict[int, Any] = field(default_factory=dict)
    caches: FunctionCaches = field(default_factory=FunctionCaches)
    watch_random: bool = False
    read_inputs: bool = False  # numbers that forward reads from inputs alone are constants that every call checks
    warmed: bool = False
    switching: dict[bool, bool] = field(default_factory=dict)  # by mode: record what is skipped at random as switches
    learned: dict[bool, Learned] = field(default_factory=dict)  # how, from the first recording in each mode
    choosers: list[Chooser] = field(default_factory=list)  # functions that pick layers from a list at random
    drawers: list[Chooser] = field(default_factory=list)  # functions that draw, each one step of the graph
    drew: list[Chooser] = field(default_factory=list)  # functions that drew in the last recording and are none
    unswitched: Exception | None = None  # why what is drawn cannot be recorded as steps and switches
    own_attributes: set[str] = field(default_factory=set)  # attributes that forward sets
    opened: set[str] = field(default_factory=set)  # layers that are recorded step by step
    blocks: set[str] = field(default_factory=set)  # layers that are kept whole only because they are switches

    def record(
        self, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild, check_call: CheckCall | None = None
    ) -> Recording:
        """One recording; where layers are skipped at random, several that are merged into one. `check_call` may refuse
        a call by its number, which ends the recording."""
        learned = self.learned.get(training)
        if learned is not None:  # at another batch size: a recording of each arm is enough
            outcomes = (learned.outcome, not learned.outcome) if learned.two_sided else (learned.outcome,)
            made = [self._with(tensors, training, rebuild, lambda k, o=o: o) for o in outcomes]  # type: ignore[misc]
            try:
                SwitchWriter(learned, made[0].drawn, made[1].drawn if learned.two_sided else None).write()
            except NotASwitch as error:
                raise Unrecordable("", f"layers that are skipped at random differ with the batch: {error}") from error
            recorder, tree = made[0].recorder, made[0].tree
            return self._finished((recorder, tree))
        if self.switching.get(training):
            before = set(self.kept_whole)
            try:
                return self._switched(tensors, training, rebuild)
            except (NotASwitch, Unrecordable) as error:
                if self.drew:
                    self.drawers += self.drew
                    raise Again from error
                if isinstance(error, Unrecordable) and self.may_read(error):
                    raise
                self.switching[training] = False
                self.kept_whole = before - self.blocks
                self.unswitched = error
        try:
            return self._finished(self._recorded(tensors, training, rebuild, None, check_call))
        except Unrecordable as error:
            self._explain(error)
            raise

    def _explain(self, refusal: Unrecordable) -> None:
        """Say of a refused draw why what follows from it cannot be recorded as steps and switches."""
        why = self.unswitched
        if refusal.drawn and isinstance(why, NotASwitch):
            refusal.reason += f"; {BRANCHES}"
        elif refusal.drawn and isinstance(why, Unrecordable) and why.path == refusal.path:
            refusal.remedy = explain.DRAWN
            if refusal.reason == PYTHONS:
                refusal.reason += f"; {why.reason}{explain.at(why.source)}"
            else:
                refusal.reason, refusal.source = why.reason, why.source

    def _switched(self, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild) -> Recording:
        made = {o: self._with(tensors, training, rebuild, lambda k, o=o: o) for o in (False, True)}  # type: ignore[misc]
        outcome = len(made[True].graph.nodes) > len(made[False].graph.nodes)
        full, bare = made[outcome], made[not outcome]
        for lines in (False, True):
            try:
                found = ends(full.drawn, bare.drawn, lines)
                if found.two_sided and not lines:
                    continue
                learned, recorders = self._merged(found, outcome, lambda a: self._with(tensors, training, rebuild, a))
                break
            except NotASwitch:
                if lines:
                    raise
        SwitchWriter(learned, full.drawn, bare.drawn).write()
        try:
            full.graph.lint()
        except RuntimeError as error:
            raise NotASwitch("what stands for a skipped value is made after it") from error
        if any(full.recorder.constants.get(n, t) is not t for n, t in bare.recorder.constants.items()):
            raise NotASwitch("either branch has constants of its own")
        self.learned[training] = learned
        full.recorder.constants.update(bare.recorder.constants)
        for each in (bare.recorder, *recorders):  # `if keep[i] or not self.training` reads the flag of a skipped layer
            full.recorder.reads_training |= each.reads_training
            full.recorder.reads_sizes |= each.reads_sizes
        return self._finished((full.recorder, full.tree))

    def _merged(
        self, found: Ends, outcome: bool, record: Callable[[Callable[[int], bool]], Outcome]
    ) -> tuple[Learned, list[Recorder]]:
        """Learn what stands for what from recordings in which every second branch is taken."""
        layers = blocks(found.skippable(), found.branches.paths)
        if not self.kept_whole.issuperset(layers):
            self.blocks.update(set(layers) - self.kept_whole)
            self.kept_whole.update(layers)
            raise Again
        armed, chance = found.armed(), random.Random(0)
        mixed = [set(armed[odd::2]) for odd in (0, 1)] if len(armed) > 1 else []
        if found.two_sided:
            mixed += [{k for k in armed if chance.random() < 0.5} for _ in range(MIXED)]
        made = [(record(lambda k, skipped=s: (k in skipped) != outcome), s) for s in mixed]  # type: ignore[misc]
        merger = Merger(found)
        merger.learn([*((*some.drawn, skipped) for some, skipped in made), (found.bare, found.other, set(armed))])
        return merger.learned(outcome), [some.recorder for some, _ in made]

    def _with(
        self, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild, answer: Callable[[int], bool]
    ) -> Outcome:
        """A recording in which draws that Python reads come out as `answer` says."""
        branches = Branches(answer)
        return Outcome(*self._recorded(tensors, training, rebuild, branches), branches)

    def _recorded(
        self, tensors: list[torch.Tensor], training: bool, rebuild: Rebuild, branches: Branches | None = None,
        check_call: CheckCall | None = None,
    ) -> tuple[Recorder, Tree]:  # fmt: skip
        outside = live_tensors() if self.real and self.warmed else set()
        shadow = Shadow(self.model, None if self.real else self.fake_mode, self.fakes)
        if shadow.root.training != training:
            shadow.root.train(training)
        convert = self._alias if self.real else self._fake_input
        inputs = [convert(t) for t in tensors]
        args, kwargs = rebuild(inputs)
        names = [name for name, _ in self.signature.inputs]
        readable = self.read_inputs and not any(t.is_meta for t in tensors)
        values = dict(zip(names, tensors, strict=True)) if readable else None
        recorder = Recorder(shadow, frozenset(self.kept_whole), self.specialise, self.watch_random, branches,
                            self.choosers, self.drawers, self.opened)  # fmt: skip
        recorder.values, recorder.writer.check_call, recorder.writer.outside = values, check_call, outside
        self.drew = recorder.draw_steps.drew
        before, generators = snapshot(shadow.root), python_rng_state()
        try:
            with contextlib.nullcontext() if self.real else gc_paused():  # garbage of fake tensors is small
                tree = recorder.run(list(zip(names, inputs, strict=True)), lambda root: root(*args, **kwargs))
        except Different:
            raise
        except Exception as error:
            blamed = explain.blame(error, recorder.trail)
            blamed.drawn = blamed.drawn or (branches is None and python_rng_state() != generators)
            raise blamed from error
        finally:
            self.caches.forget_fakes()
        self._check_state(recorder, before, generators, lambda: shadow.root(*args, **kwargs))
        return recorder, tree

    def _finished(self, made: tuple[Recorder, Tree]) -> Recording:
        recorder, tree = made
        check_first(recorder.graph)
        recorder.graph.eliminate_dead_code(_has_effect)
        constants, calls = dict(recorder.constants), tuple(recorder.writer.calls)
        return Recording(recorder.graph, tree, constants, recorder.reads_training, recorder.reads_sizes, calls)

    @staticmethod
    def _alias(tensor: torch.Tensor) -> torch.Tensor:
        """The same memory under another identity: one tensor may be passed twice."""
        return tensor.detach().requires_grad_(tensor.requires_grad)

    def _fake_input(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = fake_tensor(tensor.detach(), self.fake_mode)
        return fake.requires_grad_(tensor.requires_grad) if tensor.requires_grad else fake

    def _check_state(self, recorder: Recorder, before: Any, generators: Any, run: Callable[[], Any]) -> None:
        """Refuse modules that change their own state in a way that a graph cannot replay."""
        self._check_chance(recorder, generators)
        called = {n.target for n in recorder.graph.nodes if n.op == "call_module"} | self.kept_whole
        refusals, large = [], []
        for change in changes(before, recorder.shadow.root, called):
            name = f"{change.path}.{change.attribute}".strip(".")
            self.own_attributes.add(name)
            if change.what != "buffer" and self._share(change.path) >= 0.5:
                large.append((name, change))
            else:
                remedy = f"write into it in place (self.{change.attribute}.copy_(...)) instead of assigning to it"
                refusals.append(Unrecordable(change.path, f"forward sets the attribute {name}", remedy=remedy))
        if refusals:
            refusals[0].also = refusals[1:]
            raise refusals[0]
        self._check_large(large, recorder.shadow.root, run)

    def _check_chance(self, recorder: Recorder, generators: Any) -> None:
        """Refuse draws from Python's or numpy's generator that are not in the graph."""
        if python_rng_state() == generators:
            return
        if not self.watch_random:
            self.watch_random = True  # record once more to learn which module it was
            raise Again
        if by_type_checks(recorder.draw_lines) and python_rng_state()[1:] == generators[1:]:
            return
        source = next((line for line in recorder.draw_lines if not line.startswith("<")), "")
        refusal = Unrecordable(recorder.random_path or "", PYTHONS, source, explain.DRAWN)
        refusal.drawn = recorder.branches is None
        raise refusal

    def _check_large(self, large: list[tuple[str, Change]], root: nn.Module, run: Callable[[], Any]) -> None:
        """Refuse attributes that change at every call, in modules too large to keep whole."""
        if not large:
            return
        before = snapshot(root)
        with contextlib.suppress(Exception), contextlib.ExitStack() as stack:
            if not self.real:
                stack.enter_context(self.fake_mode)
            run()
        again = {f"{c.path}.{c.attribute}".strip(".") for c in changes(before, root, set())}
        for name, change in large:
            if change.what == "tensor":
                self.notes.append(f"forward of the model keeps a tensor in {name}; the program does not")
            elif name in again:
                remedy = f"keep {name} out of forward: count in the training loop, or in a submodule that stays whole"
                raise Unrecordable("", f"forward changes the attribute {name} at every call", remedy=remedy)

    def warm_caches(self, tensors: list[torch.Tensor], rebuild: Rebuild) -> None:
        """Clear the user's caches of fake tensors from an earlier recording and fill them by a real run."""
        self.warmed = True
        forget_fakes()
        args, kwargs = rebuild(tensors)
        with (
            untouched(self.model, dict(self.model.named_parameters())),
            torch.no_grad(),
            contextlib.suppress(Exception),
        ):
            self.model(*args, **kwargs)

    def fails_on(self, tensors: list[torch.Tensor], rebuild: Rebuild) -> bool:
        """Whether the model itself cannot run on these inputs."""
        args, kwargs = rebuild(tensors)
        try:
            with untouched(self.model, dict(self.model.named_parameters())), torch.enable_grad():
                self.model(*args, **kwargs)
        except Exception:
            return not explain.has_meta(self.model)
        return False

    def keep_whole(self, refusal: Unrecordable) -> None:
        """Keep the module whole; from the second refusal of a class on, keep all modules of that class whole."""
        kind = type(self.model.get_submodule(refusal.path))
        alike = [p for p, m in self.model.named_modules() if type(m) is kind and p not in self.kept_whole]
        second = any(type(self.model.get_submodule(p)) is kind for p in self.kept_whole)
        paths = alike if second else [refusal.path]
        self.kept_whole.update(paths)
        others = f" (and {len(paths) - 1} more {kind.__name__})" if len(paths) > 1 else ""
        self.notes.append(f"{refusal.path} is kept whole{others}: {refusal.reason}{explain.at(refusal.source)}")

    def may_read(self, refusal: Unrecordable) -> bool:
        """Whether to record again with `read_inputs`: with the module kept whole, hardly anything is left to cut."""
        large = not refusal.path or self._share(refusal.path) >= 0.9
        return refusal.of_inputs and not self.read_inputs and large

    def _share(self, path: str) -> float:
        total = sum(p.numel() for p in self.model.parameters())
        part = sum(p.numel() for p in self.model.get_submodule(path).parameters())
        return part / total if total else 1.0


def _has_effect(node: fx.Node) -> bool:
    """Whether a node does more than make its value: a layer may write its state, a draw advances the generator."""
    if node.op in ("placeholder", "output", "call_module"):
        return True
    return bool(node.meta.get("random") or node.meta.get("writes") or node.target is as_read)
