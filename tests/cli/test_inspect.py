"""The command line, as a user types it."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from lpcompile import sources
from lpcompile.cli.main import main
from lpcompile.core.plan import Plan
from lpcompile.core.tables import stage_table
from lpcompile.planning import print_after
from lpcompile.simulate.outlook import outlook
from tests.simulate.even_plan import even_plan

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT)}


def test_inspect_shows_stages_boundaries_and_what_to_expect(capsys):
    assert main(["inspect", "resnet20", "-K", "3", "--cost", "flops", "--batch", "4"]) == 0
    text = capsys.readouterr().out
    assert "K = 3 stages for method 'zbh2'" in text
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


def test_as_a_process_it_writes_everything_runs_exit_handlers_and_bears_readers_that_leave(tmp_path):
    (tmp_path / "net.py").write_text(
        "import atexit, torch\natexit.register(lambda: print('goodbye'))\n"
        "def net():\n    return torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(400)])\n"
    )
    command = f"{sys.executable} -m lpcompile inspect net.py:net --input 8 --cost flops --units"

    def run(text):
        """In a shell that says whether any process failed."""
        line = ["bash", "-o", "pipefail", "-c", text]
        return subprocess.run(line, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)

    done = run(f"{command} -K 2")
    assert done.returncode == 0 and done.stderr == ""
    assert done.stdout.splitlines()[-1] == "goodbye" and "K = 2 gives" in done.stdout
    done = run(f"{command} -K 2 --graph | head -1")
    assert done.returncode == 0 and done.stderr == "" and len(done.stdout.splitlines()) == 1
    done = run(f"{sys.executable} -m lpcompile inspect resnet21")
    assert done.returncode == 2 and "resnet20" in done.stderr


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


@pytest.mark.parametrize(
    "path, value, message",
    [
        (["units"], 3, "broken at units: it is no list"),
        (["units", 1, "forward"], "much", "broken at units[1]: forward is 'much'"),
        (["units", 1, "backward"], -1.0, "units[1].backward is -1.0"),
        (["units", 1, "saved_bytes"], True, "broken at units[1]: saved_bytes is True"),
        (["stages", 1, "first"], 99, "stages[1] is stage 1, units 99 to 7"),
        (["stages"], [], "K is 2, with 0 stages and 1 boundaries"),
        (["stages", 1, "last"], 6, "the last stage ends at unit 6 of 8"),
        (["boundaries", 0, "index"], 7, "boundaries[0] is boundary 7"),
        (["boundaries", 0, "aux", "rank"], 17, "its AuxNet on rank 17"),
        (["boundaries", 0, "specs"], [{}], "broken at boundaries[0]: 'dtype' is missing"),
        (["K"], "2", "K is '2'"),
        (["batch"], "all", "batch is 'all'"),
        (["step"], None, "step is None"),
        (["colour"], "red", "unknown ['colour']"),
    ],
)
@pytest.mark.parametrize("command", ["inspect", "simulate"])
def test_a_plan_that_was_changed_by_hand_says_where(command, path, value, message, tmp_path, capsys):
    file = tmp_path / "plan.json"
    data = json.loads(json.dumps(even_plan(2, units=8).to_json()))
    place = data
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    file.write_text(json.dumps(data))
    assert main([command, str(file)]) == 1
    error = capsys.readouterr().err
    assert message in error and str(file) in error


@pytest.mark.parametrize(
    "option",
    [
        ["-K", "3"],
        ["--batch", "7"],
        ["--input", "8"],
        ["--save", "again.json"],
        ["--method", "gpipe"],
        ["--cost", "flops"],
        ["--aux-budget", "0.3"],
        ["--aux-budget", "0"],
        ["--aux", "tied"],
        ["--aux-init", "copy"],
        ["--aux-dtype", "bf16"],
        ["--memory-limit", "4"],
        ["--cut", "u3"],
        ["--together", "u1..u2"],
        ["--tied", "together"],
        ["--threads", "2"],
        ["--no-cache"],
    ],
    ids=" ".join,
)
def test_what_a_saved_plan_cannot_do_is_refused_and_not_ignored(option, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    even_plan(2, units=8).save("plan.json")
    assert main(["inspect", "plan.json", *option]) == 2
    assert f"{option[0]} cannot be applied to a saved plan" in capsys.readouterr().err
    assert main(["inspect", "plan.json", "-K", "2", "--batch", "128", "--method", "multiplier"]) == 0  # as it is


@pytest.mark.parametrize("command", [["inspect", "-K", "2"], ["simulate"]], ids=lambda c: c[0])
def test_a_config_file_of_transformers_is_no_plan(command, tmp_path, monkeypatch, capsys):
    config = {"model_type": "gpt2", "n_embd": 32, "n_layer": 4, "n_head": 4, "vocab_size": 50, "n_positions": 64}
    (tmp_path / "config.json").write_text(json.dumps(config))
    monkeypatch.chdir(tmp_path)
    cost = ["--cost", "flops"]
    assert main([command[0], "hf:config.json", *command[1:], *cost]) == 0
    assert "GPT2" in capsys.readouterr().out
    assert main([command[0], "hf:missing/config.json", *command[1:], *cost]) == 2
    assert "plan" not in capsys.readouterr().err


@pytest.mark.parametrize("amount", ["0", "-1", "nan", "much"])
def test_a_memory_limit_that_is_none_is_refused(amount, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["inspect", "resnet20", "-K", "2", "--cost", "flops", "--memory-limit", amount])
    assert f"'{amount}' is no amount of memory: give GiB, such as 16 or 0.5" in capsys.readouterr().err


@pytest.mark.parametrize(
    "option, message",
    [
        (["--sweep", "K=5"], "--sweep K=5: give a range of K"),
        (["--sweep", ""], "give a range of K"),
        (["--device-spec", "h10"], "closest is 'h100'"),
        (["--method", "pipedrem"], "'pipedream'"),
        (["--trace", "/no/such/trace.json"], "--trace /no/such/trace.json cannot be written"),
        (["--save", "/no/such/plan.json"], "--save /no/such/plan.json cannot be written"),
        (["--html", "/no/such/page.html"], "--html /no/such/page.html cannot be written"),
        (["--figures", "/dev/null/figures"], "--figures /dev/null/figures cannot be made"),
    ],
)
def test_what_cannot_be_done_is_said_before_a_model_is_built(option, message, monkeypatch, capsys):
    monkeypatch.setattr(sources, "load", lambda *given, **named: pytest.fail("a model was built"))
    assert main(["inspect", "resnet20", *option]) == 2
    assert message in capsys.readouterr().err


def test_a_number_that_is_none_is_told_in_words(capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", "resnet20", "--batch", "many"])
    assert stopped.value.code == 2
    assert "argument --batch: 'many' is no whole number of 1 or more" in capsys.readouterr().err


def test_the_outlook_is_computed_once_for_text_and_page(tmp_path, monkeypatch, capsys):
    even_plan(2, units=8).save(tmp_path / "plan.json")
    calls = []
    monkeypatch.setattr("lpcompile.simulate.outlook.outlook", lambda *given: calls.append(given) or outlook(*given))
    assert main(["inspect", str(tmp_path / "plan.json"), "--html", str(tmp_path / "page.html")]) == 0
    assert len(calls) == 1 and "simulated 'multiplier'" in capsys.readouterr().out


def test_measured_stages_have_a_spread_and_counted_ones_none():
    plan = even_plan(2, units=8)
    assert "±" not in stage_table(plan)
    units = tuple(dataclasses.replace(u, forward_spread=0.3, backward_spread=0.4) for u in plan.units)
    assert stage_table(dataclasses.replace(plan, units=units)).rows[0][3:5] == ["4 ± 0.6", "8 ± 0.8"]


NOT_CAPTURABLE = """
import random
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
    def forward(self, x):
        for block in self.blocks:
            if {test}:
                x = x + block(x)
        return x
