"""Writes the nodes of a recording: tensors become the nodes that made them, under the model's names."""

from __future__ import annotations

import enum
import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn.utils.rnn import PackedSequence

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.capture.record.drawn import Drawn
from lpcompile.passes.capture.record.observer import Observation, storage_key
from lpcompile.passes.capture.record.patches import AutocastRegion
from lpcompile.passes.capture.record.refusal import ModuleTrail
from lpcompile.passes.capture.record.shadow import Shadow
from lpcompile.passes.capture.record.values import may_hold, nodes_in, source_line
from lpcompile.passes.graph.calls import Autocast, NoGrad, as_recorded, call_method, call_module, read_attribute
from lpcompile.passes.graph.tree import SCALARS, flatten

REVERSIBLE = (
    "an autograd function runs its layers, and its backward rebuilds their activations from the last one, which a cut "
    "would not hand down; without that (reversible=False or alike, where the model has it) it can be cut"
)


class GraphWriter:
    """Appends to `graph`; knows which node each tensor is the value of.

    `autocasts` are the regions that forward is inside of; `constants` are the tensors that get_attr nodes refer to.
    """

    def __init__(self, shadow: Shadow, trail: ModuleTrail, autocasts: list[AutocastRegion]) -> None:
        self.shadow, self.trail, self.autocasts = shadow, trail, autocasts
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.calls: list[fx.Node] = []  # in order, also those that turn out to have no effect
        self.check_call: Callable[[int, fx.Node], None] | None = None  # may refuse each as soon as it is written
        self._nodes: dict[int, fx.Node] = {}
        self._attributes: dict[str, fx.Node] = {}
        self._strays: dict[int, str] = {}  # tensors that exist outside the model, such as module globals
        self._state: dict[int, str] = {}  # storage of each parameter and buffer -> its name
        self.outside: set[int] = set()  # tensors that there were before forward ran, where they are known
        self._alive: list[Any] = []  # keeps ids and storage addresses unique while recording

    def name_storage(self, storage: int, name: str) -> None:
        """Writes into this storage are writes into the parameter or buffer `name`."""
        self._state[storage] = name

    def keep_alive(self, value: Any) -> None:
        self._alive.append(value)

    def placeholder(self, name: str, tensor: torch.Tensor) -> None:
        node = self.graph.placeholder(name)
        self._describe(node, tensor, Observation(), source="input")
        self._bind(tensor, node)

    def output(self, tensors: list[torch.Tensor]) -> None:
        self.graph.output(tuple(self._node_of(t) for t in tensors))

    def varies(self, tensor: torch.Tensor) -> bool:
        """Whether a value depends on inputs, state or randomness, and not only on constants in the code."""
        node = self._nodes.get(id(tensor))
        return node is None or bool(node.meta["varies"])

    def node_of(self, tensor: torch.Tensor) -> fx.Node | None:
        return self._nodes.get(id(tensor))

    def bind_kept(self, path: str, module: nn.Module, call: fx.Node) -> None:
        """Make nodes for tensors that a user's layer stores in itself for others (the auxiliary loss of an expert)."""
        for name, value in vars(module).items():
            if isinstance(value, FakeTensor) and id(value) not in self._nodes and self.shadow.name_of(value) is None:
                owner = self.graph.get_attr(path)
                owner.meta.update(varies=True, spec=None, state=path)
                node = self.graph.call_function(read_attribute, (call, owner, name))
                self._describe(node, value, Observation(), path=path)
                self._bind(value, node)

    def emit(
        self, op: str, target: Any, args: Any, kwargs: Any, out: Any, seen: Observation, path: str = "",
        structure: str = "",
    ) -> fx.Node:  # fmt: skip
        """Append a call and bind its results. `structure`: check at every call that the result is built like this."""
        no_grad = not torch.is_grad_enabled() and self._may_need_grad(op, target, (args, kwargs))
        arguments, keywords = self._argument(args), self._argument(kwargs)
        varies = seen.random or op == "call_module" or any(n.meta["varies"] for n in nodes_in((arguments, keywords)))
        if no_grad or self.autocasts:
            op, target, arguments = self._as_function(op, target, arguments)
            target = Autocast(target, *self.autocasts) if self.autocasts else target
            target = NoGrad(target) if no_grad else target
        node = self.graph.create_node(op, target, arguments, keywords)
        if self.check_call is not None:
            self.check_call(len(self.calls), node)
        self.calls.append(node)
        self._describe(node, out, seen, path=path, varies=varies)
        if structure:
            node = self.graph.call_function(as_recorded, (node, structure, path))
            self._describe(node, out, Observation(), path=path, varies=varies)
        self._bind(out, node)
        return node

    def check(self, target: Any, *args: Any) -> None:
        """Append a step without a result, the same in every context."""
        self._describe(self.graph.call_function(target, args), None, Observation())

    def _as_function(self, op: str, target: Any, arguments: Any) -> tuple[str, Any, Any]:
        """The same call as a plain function, which a context can wrap."""
        if op == "call_module":
            module = self.graph.get_attr(target)
            module.meta.update(varies=True, spec=None, state=target)
            return "call_function", call_module, (module, *arguments)
        if op == "call_method":
            return "call_function", call_method, (target, *arguments)
        return "call_function", target, arguments

    def _may_need_grad(self, op: str, target: Any, arguments: Any) -> bool:
        """Whether gradients could ever flow: frozen parameters may be trained later."""
        if op == "call_module" and next(self.shadow.root.get_submodule(target).parameters(), None) is not None:
            return True
        return any(t.is_floating_point() for t in flatten(arguments)[0])

    def _describe(
        self, node: fx.Node, out: Any, seen: Observation, *, path: str = "", source: str = "", varies: bool = True
    ) -> None:
        is_tensor = isinstance(out, torch.Tensor)
        node.meta.update(
            spec=TensorSpec.of(out) if is_tensor else None,
            storage=storage_key(out) if is_tensor else None,
            is_view=is_tensor and bool(out._is_view() or (out.layout == torch.strided and not out.is_contiguous())),
            path=path or self.trail.path,
            source=source or source_line(),
            flops=seen.flops,
            backward_flops=seen.backward_flops,
            saved_bytes=seen.saved_bytes,
            random=seen.random,
            writes=tuple(sorted(seen.writes)),
            state_writes=tuple(sorted(self._state[k] for k in seen.writes if k in self._state)),
            varies=varies,
        )

    def _bind(self, out: Any, node: fx.Node) -> None:
        """From now on, the tensors in `out` are the value of `node` (or of getitem nodes below it)."""
        if isinstance(out, torch.Tensor):
            self._nodes[id(out)] = node
            self._alive.append(out)
            return
        parts: list[tuple[Any, Any, Any]] = []
        if isinstance(out, (tuple, list)):
            parts = [(operator.getitem, i, part) for i, part in enumerate(out)]
        elif isinstance(out, dict):
            parts = [(operator.getitem, key, part) for key, part in out.items()]
        elif may_hold(out) and hasattr(out, "__dict__"):
            parts = [(getattr, key, part) for key, part in vars(out).items()]
        for access, key, part in parts:
            if may_hold(part) and flatten(part)[0]:
                child = self.graph.call_function(access, (node, key))
                self._describe(child, part, Observation(), path=node.meta["path"], source=node.meta["source"],
                               varies=node.meta["varies"])  # fmt: skip
                self._bind(part, child)

    def _node_of(self, tensor: torch.Tensor) -> fx.Node:
        node = self._nodes.get(id(tensor))
        if node is not None:
            return node
        name = self.shadow.name_of(tensor)
        if name is None:
            made = self.shadow.fake_mode is None or isinstance(tensor, FakeTensor)
            if made and id(tensor) not in self.outside:
                refusal = self.trail.refuse(
                    f"a tensor of shape {tuple(tensor.shape)} comes from where no torch function was seen to make it "
                    f"(a tensor kept from an earlier call, or code outside Python)"
                )
                refusal.stray = True
                raise refusal
            name = self._strays.setdefault(id(tensor), f"_constant_{len(self._strays)}")
            self._alive.append(tensor)
        if name not in self._attributes:
            owner = self.shadow.original(tensor)
            self.constants[name] = owner
            node = self.graph.get_attr(name)
            self._describe(node, tensor, Observation(), source="state")
            node.meta["state"] = name
            self._attributes[name] = node
        return self._attributes[name]

    def _argument(self, value: Any) -> Any:
        """A value as a node argument: tensors become nodes, everything else must print and compare."""
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if isinstance(value, Drawn):
            return value.node
        if isinstance(value, (tuple, list)):
            items = [self._argument(v) for v in value]
            if isinstance(value, PackedSequence):
                return self.emit("call_function", PackedSequence, tuple(value), {}, None, Observation())
            if hasattr(value, "_fields"):
                return type(value)(*items)
            return items if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return {k: self._argument(v) for k, v in value.items()}
        if isinstance(value, slice):
            return slice(*(self._argument(v) for v in (value.start, value.stop, value.step)))
        if isinstance(value, range):
            return list(value)
        if type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0:
            return value.item()
        if isinstance(value, (*SCALARS, type(Ellipsis), torch.memory_format, enum.Enum)):
            return value
        if isinstance(value, nn.Module):
            raise self.trail.refuse(REVERSIBLE)
        raise self.trail.refuse(f"a {type(value).__name__} object is passed on as an argument")
