"""From a model and a batch to a graph.

>>> captured = capture(model, x)
>>> captured(x)                  # what model(x) gives, bitwise, in the mode the model is in
>>> print(captured.graph)        # layers under their own names, functions in program order

The recorder runs first on fake tensors. Where a module cannot be recorded it is kept whole and the rest is recorded
again; where that is not enough, forward runs once on the real tensors. Two recordings at different batch sizes free
the graph from the batch size; one in eval mode is kept beside the training graph where the two differ.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lpcompile.errors import CaptureError, UsageError
from lpcompile.passes.capture import explain
from lpcompile.passes.capture.attribute_guard import AttributeGuard
from lpcompile.passes.capture.caches import FunctionCaches, forget_fakes
from lpcompile.passes.capture.recorder import Recorder
from lpcompile.passes.capture.refusal import Unrecordable
from lpcompile.passes.capture.shadow import Shadow, fake_tensor
from lpcompile.passes.capture.signature import Signature, example_call, make_signature
from lpcompile.passes.graph.batch import (
    Different,
    batch_size,
    confirm,
    follow_batch,
    follow_device,
    follows,
    resized,
    same_graph,
)
from lpcompile.passes.graph.module import TwoModeModule, map_graph
from lpcompile.passes.graph.mutation import Change, changes, snapshot
from lpcompile.passes.graph.tree import Tree
from lpcompile.passes.graph.untouched import python_rng_state, untouched

FRONT_ENDS = ("auto", "fake", "real", "specialise")
SMALL_IMAGE = 64  # the gate runs on images of this size where the graph is proven not to depend on it
SMALL_IMAGE_FLOPS = 4e9  # per sample: below this the gate is cheap anyway


@dataclass(frozen=True)
class CaptureInfo:
    """What capture learnt, kept as `captured._lp`."""

    model: nn.Module
    signature: Signature
    trees: dict[bool, Tree]
    notes: tuple[str, ...]
    kept_whole: tuple[str, ...]  # modules kept whole that are no layers
    batch_free: bool
    small_inputs: list[torch.Tensor] | None  # inputs with smaller images that run the very same graph
    written: tuple[str, ...]  # parameters that forward itself writes into
    attribute_guard: AttributeGuard


class Captured(TwoModeModule):
    """The captured model: call it as the model, read `graph`."""

    _lp: CaptureInfo

    def recompile(self) -> Any:
        code = super().recompile()
        flat = type(self).forward

        def forward(self: Captured, *args: Any, **kwargs: Any) -> Any:
            leaves = flat(self, *self._lp.signature.flat(args, kwargs))
            return self._lp.trees[self.training].unflatten(leaves)

        type(self).forward = forward
        return code


class Again(Exception):
    """Record once more, the same way."""


@dataclass
class _Attempt:
    """One way to record: which modules stay whole, on which tensors, and what has been learnt so far."""

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
    warmed: bool = False

    def record(self, tensors: list[torch.Tensor], training: bool, rebuild: Callable[..., Any]) -> Recording:
        shadow = Shadow(self.model, None if self.real else self.fake_mode, self.fakes)
        if shadow.root.training != training:
            shadow.root.train(training)
        convert = self._alias if self.real else self._fake_input
        inputs = [convert(t) for t in tensors]
        args, kwargs = rebuild(inputs)
        recorder = Recorder(shadow, frozenset(self.kept_whole), self.specialise, self.watch_random)
        before, generators = snapshot(shadow.root), python_rng_state()
        names = [name for name, _ in self.signature.inputs]
        try:
            tree = recorder.run(list(zip(names, inputs, strict=True)), lambda root: root(*args, **kwargs))
        except Exception as error:
            raise explain.blame(error, recorder.trail) from error
        finally:
            self.caches.forget_fakes()
        self._check_state(recorder, before, generators, lambda: shadow.root(*args, **kwargs))
        map_graph(recorder.graph, lambda n: n.op == "call_module" or bool(n.meta.get("random") or n.meta.get("writes")))
        leaves = [self.model.get_submodule(str(n.target)) for n in recorder.graph.nodes if n.op == "call_module"]
        own = any(not type(m).__module__.startswith("torch.nn.") for m in leaves)  # may give another kind of result
        return Recording(
            recorder.graph, tree, dict(recorder.constants), recorder.reads_training or own, recorder.reads_sizes
        )

    @staticmethod
    def _alias(tensor: torch.Tensor) -> torch.Tensor:
        """The same memory under another identity: one tensor may be passed twice."""
        return tensor.detach().requires_grad_(tensor.requires_grad)

    def _fake_input(self, tensor: torch.Tensor) -> torch.Tensor:
        fake = fake_tensor(tensor.detach(), self.fake_mode)
        return fake.requires_grad_(tensor.requires_grad) if tensor.requires_grad else fake

    def _check_state(self, recorder: Recorder, before: Any, generators: Any, run: Callable[[], Any]) -> None:
        """Modules that change themselves in ways a graph cannot replay are kept whole: say which and start again."""
        if python_rng_state() != generators:
            if not self.watch_random:
                self.watch_random = True  # record once more to learn which module it was
                raise Again
            reason = "forward draws from Python's or numpy's random generator"
            remedy = "draw from torch's generator (torch.rand, torch.bernoulli) and use the result as a tensor"
            raise Unrecordable(recorder.random_path or "", reason, remedy=remedy)
        called = {n.target for n in recorder.graph.nodes if n.op == "call_module"} | self.kept_whole
        refusals, large = [], []
        for change in changes(before, recorder.shadow.root, called):
            name = f"{change.path}.{change.attribute}".strip(".")
            if change.what != "buffer" and self._share(change.path) >= 0.5:
                large.append((name, change))
            else:
                remedy = f"write into it in place (self.{change.attribute}.copy_(...)) instead of assigning to it"
                refusals.append(Unrecordable(change.path, f"forward sets the attribute {name}", remedy=remedy))
        if refusals:
            refusals[0].also = refusals[1:]
            raise refusals[0]
        self._check_large(large, recorder.shadow.root, run)

    def _check_large(self, large: list[tuple[str, Change]], root: nn.Module, run: Callable[[], Any]) -> None:
        """Attributes of modules too large to keep whole: what changes at every call cannot be replayed."""
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

    def warm_caches(self, tensors: list[torch.Tensor], rebuild: Callable[..., Any]) -> None:
        """A cache of the user's took a fake tensor of an earlier recording: clear it, and let a real run fill it."""
        self.warmed = True
        forget_fakes()
        args, kwargs = rebuild(tensors)
        with (
            untouched(self.model, dict(self.model.named_parameters())),
            torch.no_grad(),
            contextlib.suppress(Exception),
        ):
            self.model(*args, **kwargs)

    def keep_whole(self, refusal: Unrecordable) -> None:
        """Keep the module whole; when two of a class have refused, the others are spared the attempt."""
        kind = type(self.model.get_submodule(refusal.path))
        alike = [p for p, m in self.model.named_modules() if type(m) is kind and p not in self.kept_whole]
        second = any(type(self.model.get_submodule(p)) is kind for p in self.kept_whole)
        paths = alike if second else [refusal.path]
        self.kept_whole.update(paths)
        others = f" (and {len(paths) - 1} more {kind.__name__})" if len(paths) > 1 else ""
        self.notes.append(f"{refusal.path} is kept whole{others}: {refusal.reason}{explain.at(refusal.source)}")

    def _share(self, path: str) -> float:
        total = sum(p.numel() for p in self.model.parameters())
        part = sum(p.numel() for p in self.model.get_submodule(path).parameters())
        return part / total if total else 1.0


