"""The command line, as a user types it."""

from __future__ import annotations

import json

import pytest

from lpcompile.cli import main
from lpcompile.plan import Plan


def test_inspect_shows_stages_boundaries_and_what_to_expect(capsys):
    assert main(["inspect", "resnet20", "-K", "3", "--cost", "flops", "--batch", "4"]) == 0
    text = capsys.readouterr().out
    assert "K = 3 stages for method 'multiplier'" in text
    assert "predicted speedup" in text and "lower bound" in text
    assert text.count("float32[B, ") == 2


def test_inspect_json_round_trips_and_a_saved_plan_can_be_inspected(capsys, tmp_path):
    file = tmp_path / "plan.json"
    assert main(["inspect", "resnet20", "-K", "2", "--cost", "flops", "--json", "--save", str(file)]) == 0
    plan = Plan.from_json(json.loads(capsys.readouterr().out))
    assert plan == Plan.load(file)
    assert main(["inspect", str(file), "--cuts"]) == 2
    assert "name the model instead" in capsys.readouterr().err
    assert main(["inspect", str(file)]) == 0
    assert "K = 2 stages" in capsys.readouterr().out


def test_cuts_units_and_graph_can_be_listed(capsys):
    assert main(["inspect", "resnet20", "-K", "2", "--cost", "flops", "--cuts", "--units", "--graph"]) == 0
    text = capsys.readouterr().out
    assert "2 tensors are live" in text and "carries / why not" in text
    assert "placeholder[target=x]" in text and "share" in text


@pytest.mark.parametrize(
    "arguments, code, message",
    [
        (["inspect", "resnet21", "-K", "2"], 2, "resnet20"),
        (["inspect", "resnet20", "-K", "many"], 2, "give a number of stages"),
        (["inspect", "resnet20", "-K", "200", "--cost", "flops"], 1, "at most"),
        (["inspect", "resnet20", "-K", "2", "--cost", "flops", "--method", "pipedrem"], 2, "pipedream"),
        (["inspect", "missing.json"], 1, "cannot read the plan"),
        (["zoo", "timm:no_such_model"], 2, "in the zoo"),
    ],
)
def test_bad_input_gets_one_clear_line_and_no_traceback(arguments, code, message, capsys):
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


@pytest.mark.parametrize("text, message", [("{}", "version"), ("no json", "is not JSON"),
                                           ('{"version": 2, "units": [1]}', r"broken at units[0]")])  # fmt: skip
def test_a_broken_plan_file_says_where(text, message, tmp_path, capsys):
    file = tmp_path / "plan.json"
    file.write_text(text)
    assert main(["inspect", str(file)]) == 1
    assert message in capsys.readouterr().err


def test_zoo_checks_named_models(capsys):
    assert main(["zoo", "user:EarlyExits", "--no-peers"]) == 0
    assert "1 (100 %)" in capsys.readouterr().out
