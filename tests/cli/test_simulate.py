"""`simulate` as a user types it, and what its numbers mean."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from lpcompile.cli.main import main
from lpcompile.core.schedule import Instruction, Ref, Schedule
from lpcompile.errors import UsageError
from lpcompile.planning.replan import replan
from lpcompile.runtime.engine.schedules import default_schedule
from lpcompile.simulate.device_spec import LinkSpec
from lpcompile.simulate.paper_table import PAPER, PaperRow, fitted_load, paper_row, paper_schedule, paper_text
from lpcompile.simulate.rank_memory import alive
from lpcompile.simulate.scaling import data_parallel, splits
from lpcompile.simulate.scaling_text import advice, split_table
from tests.simulate.even_plan import IDEAL, even_plan

METHODS = ("multiplier", "gpipe", "1f1b")


@pytest.fixture
def saved(tmp_path):
    file = tmp_path / "plan.json"
    even_plan(2, units=16).save(file)
    return str(file)


GOLDEN = """\
    method         K    replicas    micro    step ms    ρ     samples/s    efficiency    idle    memory
--  -------------  ---  ----------  -------  ---------  ----  -----------  ------------  ------  --------
*   data parallel  1    4           1        12         4.00  10,667       100 %         0 %     4.0 MiB
    gpipe          2    2           4        15         3.20  8,533        80 %          20 %    4.4 MiB
    gpipe          4    1           8        16.5       2.91  7,758        73 %          27 %    5.8 MiB
    1f1b           2    2           4        15         3.20  8,533        80 %          20 %    2.2 MiB
    1f1b           4    1           8        16.5       2.91  7,758        73 %          27 %    2.4 MiB"""


def test_the_table_of_splits_in_full():
    rows = splits(even_plan(1, "bp", units=16), IDEAL, 4, 128, ("gpipe", "1f1b"))
    assert split_table(rows) == GOLDEN


def test_data_parallelism_alone_hides_its_all_reduce_behind_the_backward():
    plan = even_plan(1, "bp", units=16)  # 64,000 bytes of parameters, 32 ms backward
    slow = replace(IDEAL, inside=LinkSpec(64_000 / 1e6 / 64, 0), gpus=8)  # 64 ms for all of them
    free, late = (data_parallel(plan, device, 2, 256) for device in (IDEAL, slow))
    assert free.step == pytest.approx(48, rel=1e-3)
    assert late.step == pytest.approx(48 + (64 - 32), rel=1e-3)


def test_a_batch_that_replicas_cannot_divide_gives_no_row():
    rows = splits(even_plan(1, "bp", units=16), IDEAL, 4, 2, METHODS)
    assert [(one.method, one.K) for one in rows] == [("multiplier", 2), ("multiplier", 4)]


def test_layer_parallelism_wins_where_gradients_are_dear_and_the_advice_says_so():
    plan = even_plan(1, "bp", units=16, output_bytes=100)
    dear = replace(IDEAL, inside=LinkSpec(0.001, 0), gpus=4)  # 64 ms for all parameters
    for device, begin in ((dear, "Use multiplier with K = 4 stages x 1 replicas: "), (IDEAL, "Use data parallel: ")):
        said = advice(splits(plan, device, 4, 128, METHODS), "multiplier", METHODS[1:], device)
        assert said.startswith(begin) and " times as fast as " in said


@pytest.mark.parametrize(
    "method, graphs", [("bp", [1, 1, 1]), ("gpipe", [6, 6, 6]), ("1f1b", [3, 2, 1]), ("multiplier", [1, 1, 1])]
)
def test_graphs_that_a_rank_keeps_alive(method, graphs):
    schedule = default_schedule(even_plan(3, method, batch=96))
    assert [alive(schedule, r) for r in range(3)] == graphs


def test_stashed_weights_are_counted_while_they_are_kept():
    """Stashed in slot s, read last in the backward of slot s two steps later: three versions at once."""
    items = (Instruction("stash", 0, writes=(Ref("W", 0, 0),)), Instruction("backward", -2, reads=(Ref("W", 0, -2),)))
    assert alive(Schedule("late", 1, 1, (items,), (1,)), 0, "W") == 3


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


@pytest.mark.parametrize(
    "arguments, message",
    [
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


def test_the_papers_placement_adds_a_whole_auxnet_to_every_step():
    """T/K + T_aux, as the paper's formula says, where links and penalties are free."""
    model, aux = even_plan(1, "bp", units=54), even_plan(1, "bp", units=9)
    row = paper_row(model, aux, 3, 1.45, IDEAL, ("model", "aux"))
    assert row.step == pytest.approx(54 * 3 / 3 + 9 * 3, rel=1e-3)
    assert row.penalty < row.step and row.multiplier < row.step


@pytest.mark.parametrize("K", [2, 3, 5])
def test_the_papers_schedule_is_sound(K):
    assert paper_schedule(K).K == K  # verified as it is made


def test_the_time_to_load_data_is_found_again():
    rows = [PaperRow("m", "a", K, 0.0, 100.0, 100 / K + 17, 40.0, 40.0) for K in (2, 3, 4)]
    rows = [replace(row, paper=row.rho(30.0)) for row in rows]
    assert fitted_load(rows) == pytest.approx(0.3)
    text = paper_text(rows)
    assert "30.0 % of the serial step, is fitted" in text and "at most 0 % off" in text


def test_the_papers_table_is_within_a_few_percent_of_its_values_for_k():
    """The paper's K = 2, 3, 4: 1.26, 1.45, 1.68; the rows with other networks are less well met."""
    from lpcompile.simulate.paper_table import paper_rows

    assert [row[3] for row in PAPER[:3]] == [1.26, 1.45, 1.68]
    rows = paper_rows()
    load = fitted_load(rows)
    off = [row.rho(load * row.serial) / row.paper - 1 for row in rows]
    assert max(map(abs, off[:3])) < 0.05 and max(map(abs, off)) < 0.15
    assert all(row.penalty < row.step for row in rows)


def test_a_plan_is_split_again_for_every_k_from_its_own_units():
    plan = even_plan(2, units=16)
    assert replan(plan, 2) is plan
    other = replan(plan, 4, "penalty")
    assert (other.K, other.method, len(other.boundaries)) == (4, "penalty", 3)
    assert sum(s.forward for s in other.stages) == pytest.approx(16)
    assert replan(other, 2, "bp").boundaries[0].aux is None
    with pytest.raises(UsageError, match="there is no method .nothing."):
        replan(plan, 2, "nothing")
