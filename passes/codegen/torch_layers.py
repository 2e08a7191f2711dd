"""The constructor arguments of a layer of torch.nn (or einops), recovered from the layer and checked.

>>> constructor_arguments(nn.Conv2d(3, 8, 3, padding=1))
{'in_channels': 3, 'out_channels': 8, 'kernel_size': 3, 'padding': 1}
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

MODULE_ATTRIBUTES = frozenset({*vars(nn.Module()), "_is_hf_initialized"})  # attributes that every module has
MISSING: Any = object()
_SQUARE = ("kernel_size", "stride", "padding", "dilation", "output_padding")  # one number stands for all dimensions
# Arguments that a layer keeps under other names. A wrong guess is harmless: the layer made from them is compared.
_DERIVED: dict[Any, dict[str, Callable[[Any], Any]]] = {
    nn.MultiheadAttention: {
        "bias": lambda m: m.in_proj_bias is not None,
        "add_bias_kv": lambda m: m.bias_k is not None,
        "kdim": lambda m: None if m.kdim == m.embed_dim else m.kdim,
        "vdim": lambda m: None if m.vdim == m.embed_dim else m.vdim,
    },
    nn.TransformerEncoderLayer: {
        "d_model": lambda m: m.self_attn.embed_dim,
        "nhead": lambda m: m.self_attn.num_heads,
        "dim_feedforward": lambda m: m.linear1.out_features,
        "dropout": lambda m: m.dropout.p,
        "layer_norm_eps": lambda m: m.norm1.eps,
        "batch_first": lambda m: m.self_attn.batch_first,
        "bias": lambda m: m.linear1.bias is not None,
        "activation": lambda m: "gelu" if m.activation is F.gelu else m.activation,
    },
}
# Layers of other libraries that keep derived objects beside their arguments, and where they keep keyword arguments.
_OTHERS = {f"einops.layers.torch.{name}": "axes_lengths" for name in ("Rearrange", "Reduce", "EinMix")}
_LIBRARIES = ("torch_geometric.nn.conv.",)  # of these any layer, where its attributes have the names of its arguments
_INSPECTOR = "torch_geometric.inspector"  # its objects follow from a layer's class


@functools.cache
def parameters(kind: Any) -> dict[str, inspect.Parameter]:
    """The constructor's parameters by name."""
    found = dict(inspect.signature(kind.__init__).parameters)
    if issubclass(kind, nn.RNNBase):  # they hide their arguments behind *args
        found = dict(inspect.signature(nn.RNNBase.__init__).parameters)
        if kind is nn.RNN:
            keyword = inspect.Parameter.KEYWORD_ONLY
            found["nonlinearity"] = inspect.Parameter("nonlinearity", keyword, default="tanh")
    return {name: p for name, p in found.items() if name not in ("self", "mode")}


@functools.cache
def required(kind: Any) -> tuple[str, ...]:
    """Parameters without a default."""
    empty = inspect.Parameter.empty
    return tuple(n for n, p in parameters(kind).items() if p.default is empty and p.kind is p.POSITIONAL_OR_KEYWORD)


def constructor_default(kind: Any, name: str) -> Any:
    """The default of a parameter, or MISSING."""
    parameter = parameters(kind).get(name)
    return MISSING if parameter is None or parameter.default is parameter.empty else parameter.default


def constructor_arguments(module: nn.Module) -> dict[str, Any] | None:
    """Arguments with which the layer's class makes the same layer, or None."""
    kind: Any = type(module)
    keywords = _OTHERS.get(f"{kind.__module__}.{kind.__qualname__}")
    library = kind.__module__.startswith(_LIBRARIES)
    torchs = kind.__module__.startswith("torch.nn.modules.") and getattr(nn, kind.__name__, None) is kind
    if not torchs and keywords is None and not library:
        return None
    arguments: dict[str, Any] = {}
    for name, parameter in parameters(kind).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in ("device", "dtype"):
            continue
        value = _argument(module, name, parameter.default)
        if value is not parameter.default and not (
            type(value) is type(parameter.default) and value == parameter.default
        ):
            arguments[name] = value
    arguments |= getattr(module, keywords) if keywords is not None else {}
    if any(isinstance(value, nn.Module) for value in arguments.values()):  # children are written apart
        return None
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    dtypes = {t.dtype for t in tensors}
    if dtypes - {torch.float32} and "dtype" in parameters(kind):
        arguments["dtype"] = next(iter(sorted(dtypes, key=str)))
    try:
        twin = _twin(kind, tuple((k, _hashable(v)) for k, v in arguments.items()))
    except Exception:
        return None
    return arguments if _agrees(twin, module) else None


def _argument(module: nn.Module, name: str, default: Any) -> Any:
    derive = _DERIVED.get(type(module), {}).get(name)
    value = derive(module) if derive is not None else getattr(module, name, default)
    if isinstance(value, nn.Parameter) or (value is None and isinstance(default, bool)):
        return value is not None
    if isinstance(value, tuple) and len(set(value)) == 1 and (len(value) == 1 or name in _SQUARE):
        return value[0]
    return value


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=4096)
def _twin(kind: type[nn.Module], arguments: tuple[tuple[str, Any], ...]) -> nn.Module:
    with torch.device("meta"):
        return kind(**dict(arguments))


def _agrees(twin: nn.Module, module: nn.Module) -> bool:
    """Whether two layers have the same attributes, parameters, buffers and children, values of tensors aside."""
    if type(twin) is not type(module) or twin._modules.keys() != module._modules.keys():
        return False
    for name, value in vars(twin).items():
        if name in MODULE_ATTRIBUTES or (name.startswith("_flat_weight") and isinstance(twin, nn.RNNBase)):
            continue
        mine = module.__dict__.get(name, MISSING)
        if not _equal(mine, value):
            return False
    for kind in ("_parameters", "_buffers"):
        left, right = getattr(twin, kind), getattr(module, kind)
        if list(left) != list(right) or not all(_alike(left[n], right[n]) for n in left):
            return False
    if twin._non_persistent_buffers_set != module._non_persistent_buffers_set:
        return False
    return all(_agrees(child, module._modules[n]) for n, child in twin._modules.items() if child is not None)  # type: ignore[arg-type]


def _equal(mine: Any, value: Any) -> bool:
    if type(mine) is not type(value):
        return False
    return type(value).__module__ == _INSPECTOR or mine is value or bool(mine == value)


def _alike(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and type(b) in (torch.Tensor, nn.Parameter)
