"""The module to which a difference between a program and its model belongs, for the error that refuses the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from lpcompile.passes.graph.tree import flatten

Calls = list[tuple[str, list[torch.Tensor], list[torch.Tensor]]]  # module, its tensors, its results


def suspect(model: nn.Module, run: Callable[[bool], Any], gradients: Sequence[str]) -> str:
    """The name of the module, "" if none can be named.

    `run(True)` runs a step of the program, `run(False)` one of the model. The first call of a layer that differs is to
    blame if its inputs are equal, else the module that made them. Where forward agrees, gradients are wrong from the
    fault backwards: `gradients` are the parameters with a wrong one, in program order.
    """
    theirs, ours = _calls(model, lambda: run(False)), _calls(model, lambda: run(True))
    programs: dict[str, list[Any]] = {}
    for name, given, made in ours:
        programs.setdefault(name, []).append((given, made))
    for name, given, made in theirs:
        if programs.get(name):
            given_now, made_now = programs[name].pop(0)
            if not _equal(given, given_now):
                return name.rpartition(".")[0]
            if not _equal(made, made_now):
                return name
    order = {name: i for i, (name, _, _) in enumerate(theirs)}
    wrong = [g.removeprefix("gradient of ").rpartition(".")[0] for g in gradients]
    last = max((w for w in wrong if w in order), key=order.__getitem__, default="")
    return last.rpartition(".")[0] or last


def last_called(model: nn.Module, run: Callable[[], Any]) -> str:
    """The last module that a step which fails has called, "" if none."""
    names: list[str] = []
    handles = [m.register_forward_pre_hook(lambda *_, n=n: names.append(n)) for n, m in model.named_modules() if n]
    try:
        run()
    except Exception:
        return names[-1] if names else ""
    finally:
        for handle in handles:
            handle.remove()
    return ""


def _calls(model: nn.Module, run: Callable[[], Any]) -> Calls:
    found: Calls = []

    def hook(name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, out: Any) -> None:
            found.append((name, _copies((args, kwargs)), _copies(out)))

        return note

    layers = [(n, m) for n, m in model.named_modules() if n and next(m.children(), None) is None]
    handles = [m.register_forward_hook(hook(n), with_kwargs=True) for n, m in layers]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return found


def _copies(value: Any) -> list[torch.Tensor]:
    return [t.detach().clone() for t in flatten(value)[0]]


def _equal(a: list[torch.Tensor], b: list[torch.Tensor]) -> bool:
    return len(a) == len(b) and all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(a, b, strict=True))