@dataclass(frozen=True)
class Recording:
    graph: fx.Graph
    tree: Tree
    constants: dict[str, torch.Tensor]
    reads_training: bool = True  # whether evaluation may be another graph
    reads_sizes: bool = True  # whether another batch may be another graph in ways that two sizes do not show


def capture(
    model: nn.Module,
    example_inputs: Any = None,
    example_kwargs: dict[str, Any] | None = None,
    *,
    leaf: Iterable[str | type[nn.Module]] = (),
    concrete_args: dict[str, Any] | None = None,
    front_end: str = "auto",
) -> Captured:
    """Capture `model` as called with the example inputs.

    `leaf` names modules (qualified names or classes) to keep whole. `concrete_args` fixes arguments of forward to
    values that are not tensors. `front_end`: "auto" tries "fake" (fake tensors), then "real" (one forward on the real
    tensors, branches on data kept whole); "specialise" freezes such branches at what they are for these inputs.
    """
    explain.check_model(model)
    if front_end not in FRONT_ENDS:
        raise UsageError(f"front_end={front_end!r} is not one of {', '.join(FRONT_ENDS)}")
    parameters = inspect.signature(model.forward)
    args, kwargs = example_call(parameters, example_inputs, {**(example_kwargs or {}), **(concrete_args or {})})
    signature = make_signature(model, args, kwargs)
    tensors = signature.flat(args, kwargs)
    attempt = _Attempt(model, signature, _leaf_paths(model, leaf), front_end in ("real", "specialise"),
                       front_end == "specialise")  # fmt: skip
    log = logging.getLogger("torch._subclasses.fake_tensor")  # it prints what we are about to explain
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with untouched(model):
            return _capture(attempt, tensors, rebuilder(signature), front_end)
    finally:
        log.setLevel(level)


