"""Ratios that a bench must reach."""

from __future__ import annotations

import dataclasses
import json

import pytest

from lpcompile.bench import gate
from lpcompile.bench import page as bench_html
from lpcompile.bench import table as bench_table
from lpcompile.bench.arithmetic import add_speedups
from lpcompile.bench.contenders.ways import LIMIT, PLAIN, TORCH
from lpcompile.errors import UsageError
from tests.bench.small_bench import small_bench

RULES = [
    {"contender": "penalty", "value": "rho", "over": "limit", "least": 0.9},
    {"contender": "penalty", "value": "rho", "over": "torch", "least": 1.3},
    {"contender": "penalty", "value": "memory", "over": "plain", "most": 0.65},
    {"contender": "penalty", "value": "rho", "over": "fsdp", "least": 1},
]


def gate_file(tmp_path, data):
    file = tmp_path / "gate.json"
    file.write_text(data if isinstance(data, str) else json.dumps(data))
    return file


def test_ratios_are_held_against_those_of_the_same_run(tmp_path):
    rules = gate.load(gate_file(tmp_path, {"version": 1, "models": {"resnet20": RULES}}), "resnet20")
    found = small_bench(penalty=1.8, **{"torch-1f1b": 1.5, "torch-gpipe": 1.2})
    judged = gate.judge(found, rules)
    assert [j.holds for j in judged] == [True, False, True, False]
    assert (
        judged[0].found == pytest.approx(1.8 / 1.9)
        and judged[1].found == pytest.approx(1.2)
        and judged[3].found is None
    )
    text = gate.gate_text(judged)
    assert "rho of penalty over torch >= 1.3" in text and "2 of 4 ratios are not reached" in text
    assert set(gate.needed(rules)) == {"penalty", "limit", "plain", "fsdp", *TORCH}


@pytest.mark.parametrize(("data", "says"), [
    ("{", "is not JSON"), ({"version": 2}, "expected"), ({"version": 1, "models": {"other": []}}, "has some for other"),
    ({"version": 1, "models": {"resnet20": []}}, "an empty one"),
    ({"version": 1, "models": {"resnet20": [{"contender": "penalty"}]}}, "rule 1 for resnet20: expected"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "contender": "pen"}]}}, "not both contenders"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "value": "x"}]}}, "not one of rho, memory"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "most": 1}]}}, "one number"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "least": True}]}}, "one number"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "least": float("nan")}]}}, "one number"),
])  # fmt: skip
def test_a_broken_gate_says_where(tmp_path, data, says):
    with pytest.raises(UsageError, match=says):
        gate.load(gate_file(tmp_path, data), "resnet20")
    with pytest.raises(UsageError, match="No such file"):
        gate.load(tmp_path / "none.json", "resnet20")


def test_without_plain_training_nothing_has_a_speedup_and_no_ratio_holds(tmp_path):
    found = small_bench(penalty=1.7)
    found.rows = [dataclasses.replace(row, rho=None, of_limit=None) for row in found.rows if row.name != PLAIN]
    add_speedups(found)
    assert all(row.rho is None for row in found.rows)
    judged = gate.judge(found, (gate.Rule("penalty", "rho", LIMIT, least=0.1),))
    assert not judged[0].holds and "not measured" in gate.gate_text(judged)
    assert "| penalty" in bench_table.text(found) and "<svg" in bench_html.page(found)
