"""One step of a model or of its stages, compared to the bit. None of it uses lpcompile's own gate."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import torch
from hypothesis import assume
from torch import Tensor, nn

from lpcompile import PlanError, Program, parallelize
from tests.properties.recipes import Call, Recipe


@dataclass
class Step:
    """What one step did: bytes under the name of every result, and the tensors for a comparison that may round."""

    structure: str
    tensors: dict[str, Tensor | None]

    def bits(self) -> dict[str, Any]:
        return {"structure": self.structure} | {name: bits(t) for name, t in self.tensors.items()}


def bits(tensor: Tensor | None) -> tuple[str, tuple[int, ...], bytes] | None:
    if tensor is None:
        return None
    return str(tensor.dtype), tuple(tensor.shape), tensor.detach().contiguous().numpy().tobytes()


def tensors_in(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if is_dataclass(value):
        return [t for f in fields(value) for t in tensors_in(getattr(value, f.name))]
    if isinstance(value, dict):
        return [t for item in value.values() for t in tensors_in(item)]
    return [t for item in value for t in tensors_in(item)] if isinstance(value, (list, tuple)) else []


def structure_of(value: Any) -> str:
    if isinstance(value, Tensor):
        return "tensor"
    if is_dataclass(value):
        value = {f.name: getattr(value, f.name) for f in fields(value)} | {"class": type(value).__name__}
    if isinstance(value, dict):
        return f"{type(value).__name__}({', '.join(f'{k!r}: {structure_of(v)}' for k, v in value.items())})"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}({', '.join(map(structure_of, value))})"
    return repr(value)


def pulls(outputs: Sequence[Tensor]) -> list[Tensor]:
    """A fixed gradient for every output."""
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(t.shape, generator=generator).to(t.dtype) for t in outputs]


def serial_step(model: nn.Module, call: Call, seed: int) -> Step:
    """Forward and backward of anything that is called like the model."""
    model.zero_grad(set_to_none=True)
    call = copy.deepcopy(call)  # a model may write into its inputs
    torch.manual_seed(seed)
    value = model(*call.args, **call.kwargs)
    outputs = tensors_in(value)
    trained = [(t, pull) for t, pull in zip(outputs, pulls(outputs), strict=True) if t.requires_grad]
    if trained:
        torch.autograd.backward([t for t, _ in trained], [pull for _, pull in trained])
    gradients = {name: p.grad for name, p in (*model.named_parameters(), *named_inputs(call))}
    return Step(structure_of(value), results(model, call, outputs, gradients))


def named_inputs(call: Call) -> list[tuple[str, Tensor]]:
    return [(f"input {i}", t) for i, t in enumerate(tensors_in((call.args, call.kwargs)))]


def results(
    model: nn.Module, call: Call, outputs: Sequence[Tensor], gradients: dict[str, Tensor | None]
) -> dict[str, Tensor | None]:
    found: dict[str, Tensor | None] = {f"output {i}": t.detach().clone() for i, t in enumerate(outputs)}
    found |= {f"gradient of {name}": None if g is None else g.clone() for name, g in gradients.items()}
    found |= {f"buffer {name}": b.clone() for name, b in model.named_buffers()}
    found |= {f"{name} afterwards": t.detach().clone() for name, t in named_inputs(call)}
    return found | {"generator": torch.get_rng_state()}


def assert_same(left: Step, right: Step) -> None:
    different = [name for name, value in left.bits().items() if right.bits().get(name, "absent") != value]
    assert not different, f"{different}"
    assert left.tensors.keys() == right.tensors.keys()


def assert_close(left: Step, right: Step) -> None:
    """Equal up to rounding. A gradient that cancels to zero keeps the rounding of the largest one, hence the scale."""
    floats = [t.abs().max().item() for t in left.tensors.values() if t is not None and t.is_floating_point()]
    atol = 1e-6 * max(10.0, *floats)
    for name, tensor in left.tensors.items():
        other = right.tensors[name]
        assert (tensor is None) == (other is None), name
        if tensor is not None and other is not None:
            torch.testing.assert_close(other, tensor, rtol=1e-4, atol=atol, msg=lambda m, n=name: f"{n}: {m}")


def descend(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.sub_(parameter.grad, alpha=0.01)


def fresh(recipe: Recipe, batch: int) -> tuple[nn.Module, nn.Module, Call]:
    """The model, a twin that stays as the user wrote it, and a call; recipes that torch itself refuses are dropped."""
    model = recipe.build()
    try:
        serial_step(copy.deepcopy(model), recipe.call(batch), seed=0)
    except RuntimeError as error:  # an in-place write into something that backward needs: not a model
        assume("modified by an inplace operation" not in str(error))
        raise
    return model, copy.deepcopy(model), recipe.call(batch)


def compiled(model: nn.Module, K: int, call: Call, **options: Any) -> Program:
    """A program of K stages, or of as many as the model allows."""
    arguments = {"example_inputs": call.args, "example_kwargs": call.kwargs, "cost": "flops", **options}
    try:
        return parallelize(model, K, **arguments)
    except PlanError as error:
        assert error.most is not None and 1 <= error.most < K
        program = parallelize(model, error.most, **arguments)
        assert program.plan.K == error.most
        return program
