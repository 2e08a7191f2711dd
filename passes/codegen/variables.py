"""Readable names for the values in a forward, and the scope that says which of them are in use."""

from __future__ import annotations

import operator
import re
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

import torch.nn.functional as F
from torch import fx

from lpcompile.passes.codegen.items import Item
from lpcompile.passes.codegen.text.names import RESERVED, identifier
from lpcompile.passes.codegen.text.values import Names
from lpcompile.passes.codegen.tree import is_stream
from lpcompile.passes.graph import calls

# Names of layers that describe an operation, not its result.
_GENERIC = frozenset(
    """conv bn norm ln relu act gelu silu swish drop dropout drop_path linear fc proj pool avgpool maxpool
    layernorm layer_norm layer_scale ls activation stochastic_depth block layer blocks layers dense lin features
    batchnorm batch_norm identity op module c_proj c_fc resid_dropout hardswish quant_act h""".split()
)
_HINTS = {"arange": "positions", "scaled_dot_product_attention": "attended", "cos": "cos", "sin": "sin",
          "softmax": "weights", "sigmoid": "gate", "zeros": "zeros", "ones": "ones", "embedding": "embedded",
          "layer_norm": "out"}  # fmt: skip
_KNOWN = {"downsample": "identity", "shortcut": "identity", "self_": "attended", "wte": "tokens", "wpe": "positions"}
_ATTENTION = {0: "query", 1: "key", 2: "value", "query": "query", "key": "key", "value": "value"}
_MIXERS = frozenset({"scaled_dot_product_attention", "matmul", "bmm", "einsum", "cat", "stack", "baddbmm", "where"})


def bare(node: fx.Node) -> Any:
    """The function or method under our wrappers."""
    target: Any = node.target
    while isinstance(target, (calls.NoGrad, calls.Autocast, calls.Switched)):
        target = target.function
    if target is calls.call_method:
        return calls.plain_call(node)[1][0]
    return target


def function_name(node: fx.Node) -> str:
    target = bare(node)
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def module_hint(path: str) -> str:
    """A name for the result of the module at `path`."""
    parts = [p for p in path.split(".") if not p.isdigit()]
    name = identifier(parts[-1], "out") if parts else "out"
    stem = re.sub(r"_?\d+$", "", name)
    if name in _KNOWN or stem in _KNOWN:
        return _KNOWN.get(name, _KNOWN.get(stem, name))
    return "out" if stem in _GENERIC or stem.rstrip("_") in _GENERIC or len(stem) < 2 else name


def hint(node: fx.Node) -> str:
    """A name for the value of a node, from the operation and its users."""
    if node.op == "placeholder":
        name = str(node.target)
        return "x" if re.fullmatch(r"lam(_\d+)?", name) else name
    if node.op == "get_attr":
        return identifier(str(node.target).split(".")[-1], "state")
    fate = _fate(node)
    if fate:
        return fate
    if node.op == "call_module":
        return module_hint(str(node.target))
    name = function_name(node)
    if name in _HINTS:
        return _HINTS[name]
    spec = node.meta.get("spec")
    if spec is not None and str(spec.dtype) == "torch.bool":
        return "mask"
    if spec is not None and not spec.is_float:
        return "index"
    return "out"


def _fate(node: fx.Node) -> str:
    """`query`, `key` or `value` for a value on its way into attention."""
    for _ in range(8):
        if len(node.users) != 1:
            return ""
        user = next(iter(node.users))
        target = bare(user)
        if target is F.scaled_dot_product_attention:
            for key, value in [*enumerate(user.args), *user.kwargs.items()]:
                if value is node:
                    return _ATTENTION.get(key, "")
            return ""
        tensors = [n for n in user.all_input_nodes if n.meta.get("spec") is not None]
        if len(tensors) != 1 or user.op == "output" or (target is operator.getitem and user.args[0] is not node):
            return ""
        node = user
    return ""


def mixes(node: fx.Node) -> bool:
    """Whether a result gets a new name even if none of its inputs is used again."""
    return function_name(node) in _MIXERS


@dataclass
class Scope:
    """The variables of one method: which name holds which value, and which names are free again."""

    names: Names
    is_stage: bool  # the arguments of a stage keep the names of the placeholders
    variables: dict[fx.Node, str] = field(default_factory=dict)
    last: dict[fx.Node, int] = field(default_factory=dict)  # position of the last item that needs a value
    carried: dict[fx.Node, list[str]] = field(default_factory=dict)  # names that an inlined value may take over
    symbols: set[str] = field(default_factory=set)  # names of batch sizes and devices
    fixed: set[str] = field(default_factory=set)  # arguments that are not assigned again

    def set_lifetimes(self, items: list[Item], results: list[fx.Node], start: int = 0) -> None:
        """Record the last use of each value; from `start` on if the items after it have moved."""
        self.last = {v: i for v, i in self.last.items() if i < start}
        for i, item in enumerate(items[start:], start):
            for value in item.inputs:
                self.last[value] = i
        for value in results:
            self.last[value] = len(items)

    def live(self, at: int) -> set[str]:
        """Names of values that are needed after item `at`."""
        return {name for value, name in self.variables.items() if self.last.get(value, -1) > at} | self.symbols

    def add_argument(self, value: fx.Node) -> None:
        """Name an argument of the method."""
        used = set(self.variables.values())
        if self.is_stage and value.op == "placeholder":
            self.variables[value] = self.free(identifier(str(value.target), "x"), used)
            return
        name = "x" if not self.variables and is_stream(value) else hint(value)
        name = value.meta.get("symbol", name)
        self.variables[value] = self.free("x" if name == "out" else name, used)

    def free(self, name: str, used: set[str]) -> str:
        """The name, or one like it, that is not in use."""
        more = ["out", "y", "z"] if name in ("out", "x") else []
        for choice in chain([name, *more], (f"{name}{n}" for n in count(2))):
            if choice not in used and choice not in RESERVED and choice not in self.names.taken:
                break
        return choice

    def choose(self, at: int, item: Item, value: fx.Node) -> str:
        """A name for a result of item `at`: that of an input used here for the last time, if it is the same stream."""
        live = self.live(at)
        dying = [d for d in self.dying(at, item) if d not in live and d not in self.fixed]
        wanted = module_hint(".".join(item.unit.path)) if item.unit is not None else hint(value)
        carries = len(item.outputs) == 1 and is_stream(value) and not (item.node is not None and mixes(item.node))
        if carries and dying and wanted not in ("query", "key", "value", "identity"):
            return "x" if "x" in dying else dying[0]
        if wanted == "out" and "x" not in live and "x" not in self.fixed:
            wanted = "x"
        return self.free(wanted, live | self.fixed)

    def dying(self, at: int, item: Item) -> list[str]:
        """Names of activations that item `at` uses for the last time."""
        found = []
        for value in item.inputs:
            if value in self.variables and self.last.get(value) == at and is_stream(value):
                found.append(self.variables[value])
            found += self.carried.get(value, [])
        return found
