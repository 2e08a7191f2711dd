"""Records one eager forward as an fx graph.

Forward runs on fake tensors under a TorchFunctionMode: every torch function becomes a node, every layer (see
`leaves`) becomes a `call_module` node under its qualified name. Python runs as it always does, so nothing needs to be
traceable but the tensors. What cannot be recorded faithfully raises `Unrecordable` with the module to blame.
"""

from __future__ import annotations

import enum
import operator
import types
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import _disable_current_modes

from lpcompile.core.spec import TensorSpec
from lpcompile.passes.capture.caches import holds_fake
from lpcompile.passes.capture.leaves import is_leaf
from lpcompile.passes.capture.observer import Observation, Observer, storage_key
from lpcompile.passes.capture.patches import patched
from lpcompile.passes.capture.provable import UnitRange
from lpcompile.passes.capture.shadow import Shadow, fake_tensor
from lpcompile.passes.capture.values import may_hold, nodes_in, numbers, source_line, stand_in
from lpcompile.passes.graph.calls import Apply, Autocast, NoGrad, Script, call_method, call_module, read_attribute
from lpcompile.passes.graph.tree import SCALARS, Tree, flatten
from lpcompile.passes.graph.untouched import python_rng_state, rng_state, set_rng_state

_BINARY = "add sub mul truediv floordiv mod pow matmul and or xor lshift rshift".split()
_COMPARE = "lt le gt ge eq ne".split()
_OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"__{name}__": getattr(operator, f"{name}_" if name in ("and", "or") else name) for name in _BINARY + _COMPARE},
    **{f"__i{name}__": getattr(operator, f"i{name}") for name in _BINARY},
    "__getitem__": operator.getitem,
    "__neg__": operator.neg,
    "__invert__": operator.invert,
}
_REVERSED = {f"__r{name}__": _OPERATORS[f"__{name}__"] for name in _BINARY}
# They turn a tensor into a Python value: what follows may branch on data that the next batch will not have.
_READS = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "__complex__", "equal",
          "__contains__", "allclose", "is_nonzero", "__array__"}  # fmt: skip


_SIZES = {"shape", "size", "__len__", "numel", "nelement", "element_size"}
_HOOKS = {"register_hook", "register_post_accumulate_grad_hook", "retain_grad"}


class Unrecordable(Exception):
    """Something in the forward of module `path` cannot be recorded."""

    def __init__(self, path: str, reason: str, source: str = "", remedy: str = "") -> None:
        super().__init__(reason)
        self.remedy = remedy
        self.path, self.reason, self.source = path, reason, source
        self.also: list[Unrecordable] = []  # others found in the same recording
        self.stray = False  # a tensor from nowhere: perhaps out of a cache that an earlier recording filled


