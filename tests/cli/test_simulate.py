"""`simulate` as a user types it."""

from __future__ import annotations

import json

import pytest

from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.planning.replan import replan
from tests.simulate.even_plan import even_plan


@pytest.fixture
def saved(tmp_path):
    file = tmp_path / "plan.json"
    even_plan(2, units=16).save(file)
    return str(file)


def test_simulate_prints_tables_and_advice(saved, capsys, tmp_path):
    trace = tmp_path / "trace.json"
    command = ["simulate", saved, "--nodes", "2", "--gpus", "2", "--device-spec", "v100", "--trace", str(trace)]
    assert main(command) == 0
    text = capsys.readouterr().out
    assert "2 nodes x 2 v100 devices" in text and "weak scaling" in text and "At one batch for all: Use " in text
    assert json.loads(trace.read_text())["traceEvents"]


def test_json_has_a_version_and_every_split(saved, capsys):
    assert main(["simulate", saved, "--gpus", "4", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["version"], data["nodes"], data["device"]["gpus"]) == (1, 1, 4)
    row = data["strong"][0]
    assert set(row) == {"method", "K", "replicas", "micro", "batch", "step", "rho", "idle", "memory", "sent", "devices",
                        "samples_per_s", "efficiency"}  # fmt: skip
    assert {one["devices"] for one in data["weak"]} == {1, 2, 4}


def test_regions_are_a_table_and_a_page(saved, capsys, tmp_path):
    page = tmp_path / "regions.html"
    given = ["--regions", str(page), "--rate", "1gbit,25mbit", "-K", "2,4", "--batch", "128"]
    assert main(["simulate", saved, *given]) == 0
    assert "K = 4: the fastest with plain training's gradients" in capsys.readouterr().out
    assert "1 Gb/s" in page.read_text() and "25 Mb/s" in page.read_text()
    assert main(["simulate", saved, *given, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert len(data["regions"]) == 4 and {"command", "commit", "date", "torch"} <= set(data["machine"])


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--rate", "1gbit"], "--rate has no effect without --regions"),
        (["--regions", "x.html", "--nodes", "2"], "--nodes has no effect with --regions"),
        (["--regions", "x.html", "-K", "1"], "2 devices or more"),
        (["--regions", "x.html", "--rate", "fast"], "'fast' is no rate of a link"),
        (["--device-spec", "h10"], "closest is 'h100'"),
        (["-K", "3", "--gpus", "4"], "-K 3 does not divide 4 devices"),
        (["-K", "a"], "give numbers of stages"),
        (["--nodes", "0"], "--nodes 0"),
        (["--method", "pipedrem"], "there is no method 'pipedrem'"),
        (["--gpus", "256", "-K", "32"], "cut into at most 16 stages"),
    ],
)
def test_bad_input_gets_one_clear_line(arguments, message, saved, capsys):
    assert main(["simulate", saved, *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_a_calibration_cannot_be_written_nowhere(capsys):
    assert main(["simulate", "--calibrate", "/no/such/folder/spec.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err


def test_a_model_is_needed(capsys):
    assert main(["simulate"]) == 2
    assert "needs a MODEL" in capsys.readouterr().err


def test_a_plan_is_split_again_for_every_k_from_its_own_units():
    plan = even_plan(2, units=16)
    assert replan(plan, 2) is plan
    other = replan(plan, 4, "penalty")
    assert (other.K, other.method, len(other.boundaries)) == (4, "penalty", 3)
    assert sum(s.forward for s in other.stages) == pytest.approx(16)
    assert replan(other, 2, "bp").boundaries[0].aux is None
    with pytest.raises(UsageError, match="there is no method .nothing."):
        replan(plan, 2, "nothing")
