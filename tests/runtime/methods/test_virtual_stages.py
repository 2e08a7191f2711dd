"""Several stages a rank: `interleaved`, `interleaved-zb`, `zbv`, `dualpipev`."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import lpcompile
from lpcompile.core.method import ScheduleOptions
from lpcompile.core.plan import Plan
from lpcompile.core.schedule import Schedule
from lpcompile.core.verify import verify
from lpcompile.errors import PlanError, UsageError
from lpcompile.runtime.methods import METHODS
from lpcompile.simulate.step import simulate
from tests.runtime.methods.virtual_job import CASES, MICRO, VIRTUAL, run_rank, train, trainer_of
from tests.runtime.ranks import started_once
from tests.runtime.small import Recorder, bare_plan, batches, compiled, mlp, recorded, sgd
from tests.simulate.even_plan import IDEAL, even_plan

pytestmark = pytest.mark.usefixtures("one_thread")  # as ranks have


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return started_once(tmp_path_factory, run_rank)


@settings(max_examples=100, deadline=None)
@given(method=st.sampled_from(VIRTUAL), K=st.integers(1, 9), micro=st.integers(1, 24))
def test_every_order_of_torch_becomes_a_schedule_that_runs(method, K, micro):
    assume(METHODS[method].accepts_micro(K, micro))
    schedule = METHODS[method].schedule(bare_plan(K, method), ScheduleOptions(micro=micro))
    verify(schedule)
    assert Schedule.from_json(schedule.to_json()) == schedule
    done = [(i.op, i.stage if K > 1 else 0, i.slot) for rank in schedule.ranks for i in rank]
    stages = range(2 * K if K > 1 else 1)
    wanted = sorted((s, slot) for s in stages for slot in range(micro))
    assert sorted((s, slot) for op, s, slot in done if op == "forward") == wanted
    assert sorted((s, slot) for op, s, slot in done if op in ("backward", "backward_weight")) == wanted


def test_nothing_is_sent_between_stages_of_one_rank():
    schedule = METHODS["zbv"].schedule(bare_plan(2, "zbv"), ScheduleOptions(micro=2))
    assert [str(item) for item in schedule.ranks[1]] == [
        "recv X1 from 0", "recv p3 from 0",
        "recv X1[+1] from 0", "wait X1", "forward of stage 1",
        "forward of stage 2", "send X3 to 0",
        "wait X1[+1]", "forward of stage 1 [+1]", "forward of stage 2 [+1]", "send X3[+1] to 0",
        "recv p3[+1] from 0", "wait p3", "backward_input of stage 2", "backward_weight of stage 2",
        "backward_input of stage 1", "send p1 to 0", "backward_weight of stage 1",
        "wait p3[+1]", "backward_input of stage 2 [+1]", "backward_weight of stage 2 [+1]",
        "backward_input of stage 1 [+1]", "send p1[+1] to 0", "backward_weight of stage 1 [+1]",
        "step",
    ]  # fmt: skip


@pytest.mark.parametrize("K", [2, 4])
def test_ranks_wait_less_than_with_one_stage_each(K):
    idle = {name: max(simulate(even_plan(K, name, batch=256), IDEAL).idle) for name in ("1f1b", "zb", *VIRTUAL)}
    assert idle["interleaved"] < 0.7 * idle["1f1b"]
    assert max(idle["zbv"], idle["interleaved-zb"]) < idle["zb"]


@pytest.mark.parametrize("K", [2, 3, 4])
@pytest.mark.parametrize("method", VIRTUAL)
def test_the_plans_bubble_is_that_of_the_simulated_schedule(method, K):
    """In micro-batches of the other ranks' work, where every stage takes as long."""
    record = METHODS[method]
    for micro in (m for m in (K, 2 * K, 4 * K) if record.accepts_micro(K, m)):
        plan = even_plan(K, method, units=8 * K, batch=8 * micro)
        found = simulate(plan, IDEAL, schedule=record.schedule(plan, ScheduleOptions(micro=micro)))
        waited = (found.step / max(found.busy) - 1) / (K - 1)
        assert micro * waited == pytest.approx(micro * record.bubble(K, micro), abs=0.06)


def test_it_is_emitted_and_read_back(tmp_path):
    (x, y), program = batches(1, 16)[0], compiled(mlp(depth=12), 2, batches(1, 16)[0][0], method="zbv")
    program.emit(tmp_path / "build")
    again = lpcompile.load(tmp_path / "build")
    assert again.plan == program.plan and len(again.stages) == 4
    assert Schedule.load(tmp_path / "build" / "schedule.json").stages_of(1) == (1, 2)
    assert "--nproc-per-node 2 run.py" in (tmp_path / "build" / "README.md").read_text()
    found = [p.trainer(F.cross_entropy, optimizer=sgd, micro=4) for p in (program, again)]
    assert found[0].step(x, y)["loss"] == found[1].step(x, y)["loss"]
    assert all(torch.equal(t, found[1].state_dict()[n]) for n, t in found[0].state_dict().items())


