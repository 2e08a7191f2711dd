"""Run the user's model without side effects."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from lpcompile.passes.graph import own_generators
from lpcompile.passes.graph.mutation import INTERNAL


def rng_state() -> dict[str, Any]:
    """The states of all generators that a forward pass may draw from."""
    state: dict[str, Any] = {"torch": torch.get_rng_state(), "random": random.getstate(), "own": own_generators.saved()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state_all()
    if "numpy" in sys.modules:
        state["numpy"] = sys.modules["numpy"].random.get_state()
    return state


def set_rng_state(state: dict[str, Any]) -> None:
    torch.set_rng_state(state["torch"])
    random.setstate(state["random"])
    own_generators.restore(state["own"])
    if "cuda" in state:
        torch.cuda.set_rng_state_all(state["cuda"])
    if "numpy" in state:
        sys.modules["numpy"].random.set_state(state["numpy"])


def python_rng_state() -> tuple[Any, ...]:
    """The states of Python's and numpy's generators, and of a model's own, comparable with ==."""
    state: tuple[Any, ...] = (random.getstate(), own_generators.state())
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state(legacy=True)
        state += (name, keys.tobytes(), *rest)
    return state


@contextmanager
def untouched(model: nn.Module, written: Iterable[str] = ()) -> Iterator[None]:
    """Restore buffers, modes, plain attributes, gradients and generators on exit.

    `written` names parameters that forward writes into (an embedding with max_norm); they are restored too.
    """
    generators = rng_state()
    parameters = dict(model.named_parameters())
    modules = list(model.modules())
    attributes = [_attributes(m) for m in modules]
    streams = [(g, g.get_state()) for a in attributes for g in a.values() if isinstance(g, torch.Generator)]
    own = [(g, own_generators.state_of(g)) for a in attributes for g in own_generators.generators_in(a.values())]
    tensors = {id(b): b for b in [*model.buffers(), *(parameters[n] for n in written if n in parameters)]}
    tensors |= {id(t): t for a in attributes for v in a.values() for t in _plain_tensors(v)}
    values = [(t, t.detach().clone()) for t in tensors.values() if t.device.type != "meta"]
    gradients = [(p, p.grad) for p in model.parameters()]
    try:
        with attributes_kept(modules):
            yield
    finally:
        for stream, state in streams:
            stream.set_state(state)
        for generator, before in own:
            own_generators.set_state(generator, before)
        with torch.no_grad():
            for tensor, value in values:
                if not torch.equal(tensor.detach(), value):
                    tensor.detach().copy_(value)
        for parameter, gradient in gradients:
            parameter.grad = gradient
        set_rng_state(generators)


@contextmanager
def attributes_kept(modules: Sequence[nn.Module]) -> Iterator[None]:
    """Restore plain attributes, registries (hooks, buffers, ...) and lists on exit: a layer forgets what it cached."""
    attributes = [_attributes(m) for m in modules]
    registries = [(d, dict(d)) for m in modules for d in vars(m).values() if isinstance(d, dict)]
    lists = [(v, list(v)) for a in attributes for v in a.values() if isinstance(v, list)]
    try:
        yield
    finally:
        for module, before in zip(modules, attributes, strict=True):
            for key in [k for k in vars(module) if k not in INTERNAL and k not in before]:
                del module.__dict__[key]
            module.__dict__.update(before)
        for registry, entries in registries:
            if registry.keys() != entries.keys() or any(v is not registry[k] for k, v in entries.items()):
                registry.clear()
                registry.update(entries)
        for held, items in lists:
            held[:] = items


def _attributes(module: nn.Module) -> dict[str, Any]:
    return {k: v for k, v in vars(module).items() if k not in INTERNAL}


def _plain_tensors(value: Any) -> list[torch.Tensor]:
    """Tensors that a module holds as an attribute, or in a list or dict of one."""
    items = value if isinstance(value, (list, tuple)) else value.values() if isinstance(value, dict) else [value]
    return [t for t in items if isinstance(t, torch.Tensor) and not isinstance(t, nn.Parameter)]
