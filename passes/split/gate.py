"""The gate at the end of every compilation: one step of the program against one step of the user's model, bitwise.

Outputs, gradients of every parameter and input, and all buffers after the step must agree to the bit, in training and
in evaluation. A program that differs is refused, with the differences, and never returned.
"""

from __future__ import annotations

import contextlib
import random
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from lpcompile.errors import GateError, LpError
from lpcompile.passes.graph.tree import flatten
from lpcompile.passes.graph.untouched import untouched
from lpcompile.passes.split.split import Stage, stage_io
from lpcompile.passes.split.suspect import last_called, suspect

GATE_SEED = 20
MODEL_FAILS = (
    "the model itself fails in {} on the example inputs, so there is nothing to check the program against; "
    "repair it, or pass gate=False"
)
PROGRAM_FAILS = "the compiled program fails in {} where the model does not, and is refused"


class ModelFails(GateError):
    """The model itself fails on the inputs of the check."""


Forward = Callable[[list[torch.Tensor]], Any]


@dataclass(frozen=True)
class StepResults:
    """The results of one step by name: digests, or the tensors themselves."""

    results: dict[str, Any]
    text: str  # structure of the output


def run_step(
    model: nn.Module,
    forward: Forward,
    inputs: list[torch.Tensor],
    training: bool,
    *,
    written: Sequence[str] = (),
    digest: bool = True,
    seed: int = GATE_SEED,
) -> StepResults:
    """One forward (and, in training, backward) under a fixed seed; the model is restored afterwards."""
    keep = _digest if digest else lambda t: t.detach().clone()
    with untouched(model, written), torch.set_grad_enabled(training), _seeds_repeated():
        torch.manual_seed(seed)
        random.seed(seed)
        leaves = [t.detach().clone().requires_grad_(t.requires_grad) for t in inputs]
        out, tree = flatten(forward(leaves))
        results = {f"output {i}": keep(t) for i, t in enumerate(out)}
        if training:
            results.update(_gradients(model, out, leaves, keep))
        results |= {f"buffer {name}": keep(b) for name, b in model.named_buffers()}
        results |= {f"parameter {name}": keep(model.get_parameter(name)) for name in written}
        return StepResults(results, tree.text)


@contextlib.contextmanager
def _seeds_repeated() -> Iterator[None]:
    """Inside, `torch.seed()`, which takes a seed from the operating system, takes it from torch's generator: a model
    that seeds its layers so (transformers' Reformer) gives the same in two runs."""
    before = torch.seed

    def seed() -> int:
        found = int(torch.randint(2**62, ()))
        torch.manual_seed(found)
        return found

    torch.seed = torch.random.seed = seed
    try:
        yield
    finally:
        torch.seed = torch.random.seed = before


def _gradients(model: nn.Module, out: list[torch.Tensor], leaves: list[torch.Tensor], keep: Any) -> dict[str, Any]:
    """Every gradient, recorded and freed as soon as it is computed: all at once would be a second model in memory."""
    loss = scalar(out)
    if loss is None:
        return {}
    wanted: dict[str, torch.Tensor] = {f"gradient of {n}": p for n, p in model.named_parameters() if p.requires_grad}
    wanted |= {f"gradient of input {i}": t for i, t in enumerate(leaves) if t.requires_grad}
    results: dict[str, Any] = dict.fromkeys(wanted)
    hooks = []
    for name, tensor in wanted.items():
        tensor.grad = None  # `untouched` puts it back

        def take(t: torch.Tensor, name: str = name) -> None:
            before, results[name] = results[name], keep(t.grad)
            if before is not None:  # reentrant checkpoints accumulate a shared parameter's gradient several times
                results[name] = (before, results[name])
            t.grad = None

        hooks.append(tensor.register_post_accumulate_grad_hook(take))  # type: ignore[no-untyped-call]
    try:
        loss.backward()  # type: ignore[no-untyped-call]
    finally:
        for hook in hooks:
            hook.remove()
    return results


def scalar(out: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """A scalar loss with a different weight for every element of every differentiable output."""
    terms = []
    for tensor in out:
        if tensor.requires_grad:
            weights = torch.linspace(0.5, 1.5, tensor.numel(), device=tensor.device).to(tensor.dtype)
            terms.append((tensor.reshape(-1) * weights).sum().abs())
    return torch.stack([t.double() for t in terms]).sum() if terms else None


def staged(stages: Sequence[Stage], tensors: list[torch.Tensor], count: int) -> list[torch.Tensor]:
    """The model's flat outputs from the stages run in sequence, in one autograd graph."""
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
    written: Sequence[str] = (),
    seeds: int = 1,
) -> None:
    """Raise `GateError` unless `program` equals `reference` bitwise, in training (with `seeds` seeds) and evaluation.

    `ModelFails` if the model itself cannot run on these inputs.
    """
    before = model.training
    for training, seed in [*((True, GATE_SEED + i) for i in range(seeds)), (False, GATE_SEED)]:
        flags = [(m, m.training) for m in model.modules()]
        try:
            if training != before:
                model.train(training)
            set_mode(training)
            left = _checked_step(model, reference, inputs, training, written, seed, ModelFails, MODEL_FAILS)
            right = _checked_step(model, program, inputs, training, written, seed, GateError, PROGRAM_FAILS)
            if left != right:
                _refuse(model, reference, program, inputs, training, written, seed)
        finally:
            for module, flag in flags:
                module.training = flag
            set_mode(before)


