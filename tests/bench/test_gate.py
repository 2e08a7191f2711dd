"""Ratios that a bench must reach."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from lpcompile.bench import gate
from lpcompile.bench import page as bench_html
from lpcompile.bench import table as bench_table
from lpcompile.bench.arithmetic import add_speedups
from lpcompile.bench.contenders.ways import LIMIT, PLAIN, TORCH
from lpcompile.cli.bench import RATES
from lpcompile.errors import UsageError
from tests.bench.small_bench import over_a_link, small_bench

ROOT = Path(__file__).resolve().parents[2]

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
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "rate": "fast"}]}}, "rule 1 for resnet20: 'fast' is no rate"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "rate": 5}]}}, "'5' is no rate"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "over": "itself"}]}}, "give the rate of a link"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "contender": ["penalty"]}]}}, "not both contenders"),
    ({"version": 1, "models": {"resnet20": [{**RULES[0], "rate": "1gbit"}]}}, "on one host; give --hosts 2"),
])  # fmt: skip
def test_a_broken_gate_says_where(tmp_path, data, says):
    with pytest.raises(UsageError, match=says):
        gate.load(gate_file(tmp_path, data), "resnet20")
    with pytest.raises(UsageError, match="No such file"):
        gate.load(tmp_path / "none.json", "resnet20")


LINKS = [
    {"contender": "stream", "value": "rho", "over": "ddp", "least": 20, "rate": "25mbit"},
    {"contender": "stream", "value": "rho", "over": "itself", "least": 0.97, "rate": "25mbit"},
    {"contender": "stream+int8", "value": "rho", "over": "itself", "least": 0.9, "rate": "25mbit"},
    {"contender": "stream", "value": "memory", "over": "plain", "most": 1.0, "rate": "25mbit"},
    {"contender": "stream", "value": "rho", "over": "ddp", "least": 2.5, "rate": "1gbit"},
]


def test_rules_of_a_link_are_held_over_that_link_alone(tmp_path):
    """stream takes 53 ms without a limit and 100 ms over 25 Mb/s, DDP 2 s; there is no stream+int8."""
    file = gate_file(tmp_path, {"version": 1, "models": {"resnet20": [*RULES, *LINKS]}})
    assert [r.rate for r in gate.load(file, "resnet20")] == [""] * 4
    rules = gate.load(file, "resnet20", ("25mbit",))
    assert [r.rate for r in rules] == ["25mbit"] * 4
    assert gate.needed(rules) == ("stream", "ddp", "stream+int8", "plain")
    judged = gate.judge(over_a_link(), rules)
    assert [j.holds for j in judged] == [True, False, False, True]
    assert judged[0].found == pytest.approx(20) and judged[1].found == pytest.approx(100 / 1.9 / 100)
    assert "rho of stream over itself without a limit, 25mbit, >= 0.97" in gate.gate_text(judged)
    assert not gate.judge(over_a_link(), gate.load(file, "resnet20", ("1gbit",)))[0].holds  # was not measured
    with pytest.raises(UsageError, match="no rules for resnet20 over links of 5mbit"):
        gate.load(file, "resnet20", ("5mbit",))


def test_the_targets_of_the_examples_can_be_read():
    file = ROOT / "examples" / "bench_targets.json"
    for model, rates in (("resnet110", ()), ("resnet110", RATES), ("vit_s16_96", RATES), ("gpt_30m", RATES)):
        assert gate.load(file, model, rates)


def test_without_plain_training_nothing_has_a_speedup_and_no_ratio_holds(tmp_path):
    found = small_bench(penalty=1.7)
    found.rows = [dataclasses.replace(row, rho=None, of_limit=None) for row in found.rows if row.name != PLAIN]
    add_speedups(found)
    assert all(row.rho is None for row in found.rows)
    judged = gate.judge(found, (gate.Rule("penalty", "rho", LIMIT, least=0.1),))
    assert not judged[0].holds and "not measured" in gate.gate_text(judged)
    assert "| penalty" in bench_table.text(found) and "<svg" in bench_html.page(found)
