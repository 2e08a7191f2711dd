"""The gate at the end of every compilation: one step of the program against one step of the user's model, bitwise.

Outputs, gradients of every parameter and input, and every buffer afterwards must be the same bits, in training and in
evaluation. A program that differs is refused with what differs and by how much; it is never returned.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lpcompile.errors import GateError
from lpcompile.passes.split import Stage, stage_io
from lpcompile.passes.tree import flatten
from lpcompile.passes.untouched import untouched

SEED = 20
Forward = Callable[[list[torch.Tensor]], Any]


@dataclass(frozen=True)
class Step:
    """What one step did: a digest (or the tensors themselves) under the name of each result."""

    results: dict[str, Any]
    text: str  # structure of the output


def run_step(
    model: nn.Module, forward: Forward, inputs: list[torch.Tensor], training: bool, *, digest: bool = True
) -> Step:
    """One forward (and, in training, backward) under a fixed seed; the model is as before afterwards."""
    try:
        return _run_step(model, forward, inputs, training, digest, accumulate=False)
    except RuntimeError as error:
        if "use_reentrant" not in str(error):
            raise
        return _run_step(model, forward, inputs, training, digest, accumulate=True)  # all that such checkpoints allow


def _run_step(
    model: nn.Module, forward: Forward, inputs: list[torch.Tensor], training: bool, digest: bool, accumulate: bool
) -> Step:
    keep = _digest if digest else lambda t: t.detach().clone()
    with untouched(model):
        torch.manual_seed(SEED)
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        with torch.set_grad_enabled(training):
            out, tree = flatten(forward(leaves))
        results = {f"output {i}": keep(t) for i, t in enumerate(out)}
        if training:
            results.update(_gradients(model, out, leaves, keep, accumulate))
        results |= {f"buffer {name}": keep(b) for name, b in model.named_buffers()}
        return Step(results, tree.text)


def _gradients(
    model: nn.Module, out: list[torch.Tensor], leaves: list[torch.Tensor], keep: Any, accumulate: bool
) -> dict[str, Any]:
    loss = scalar(out)
    if loss is None:
        return {}
    wanted: dict[str, torch.Tensor] = {f"gradient of {n}": p for n, p in model.named_parameters() if p.requires_grad}
    wanted |= {f"gradient of input {i}": t for i, t in enumerate(leaves) if t.requires_grad}
    if not wanted:
        return {}
    if not accumulate:
        gradients: tuple[torch.Tensor | None, ...] = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True)
    else:
        for tensor in wanted.values():  # `untouched` puts .grad back
            tensor.grad = None
        loss.backward()  # type: ignore[no-untyped-call]
        gradients = tuple(t.grad for t in wanted.values())
    return {name: None if g is None else keep(g) for name, g in zip(wanted, gradients, strict=True)}


def scalar(out: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A scalar that weighs every element of every differentiable output differently."""
    terms = []
    for tensor in out:
        if tensor.requires_grad:
            weights = torch.linspace(0.5, 1.5, tensor.numel(), device=tensor.device).to(tensor.dtype)
            terms.append((tensor.reshape(-1) * weights).sum().abs())
    return torch.stack([t.double() for t in terms]).sum() if terms else None


def staged(stages: Sequence[Stage], tensors: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    """The flat outputs of the stages run one after another in one autograd graph."""
    lam: tuple[torch.Tensor, ...] = ()
    outputs: list[Any] = [None] * count
    for stage in stages:
        io = stage_io(stage)
        result = stage(*lam, *(tensors[i] for i in io.inputs))
        values = result if isinstance(result, tuple) else (result,)
        lam = values[: len(io.boundary)]
        for i, value in zip(io.outputs, values[len(io.boundary) :], strict=True):
            outputs[i] = value
    return outputs


def gate(
    model: nn.Module,
    reference: Forward,
    program: Forward,
    inputs: list[torch.Tensor],
    set_mode: Callable[[bool], None],
) -> None:
    """Raise `GateError` unless `program` does exactly what `reference` does, in both modes."""
    before = model.training
    for training in (True, False):
        flags = [(m, m.training) for m in model.modules()]
        try:
            if training != before:
                model.train(training)
            set_mode(training)
            left = run_step(model, reference, inputs, training)
            right = run_step(model, program, inputs, training)
            if left != right:
                _refuse(model, reference, program, inputs, training)
        finally:
            for module, flag in flags:
                module.training = flag
            set_mode(before)


def _refuse(model: nn.Module, reference: Forward, program: Forward, inputs: list[torch.Tensor], training: bool) -> None:
    left = run_step(model, reference, inputs, training, digest=False)
    again = run_step(model, reference, inputs, training, digest=False)
    mode = "training" if training else "evaluation"
    unstable = _differences(left, again)
    if unstable:
        raise GateError(
            f"the model itself gives different results in two runs with the same seed ({unstable[0]}), so no program "
            f"can be checked against it; remove the source of chance outside torch's generators "
            f"(for a check without the gate pass gate=False)"
        )
    right = run_step(model, program, inputs, training, digest=False)
    found = _differences(left, right) or ["nothing on a second look: the difference comes and goes"]
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    raise GateError(
        f"the compiled program differs from the model in {mode} and is refused: {'; '.join(found[:3])}{more}. "
        f"Keep the module that this belongs to whole with leaf=[...], or report the model to us"
    )


def _differences(left: Step, right: Step) -> list[str]:
    if left.text != right.text:
        return [f"the output is {right.text}, not {left.text}"]
    found = []
    for name in [*left.results, *(n for n in right.results if n not in left.results)]:
        a, b = left.results.get(name), right.results.get(name)
        if a is None and b is None:
            continue
        if a is None or b is None:
            found.append(f"{name} is {'missing' if b is None else 'there but should not be'}")
        elif a.shape != b.shape or a.dtype != b.dtype:
            found.append(f"{name} is {b.dtype}{tuple(b.shape)}, not {a.dtype}{tuple(a.shape)}")
        elif _digest(a) != _digest(b):
            gap = (a.double() - b.double()).abs().max().item() if not a.is_complex() else float((a - b).abs().max())
            found.append(f"{name} differs by up to {gap:.3g}")
    return found


def _digest(tensor: torch.Tensor) -> tuple[Any, ...]:
    """Equal for tensors of the same bits. (Holding a second set of gradients would cost as much as the model.)"""
    flat = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg().reshape(-1)
    data: Any = (flat if flat.stride(0) == 1 else flat.clone()).view(torch.uint8).numpy() if flat.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), zlib.crc32(data)
