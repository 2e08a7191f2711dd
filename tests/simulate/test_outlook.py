"""What `inspect` says of time: golden text, JSON that stays as it is, and advice that is true."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lpcompile.cli.main import main
from lpcompile.core.cost import Profile
from lpcompile.core.plan import Plan
from lpcompile.planning.partition import partition
from lpcompile.planning.replan import from_split, moved
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.device_spec import NOMINAL
from lpcompile.simulate.outlook import outlook
from lpcompile.simulate.outlook_text import outlook_text
from tests.simulate.even_plan import IDEAL, even_plan

GOLDEN = """\
simulated 'gpipe': K = 2, 4 micro-batches a step, on ideal

rank    busy ms    idle    sends a step    load
------  ---------  ------  --------------  ----------
0       12         20 %    976.6 KiB       ██████████
1       12         20 %    976.6 KiB       ██████████

step 15 ms against 24 ms on one device: ρ = 1.60
critical path: rank 0's backward (53 %), rank 1's forward (27 %), its backward (13 %), rank 0's forward (7 %); \
shorter with more micro-batches

boundary    after    step if one unit earlier          step if one unit later
----------  -------  --------------------------------  --------------------------------
1           block3   17.25 ms (+15.0 %), after block2  17.25 ms (+15.0 %), after block4

K    micro    step ms    ρ     idle    memory    sent a step
---  -------  ---------  ----  ------  --------  -------------
1    1        24         1.00  0 %     7.7 MiB   0 B
2    4        15         1.60  20 %    4.8 MiB   1.9 MiB
4    8        8.25       2.91  27 %    3.8 MiB   5.7 MiB

method    micro    step ms    ρ     idle    memory    sent a step    exact    steps late    extra parameters
--------  -------  ---------  ----  ------  --------  -------------  -------  ------------  ------------------
bp        1        24         1.00  50 %    4.8 MiB   1.9 MiB        yes      0             0
gpipe     4        15         1.60  20 %    4.8 MiB   1.9 MiB        yes      0             0