class Recorder(TorchFunctionMode):
    """Records `shadow.root(*args, **kwargs)` into `graph`; `kept_whole` names modules to keep as leaves.

    `specialise` freezes branches on data at what they were for the example inputs (real tensors only).
    """

    def __init__(self, shadow: Shadow, kept_whole: frozenset[str] = frozenset(), specialise: bool = False,
                 watch_random: bool = False) -> None:  # fmt: skip
        super().__init__()
        self.shadow, self.kept_whole, self.specialise = shadow, kept_whole, specialise
        self.real = shadow.fake_mode is None
        self.graph = fx.Graph()
        self.constants: dict[str, torch.Tensor] = {}
        self.autocasts: list[tuple[str, torch.dtype, bool, bool]] = []  # the regions that forward has entered
        self.failed_at: tuple[str, str] | None = None
        self.refused: Unrecordable | None = None
        self.reads_training = self.reads_sizes = False
        self.watch_random = watch_random
        self.random_path: str | None = None  # the innermost module that drew from Python's generators
        self._nodes: dict[int, fx.Node] = {}
        self._attributes: dict[str, fx.Node] = {}
        self._strays: dict[int, str] = {}  # tensors that exist outside the model, such as module globals
        self._state: dict[int, str] = {}  # storage of each parameter and buffer -> its name
        self._alive: list[Any] = []  # keeps ids and storage addresses unique while recording
        self._stack: list[str] = [""]
        self._paused = False
        self._observer = Observer()
        self._ranges = UnitRange()

    # ---- running

    def run(self, inputs: list[tuple[str, torch.Tensor]], call: Callable[[nn.Module], Any]) -> Tree:
        """Record `call(root)`; `inputs` are its tensors with the placeholder names they get."""
        for name, tensor in inputs:
            node = self.graph.placeholder(name)
            self._describe(node, tensor, Observation(), source="input")
            self._bind(tensor, node)
        for name, tensor in [*self.shadow.root.named_parameters(), *self.shadow.root.named_buffers()]:
            key = storage_key(tensor)
            if key is not None:
                self._observer.kept.add(key)
                self._state[key] = name
        with ExitStack() as stack:
            stack.enter_context(torch.enable_grad())
            stack.enter_context(patched(self))
            if self.shadow.fake_mode is not None:
                stack.enter_context(self.shadow.fake_mode)
            stack.enter_context(self._observer.saved_hooks)
            stack.enter_context(self._observer)
            stack.enter_context(self)
            out = call(self.shadow.root)
        if self.refused is not None:
            raise self.refused
        leaves, tree = flatten(out)
        if not leaves:
            raise Unrecordable("", f"the output holds no tensor that can be found: it is {tree}", "")
        closed = [c for c in tree.constants if not isinstance(c, (*SCALARS, enum.Enum, type, nn.Module))]
        if any(hasattr(c, "__next__") or holds_fake(c, 3) for c in closed):
            kinds = ", ".join(sorted({type(c).__name__ for c in closed}))
            raise Unrecordable("", f"the output holds tensors inside an object that cannot be opened ({kinds})", "")
        self.graph.output(tuple(self._node_of(t) for t in leaves))
        return tree

    # ---- modules, called by patches.patched

    def module_called(self, module: nn.Module, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        path = self.shadow.path_of(module)
        if self._paused:
            return call()
        if not path or not (path in self.kept_whole or is_leaf(module)):
            return self._trace_through(path, call)
        self._stack.append(path)
        generators = rng_state() if self.watch_random else None
        try:
            out, seen = self._observe(lambda: self._call_whole(path, call, args, kwargs))
        finally:
            self._stack.pop()
            if generators is not None:  # what a leaf draws is its own business, and stays live
                set_rng_state(generators)
        if not self.specialise and numbers(out):
            raise self._refuse(f"{path} returns a Python number, which its caller may use")
        node = self._emit("call_module", path, args, kwargs, out, seen, path=path)
        if not type(module).__module__.startswith("torch.nn."):
            self._bind_kept(path, module, node)
        return out

    def _bind_kept(self, path: str, module: nn.Module, call: fx.Node) -> None:
        """Tensors that a layer of the user's leaves in itself, for others to read (the auxiliary loss of an expert)."""
        for name, value in vars(module).items():
            if isinstance(value, FakeTensor) and id(value) not in self._nodes and self.shadow.name_of(value) is None:
                owner = self.graph.get_attr(path)
                owner.meta.update(varies=True, spec=None, state=path)
                node = self.graph.call_function(read_attribute, (call, owner, name))
                self._describe(node, value, Observation(), path=path)
                self._bind(value, node)

    def _call_whole(self, path: str, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """Run a leaf. One kept whole because it looks into its tensors runs on real stand-ins, to learn its shapes."""
        mode = self.shadow.fake_mode
        if mode is None or path not in self.kept_whole:
            return call()
        try:
            return call()
        except Exception:
            leaves, tree = flatten((args, kwargs))
            with _disable_current_modes(), self._observer:
                stand_args, stand_kwargs = tree.unflatten([stand_in(t) for t in leaves])
                out = self.shadow.model.get_submodule(path)(*stand_args, **stand_kwargs)
            results, out_tree = flatten(out)
            grown = [fake_tensor(t.detach(), mode).requires_grad_(t.requires_grad) if t.is_floating_point()
                     else fake_tensor(t, mode) for t in results]  # fmt: skip
            self._alive.append(grown)
            return out_tree.unflatten(grown)

    def _trace_through(self, path: str | None, call: Callable[[], Any]) -> Any:
        self._stack.append(self._stack[-1] if path is None else path)
        generators = python_rng_state() if self.watch_random else None
        try:
            out = call()
        except Exception:
            self._fail()
            raise
        finally:
            self._stack.pop()
        if generators is not None and self.random_path is None and python_rng_state() != generators:
            self.random_path = path
        return out

    def function_applied(self, function: type[torch.autograd.Function], args: Any, kwargs: Any) -> Any:
        """A custom autograd Function is one node, or its own backward would be lost."""
        call = Apply(function)
        if self._paused:
            return call(*args, **kwargs)
        if function is torch.utils.checkpoint.CheckpointFunction:  # the function, without the checkpoint around it
            return args[0](*args[2:])
        out, seen = self._observe(lambda: call(*args, **kwargs))
        self._emit("call_function", call, args, kwargs, out, seen)
        return out

    def flag_read(self) -> None:
        """Traced code asked whether it trains; a leaf's asking is its own business."""
        self.reads_training = self.reads_training or not self._paused

    def script_called(self, function: Any, call: Callable[[], Any], args: Any, kwargs: Any) -> Any:
        """A TorchScript function is one node: its executor runs other operators the second time than the first."""
        if self._paused:
            return call()
        out, seen = self._observe(call)
        self._emit("call_function", Script(function), args, kwargs, out, seen)
        return out

    def _observe(self, call: Callable[[], Any]) -> tuple[Any, Observation]:
        self._observer.begin()
        self._paused = True
        try:
            return call(), self._observer.end()
        except Exception:
            self._fail()
            raise
        finally:
            self._paused = False

    def _fail(self) -> None:
        if self.failed_at is None:
            self.failed_at = (self._stack[-1], source_line())

    # ---- functions

    def __torch_function__(self, func: Any, types_: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._paused:
            return func(*args, **kwargs)
        if name in _READS:
            return self._read(func, name, args, kwargs)
        if name in _SIZES or (name == "__get__" and func.__self__.__name__ in _SIZES):
            self.reads_sizes = True
        if any(type(a).__name__ == "ndarray" for a in (*args, *kwargs.values())):
            with _disable_current_modes():
                return func(*args, **kwargs)  # a constant of the code: it enters the graph where it is used
        if name in _HOOKS:
            raise self._refuse(f"forward calls {name}() on a tensor")
        out, seen = self._observe(lambda: func(*args, **kwargs))
        if seen.sized_by_data and not self.specialise:
            raise self._refuse("the shape of a result depends on the values in a tensor")
        tensors = [out] if isinstance(out, torch.Tensor) else flatten(out)[0] if may_hold(out) else []
        if not tensors:
            if name == "__setitem__":
                self._emit("call_function", operator.setitem, args, kwargs, None, seen)
            elif name == "__set__":
                self._set_attribute(func, args, seen)
            elif seen.writes:
                self._emit("call_function", func, args, kwargs, None, seen)
            return out
        self._emit(*self._operation(func, name, args, kwargs), out, seen)
        self._ranges.note(name, args, kwargs, out)
        return out

    def _read(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        tensors = [a for a in args if isinstance(a, torch.Tensor)]
        proven = self._ranges.proven(tensors[0]) if tensors else None
        if proven is not None:
            return proven
        if not self.specialise and any(self._varies(t) for t in tensors):
            reason = "what it does next depends on the values in a tensor (an if, a loop or a size): Python reads it"
            raise self._refuse(f"{reason} with {name.strip('_')}()")
        return self._observe(lambda: func(*args, **kwargs))[0]

    def _refuse(self, reason: str) -> Unrecordable:
        """An error to raise. It is remembered: forward may catch it and go on another way than it would."""
        self._fail()
        refusal = Unrecordable(self._stack[-1], reason, source_line())
        self.refused = self.refused or refusal
        return refusal

    def _varies(self, tensor: torch.Tensor) -> bool:
        """Whether a value comes from inputs, state or chance, and not only from numbers in the code."""
        node = self._nodes.get(id(tensor))
        return node is None or bool(node.meta["varies"])

    def _set_attribute(self, func: Any, args: Any, seen: Observation) -> None:
        attribute = getattr(getattr(func, "__self__", None), "__name__", "")
        if attribute == "requires_grad":
            self._emit("call_method", "requires_grad_", args[:2], {}, args[0], seen)
        elif attribute not in ("grad", "_backward_hooks"):
            raise self._refuse(f"forward sets .{attribute} of a tensor")

    @staticmethod
    def _operation(func: Any, name: str, args: Any, kwargs: Any) -> tuple[str, Any, Any, Any]:
        if name == "__get__":
            return "call_function", getattr, (args[0], func.__self__.__name__), {}
        owner = getattr(func, "__objclass__", None)
        is_method = owner in (torch.Tensor, torch._C.TensorBase) or (
            isinstance(func, types.FunctionType) and func.__module__ == "torch._tensor" and hasattr(torch.Tensor, name)
        )
        if is_method or name in _OPERATORS or name in _REVERSED:
            if name in _OPERATORS and not kwargs:
                return "call_function", _OPERATORS[name], args, {}
            if name in _REVERSED and len(args) == 2 and not kwargs:
                return "call_function", _REVERSED[name], (args[1], args[0]), {}
            return "call_method", name, args, kwargs
        return "call_function", func, args, kwargs

    # ---- nodes

    def _emit(
        self, op: str, target: Any, args: Any, kwargs: Any, out: Any, seen: Observation, path: str = ""
    ) -> fx.Node:
        no_grad = not torch.is_grad_enabled() and self._may_need_grad(op, target, (args, kwargs))
        arguments, keywords = self._argument(args), self._argument(kwargs)
        varies = seen.random or op == "call_module" or any(n.meta["varies"] for n in nodes_in((arguments, keywords)))
        if no_grad or self.autocasts:
            op, target, arguments = self._as_function(op, target, arguments)
            target = Autocast(target, *self.autocasts) if self.autocasts else target
            target = NoGrad(target) if no_grad else target
        node = self.graph.create_node(op, target, arguments, keywords)
        self._describe(node, out, seen, path=path, varies=varies)
        self._bind(out, node)
        return node

    def _as_function(self, op: str, target: Any, arguments: Any) -> tuple[str, Any, Any]:
        """The same call as a plain function, so that a context can be put around it."""
        if op == "call_module":
            module = self.graph.get_attr(target)
            module.meta.update(varies=True, spec=None, state=target)
            return "call_function", call_module, (module, *arguments)
        if op == "call_method":
            return "call_function", call_method, (target, *arguments)
        return "call_function", target, arguments

    def _may_need_grad(self, op: str, target: Any, arguments: Any) -> bool:
        """Whether gradients could ever flow: what is frozen now may be trained later."""
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
            path=path or self._stack[-1],
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
            if self.real or isinstance(tensor, FakeTensor):
                refusal = self._refuse(
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
            self._describe(node, tensor, Observation(), source="state",
                           varies=True)  # fmt: skip
            node.meta["state"] = name
            self._attributes[name] = node
        return self._attributes[name]

    def _argument(self, value: Any) -> Any:
        """A value as a node argument: tensors become nodes, the rest must be data that prints and compares."""
        if isinstance(value, torch.Tensor):
            return self._node_of(value)
        if isinstance(value, (tuple, list)):
            items = [self._argument(v) for v in value]
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
        raise self._refuse(f"a {type(value).__name__} object is passed on as an argument")