def _capture(attempt: _Attempt, tensors: list[torch.Tensor], rebuild: Any, front_end: str) -> Captured:
    batch = batch_size(tensors)
    start = tensors if batch != 1 else resized(tensors, 2)  # sizes of one are special: broadcasting, squeeze
    train = _insist(attempt, start, True, rebuild, front_end)
    marks, small = _free_batch(attempt, train, start, True, rebuild)
    device = next((t.device for t in tensors), torch.device("cpu"))
    evaluate = train
    try:
        if train.reads_training:
            evaluate = _insist(attempt, start, False, rebuild, front_end)
            same_graph(train.graph, evaluate.graph)
            evaluate = train if evaluate.tree.text == train.tree.text else Recording(train.graph, evaluate.tree, {})
    except Different:
        eval_marks, _ = _free_batch(attempt, evaluate, start, False, rebuild)
        follow_batch(evaluate.graph, eval_marks)
        follow_device(evaluate.graph, device)
    follow_batch(train.graph, marks)
    follow_device(train.graph, device)
    return _assemble(attempt, {True: train, False: evaluate}, marks != {}, small)


def _insist(attempt: _Attempt, tensors: list[torch.Tensor], training: bool, rebuild: Any, front_end: str) -> Recording:
    """Record; keep the innermost module that refuses whole and try again, on real tensors where fake ones fail."""
    for _ in range(64):
        try:
            return attempt.record(tensors, training, rebuild)
        except Again:
            continue
        except Unrecordable as error:
            path = error.path
            if error.stray and not attempt.warmed and not explain.has_meta(attempt.model):
                attempt.warm_caches(tensors, rebuild)
            elif path and path not in attempt.kept_whole:
                for refusal in (error, *error.also):
                    attempt.keep_whole(refusal)
            elif not attempt.real and front_end == "auto" and not explain.has_meta(attempt.model):
                attempt.real = True
                attempt.notes.append(f"recorded on real tensors: {error.reason}{explain.at(error.source)}")
            else:
                raise explain.capture_error(attempt.model, error, tensors, rebuild) from error
    raise CaptureError(f"{type(attempt.model).__name__}: more than 64 modules had to be kept whole; gave up")


def _free_batch(
    attempt: _Attempt, recording: Recording, tensors: list[torch.Tensor], training: bool, rebuild: Any
) -> tuple[dict[fx.Node, Any], list[torch.Tensor] | None]:
    """The integers that follow the batch ({} where the graph is tied to its batch), and smaller inputs for the gate."""
    batch = batch_size(tensors)
    if batch is None:
        return {}, None
    reason = ""
    for size in (batch + 1, batch + 2, 2 * batch):
        other = resized(tensors, size)
        smaller = _small_images(recording.graph, other, batch)
        for probe in [smaller, other] if smaller is not None else [other]:
            try:
                second = attempt.record(probe, training, rebuild)
                if second.tree.text != recording.tree.text:
                    raise Different(f"the output is {recording.tree} and {second.tree} at batch {size}")
                marks = same_graph(recording.graph, second.graph, (batch, size), probe is smaller)
                if recording.reads_sizes or follows(marks):  # two sizes fit any line: ask a third
                    third = 2 * batch + 5
                    confirm(marks, attempt.record(resized(probe, third), training, rebuild).graph, third)
                return marks, probe if probe is smaller else None
            except (Different, Unrecordable) as error:
                if isinstance(error, Unrecordable) and error.stray and not attempt.warmed:
                    attempt.warm_caches(tensors, rebuild)
                reason = str(error)
    for node in recording.graph.nodes:
        if node.meta.get("spec") is not None:
            node.meta["spec"] = node.meta["spec"].with_batch(())
    attempt.notes.append(f"the graph is tied to batch size {batch}: {reason}")
    return {}, None


