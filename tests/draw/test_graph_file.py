"""The graph of a program in files of other tools."""

from __future__ import annotations

import json

import networkx as nx
import pytest

import lpcompile
from lpcompile import sources
from lpcompile.cli.main import main
from lpcompile.draw.graph_file import dot, write_graph


@pytest.fixture(scope="module")
def graph():
    source = sources.load("resnet20", batch=2, device="meta")
    return lpcompile.parallelize(source.model, 3, example_inputs=source.example_args, cost="flops").graph()


def test_graphml_and_json_are_read_back_as_they_were(graph, tmp_path):
    write_graph(graph, tmp_path / "model.graphml")
    write_graph(graph, tmp_path / "model.json")
    data = json.loads((tmp_path / "model.json").read_text())
    for read in (nx.read_graphml(tmp_path / "model.graphml"), nx.node_link_graph(data, edges="edges")):
        assert dict(read.nodes(data=True)) == dict(graph.nodes(data=True))
        assert sorted(read.edges(data="kind")) == sorted(graph.edges(data="kind"))
        assert read.graph["K"] == 3 and read.graph["cost_unit"] == "GFLOP"


def test_dot_has_a_cluster_for_each_stage_and_escapes_its_text():
    graph = nx.DiGraph(K=2)
    for stage, name in enumerate(('a"b', "c\\d")):
        graph.add_node(name, stage=stage, path="", target="add", shape="")
    graph.add_edge('a"b', "c\\d", kind="copy")
    assert dot(graph) == "\n".join(
        [
            "digraph model {",
            "  node [shape=box];",
            "  subgraph cluster_0 {",
            '    label="stage 0";',
            r'    "a\"b" [label="a\"b\nadd", lp_stage="0", lp_path="", lp_target="add", lp_shape=""];',
            "  }",
            "  subgraph cluster_1 {",
            '    label="stage 1";',
            r'    "c\\d" [label="c\\d\nadd", lp_stage="1", lp_path="", lp_target="add", lp_shape=""];',
            "  }",
            r'  "a\"b" -> "c\\d" [lp_kind="copy", style=dashed];',
            "}",
        ]
    )


@pytest.mark.parametrize("suffix", [".graphml", ".dot", ".json"])
def test_inspect_writes_the_graph(suffix, tmp_path, capsys):
    file = tmp_path / f"model{suffix}"
    assert main(["inspect", "resnet20", "-K", "2", "--cost", "flops", "--graph-file", str(file), "--json"]) == 0
    assert "layer1_0_bn1" in file.read_text() and json.loads(capsys.readouterr().out)["K"] == 2


@pytest.mark.parametrize("name", ["model.png", "model"])
def test_another_suffix_is_refused_before_a_model_is_built(name, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sources, "load", lambda *given, **named: pytest.fail("a model was built"))
    file = tmp_path / name
    assert main(["inspect", "resnet20", "--graph-file", str(file)]) == 2
    assert f"--graph-file {file} ends with none of .graphml, .dot, .json" in capsys.readouterr().err
