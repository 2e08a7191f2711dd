"""Nodes of a recorded graph: arguments, contexts around calls, tensors from outside."""

from __future__ import annotations

import operator

import torch
from torch import nn

from lpcompile.passes.capture.record.graph_writer import GraphWriter
from lpcompile.passes.capture.record.observer import Observation
from lpcompile.passes.capture.record.refusal import ModuleTrail
from lpcompile.passes.capture.record.shadow import Shadow
from lpcompile.passes.graph.calls import Autocast, NoGrad


def writer_for(model: nn.Module, *inputs: torch.Tensor) -> GraphWriter:
    writer = GraphWriter(Shadow(model, None), ModuleTrail(), [])
    for i, tensor in enumerate(inputs):
        writer.placeholder(f"x{i}", tensor)
    return writer


def test_values_are_found_in_nested_arguments() -> None:
    a, b, out = torch.ones(2), torch.zeros(2), torch.ones(4)
    writer = writer_for(nn.Identity(), a, b)
    node = writer.emit("call_function", torch.cat, ([a, b],), {"dim": 0}, out, Observation(flops=4))
    assert [n.name for n in node.args[0]] == ["x0", "x1"] and node.kwargs == {"dim": 0}
    assert node.meta["flops"] == 4 and node.meta["spec"].shape == (4,)


def test_a_parameter_is_read_under_its_own_name() -> None:
    layer, x, out = nn.Linear(2, 2), torch.ones(2), torch.ones(2)
    node = writer_for(layer, x).emit("call_function", operator.mul, (x, layer.weight), {}, out, Observation())
    assert (node.args[1].op, node.args[1].target) == ("get_attr", "weight")


def test_regions_are_kept_with_the_call() -> None:
    x = torch.ones(2)
    writer = writer_for(nn.Identity(), x)
    with torch.no_grad():
        quiet = writer.emit("call_function", torch.relu, (x,), {}, torch.ones(2), Observation())
    assert isinstance(quiet.target, NoGrad)
    writer.autocasts.append(("cpu", torch.bfloat16, True, True))
    cast = writer.emit("call_method", "relu", (x,), {}, torch.ones(2), Observation())
    assert isinstance(cast.target, Autocast) and cast.op == "call_function"


def test_a_value_varies_with_inputs_and_with_chance() -> None:
    x, constant, drawn = torch.ones(2), torch.ones(2), torch.rand(2)
    writer = writer_for(nn.Identity(), x)
    writer.emit("call_function", torch.ones, (2,), {}, constant, Observation())
    writer.emit("call_function", torch.rand, (2,), {}, drawn, Observation(random=True))
    assert [writer.varies(t) for t in (x, constant, drawn)] == [True, False, True]


def test_the_output_lists_the_values_in_order() -> None:
    a, b = torch.ones(2), torch.zeros(2)
    writer = writer_for(nn.Identity(), a, b)
    writer.output([b, a])
    assert [n.name for n in next(iter(reversed(writer.graph.nodes))).args[0]] == ["x1", "x0"]
