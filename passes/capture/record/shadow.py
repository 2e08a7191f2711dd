"""A copy of the model whose tensors are fake: forward runs on it, so the user's model stays untouched.

All side effects of forward (a cached tensor, a call counter, updated statistics) happen to the shadow.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from lpcompile.errors import CaptureError
from lpcompile.passes.capture.record.leaves import is_leaf
from lpcompile.passes.graph.mutation import INTERNAL
from lpcompile.passes.graph.tree import flatten


class Shadow:
    """`root` mirrors `model`; `name_of(tensor)` and `path_of(module)` answer in the model's own names.

    With `fake_mode=None` the shadow is the model itself (for the real-tensor front end, under `untouched`).
    """

    def __init__(self, model: nn.Module, fake_mode: FakeTensorMode | None, fakes: dict[int, Any] | None = None) -> None:
        self.model, self.fake_mode = model, fake_mode
        fakes = {} if fakes is None else fakes  # shared between shadows of one model: making them is half the cost
        self._names: dict[int, str] = {}
        self._paths: dict[int, str] = {}
        self._originals: dict[int, torch.Tensor] = {}
        memo: dict[int, Any] = {}
        for name, tensor in named_tensors(model):
            self._names.setdefault(id(tensor), name)
            if fake_mode is not None and id(tensor) not in memo:
                if id(tensor) not in fakes:
                    fakes[id(tensor)] = fake_tensor(tensor, fake_mode)
                memo[id(tensor)] = fake = fakes[id(tensor)]
                self._names[id(fake)] = name
                self._originals[id(fake)] = tensor
        self.root = model if fake_mode is None else _copy(model, memo)
        for original in memo.get(id(memo), ()):  # tensors in nested objects
            copied = memo.get(id(original))
            if isinstance(original, torch.Tensor) and isinstance(copied, torch.Tensor):
                self._originals[id(copied)] = original
        if fake_mode is not None:
            _drop_leaf_hooks(self.root)
        for twin in (model, self.root):
            for path, module in twin.named_modules():
                self._paths.setdefault(id(module), path)
        self._keep = memo

    def name_of(self, tensor: torch.Tensor) -> str | None:
        """The qualified name of a parameter, buffer or tensor attribute; None for any other tensor."""
        return self._names.get(id(tensor))

    def original(self, tensor: torch.Tensor) -> torch.Tensor:
        return self._originals.get(id(tensor), tensor)

    def original_module(self, path: str) -> nn.Module:
        """The model's own module, in the mode of its copy."""
        module = self.model.get_submodule(path)
        for own, copied in zip(module.modules(), self.root.get_submodule(path).modules(), strict=True):
            own.__dict__["training"] = copied.__dict__["training"]  # `untouched` puts it back
        return module

    def path_of(self, module: nn.Module) -> str | None:
        return self._paths.get(id(module))

    def has_weights_of(self, module: nn.Module) -> bool:
        """Not while `torch.func.functional_call` lends a layer other tensors for one call: its steps are recorded."""
        if isinstance(module, torch.jit.ScriptModule):  # it gives its parameters as other objects at every call
            return True
        return all(self.name_of(p) is not None for p in module.parameters())


def named_tensors(model: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters first, then buffers, then tensors held as plain attributes (also in lists and dicts)."""
    yield from model.named_parameters(remove_duplicate=False)
    yield from model.named_buffers(remove_duplicate=False)
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for key, value in vars(module).items():
            if key in ("_parameters", "_buffers", "_modules"):
                continue
            if isinstance(value, torch.Tensor):
                yield f"{prefix}{key}", value
            elif isinstance(value, (list, tuple, dict)):
                items = value.values() if isinstance(value, dict) else value
                flat = f"_{prefix}{key}".replace(".", "_")  # not an attribute path, so it gets its own name
                yield from ((f"{flat}_{i}", v) for i, v in enumerate(items) if isinstance(v, torch.Tensor))


def fake_tensor(tensor: torch.Tensor, mode: FakeTensorMode) -> torch.Tensor:
    """A fake with the tensor's shape, dtype and device."""
    if tensor.device.type == "meta":  # planned without weights: assume the device of the inputs
        with mode:
            fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
            if isinstance(tensor, nn.Parameter):
                return nn.Parameter(fake, requires_grad=tensor.requires_grad)
            return fake
    return mode.from_tensor(tensor, static_shapes=True)


def with_fakes(value: Any, mode: FakeTensorMode, keep_alive: Callable[[Any], None]) -> Any:
    """A value of real tensors with fakes in their place."""
    leaves, tree = flatten(value)
    fakes = [fake_tensor(t.detach(), mode) for t in leaves]
    for fake, tensor in zip(fakes, leaves, strict=True):
        fake.requires_grad_(tensor.requires_grad)
    keep_alive(fakes)
    return tree.unflatten(fakes)


def _copy(model: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """A deep copy; attributes that cannot be copied (locks, files, connections) are shared instead."""
    given = dict(memo)
    try:
        return copy.deepcopy(model, memo)
    except Exception:
        memo.clear()
        memo.update(given)
    for module in model.modules():
        for key, value in vars(module).items():
            if key not in INTERNAL and not isinstance(value, nn.Module) and not _copyable(value, given):
                memo[id(value)] = value
    try:
        return copy.deepcopy(model, memo)
    except Exception as error:
        raise CaptureError(
            f"{type(model).__name__} cannot be copied for capture ({type(error).__name__}: {error}); "
            f"try front_end='real', which records the model itself"
        ) from error


def _drop_leaf_hooks(root: nn.Module) -> None:
    """Forward hooks of layers run in the program; on the shadow they would store fake tensors."""
    for module in root.modules():
        if module._forward_hooks and is_leaf(module):
            module._forward_hooks.clear()


def _copyable(value: Any, memo: dict[int, Any]) -> bool:
    try:
        copy.deepcopy(value, dict(memo))
    except Exception:
        return False
    return True
