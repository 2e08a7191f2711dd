"""The captured graph with its plan, as a networkx graph: what its nodes and edges say."""

from __future__ import annotations

import networkx as nx
import pytest
import torch

import lpcompile
from lpcompile import sources
from lpcompile.errors import UsageError
from lpcompile.zoo import find
from tests.fresh_python import printed


def compiled(name, K=3, **given):
    source = sources.load(name, batch=2, device="meta")
    return lpcompile.parallelize(source.model, K, example_inputs=source.example_args, cost="flops", **given)


@pytest.fixture(scope="module")
def program():
    return compiled("resnet20")


@pytest.fixture(scope="module")
def graph(program):
    return program.graph()


def stages(graph, K):
    return [{n for n, about in graph.nodes(data=True) if about["stage"] == k} for k in range(K)]


def test_every_node_of_the_captured_graph_is_in_one_stage(program, graph):
    assert set(graph) == {node.name for node in program.captured._lp_graphs[True].nodes}
    parts = stages(graph, 3)
    assert all(parts) and sum(map(len, parts)) == len(graph) and set().union(*parts) == set(graph)


def test_the_stages_are_a_chain(graph):
    assert nx.is_directed_acyclic_graph(graph)
    assert set(nx.quotient_graph(graph, stages(graph, 3)).edges) == {
        (frozenset(a), frozenset(b)) for a, b in zip(stages(graph, 3), stages(graph, 3)[1:], strict=False)
    }


def test_inputs_and_tied_weights_of_later_stages_are_copies_and_not_carried():
    graph = compiled("gpt_tiny").graph()
    crossing = {(graph.nodes[a]["stage"], graph.nodes[b]["stage"], about["kind"])
                for a, b, about in graph.edges(data=True) if about["kind"] != "inside"}  # fmt: skip
    assert {(0, 1, "boundary"), (1, 2, "boundary"), (0, 2, "copy")} <= crossing
    assert (0, 2, "boundary") not in crossing


def test_an_output_of_an_early_stage_is_not_carried():
    model, make_inputs = find("user:EarlyExits").build()
    program = lpcompile.parallelize(model, 2, example_inputs=make_inputs(2)[0], cost="flops", gate=False)
    graph = program.graph()
    kinds = {graph.nodes[a]["stage"]: about["kind"] for a, _, about in graph.in_edges("output", data=True)}
    assert kinds == {0: "output", 1: "inside"}


def test_costs_add_up_to_those_of_the_plan(program, graph):
    for stage, names in zip(program.plan.stages, stages(graph, 3), strict=True):
        for part in ("forward", "backward"):
            assert sum(graph.nodes[n][part] for n in names) == pytest.approx(getattr(stage, part))


def test_cuts_and_boundaries_are_those_of_the_plan(program, graph):
    for boundary in program.plan.boundaries:
        (after,) = [n for n, about in graph.nodes(data=True) if about["boundary"] == boundary.index]
        assert after == boundary.after and graph.nodes[after]["cut_after"] and not graph.nodes[after]["reason"]
    inner = graph.nodes["layer1_0_bn1"]
    assert not inner["cut_after"] and "2 tensors are live" in inner["reason"]
    assert (inner["op"], inner["path"], inner["shape"]) == ("call_module", "layer1.0.bn1", "float32[B, 16, 32, 32]")


def test_a_program_from_emitted_code_has_no_graph(tmp_path):
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(4)))
    program = lpcompile.parallelize(model, 2, example_inputs=torch.randn(2, 4), cost="flops")
    program.emit(tmp_path / "code")
    with pytest.raises(UsageError, match="has no captured graph; compile its model"):
        lpcompile.load(tmp_path / "code").graph()


def test_networkx_is_imported_only_when_a_graph_is_asked_for():
    modules = "sys, lpcompile.program, lpcompile.passes.split.graph_export, lpcompile.draw.graph_file"
    code = f"import {modules}; print('networkx' in sys.modules)"
    assert printed(code) == "False"
