"""The layers of an AuxNet: copies of the stage's, or, for tied AuxNets, the stage's parameters with own buffers."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import fx, nn
from torch.nn.modules.dropout import _DropoutNd

from lpcompile.passes.graph.module import submodule
from lpcompile.passes.split.split import plain_attribute, registered

INITS = ("fresh", "copy", "consistent")


def aux_layers(
    stage: nn.Module, graph: fx.Graph, *, tied: bool = False, given: Mapping[str, nn.Module] | None = None
) -> dict[str, Any]:
    """A copy of the module, parameter or buffer of each target in the graph. Aliases in the stage stay aliases.

    With `tied`, parameters are the stage's and only buffers are copied. `given` are layers the stage does not have.
    """
    memo: dict[int, Any] = {}
    if tied:
        memo |= {id(p): p for p in stage.parameters()}
    found: dict[str, Any] = dict(given or {})
    for node in graph.nodes:
        target = str(node.target)
        if node.op == "call_module" and target not in found:
            found[target] = _without_dropout(detached_copy(submodule(stage, target), memo))
        elif node.op == "get_attr" and target not in found:
            value = registered(stage, target)
            value = plain_attribute(stage, target) if value is None else value
            whole = isinstance(value, nn.Module)
            found[target] = _without_dropout(detached_copy(value, memo)) if whole else copy.deepcopy(value, memo)
    if not tied:
        for value in found.values():
            for parameter in parameters_of(value):
                if parameter.is_floating_point():
                    parameter.requires_grad_(True)  # even if frozen in the model: an AuxNet must learn
    return found


def detached_copy(layer: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy. Tensors that a layer computed and keeps (weight norm's weight) are detached first."""
    memo = {} if memo is None else memo
    for module in layer.modules():
        for value in vars(module).values():
            if isinstance(value, torch.Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
    copied = copy.deepcopy(layer, memo)
    for parameter in copied.parameters():
        if not parameter.is_leaf:  # a script's copies are results of a clone, which no optimizer takes
            parameter.detach_().requires_grad_(True)
    return copied


def parameters_of(value: Any) -> Iterable[nn.Parameter]:
    if isinstance(value, nn.Module):
        return value.parameters()
    return [value] if isinstance(value, nn.Parameter) else []


def _without_dropout(layer: nn.Module) -> nn.Module:
    """Disable dropout and in-place writes, and remove the user's hooks."""
    for module in layer.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        elif isinstance(module, nn.MultiheadAttention):
            module.dropout = 0.0
        if isinstance(getattr(module, "inplace", None), bool):
            module.inplace = False  # type: ignore[assignment]
        for hooks in (module._forward_hooks, module._backward_hooks, module._backward_pre_hooks):
            hooks.clear()
    return layer


def refresh(values: Iterable[Any]) -> None:
    """Draw new initial weights with each module's own `reset_parameters`.

    Modules without it get matrices from a normal distribution of the same standard deviation; vectors stay.
    """
    for value in values:
        for module in value.modules() if isinstance(value, nn.Module) else ():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if callable(reset):
                reset()
                continue
            for parameter in module.parameters(recurse=False):
                if parameter.dim() >= 2 and parameter.is_floating_point():
                    with torch.no_grad():
                        parameter.normal_(0.0, float(parameter.std()) if parameter.device.type != "meta" else 1.0)


def take_weights(aux: nn.Module, stage: nn.Module, split: Collection[str] = ()) -> None:
    """Copy the stage's current parameters and buffers to the AuxNet; thinned layers get the first channels.

    Layers that were `split` in two keep theirs: they were approximated from the stage's when they were made.
    """
    theirs = dict(stage.named_parameters(remove_duplicate=False)) | dict(stage.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        for name, tensor in (*aux.named_parameters(), *aux.named_buffers()):
            source = theirs.get(name)
            if source is not None and source is not tensor and name.rpartition(".")[0] not in split:
                tensor.copy_(source[tuple(slice(0, size) for size in tensor.shape)])
