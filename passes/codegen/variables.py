"""Readable names for the values in a forward."""

from __future__ import annotations

import operator
import re
from typing import Any

import torch.nn.functional as F
from torch import fx

from lpcompile.passes.codegen.names import identifier
from lpcompile.passes.graph import calls

# Layers of these names say what they do, not what their result is.
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
    while isinstance(target, (calls.NoGrad, calls.Autocast)):
        target = target.function
    if target is calls.call_method:
        return node.args[0]
    return target


def function_name(node: fx.Node) -> str:
    target = bare(node)
    return target if isinstance(target, str) else getattr(target, "__name__", "")


def module_hint(path: str) -> str:
    """A name for what the module at `path` gives."""
    parts = [p for p in path.split(".") if not p.isdigit()]
    name = identifier(parts[-1], "out") if parts else "out"
    stem = re.sub(r"_?\d+$", "", name)
    if name in _KNOWN or stem in _KNOWN:
        return _KNOWN.get(name, _KNOWN.get(stem, name))
    return "out" if stem in _GENERIC or stem.rstrip("_") in _GENERIC or len(stem) < 2 else name


def hint(node: fx.Node) -> str:
    """A name for the value of a node, from what makes it and where it goes."""
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
    """`query`, `key` or `value` for what goes into attention as such."""
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
    """Whether a result deserves a new name although its inputs are done with."""
    return function_name(node) in _MIXERS
