"""One layer as the expression that makes it again.

A layer of torch.nn is written by its constructor, with the arguments that differ from the defaults, after a check on
the meta device that this gives the same layer. Everything else is written attribute by attribute, so that no
constructor of which nothing is known runs on guessed arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from lpcompile.passes.codegen.names import is_plain, quote
from lpcompile.passes.codegen.values import Names, Unprintable, refuse

INTERNAL = frozenset({*vars(nn.Module()), "_is_hf_initialized"})
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SQUARE = ("kernel_size", "stride", "padding", "dilation", "output_padding")  # one number stands for all dimensions
# Arguments that a layer keeps under other names: only a proposal, for the layer made of them is compared.
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
_NORMS: dict[Any, tuple[str, dict[str, Any]]] = {
    parametrizations._WeightNorm: ("weight_norm", {"dim": 0}),
    parametrizations._SpectralNorm: ("spectral_norm", {"n_power_iterations": 1, "eps": 1e-12, "dim": None}),
}
MISSING: Any = object()


@dataclass(frozen=True)
class Leaf:
    """A layer: either a constructor with arguments, or (`source`) its generic form."""

    kind: Any  # its class
    arguments: dict[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()  # parameters that take no gradient
    source: str = ""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What two layers must share to be one line of a class with arguments."""
        return (self.kind, self.frozen, self.source)

    def text(self, names: Names, arguments: dict[str, str]) -> str:
        """The expression; `arguments` are the sources of the constructor's arguments."""
        if self.source:
            return self.source
        required = _required(self.kind)
        given = [arguments[name] for name in required]
        rest = {name: text for name, text in arguments.items() if name not in required}
        first = next(iter(_parameters(self.kind)), None)
        if not required and first is not None and first == "p" and list(rest)[:1] == ["p"]:
            given.append(rest.pop("p"))
        call = f"{names.ref(self.kind)}({', '.join([*given, *(f'{k}={v}' for k, v in rest.items())])})"
        return call + (".requires_grad_(False)" if self.frozen else "")


def leaf(module: nn.Module, path: str, names: Names) -> Leaf:
    """How to write the layer at `path`."""
    check_hooks(module, path)
    if parametrize.is_parametrized(module):
        return Leaf(type(module), source=_parametrized(module, path, names))
    frozen = tuple(n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad)
    total = sum(1 for _ in module.named_parameters(remove_duplicate=False))
    if len(frozen) in (0, total):
        arguments = constructor_arguments(module)
        if arguments is not None:
            return Leaf(type(module), arguments, frozen)
    return Leaf(type(module), source=generic(module, path, names))


def check_hooks(module: nn.Module, path: str) -> None:
    for name, child in module.named_modules(prefix=path):
        if any(getattr(child, kind, None) for kind in _HOOKS):
            raise refuse(f"{name} ({type(child).__name__})", "it has hooks, which are objects of this process",
                         "remove them before emit, and register them again on the loaded program")  # fmt: skip
        if "forward" in child.__dict__:
            raise refuse(f"{name} ({type(child).__name__})", "its forward was replaced on the instance",
                         "make a subclass with that forward, or undo the patch")  # fmt: skip


@functools.cache
def _parameters(kind: Any) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(kind.__init__).parameters)
    if issubclass(kind, nn.RNNBase):  # they hide their arguments behind *args
        found = dict(inspect.signature(nn.RNNBase.__init__).parameters)
        if kind is nn.RNN:
            keyword = inspect.Parameter.KEYWORD_ONLY
            found["nonlinearity"] = inspect.Parameter("nonlinearity", keyword, default="tanh")
    return {name: p for name, p in found.items() if name not in ("self", "mode")}


@functools.cache
def _required(kind: Any) -> tuple[str, ...]:
    empty = inspect.Parameter.empty
    return tuple(n for n, p in _parameters(kind).items() if p.default is empty and p.kind is p.POSITIONAL_OR_KEYWORD)


