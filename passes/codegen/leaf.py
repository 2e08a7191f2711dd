"""One layer as the expression that constructs it.

A layer of torch.nn is written as a call of its constructor, with the arguments that differ from the defaults, after a
check on the meta device that this gives the same layer. Any other layer is written attribute by attribute: an unknown
constructor never runs on guessed arguments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from lpcompile.passes.codegen.text.names import is_plain, quote
from lpcompile.passes.codegen.text.values import Names, Unprintable, refuse
from lpcompile.passes.codegen.torch_layers import MODULE_ATTRIBUTES, constructor_arguments, parameters, required
from lpcompile.passes.graph.module import HOOKS

_WEIGHT_NORM = {"dim": 0}
_SPECTRAL_NORM = {"n_power_iterations": 1, "eps": 1e-12, "dim": None}
_NORMS: dict[Any, tuple[str, dict[str, Any]]] = {
    parametrizations._WeightNorm: ("parametrizations.weight_norm", _WEIGHT_NORM),
    parametrizations._SpectralNorm: ("parametrizations.spectral_norm", _SPECTRAL_NORM),
    WeightNorm: ("weight_norm", _WEIGHT_NORM),  # the older ones are hooks
    SpectralNorm: ("spectral_norm", _SPECTRAL_NORM),
}


@dataclass(frozen=True)
class Leaf:
    """A layer: either a constructor with arguments, or (`source`) its generic form."""

    kind: Any  # its class
    arguments: dict[str, Any] = field(default_factory=dict)
    frozen: tuple[str, ...] = ()  # parameters that take no gradient
    source: str = ""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What two layers must have in common to be one line of a shared class."""
        return (self.kind, self.frozen, self.source)

    def text(self, names: Names, arguments: dict[str, str]) -> str:
        """The expression; `arguments` are the sources of the constructor's arguments."""
        if self.source:
            return self.source
        needed = required(self.kind)
        given = [arguments[name] for name in needed]
        rest = {name: text for name, text in arguments.items() if name not in needed}
        first = next(iter(parameters(self.kind)), None)
        if not needed and first is not None and first == "p" and list(rest)[:1] == ["p"]:
            given.append(rest.pop("p"))
        call = f"{names.ref(self.kind)}({', '.join([*given, *(f'{k}={v}' for k, v in rest.items())])})"
        return call + (".requires_grad_(False)" if self.frozen else "")


def leaf(module: nn.Module, path: str, names: Names) -> Leaf:
    """How to write the layer at `path`."""
    check_hooks(module, path)
    if parametrize.is_parametrized(module):
        return Leaf(type(module), source=_parametrized(module, path, names))
    if _norm_hook(module) is not None:
        return Leaf(type(module), source=_hooked(module, path, names))
    frozen = tuple(n for n, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad)
    total = sum(1 for _ in module.named_parameters(remove_duplicate=False))
    if len(frozen) in (0, total):
        arguments = constructor_arguments(module)
        if arguments is not None:
            return Leaf(type(module), arguments, frozen)
    return Leaf(type(module), source=generic(module, path, names))


def check_hooks(module: nn.Module, path: str) -> None:
    for name, child in module.named_modules(prefix=path):
        if isinstance(child, torch.jit.ScriptModule):
            raise refuse(f"{name} ({type(child).__name__})", "it is a TorchScript module, which has no Python code",
                         "compile the model with the nn.Module that it was made from")  # fmt: skip
        if any(getattr(child, kind, None) for kind in HOOKS) and _norm_hook(child) is None:
            raise refuse(f"{name} ({type(child).__name__})", "it has hooks, which are objects of this process",
                         "remove them before emit, and register them again on the loaded program")  # fmt: skip
        if "forward" in child.__dict__:
            raise refuse(f"{name} ({type(child).__name__})", "its forward was replaced on the instance",
                         "make a subclass with that forward, or undo the patch")  # fmt: skip


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
        if name not in MODULE_ATTRIBUTES:
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
    """A layer under weight norm or spectral norm: the plain layer in the same wrapper."""
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
    return _normed(plain, step, name, path, names)


def _norm_hook(module: nn.Module) -> Any:
    """The older weight norm or spectral norm of a layer, if that is its only hook and all parameters are trained."""
    hooks = [hook for kind in HOOKS for hook in getattr(module, kind, {}).values()]
    known = len(hooks) == 1 and type(hooks[0]) in (WeightNorm, SpectralNorm)
    return hooks[0] if known and all(p.requires_grad for p in module.parameters()) else None


def _hooked(module: nn.Module, path: str, names: Names) -> str:
    """A layer under one of the older norms: its tensors are `weight_g` and `weight_v`, or `weight_orig` and buffers."""
    hook = _norm_hook(module)
    name, added = hook.name, [f"{hook.name}_{suffix}" for suffix in ("g", "v", "u", "orig")]
    like = getattr(module, f"{name}_v" if isinstance(hook, WeightNorm) else f"{name}_orig")
    plain = type(module).__new__(type(module))
    plain.__dict__.update({n: value for n, value in vars(module).items() if n != name})
    plain.__dict__["_forward_pre_hooks"] = {}
    for kind in ("_parameters", "_buffers"):
        plain.__dict__[kind] = {n: t for n, t in getattr(module, kind).items() if n not in added}
    plain.__dict__["_parameters"] = {name: nn.Parameter(torch.empty_like(like)), **plain._parameters}
    return _normed(plain, hook, name, path, names)


def _normed(plain: nn.Module, norm: Any, name: str, path: str, names: Names) -> str:
    """The call that puts the tensor `name` of a plain layer under a norm."""
    wrapper, defaults = _NORMS[type(norm)]
    rest = [quote(name)] if name != "weight" else []
    rest += [f"{k}={names.literal(getattr(norm, k))}" for k, v in defaults.items() if getattr(norm, k) != v]
    names.use("nn")
    return f"nn.utils.{wrapper}({', '.join([_child(plain, path, names), *rest])})"


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
    """A configuration object of transformers: a constant of the file, made from its class and `to_dict`."""
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