K = 2 gives 1.6x; K = 8 is the most that this model can use (5.6x); \
even the busiest rank waits 20 % of a step for the others."""


def test_the_outlook_says_what_auto_takes_and_what_would_be_faster():
    plan = even_plan(2, "zbh2", units=8)
    text = outlook_text(plan, outlook(plan, IDEAL, [], ["zbh2", "stream"]))
    assert (
        "method='auto' takes zbh2, with plain training's gradients; stream would be faster, and can lose accuracy"
        in text
    )


def test_the_outlook_in_full():
    plan = even_plan(2, "gpipe", units=8)
    assert outlook_text(plan, outlook(plan, IDEAL, [1, 2, 4], ["bp", "gpipe"])) == GOLDEN


def test_every_boundary_is_at_least_as_good_as_its_neighbours_on_even_units():
    plan = even_plan(3, "multiplier", units=30)
    found = outlook(plan, IDEAL)
    assert {(one.boundary, one.by) for one in found.neighbours} == {(1, -1), (1, 1), (2, -1), (2, 1)}
    assert all(one.step >= found.simulation.step * 0.99 for one in found.neighbours)


def test_a_boundary_with_no_unit_left_beside_it_has_no_neighbour():
    plan = even_plan(2, "bp", units=2)
    assert moved(plan, 1, 1) is None and moved(plan, 1, -1) is None
    assert outlook(plan, IDEAL).neighbours == ()


def heavy_stem(K: int, method: str = "penalty-stored") -> Plan:
    base = even_plan(1, "bp", units=12)
    stem = replace(base.units[0], name="stem", forward=10.0, backward=20.0)
    units = (stem, *base.units[1:])
    total = sum(u.forward + u.backward for u in units)
    base = replace(base, units=units, serial=total)
    return from_split(base, partition(Profile(units, "measured", "cpu"), K, method=method))


def test_advice_names_what_limits_the_speedup_and_how_many_stages_are_of_use():
    said = outlook(heavy_stem(4), IDEAL).advice
    assert said.startswith("K = 4 gives 2.1x; K = 3 is the most that this model can use (2.1x); ")
    assert said.endswith("stem, 100 % of its stage, limits rank 0.")


def test_advice_says_where_nothing_is_gained():
    plan = even_plan(2, "bp", units=8)
    said = outlook(plan, IDEAL).advice
    assert "'bp' makes no K faster on ideal" in said
    assert "even the busiest rank waits 50 % of a step for the others" in said


def test_all_methods_are_compared_and_exact_ones_are_marked():
    found = outlook(even_plan(2, units=8), IDEAL, methods=tuple(METHODS)).methods
    assert [one.method for one in found] == list(METHODS)
    assert {one.method for one in found if one.exact} == {m.name for m in METHODS.values() if m.exact}
    by = {one.method: one for one in found}
    assert by["bp"].rho < by["gpipe"].rho < by["penalty-stored"].rho


SCHEMA = {
    "version": int, "advice": str,
    "critical_path": {"ms": float, "steps": int, "remedy": str,
                      "parts": [{"rank": int, "peer": int, "what": str, "ms": float, "share": float}]},
    "simulation": {"method": str, "K": int, "replicas": int, "micro": int, "device": str, "step": float,
                   "serial": float, "idle": list, "busy": list, "sent": list, "averaged": float, "played": int,
                   "unknown": list, "rho": float},
    "neighbours": [{"boundary": int, "by": int, "after": str, "step": float}],
    "sweep": [{"method": str, "K": int, "micro": int, "step": float, "rho": float, "idle": float, "memory": float,
               "sent": float, "exact": bool, "late": float, "extra": int}],
    "methods": [{"method": str, "K": int, "micro": int, "step": float, "rho": float, "idle": float, "memory": float,
                 "sent": float, "exact": bool, "late": float, "extra": int}],
}  # fmt: skip


def conforms(data, schema, where="outlook"):
    if isinstance(schema, dict):
        assert set(data) == set(schema), where
        for key, part in schema.items():
            conforms(data[key], part, f"{where}.{key}")
    elif isinstance(schema, list):
        assert data, where
        for i, one in enumerate(data):
            conforms(one, schema[0], f"{where}[{i}]")
    else:
        assert isinstance(data, (int, float) if schema is float else schema), where


def test_json_of_inspect_is_the_plan_with_a_versioned_outlook(tmp_path, capsys):
    file = tmp_path / "plan.json"
    plan = even_plan(2, units=8)
    plan.save(file)
    assert main(["inspect", str(file), "--json", "--sweep", "K=1..3", "--compare-methods"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert Plan.from_json(data) == plan
    conforms(data["outlook"], SCHEMA)
    assert data["outlook"]["version"] == 1
    assert [one["K"] for one in data["outlook"]["sweep"]] == [1, 2, 3]
    assert len(data["outlook"]["methods"]) == len(METHODS)


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--sweep", "many"], "--sweep many: give a range of K, as K=1..16"),
        (["--sweep", "K=4..2"], "give a range of K"),
        (["--sweep", "K=20..30"], "at most 8 stages"),
        (["--device-spec", "v10"], "closest is 'v100'"),
    ],
)
def test_bad_ranges_and_devices_get_one_clear_line(arguments, message, tmp_path, capsys):
    file = tmp_path / "plan.json"
    even_plan(2, units=8).save(file)
    assert main(["inspect", str(file), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_the_simulated_timeline_can_be_kept(tmp_path, capsys):
    plan, trace = tmp_path / "plan.json", tmp_path / "trace.json"
    even_plan(2, units=8).save(plan)
    assert main(["inspect", str(plan), "--trace", str(trace)]) == 0
    assert {e["pid"] for e in json.loads(trace.read_text())["traceEvents"]} == {0, 1}
    assert main(["inspect", str(plan), "--trace", str(tmp_path / "no" / "trace.json")]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_plan_that_has_no_schedule_is_shown_and_nothing_is_simulated(tmp_path, capsys):
    file = tmp_path / "plan.json"
    replace(even_plan(3, "gpipe", units=9), batch=13).save(file)
    assert main(["inspect", str(file)]) == 0
    assert "nothing is simulated: 'gpipe' has no schedule for K = 3 and a batch of 13" in capsys.readouterr().out


def test_counted_costs_are_simulated_on_a_nominal_device():
    plan = replace(even_plan(2, units=8), cost="flops")
    assert outlook(plan).simulation.device == NOMINAL.name