def constructor_default(kind: Any, name: str) -> Any:
    parameter = _parameters(kind).get(name)
    return MISSING if parameter is None or parameter.default is parameter.empty else parameter.default


def constructor_arguments(module: nn.Module) -> dict[str, Any] | None:
    """Arguments with which the layer's class makes the same layer, or None."""
    kind = type(module)
    if not kind.__module__.startswith("torch.nn.modules.") or getattr(nn, kind.__name__, None) is not kind:
        return None
    arguments: dict[str, Any] = {}
    for name, parameter in _parameters(kind).items():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) or name in ("device", "dtype"):
            continue
        value = _argument(module, name, parameter.default)
        if value is not parameter.default and not (
            type(value) is type(parameter.default) and value == parameter.default
        ):
            arguments[name] = value
    tensors = [*module.parameters(), *(b for b in module.buffers() if b.is_floating_point())]
    dtypes = {t.dtype for t in tensors}
    if dtypes - {torch.float32} and "dtype" in _parameters(kind):
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
    """Whether the layers are alike in all that a layer of torch.nn looks at."""
    if type(twin) is not type(module) or twin._modules.keys() != module._modules.keys():
        return False
    for name, value in vars(twin).items():
        if name in INTERNAL or (name.startswith("_flat_weight") and isinstance(twin, nn.RNNBase)):
            continue
        mine = module.__dict__.get(name, MISSING)
        if type(mine) is not type(value) or not (mine is value or mine == value):
            return False
    for kind in ("_parameters", "_buffers"):
        left, right = getattr(twin, kind), getattr(module, kind)
        if list(left) != list(right) or not all(_alike(left[n], right[n]) for n in left):
            return False
    if twin._non_persistent_buffers_set != module._non_persistent_buffers_set:
        return False
    return all(_agrees(child, module._modules[n]) for n, child in twin._modules.items() if child is not None)  # type: ignore[arg-type]


