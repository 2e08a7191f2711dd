"""How a model is called: from the user's arguments to a checked flat list of tensors, and back."""

from __future__ import annotations

import builtins
import inspect
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import InputError, UsageError
from lpcompile.passes.graph.tree import Tree, flatten

Rebuild = Callable[[list[torch.Tensor]], tuple[tuple[Any, ...], dict[str, Any]]]  # tensors -> arguments of forward
# Names that generated code uses itself.
_TAKEN = {"self", "torch", "inf", "nan", "device", "operator", "lpcompile", *dir(builtins)}


@dataclass(frozen=True)
class Signature:
    """The recorded call. `flat(args, kwargs)` accepts the same call at any batch size, positionally or by keyword."""

    parameters: inspect.Signature
    trees: dict[str, Tree]  # one per argument that was given when recording
    inputs: tuple[tuple[str, TensorSpec], ...]  # placeholder name and spec of every tensor

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any], check: bool = True) -> list[torch.Tensor]:
        """The tensors of a call in placeholder order."""
        given = bind(self.parameters, args, kwargs)
        leaves: list[torch.Tensor] = []
        for name, tree in self.trees.items():
            if name not in given:
                raise InputError(
                    f"input {name!r} was given when the model was captured but is missing now; "
                    f"pass it, or compile again with example inputs that leave it out"
                )
            tensors, found = flatten(given.pop(name))
            if check and not found.matches(tree):
                now, before = (found, tree) if found.text != tree.text else (found.constants, tree.constants)
                raise InputError(
                    f"input {name!r} is {now} now but was {before} when the model was captured (* is a tensor); "
                    f"values that are not tensors are part of the program: compile again for this call"
                )
            leaves += tensors
        for name, value in given.items():
            parameter = self.parameters.parameters[name]
            if not _is_default(parameter, value):
                raise InputError(
                    f"input {name!r} is given now but was not when the model was captured; "
                    f"compile again with example inputs that include it"
                )
        if check:
            self._check(leaves)
        return leaves

    def _check(self, leaves: list[torch.Tensor]) -> None:
        free: dict[str, int] = {}  # the sizes that may be others at every call
        for (name, spec), tensor in zip(self.inputs, leaves, strict=True):
            shape = tuple(tensor.shape)
            same = len(shape) == len(spec.shape) and tensor.dtype == spec.dtype
            none = (0,) * len(spec.shape)
            for size, recorded, c, e in zip(shape, spec.shape, spec.batch or none, spec.edges or none, strict=False):
                multiple, of = c or e, "batch" if c else "edges"
                same = same and size == (multiple * free.setdefault(of, size // multiple) if multiple else recorded)
            if not same:
                follows = " (B is the batch size)" if any(spec.batch) else ""
                follows = " (B counts nodes, E edges)" if any(s.edges for _, s in self.inputs) else follows
                raise InputError(
                    f"input {name!r} is {TensorSpec.of(tensor)} now but the program was compiled for {spec}"
                    f"{follows}; compile again with example inputs of "
                    f"this shape and dtype, or pad or crop to the compiled one"
                )


def _is_default(parameter: inspect.Parameter, value: Any) -> bool:
    if parameter.kind in (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL):
        return not value
    return flatten(value)[1].matches(flatten(parameter.default)[1]) and not isinstance(value, torch.Tensor)


def bind(parameters: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, in signature order, keyword bundles sorted, so that equal calls look equal."""
    try:
        bound = parameters.bind(*args, **kwargs).arguments
    except TypeError as error:
        raise InputError(f"the model's forward{parameters} cannot be called like this: {error}") from None
    for name, parameter in parameters.parameters.items():
        if name in bound and parameter.kind is inspect.Parameter.VAR_KEYWORD:
            bound[name] = dict(sorted(bound[name].items()))
    return dict(bound)


def make_signature(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
    parameters = inspect.signature(model.forward)
    trees, inputs, used = {}, [], set()
    for name, value in bind(parameters, args, kwargs).items():
        tensors, trees[name] = flatten(value)
        for i, tensor in enumerate(tensors):
            label = re.sub(r"\W", "_", name if len(tensors) == 1 else f"{name}_{i}")
            if label.startswith("lam"):  # stages call their boundary inputs lam, lam_0, ...
                label = f"x_{label}"
            while label in used or keyword.iskeyword(label) or label in _TAKEN:
                label += "_"
            used.add(label)
            inputs.append((label, TensorSpec.of(tensor)))
    if not inputs:
        raise UsageError("the example inputs hold no tensor; pass example_inputs=(x, ...) as the model is called")
    return Signature(parameters, trees, tuple(inputs))


def rebuilder(signature: Signature) -> Rebuild:
    """From a flat list of tensors back to the arguments of forward."""

    def rebuild(tensors: list[torch.Tensor]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        at, values = 0, {}
        for name, tree in signature.trees.items():
            values[name] = tree.unflatten(tensors[at : at + tree.count])
            at += tree.count
        bound = signature.parameters.bind_partial()
        bound.arguments.update(values)
        return bound.args, bound.kwargs

    return rebuild


def example_call(
    parameters: inspect.Signature, example_inputs: Any, example_kwargs: dict[str, Any] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Normalise example inputs: a tensor, a tuple of arguments, or a dict of keyword arguments."""
    kwargs = dict(example_kwargs or {})
    if example_inputs is None:
        return (), kwargs
    if isinstance(example_inputs, Mapping) and not isinstance(example_inputs, torch.Tensor):
        names = parameters.parameters
        open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in names.values())
        if all(isinstance(k, str) and (k in names or open_ended) for k in example_inputs):
            return (), {**example_inputs, **kwargs}
        return (example_inputs,), kwargs
    if isinstance(example_inputs, (tuple, list)) and not hasattr(example_inputs, "_fields"):
        return tuple(example_inputs), kwargs
    return (example_inputs,), kwargs