def gate_second_call(
    model: nn.Module, reference: Forward, program: Forward, inputs: list[torch.Tensor], written: Sequence[str] = ()
) -> None:
    """Raise `GateError` if a second call differs: a module that stays whole may keep something from call to call that
    its caller resets, which the program does not do."""

    def second(forward: Forward) -> list[tuple[Any, ...]]:
        with untouched(model, written), torch.no_grad(), _seeds_repeated():
            torch.manual_seed(GATE_SEED)
            random.seed(GATE_SEED)
            flatten(forward([t.detach().clone() for t in inputs]))
            return [_digest(t) for t in flatten(forward([t.detach().clone() for t in inputs]))[0]]

    try:
        wanted = second(reference)
    except Exception:  # a model that runs once, until its user resets it
        return
    if second(program) != wanted:
        raise GateError(
            "the compiled program is the model in a first call and differs in a second: forward resets what a module "
            "that stays whole has kept; keep the module that does so whole, too, with leaf=[...]"
        )


def _checked_step(
    model: nn.Module,
    forward: Forward,
    inputs: list[torch.Tensor],
    training: bool,
    written: Sequence[str],
    seed: int,
    kind: type[GateError],
    blame: str,
) -> StepResults:
    """`run_step`, with exceptions turned into a `GateError` that says whose fault they are."""
    try:
        return run_step(model, forward, inputs, training, written=written, seed=seed)
    except Exception as error:
        mode = "a training step" if training else "evaluation under no_grad"
        text = f"{blame.format(mode)} ({type(error).__name__}: {error})"
        if kind is GateError and not isinstance(error, LpError):  # our own errors say what to do
            step = partial(run_step, model, forward, inputs, training, written=written, seed=seed)
            name = last_called(model, step)
            module = name.rpartition(".")[0] or name
            text += f"; it fails in {name} or after it: keep {module!r} whole with leaf=[{module!r}]" if name else ""
            text += ", or report the model to us" if name else "; report the model to us"
        raise kind(text) from error


def _refuse(
    model: nn.Module,
    reference: Forward,
    program: Forward,
    inputs: list[torch.Tensor],
    training: bool,
    written: Sequence[str],
    seed: int,
) -> None:
    """Raise `GateError` with the differences, or with the reason that the model cannot be checked."""
    step = partial(run_step, inputs=inputs, training=training, written=written, digest=False, seed=seed)
    left = step(model, reference)
    again = step(model, reference)
    mode = "training" if training else "evaluation"
    unstable = _differences(left, again)
    if unstable:
        raise GateError(
            f"the model itself gives different results in two runs with the same seed ({unstable[0]}), so no program "
            f"can be checked against it; remove the source of chance outside torch's generators "
            f"(for a check without the gate pass gate=False)"
        )
    right = step(model, program)
    found = _differences(left, right) or ["nothing on a second look: the difference comes and goes"]
    gradients = [f.split(" is ")[0].split(" differs ")[0] for f in found if f.startswith("gradient of ")]
    module = suspect(model, lambda ours: step(model, program if ours else reference), gradients)
    keep = (
        f"It begins in {module}: keep that module whole with leaf=[{module!r}]"
        if module
        else ("Keep the module that this belongs to whole with leaf=[...]")
    )
    more = f" and {len(found) - 3} more" if len(found) > 3 else ""
    fast = any(isinstance(m, nn.TransformerEncoder) for m in model.modules()) and not training
    hint = (
        " (torch.backends.mha.set_fastpath_enabled(False) switches off nn.TransformerEncoder's other path)"
        if fast
        else ""
    )
    raise GateError(
        f"the compiled program differs from the model in {mode} and is refused: {'; '.join(found[:3])}{more}. "
        f"{keep}{hint}, or report the model to us"
    )


def _differences(left: StepResults, right: StepResults) -> list[str]:
    if left.text != right.text:
        return [f"the output is {right.text}, not {left.text}"]
    found = []
    for name in [*left.results, *(n for n in right.results if n not in left.results)]:
        a, b = left.results.get(name), right.results.get(name)
        if a is b is None or isinstance(a, tuple) or isinstance(b, tuple):
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
    """dtype, shape and checksum: holding the tensors instead would cost as much memory as the model."""
    if tensor.layout != torch.strided:
        tensor = tensor.detach().to_dense()
    flat = tensor.detach().cpu().contiguous().resolve_conj().resolve_neg().reshape(-1)
    data: Any = (flat if flat.stride(0) == 1 else flat.clone()).view(torch.uint8).numpy() if flat.numel() else b""
    return str(tensor.dtype), tuple(tensor.shape), zlib.crc32(data)