def _alike(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and a.dtype == b.dtype and type(b) in (torch.Tensor, nn.Parameter)


def generic(module: nn.Module, path: str, names: Names) -> str:
    """`rebuild(Class, attributes=..., parameters=..., ...)`."""
    kind = type(module)
    where = f"{path} ({kind.__module__}.{kind.__qualname__})"
    try:
        text = names.ref(kind)
    except Unprintable as error:
        raise refuse(where, f"its class is {error}", "define the class at the top level of a module that can be "
                     "imported") from None  # fmt: skip
    attributes = {}
    for name, value in vars(module).items():
        if name not in INTERNAL:
            attributes[name] = _attribute(module, name, value, where, names)
    parts = [text]
    for title, entries in (
        ("attributes", attributes),
        ("parameters", {n: empty(p, names, where) for n, p in module._parameters.items()}),
        ("buffers", {n: empty(b, names, where) for n, b in module._buffers.items()}),
        ("modules", {n: _child(m, f"{path}.{n}", names) for n, m in module._modules.items()}),
    ):
        if entries:
            parts.append(f"{title}={{{', '.join(f'{quote(n)}: {t}' for n, t in entries.items())}}}")
    frozen = [n for n, p in module._parameters.items() if p is not None and not p.requires_grad]
    for title, listed in (("frozen", frozen), ("transient", sorted(module._non_persistent_buffers_set))):
        if listed:
            parts.append(f"{title}=[{', '.join(map(quote, listed))}]")
    names.helpers.add("rebuild")
    names.use("nn")
    return f"rebuild({', '.join(parts)})"


def _parametrized(module: nn.Module, path: str, names: Names) -> str:
    """A layer under weight norm or spectral norm: the layer itself, wrapped as its author did."""
    lists: Any = module.parametrizations
    steps = [(name, step) for name, found in lists.items() for step in found]
    known = len(steps) == 1 and type(steps[0][1]) in _NORMS
    if not known or not all(p.requires_grad for p in module.parameters()):
        shown = ", ".join(type(step).__name__ for _, step in steps)
        raise refuse(f"{path} ({type(module).__name__})", f"its tensors are computed by {shown}",
                     "only weight norm or spectral norm of one trained tensor is known: call "
                     "torch.nn.utils.parametrize.remove_parametrizations")  # fmt: skip
    name, step = steps[0]
    kind: Any = type(module).__mro__[1]  # torch made a class for this layer alone, over the layer's own
    like = lists[name].original if lists[name].is_tensor else lists[name].original1
    plain = kind.__new__(kind)
    plain.__dict__.update(vars(module))
    plain.__dict__["_modules"] = {n: m for n, m in module._modules.items() if n != "parametrizations"}
    plain.__dict__["_parameters"] = {name: nn.Parameter(torch.empty_like(like)), **module._parameters}
    wrapper, defaults = _NORMS[type(step)]
    rest = [quote(name)] if name != "weight" else []
    rest += [f"{k}={names.literal(getattr(step, k))}" for k, v in defaults.items() if getattr(step, k) != v]
    names.use("nn")
    return f"nn.utils.parametrizations.{wrapper}({', '.join([_child(plain, path, names), *rest])})"


def _child(module: nn.Module | None, path: str, names: Names) -> str:
    if module is None:
        return "None"
    made = leaf(module, path, names)
    return made.text(names, {k: names.literal(v) for k, v in made.arguments.items()})


def _attribute(module: nn.Module, name: str, value: Any, where: str, names: Names) -> str:
    remedy = f"make {name} a plain value, a buffer or a submodule, or delete it before emit"
    if isinstance(value, torch.Tensor):
        return empty(value, names, where)
    if hasattr(value, "to_dict") and hasattr(type(value), "from_dict"):
        return configuration(value, names, where, remedy)
    bound = getattr(value, "__self__", None)
    if bound is module and is_plain(value.__name__):
        raise refuse(where, f"its attribute {name} is a method bound to it", remedy)
    try:
        return names.literal(value)
    except Unprintable as error:
        raise refuse(where, f"its attribute {name} is {error}", remedy) from None


def configuration(value: Any, names: Names, where: str, remedy: str) -> str:
    """A configuration object of transformers, made once a file from its class and `to_dict`."""
    if id(value) not in names.constants:
        kind, full = type(value), value.to_dict()
        implementation = getattr(value, "_attn_implementation", None)  # to_dict leaves it out
        told = {} if implementation is None else {"attn_implementation": implementation}
        short = {**told, **value.to_diff_dict()} if hasattr(value, "to_diff_dict") else full
        made = kind.from_dict(dict(short))
        same = made.to_dict() == full and getattr(made, "_attn_implementation", None) == implementation
        try:
            source = f"{names.ref(kind)}.from_dict({names.literal(short if same else {**told, **full})})"
        except Unprintable as error:
            raise refuse(where, f"its configuration holds {error}", remedy) from None
        count = len(names.constants)
        names.constants[id(value)] = (value, "CONFIG" if not count else f"CONFIG_{count + 1}", source)
    return names.constants[id(value)][1]


def empty(tensor: torch.Tensor | None, names: Names, where: str, texts: list[str] | None = None) -> str:
    """A tensor of the same shape and dtype; its values are in the weights file."""
    if tensor is None:
        return "None"
    if (
        type(tensor) not in (torch.Tensor, nn.Parameter, nn.Buffer)
        or tensor.layout != torch.strided
        or tensor.is_quantized
    ):
        raise refuse(where, f"it holds a {type(tensor).__name__} ({tensor.layout}), which a weights file cannot",
                     "use a plain dense tensor")  # fmt: skip
    names.use("torch")
    sizes = ", ".join(texts or map(str, tensor.shape)) if tensor.dim() else "()"
    dtype = "" if tensor.dtype is torch.float32 else f", dtype={tensor.dtype}"
    return f"torch.empty({sizes}{dtype})"