def _small_images(graph: fx.Graph, tensors: list[torch.Tensor], batch: int) -> list[torch.Tensor] | None:
    """The inputs with images of 64 px, where that saves the gate real time."""
    flops = sum(n.meta.get("flops", 0) for n in graph.nodes) / max(batch, 1)

    def is_image(t: torch.Tensor) -> bool:
        return t.dim() == 4 and t.is_floating_point() and min(t.shape[2:]) >= 2 * SMALL_IMAGE

    if flops < SMALL_IMAGE_FLOPS or not any(is_image(t) for t in tensors):
        return None
    return [t[:, :, :SMALL_IMAGE, :SMALL_IMAGE].contiguous() if is_image(t) else t for t in tensors]


def _state_writes(modes: dict[bool, Recording]) -> set[str]:
    return {name for r in modes.values() for n in r.graph.nodes for name in n.meta.get("state_writes", ())}


def _assemble(
    attempt: _Attempt, modes: dict[bool, Recording], free: bool, small: list[torch.Tensor] | None
) -> Captured:
    model = attempt.model
    state: dict[str, Any] = {}
    for recording in modes.values():
        for node in recording.graph.nodes:
            if node.op == "call_module" or (node.op == "get_attr" and node.meta["spec"] is None):
                state[node.target] = model.get_submodule(node.target)
        state.update(recording.constants)
        recording.graph.lint()
    specs = [n.meta["spec"] for n in modes[True].graph.nodes if n.op == "placeholder"]
    inputs = tuple((name, spec) for (name, _), spec in zip(attempt.signature.inputs, specs, strict=True))
    leaves = {str(n.target) for r in modes.values() for n in r.graph.nodes if n.op == "call_module"}
    info = CaptureInfo(
        model=model,
        signature=Signature(attempt.signature.parameters, attempt.signature.trees, inputs),
        trees={m: r.tree for m, r in modes.items()},
        notes=tuple(dict.fromkeys(attempt.notes)),
        kept_whole=tuple(sorted(attempt.kept_whole)),
        batch_free=free,
        small_inputs=small,
        written=tuple(sorted(_state_writes(modes) & set(dict(model.named_parameters())))),
        attribute_guard=AttributeGuard(model, leaves),
    )
    captured = Captured({m: r.graph for m, r in modes.items()}, f"Captured{type(model).__name__}", _lp=info)
    captured._lp_fill(model, state)
    return captured


def rebuilder(signature: Signature) -> Callable[[list[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]:
    """From a flat list of tensors back to the arguments of forward."""

    def rebuild(tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        at, values = 0, {}
        for name, tree in signature.trees.items():
            values[name] = tree.unflatten(tensors[at : at + tree.count])
            at += tree.count
        bound = signature.parameters.bind_partial()
        bound.arguments.update(values)
        return bound.args, bound.kwargs

    return rebuild


def _leaf_paths(model: nn.Module, leaf: Iterable[str | type[nn.Module]]) -> set[str]:
    paths = {path for path, _ in model.named_modules()}
    found: set[str] = set()
    for item in leaf if isinstance(leaf, Iterable) and not isinstance(leaf, (str, type)) else [leaf]:
        if not isinstance(item, (str, type)):
            raise UsageError(f"leaf={item!r} is neither a module's name nor a class")
        if isinstance(item, str):
            if item not in paths:
                raise UsageError(f"leaf={item!r}: no such module{explain.closest(item, paths)}")
            found.add(item)
        else:
            found |= {path for path, module in model.named_modules() if path and isinstance(module, item)}
    return found
