"""A graph as plain data and back."""

from __future__ import annotations

import pickle

import torch
from torch import fx

from lpcompile.passes.graph.batch import same_graph
from lpcompile.passes.graph.serial import NodeRef, from_data, to_data


def example() -> fx.Graph:
    graph = fx.Graph()
    x = graph.placeholder("x")
    parts = graph.call_function(torch.cat, ([x, x],), {"dim": 0})
    part = graph.call_method("narrow", (parts, 0, 1, 2))
    part.meta["path"] = "head"
    graph.output((part,))
    return graph


def test_a_graph_survives_pickling_with_its_names_and_meta() -> None:
    graph = example()
    again = from_data(pickle.loads(pickle.dumps(to_data(graph))))
    again.lint()
    same_graph(graph, again)
    assert [n.name for n in again.nodes] == [n.name for n in graph.nodes]
    assert next(n for n in again.nodes if n.op == "call_method").meta["path"] == "head"


def test_the_data_holds_references_and_plain_containers() -> None:
    _, _, _, args, kwargs, _ = to_data(example())[1]
    assert args == ([NodeRef("x"), NodeRef("x")],) and type(args[0]) is list and type(kwargs) is dict


def test_the_copys_meta_is_its_own() -> None:
    graph = example()
    copied = from_data(to_data(graph))
    next(iter(copied.nodes)).meta["note"] = 1
    assert "note" not in next(iter(graph.nodes)).meta
