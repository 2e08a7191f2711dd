"""Records one eager forward as an fx graph.

Forward runs on fake tensors under a TorchFunctionMode: every torch function becomes a node, every layer (see
`leaves`) becomes a `call_module` node under its qualified name. Python runs as usual, so only the tensors need to be
traceable. What cannot be recorded faithfully raises `Unrecordable` with the module to blame.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Mapping, Sequence, Set
from contextlib import ExitStack
from dataclasses import replace
from itertools import takewhile
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from lpcompile.passes.capture.record import draws, input_reads, operations
from lpcompile.passes.capture.record.caches import refuse_closed
from lpcompile.passes.capture.record.drawn import DrawSteps, holds_drawn
from lpcompile.passes.capture.record.graph_writer import GraphWriter
from lpcompile.passes.capture.record.leaves import is_leaf
from lpcompile.passes.capture.record.observer import Observation, Observer, storage_key
from lpcompile.passes.capture.record.patches import AutocastRegion, patched
from lpcompile.passes.capture.record.provable import UnitRange
from lpcompile.passes.capture.record.refusal import SIZED_BY_DATA, ModuleTrail
from lpcompile.passes.capture.record.shadow import Shadow, with_fakes
from lpcompile.passes.capture.record.values import holds_code, may_hold, numbers, stand_in
from lpcompile.passes.capture.switches import MOST_READS, Branches, is_drawn
from lpcompile.passes.graph.calls import Apply, Script, structure_of
from lpcompile.passes.graph.known_results import known_results
from lpcompile.passes.graph.mutation import Snapshot, changes, snapshot
from lpcompile.passes.graph.own_generators import draws_seen
from lpcompile.passes.graph.tree import Tree, flatten
from lpcompile.passes.graph.untouched import python_rng_state, rng_state, set_rng_state


class Recorder(TorchFunctionMode):
    """Records `shadow.root(*args, **kwargs)` into `graph`; `kept_whole` names modules to keep as leaves.

    `specialise` freezes branches on data as the example inputs take them (real tensors only).
    """

    def __init__(self, shadow: Shadow, kept_whole: frozenset[str] = frozenset(), specialise: bool = False,
                 watch_random: bool = False, branches: Branches | None = None,
                 choosers: Sequence[draws.Chooser] = (), drawers: Sequence[draws.Chooser] = (),
                 opened: Set[str] = frozenset()) -> None:  # fmt: skip
        super().__init__()
        self.shadow, self.kept_whole, self.specialise, self.opened = shadow, kept_whole, specialise, opened
        self.autocasts: list[AutocastRegion] = []  # the regions that forward is inside of
        self.trail = ModuleTrail()
        self.writer = GraphWriter(shadow, self.trail, self.autocasts)
        self.graph, self.constants = self.writer.graph, self.writer.constants
        self.reads_training = self.reads_sizes = False
        self.watch_random, self.branches, self.choosers = watch_random, branches, choosers
        self.drawers = drawers  # functions of the model's files that draw, each a step of the graph
        self.draw_steps = DrawSteps(self)
        self.values: Mapping[str, torch.Tensor] | None = None  # real inputs that numbers may be read from
        self.draw_lines: list[str] = []  # lines that drew from Python's generators, if watched
        self.random_path: str | None = None  # the innermost module that drew from Python's generators
        self._held: dict[str, Snapshot] = {}  # attributes of the modules that stay whole, after their last call
        self.paused = self._in_own_leaf = False  # own leaf: inside a layer that is not of torch.nn
        self._grad = True  # grad mode of forward itself: torch switches it off inside an autograd Function
        self._observer = Observer(known_results(shadow.fake_mode))
        self.ranges = UnitRange()

    # ---- running

    def run(self, inputs: list[tuple[str, torch.Tensor]], call: Callable[[nn.Module], Any]) -> Tree:
        """Record `call(root)`; `inputs` are its tensors with the placeholder names they get."""
        for name, tensor in inputs:
            self.writer.placeholder(name, tensor)
        for name, tensor in [*self.shadow.root.named_parameters(), *self.shadow.root.named_buffers()]:
            if (key := storage_key(tensor)) is not None:
                self._observer.kept.add(key)
                self.writer.name_storage(key, name)
        self._held = {path: snapshot(self.shadow.root.get_submodule(path)) for path in self.kept_whole}
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(patched(self))
            stack.enter_context(draws_seen(self.shadow.root, draws.files_of(self.shadow.root)))
            if self.branches is not None:
                stack.enter_context(draws.draws_patched(self.draw_steps, self.shadow.root, self.choosers, self.drawers))
            if self.shadow.fake_mode is not None:
                stack.enter_context(self.shadow.fake_mode)
            stack.enter_context(self._observer.saved_hooks)
            stack.enter_context(self._observer)
            stack.enter_context(self)
            if self.watch_random:
                self.draw_lines = stack.enter_context(draws.draws_watched())
            out = call(self.shadow.root)
        if self.trail.refused is not None:
            raise self.trail.refused
        leaves, tree = flatten(out)
        refuse_closed(leaves, tree)
        self.writer.output(leaves)
        return tree

    # ---- modules, called by patches.patched

    def module_called(self, module: nn.Module, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        path = self.shadow.path_of(module)
        if self.paused:
            return call()
        layer = path not in self.opened and is_leaf(module) and self.shadow.has_weights_of(module)
        if not path or not (path in self.kept_whole or layer):
            return self._trace_through(path, call)
        self._refuse_set_from_outside(path, module)
        own = self._in_own_leaf = not type(module).__module__.startswith("torch.nn.")
        if own and any(isinstance(m, torch.jit.ScriptModule) for m in module.modules()):
            self.reads_training = True  # where no one sees it
        self.trail.stack.append(path)
        generators = rng_state() if self.watch_random else None
        try:
            chance = python_rng_state() if own else None
            out, seen = self.observe(lambda: self._call_whole(path, call, args, kwargs))
            if own and (path in self.kept_whole or python_rng_state() != chance):
                out = self._apart(out, (args, kwargs))
        finally:
            self.trail.stack.pop()
            if path in self._held:
                self._held[path] = snapshot(module)
            if generators is not None:  # a leaf draws again at every call
                set_rng_state(generators)
        if not self.specialise and numbers(out):
            raise self.trail.refuse(f"{path} returns a Python number, which its caller may use")
        if own and not self.specialise and holds_code(out):
            opens = "" if path in self.kept_whole else path
            raise self.trail.refuse(f"{path} stays whole and returns a function, which its caller may call", opens)
        structure = structure_of(out) if own and isinstance(out, (list, tuple, dict)) else ""
        node = self.writer.emit("call_module", path, args, kwargs, out, seen, path=path, structure=structure)
        if own:
            self.writer.bind_kept(path, module, node)
        return out

    def _apart(self, out: Any, given: Any) -> Any:
        """The result of a module that may hand on its input now and not in another call: a tensor of its own."""
        tensors = {id(t) for t in flatten(given)[0]}
        leaves, tree = flatten(out)
        if not any(id(t) in tensors for t in leaves):
            return out
        return self.observe(lambda: tree.unflatten([t.view_as(t) if id(t) in tensors else t for t in leaves]))[0]

    def _refuse_set_from_outside(self, path: str, module: nn.Module) -> None:
        """A layer that stays whole replays what its forward does to its attributes, not what its caller does."""
        for change in changes(self._held[path], module, set()) if path in self._held else ():
            name = ".".join(filter(None, (path, change.path, change.attribute)))
            what = "an attribute of a module that stays whole, before it calls it"
            raise self.trail.refuse(f"forward sets {name}, {what}")

    def _call_whole(self, path: str, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run a leaf. A module that reads the values of its tensors runs on real stand-ins, which give its shapes."""
        mode = self.shadow.fake_mode
        if mode is None or path not in self.kept_whole:
            return call()
        try:
            return call()
        except Exception:
            leaves, tree = flatten((args, kwargs))
            with _disable_current_modes(), self._observer:
                stand_args, stand_kwargs = tree.unflatten([stand_in(t) for t in leaves])
                made = self.shadow.original_module(path)(*stand_args, **stand_kwargs)
            return with_fakes(made, mode, self.writer.keep_alive)

    def _trace_through(self, path: str | None, call: Callable[[], Any]) -> Any:
        self.trail.stack.append(self.trail.path if path is None else path)
        generators = python_rng_state() if self.watch_random else None
        try:
            out = call()
        except Exception:
            self.trail.fail()
            raise
        finally:
            self.trail.stack.pop()
        if generators is not None and self.random_path is None and python_rng_state() != generators:
            self.random_path = path
        return out

    def function_applied(self, function: type[torch.autograd.Function], args: Any, kwargs: Any) -> Any:
        """A custom autograd Function is one node, so that its own backward stays."""
        call = Apply(function)
        if self.paused:
            return call(*args, **kwargs)
        if function is torch.utils.checkpoint.CheckpointFunction:  # record the function without its checkpoint
            return args[0](*args[2:])
        out, seen = self.observe(lambda: call(*args, **kwargs))
        self.writer.emit("call_function", call, args, kwargs, out, seen)
        return out

    def function_ran(self, function: type[torch.autograd.Function], args: Any, forward: Callable[[], Any]) -> Any:
        """The same for a function applied by an alias of its `apply`: torch is running its forward, without gradients,
        and gives the result a gradient afterwards."""
        if self.paused:
            return forward()
        out, seen = self.observe(forward)
        gradients = self._grad
        trained = gradients and any(t.requires_grad for t in flatten(args)[0])
        last = next(iter(reversed(self.graph.nodes)))
        with torch.set_grad_enabled(gradients):
            self.writer.emit("call_function", Apply(function), args, {}, out, seen)
        self._grad = gradients
        for node in takewhile(lambda n: n is not last, reversed(self.graph.nodes)):
            spec = node.meta.get("spec")
            if trained and spec is not None and spec.is_float and node.op != "get_attr":
                node.meta["spec"] = replace(spec, requires_grad=True)
        return out

    def flag_read(self) -> None:
        """Traced code read `training`, so evaluation may be another graph. A leaf reads it live, but one that is not of
        torch.nn may return something else then."""
        self.reads_training = self.reads_training or not self.paused or self._in_own_leaf

    def script_called(self, function: Any, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """A TorchScript function is one node: its executor runs different operators at the first and later calls."""
        if self.paused:
            return call()
        out, seen = self.observe(call)
        self.writer.emit("call_function", Script(function), args, kwargs, out, seen)
        return out

    def observe(self, call: Callable[[], Any]) -> tuple[Any, Observation]:
        self._observer.begin()
        self.paused = True
        try:
            return call(), self._observer.end()
        except Exception:
            self.trail.fail()
            raise
        finally:
            self.paused = False

    # ---- functions

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self.paused:
            return func(*args, **kwargs)
        # Hooks of saved tensors run inside `apply`, where torch has gradients off: what they set is none of forward's.
        if name == "_set_grad_enabled" and (torch.is_grad_enabled() or not self._grad):
            self._grad = bool(args[0])
        if holds_drawn((args, kwargs)):
            return self.draw_steps.as_tensor(func, args, kwargs)
        if name in operations.VALUE_READS:
            return self._read(func, name, args, kwargs)
        self.reads_sizes = self.reads_sizes or operations.reads_size(func, name)
        if any(type(a).__name__ == "ndarray" for a in (*args, *kwargs.values())):
            with _disable_current_modes():
                return func(*args, **kwargs)  # a constant: it enters the graph where it is used
        if operations.is_no_step(func, name):
            raise self.trail.refuse(operations.is_no_step(func, name))
        out, seen = self.observe(lambda: func(*args, **kwargs))
        deciding = operations.decides_size(name, args, kwargs) if seen.sized_by_data and not self.specialise else ()
        if any(map(self.writer.varies, deciding)):
            raise self.trail.refuse(SIZED_BY_DATA)
        tensors = [out] if isinstance(out, torch.Tensor) else flatten(out)[0] if may_hold(out) else []
        if not tensors:
            if name == "__setitem__":
                self.writer.emit("call_function", operator.setitem, args, kwargs, None, seen)
            elif name == "__set__":
                self._set_attribute(func, args, seen)
            elif seen.writes:
                self.writer.emit("call_function", func, args, kwargs, None, seen)
            return out
        self.writer.emit(*operations.operation(func, name, args, kwargs), out, seen)
        self.ranges.note(name, args, kwargs, out)
        return out

    def _read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        proven = self.ranges.proven(tensors[0]) if tensors else None
        if proven is not None:
            return proven
        if not self.specialise and any(self.writer.varies(t) for t in tensors):
            flag = self.writer.node_of(tensors[0])
            drawn = name in ("__bool__", "item") and flag is not None and is_drawn(flag)
            if drawn and flag is not None and self.branches is not None:
                if len(self.branches.flags) == MOST_READS:
                    raise self.trail.refuse("a loop goes on for as long as it is drawn")
                if name == "__bool__" or tensors[0].dtype == torch.bool:  # an item is read where it is used
                    return self.branches.read(flag, self.trail.path) if name == "__bool__" else tensors[0]
                with self:
                    return self.ranges.same(tensors[0], tensors[0].reshape(()).double())  # what reads it is a branch
            steps = input_reads.origin(flag) if name in input_reads.NUMBER_READS and flag is not None else []
            if steps and self.values is not None:
                return input_reads.checked(func, steps, self.values, self.writer.check)
            reason = "what it does next depends on the values in a tensor (an if, a loop or a size): Python reads it"
            refusal = self.trail.refuse(f"{reason} with {name.strip('_')}()")
            refusal.drawn, refusal.of_inputs = drawn, bool(steps)
            refusal.chooser = draws.chooser_of(sys._getframe(), self.shadow.root) if drawn else None
            raise refusal
        return self.observe(lambda: func(*args, **kwargs))[0]

    def _set_attribute(self, func: Any, args: Any, seen: Observation) -> None:
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if attribute == "requires_grad":
            self.writer.emit("call_method", "requires_grad_", args[:2], {}, args[0], seen)
        elif attribute not in ("grad", "_backward_hooks"):
            raise self.trail.refuse(f"forward sets .{attribute} of a tensor")
