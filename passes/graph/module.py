"""An fx.GraphModule over the user's own modules, with one graph for training and one for evaluation."""

from __future__ import annotations

import copy
import keyword
from collections.abc import Callable
from typing import Any

import torch
from torch import fx, nn

from lpcompile.errors import InputError
from lpcompile.passes.graph.serial import from_data, to_data

HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")  # registries of nn.Module
RegistryLink = tuple[dict[str, Any], str, dict[str, Any]]  # our registry, an entry in it, the model's registry


class TwoModeModule(fx.GraphModule):
    """Runs `graphs[self.training]`; shares modules, parameters and buffers with the model, under their own names.

    If the two graphs are one object, nothing is switched. Buffers keep their persistence, so the state_dict has the
    model's keys only. Our own attributes are named `_lp_...`: any other name may be the model's.
    """

    _lp_graphs: dict[bool, fx.Graph]
    _lp_forwards: dict[bool, Callable[..., Any]]
    _lp_links: list[RegistryLink]
    _lp_name: str
    _lp_notes: dict[str, Any]
    forward: Callable[..., Any]

    def __init__(self, graphs: dict[bool, fx.Graph], name: str, **notes: Any) -> None:
        super().__init__(nn.Module(), fx.Graph(), name)
        self.__dict__.update(_lp_graphs=graphs, _lp_forwards={}, _lp_links=[], _lp_name=name, _lp_notes=notes, **notes)

    def _lp_fill(self, model: nn.Module, state: dict[str, Any]) -> None:
        """Take over modules, parameters and buffers of the model, and its mode."""
        for target in sorted(state, key=lambda t: (t.count("."), t)):
            install(self, target, state[target], persistent=_is_persistent(model, target))
        self._lp_follow(model)
        self._lp_use_mode(model.training)

    def _lp_follow(self, model: nn.Module) -> None:
        """Remember where in the model each entry comes from."""
        self.__dict__["_lp_links"] = follow(self, model)

    def _lp_refresh(self) -> None:
        refresh(self._lp_links)

    def __reduce__(self) -> Any:
        return _restore, (_base(self), *_parts(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.__reduce__()

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        copied = _restore(_base(self), *copy.deepcopy(_parts(self), memo))
        memo[id(self)] = copied
        return copied

    def _lp_use_mode(self, training: bool) -> None:
        """Switch graphs without touching the flags of the layers."""
        self.training = training
        graph = self._lp_graphs[training]
        if graph is self._graph:
            return
        if training in self._lp_forwards:
            self._graph = graph
            type(self).forward = self._lp_forwards[training]
        else:
            fx.GraphModule.graph.fset(self, graph)  # type: ignore[attr-defined] # compiles; `self.graph` may be a layer
            self._lp_forwards[training] = type(self).forward

    def recompile(self) -> Any:
        """Generate `forward` as fx does, but allow layers with names that fx or Python reserve."""
        targets = [n.target for n in self._graph.nodes if n.op in ("get_attr", "call_module")]
        root = "self"
        tops = {t.split(".")[0] for t in targets}
        if any(hasattr(TwoModeModule, top) or top == "meta" or top.startswith("_") for top in tops):
            holder, root = nn.Module(), "self._lp_holder"
            for kind in ("_modules", "_parameters", "_buffers"):
                holder.__dict__[kind] = self.__dict__[kind]
            self.__dict__["_lp_holder"] = holder
        odd = [n for n in self._graph.nodes if n.op in ("get_attr", "call_module") and not _is_plain(n.target)]
        names = {n: n.target for n in odd}
        try:  # fx writes names into the code unquoted: replace them meanwhile
            for i, node in enumerate(odd):
                node.target = f"_lp_odd_{i}_"
            python = self._graph.python_code(root_module=root)
        finally:
            for node, target in names.items():
                node.target = target
        source = python.src
        for i, node in enumerate(odd):
            source = source.replace(f"{root}._lp_odd_{i}_", _getattr(root, node.target))
        self.__dict__["_code"] = source
        for note in ("_lineno_map", "_prologue_start"):  # dynamo reads them
            self.__dict__[note] = getattr(python, note, None)
        type(self).forward = fx.graph_module._forward_from_src(source, python.globals)
        return python

    def train(self, mode: bool = True) -> TwoModeModule:
        super().train(mode)
        self._lp_use_mode(mode)
        return self


_REGISTRIES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "training")


def _base(module: TwoModeModule) -> type[TwoModeModule]:
    """The class as written; fx puts a generated class per instance before it in the MRO."""
    return next(c for c in type(module).__mro__ if c.__module__ != "torch.fx.graph_module" and "Impl" not in c.__name__)


def _parts(module: TwoModeModule) -> tuple[Any, ...]:
    graphs = module._lp_graphs
    train = to_data(graphs[True])
    evaluate = None if graphs[False] is graphs[True] else to_data(graphs[False])
    registries = {key: module.__dict__[key] for key in _REGISTRIES}
    return train, evaluate, module._lp_name, module._lp_notes, registries


def _restore(
    kind: type[TwoModeModule], train: Any, evaluate: Any, name: str, notes: dict[str, Any], registries: dict[str, Any]
) -> TwoModeModule:
    graph = from_data(train)
    made = kind({True: graph, False: graph if evaluate is None else from_data(evaluate)}, name, **notes)
    made.__dict__.update(registries)
    made._lp_use_mode(made.training)
    return made


def follow(stage: nn.Module, model: nn.Module) -> list[RegistryLink]:
    """Where in the model each entry of a stage's containers comes from."""
    links: list[RegistryLink] = []
    for path, module in stage.named_modules(remove_duplicate=False):
        owner = _at(model, path)
        plain = not isinstance(module, torch.jit.ScriptModule)  # a script keeps its tensors where Python has no entry
        if owner is not None and owner is not module and plain:
            for kind in ("_parameters", "_buffers", "_modules"):
                theirs = getattr(owner, kind)
                links += [(getattr(module, kind), name, theirs) for name in getattr(module, kind) if name in theirs]
            links += [(module._buffers, n, vars(owner)) for n in module._buffers if n in vars(owner)]  # plain tensors
    return [(m, n, t) for m, n, t in links if m[n] is t[n]]


def refresh(links: list[RegistryLink]) -> None:
    """Take over entries replaced in the model since: `model.to(...)` makes new buffers, users assign new layers."""
    for mine, name, theirs in links:
        if mine[name] is not theirs.get(name) and name in theirs:
            if not isinstance(theirs[name], (torch.Tensor, nn.Module)) or not _alike(mine[name], theirs[name]):
                raise InputError(f"{name} is a tensor of another shape now, or none: compile again")
            mine[name] = theirs[name]


def _alike(old: Any, new: Any) -> bool:
    """Whether a plain tensor may take the place of another: a graph has been recorded with its shape."""
    tensors = isinstance(old, torch.Tensor) and isinstance(new, torch.Tensor)
    return not tensors or old.shape == new.shape


def install(root: nn.Module, target: str, value: Any, persistent: bool = True) -> None:
    """Put a module, parameter or buffer at a dotted path, making plain modules on the way.

    Does nothing below a user's module that is installed already.
    """
    *prefix, field = target.split(".")
    at = root
    for item in prefix:
        if item not in at._modules:
            if type(at) is not nn.Module and at is not root:
                return
            at._modules[item] = nn.Module()
        at = at._modules[item]  # type: ignore[assignment]
    if type(at) is not nn.Module and at is not root:
        return
    if isinstance(value, nn.Module):  # straight into the registries: a model may use names that nn.Module refuses here
        at._modules[field] = value
    elif isinstance(value, nn.Parameter):
        at._parameters[field] = value
    else:
        at._buffers[field] = value
        if not persistent:
            at._non_persistent_buffers_set.add(field)


def _is_plain(target: str) -> bool:
    """Whether fx writes a path into code correctly: parts are numbers, which it quotes, or identifiers."""
    names = target.split(".")
    return target.isascii() and all(n.isdigit() or (n.isidentifier() and not keyword.iskeyword(n)) for n in names)


def _getattr(root: str, target: str) -> str:
    for part in target.split("."):
        root = f"getattr({root}, {part!r})"
    return root


def submodule(root: nn.Module, path: str) -> nn.Module:
    """`root.get_submodule(path)`, for any names: a layer may be called `graph` or `meta`."""
    for part in path.split(".") if path else ():
        found = root._modules.get(part)
        if found is None:
            raise AttributeError(f"{type(root).__name__} has no layer {part!r}")
        root = found
    return root


def forward_of(module: nn.Module) -> Any:
    """The Python function that is a module's forward; None for a TorchScript module, which has none."""
    return None if isinstance(module, torch.jit.ScriptModule) else type(module).forward


def _at(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None


def _is_persistent(model: nn.Module, target: str) -> bool:
    path, _, field = target.rpartition(".")
    owner = _at(model, path)
    return owner is not None and field in owner._buffers and field not in owner._non_persistent_buffers_set