def test_the_plan_counts_ranks_and_is_read_back(tmp_path):
    x, _ = batches(1, 16)[0]
    plan = compiled(mlp(depth=12), 2, x, method="zbv").plan
    assert (plan.K, plan.world, plan.ranks) == (4, 2, (0, 1, 1, 0))
    assert [plan.stages_of(r) for r in (0, 1)] == [(0, 3), (1, 2)]
    together = [sum(plan.stages[s].work for s in plan.stages_of(r)) for r in (0, 1)]
    assert plan.step >= max(together) and plan.rho <= 2
    assert "K = 2 ranks with 2 stages each for method 'zbv'" in str(plan) and "of at most 2;" in str(plan)
    plan.save(tmp_path / "plan.json")
    assert Plan.load(tmp_path / "plan.json") == plan
    again = compiled(mlp(depth=12), 2, x, method="zbv", plan=plan)
    assert again.plan == plan and len(again.stages) == 4
    assert "ranks" not in compiled(mlp(), 2, x, method="zbh2").plan.to_json()  # as files of earlier plans are
    one = compiled(mlp(), 1, x, method="zbv")
    assert (one.plan.K, one.plan.world) == (1, 1)
    assert one.trainer(F.cross_entropy, optimizer=sgd, micro=2).step(*batches(1, 16)[0])["loss"] > 0


def test_broken_ranks_of_a_plan_are_refused():
    data = compiled(mlp(depth=12), 2, batches(1, 16)[0][0], method="zbv").plan.to_json()
    for ranks in ([0, 1, 1], [0, 2, 2, 0]):
        with pytest.raises(PlanError, match="ranks are"):
            Plan.from_json(data | {"ranks": ranks})


@pytest.mark.parametrize("method", VIRTUAL)
@pytest.mark.parametrize("K", [2, 3])
def test_gradients_are_those_of_plain_training_on_the_same_micro_batches(method, K):
    (x, y), model = batches(1, 16)[0], mlp(depth=12)
    for i in range(MICRO):
        part = slice(2 * i, 2 * i + 2)
        (F.cross_entropy(model(x[part]), y[part]) / MICRO).backward()
    expected = {n: p.grad.clone() for n, p in model.named_parameters()}
    model.zero_grad()
    program = compiled(model, K, x, method=method)
    trainer = program.trainer(F.cross_entropy, optimizer=Recorder, micro=MICRO)
    trainer.step(x, y)
    found, names = recorded(trainer), {p: n for n, p in program.module.named_parameters()}
    assert {names[p]: None for p in found}.keys() == expected.keys()
    assert all(torch.equal(g, expected[names[p]]) for p, g in found.items())


@pytest.mark.parametrize("method", VIRTUAL)
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("K", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_train_as_one_process_does(runs, name, K, method):
    """K processes with two stages each: dropout, running statistics, tied weights, clipping, evaluation."""
    there, here = torch.load(runs(K) / f"{name}-{method}.pt", weights_only=False), train(name, method, K)
    assert (there["loss"], there["evaluation"]) == (here["loss"], here["evaluation"])
    assert all(torch.equal(t, here["model"][n]) for n, t in there["model"].items())


@pytest.mark.parametrize("method", VIRTUAL)
def test_a_checkpoint_goes_on_bit_for_bit_and_loads_in_other_layouts(runs, method):
    folder = runs(2)
    saved, resumed = (torch.load(folder / f"{method}-{what}.pt") for what in ("saved", "resumed"))
    assert all(torch.equal(t, saved[n]) for n, t in resumed.items())
    here, data = trainer_of("dropout", method, 2)
    here.load(folder / method)
    here.step(*data[2])
    assert all(torch.equal(t, saved[n]) for n, t in here.state_dict().items())
    other, _ = trainer_of("dropout", "1f1b", 2)
    other.load(folder / method)
    assert other.steps == 2
    other.step(*data[2])


def test_a_method_with_other_stages_is_refused():
    (x, y) = batches(1, 16)[0]
    program = compiled(mlp(depth=12), 2, x, method="zbv")
    with pytest.raises(UsageError, match=r"'1f1b' needs one each, and this program has stages on ranks 0, 1, 1, 0, as"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="1f1b")
    with pytest.raises(UsageError, match=r"compile it with method='zbv'"):
        compiled(mlp(depth=12), 2, x, method="gpipe").trainer(F.cross_entropy, optimizer=sgd, method="zbv")
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, micro=4)
    trainer.step(x, y)
    trainer.switch("dualpipev", micro=4)  # which has the same stages on the same ranks
    assert trainer.step(x, y)["method"] == "dualpipev"
    with pytest.raises(UsageError, match=r"phases .* have other stages on their ranks"):
        compiled(mlp(depth=12), 2, x, method="zbv@0.5,stream")
    with pytest.raises(UsageError, match=r"K='auto' .* 'zbv' has more; give K"):
        lpcompile.parallelize(mlp(), "auto", example_inputs=x, method="zbv", cost="flops")
    with pytest.raises(PlanError, match=r"K = 40 ranks with 2 stages each \('zbv'\) are too many.* ask for K <= 18"):
        compiled(mlp(depth=12), 40, x, method="zbv")