"""


@pytest.mark.parametrize(
    "test, line, code",
    [("x.sum() > 0", 10, "if x.sum() > 0:"), ("random.getrandbits(1)", 10, "if random.getrandbits(1):")],
)
@pytest.mark.parametrize("cost", ["flops", "measured"])
def test_what_cannot_be_captured_shows_its_source_line_and_what_to_try(test, line, code, cost, tmp_path, capsys):
    file = tmp_path / "net.py"
    file.write_text(NOT_CAPTURABLE.format(test=test))
    assert main(["inspect", str(file), "--input", "8", "-K", "2", "--cost", cost]) == 1
    error = capsys.readouterr().err
    assert f"{file}:{line} in forward: {code}" in error and "what to try:" in error and "Traceback" not in error


@pytest.mark.parametrize("cost", ["flops", "measured"])
def test_inputs_that_the_model_itself_refuses_are_not_called_a_problem_of_capture(cost, tmp_path, capsys):
    file = tmp_path / "net.py"
    file.write_text(NOT_CAPTURABLE.format(test="True"))
    assert main(["inspect", str(file), "--input", "9", "-K", "2", "--cost", cost]) == 1
    assert "the model itself fails on the example inputs" in capsys.readouterr().err


def test_zoo_checks_named_models(capsys):
    assert main(["zoo", "user:EarlyExits", "--no-peers"]) == 0
    assert "1 (100 %)" in capsys.readouterr().out


def test_artefacts_are_printed_after_a_pass_beside_the_json(monkeypatch, capsys):
    monkeypatch.setattr(print_after, "_requested", ())
    assert main(["inspect", "resnet20", "-K", "2", "--cost", "flops", "--json", "--print-after", "cuts,gate"]) == 0
    printed = capsys.readouterr()
    assert [line for line in printed.err.splitlines() if line.startswith("== after")] == [
        "== after cuts ==",
        "== after gate ==",
    ]
    assert json.loads(printed.out)["K"] == 2
