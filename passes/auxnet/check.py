"""Shape check of an AuxNet on fake tensors: do its results match the boundary, at any batch size?"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException, FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from lpcompile.core.stage_io import TensorSpec
from lpcompile.passes.capture.record.shadow import fake_tensor
from lpcompile.passes.graph.fake_shapes import QuickNorms
from lpcompile.passes.graph.flop_formulas import RECURRENT
from lpcompile.passes.graph.module import TwoModeModule
from lpcompile.passes.graph.untouched import attributes_kept


class Mismatch(Exception):
    """The network fails on the boundary's tensors, or its results have the wrong shape or dtype."""


def checked_flops(aux: TwoModeModule, wanted: tuple[TensorSpec, ...], batch_free: bool = True) -> float:
    """FLOPs of a forward pass at the compiled batch size, 0 if unknown. Raises `Mismatch` unless the results are as
    `wanted` at that size and, if `batch_free`, at one more."""
    if any(p.requires_grad for p in aux.parameters()) and not learns(aux._lp_graphs[True], aux):
        raise Mismatch("no gradient reaches its parameters from its results")
    placeholders = [n.meta["spec"] for n in aux._lp_graphs[True].nodes if n.op == "placeholder"]
    batch = next((s // c for spec in placeholders for s, c in zip(spec.shape, spec.batch, strict=False) if c), None)
    flops = 0.0
    for extra in (0, 1) if batch and batch_free else (0,):
        inputs = [spec.at(batch + extra) if batch else spec.shape for spec in placeholders]
        found = _run(aux, list(zip(inputs, [s.dtype for s in placeholders], strict=True)))
        if found is None:
            break
        values, counted = found
        flops = flops or counted
        _compare(values, wanted, batch + extra if batch else None)
    return flops


def learns(graph: fx.Graph, aux: nn.Module) -> bool:
    """Whether a result depends on a trained parameter by steps that hand a gradient on (not detach, not argmin)."""
    trained: set[fx.Node] = set()
    for node in graph.nodes:
        spec = node.meta.get("spec")
        own = node.op in ("get_attr", "call_module") and _has_trained(aux, str(node.target))
        if (own or any(n in trained for n in node.all_input_nodes)) and (spec is None or spec.requires_grad):
            trained.add(node)
    return any(n.op == "output" and n in trained for n in graph.nodes)


def _has_trained(aux: nn.Module, target: str) -> bool:
    """Whether a module or tensor of the network is or holds a trained parameter."""
    return any(
        p.requires_grad for n, p in aux.named_parameters(remove_duplicate=False) if f"{n}.".startswith(f"{target}.")
    )


def _run(aux: TwoModeModule, inputs: list[tuple[tuple[int, ...], torch.dtype]]) -> tuple[list[object], float] | None:
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    state = {**dict(aux.named_parameters(remove_duplicate=False)), **dict(aux.named_buffers(remove_duplicate=False))}
    device = next((t.device for t in state.values() if t.device.type != "meta"), torch.device("cpu"))
    fakes: dict[int, torch.Tensor] = {}
    for tensor in state.values():
        if id(tensor) not in fakes:
            fakes[id(tensor)] = fake_tensor(tensor, mode)
    counter = FlopCounterMode(display=False, custom_mapping=RECURRENT)
    try:
        with mode, torch.no_grad(), QuickNorms(), counter:
            tensors = [torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in inputs]
            with attributes_kept(list(aux.modules())), _swapped(aux, fakes):  # a layer may cache a fake tensor
                result = aux(*tensors)
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None  # the shapes depend on real data
    except Exception as error:
        raise Mismatch(f"it fails on such an input: {type(error).__name__}: {error}") from error
    return list(result) if isinstance(result, (tuple, list)) else [result], float(counter.get_total_flops())


@contextmanager
def _swapped(aux: TwoModeModule, fakes: dict[int, torch.Tensor]) -> Iterator[None]:
    """The network with its parameters and buffers replaced by fakes, looked up by id."""
    before: list[tuple[dict[str, Any], str, Any]] = []
    try:
        for module in aux.modules():
            for registry in (module._parameters, module._buffers):
                for name, tensor in registry.items():
                    if tensor is not None:
                        before.append((registry, name, tensor))
                        registry[name] = fakes[id(tensor)]  # type: ignore[assignment]
        yield
    finally:
        for registry, name, tensor in before:
            registry[name] = tensor


def _compare(values: list[object], wanted: tuple[TensorSpec, ...], batch: int | None) -> None:
    if len(values) != len(wanted):
        raise Mismatch(f"it gives {len(values)} tensors where the boundary has {len(wanted)}")
    for i, (value, spec) in enumerate(zip(values, wanted, strict=True)):
        shape = spec.at(batch) if batch is not None else spec.shape
        if not isinstance(value, torch.Tensor):
            raise Mismatch(f"its result {i} is a {type(value).__name__}, not a tensor")
        if tuple(value.shape) != shape or value.dtype != spec.dtype:
            raise Mismatch(
                f"its result {i} is {str(value.dtype).removeprefix('torch.')}{list(value.shape)}, "
                f"expected {str(spec.dtype).removeprefix('torch.')}{list(shape)}"
            )
