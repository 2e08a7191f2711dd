"""Table 1 of the paper, read off schedules: of the methods that are there, and of small ones for each rule."""

from __future__ import annotations

import pytest

from lpcompile.compare.properties import NAMES, PAPER_TABLE_1, bare_plan, differences, properties
from lpcompile.compare.request import CompareRequest
from lpcompile.compare.run import marks
from lpcompile.core.schedule import Builder, build
from lpcompile.runtime.methods import METHODS, ScheduleOptions
from lpcompile.runtime.methods.bp import BP

# model solution, forward, backward, update unlocking, forward independency, memory, network
EXPECTED = {
    "bp": "✓××××××",
    "penalty": "✓✓✓✓✓×✓",
    "penalty-stored": "✓✓✓✓✓✓×",
    "lagrangian": "✓✓✓✓✓✓✓",
    "multiplier": "✓✓✓✓✓✓✓",
}

# of a batch of 64 in the micro-batches that each method takes by itself; pipedream's are not the paper's, see below
OTHERS = {
    "gpipe": "✓××××✓×",
    "1f1b": "✓××××✓×",
    "zb": "✓××××✓×",
    "pipedream": "✓×✓✓×✓×",
    "ddg": "✓×✓✓×✓×",
    "fr": "✓×✓✓×✓×",
    "dgl": "××✓✓××✓",
    "dgl-async": "×✓✓✓×✓✓",
}


def signs(schedule):
    return "".join(mark.sign for mark in properties(schedule).values())


@pytest.mark.parametrize("K", [3, 5])
@pytest.mark.parametrize("micro", [1, 4])
@pytest.mark.parametrize("method", EXPECTED)
def test_marks_of_methods(method, micro, K):
    schedule = METHODS[method].schedule(bare_plan(K), ScheduleOptions(micro=micro))
    early = micro > 1 and method == "penalty"  # λ of the next micro-batch is made before a forward
    assert signs(schedule) == ("✓✓✓✓✓✓✓" if early else EXPECTED[method])


@pytest.mark.parametrize("method", sorted(set(METHODS) & set(OTHERS)))
def test_marks_of_methods_that_choose_their_micro_batches(method):
    found = marks(CompareRequest("model", K=3), method)
    assert "".join(sign for sign, _ in found.values()) == OTHERS[method]


@pytest.mark.parametrize("method", sorted(set(METHODS) & set(PAPER_TABLE_1) & {"bp", "penalty"}))
def test_bp_and_the_papers_method_have_the_papers_marks(method):
    assert differences(method, properties(METHODS[method].schedule(bare_plan(3), ScheduleOptions()))) == []


@pytest.mark.parametrize("micro", [1, 4])
def test_lockstep_locks_backward_and_update(micro):
    schedule = METHODS["multiplier"].schedule(bare_plan(4), ScheduleOptions(micro=micro, lockstep=True))
    assert signs(schedule) == "✓✓××✓×✓"


def test_each_mark_says_what_in_the_schedule_it_comes_from():
    found = properties(METHODS["multiplier"].schedule(bare_plan(3), ScheduleOptions(micro=4)))
    assert list(found) == list(NAMES)
    assert found["backward unlocking"].why == "rank 0 goes back through a micro-batch 1 slot after rank 1 did"
    assert found["extra memory"].why == "rank 0 keeps λ of 3 micro-batches at a time"
    found = properties(BP.schedule(bare_plan(3), ScheduleOptions()))
    assert found["forward unlocking"].why == "rank 1's forward waits for rank 0's of the same micro-batch"


def written(write, K=3, micro=1):
    builders = [Builder(r) for r in range(K)]
    for b in builders:
        write(b)
        b.do("step")
    return build("test", micro, builders)


def stage(b, slot, K=3, op="wait"):
    """X in, forward, X out."""
    r = b.rank
    if r and op == "wait":
        b.recv("X", r, slot, r - 1)
        b.wait("X", r, slot)
    elif r:
        b.do("draw", slot, r, writes=[("X", r)])
    b.do("forward", slot, reads=[("X", r)] if r else [], writes=[("graph", r), *([("X", r + 1)] if r < K - 1 else [])])
    if r < K - 1 and op == "wait":
        b.send("X", r + 1, slot, r + 1)
    elif r < K - 1:
        b.do("offer", slot, r + 1, reads=[("X", r + 1)])


def back(b, slot, K=3):
    """p in, backward, p out."""
    r = b.rank
    if r < K - 1:
        b.recv("p", r + 1, slot, r + 1)
        b.wait("p", r + 1, slot)
    reads = [("graph", r), *([("p", r + 1)] if r < K - 1 else [])]
    b.do("backward", slot, reads=reads, writes=[("p", r)] if r else [])
    if r:
        b.send("p", r, slot, r - 1)


def test_all_forwards_before_all_backwards_keeps_several_graphs():
    """As in GPipe."""

    def write(b):
        for slot in range(4):
            stage(b, slot)
        for slot in reversed(range(4)):
            back(b, slot)

    schedule = written(write, micro=4)
    assert signs(schedule) == PAPER_TABLE_1["gpipe"]
    assert properties(schedule)["extra memory"].why == "rank 0 keeps graphs of 4 micro-batches at a time"


def test_a_gradient_of_an_earlier_step_is_no_lock():
    """As in DDG: forwards in a row, backwards of rank r are 2 - r steps late."""

    def write(b):
        stage(b, 0)
        back(b, b.rank - 2)

    assert signs(written(write)) == PAPER_TABLE_1["ddg"]


def test_differences_name_both_signs_and_the_reason():
    """As in PipeDream, which the paper calls locked: forwards are skewed too, and ranks hold several graphs."""

    def write(b):
        stage(b, -b.rank)
        back(b, b.rank - 4)

    schedule = written(write)
    assert signs(schedule) == OTHERS["pipedream"]
    found = differences("pipedream", properties(schedule))
    assert found[0] == (
        "pipedream, backward unlocking: ✓ here, × in the paper's table: "
        "rank 0 goes back through a micro-batch 1 slot after rank 1 did"
    )
    assert len(found) == 3 and found[2].endswith("rank 0 keeps graphs of 5 micro-batches at a time")


@pytest.mark.parametrize(("way", "method"), [("wait", "dgl"), ("buffer", "dgl-async")])
def test_a_local_loss_unlocks_backward_and_a_buffer_forward(way, method):
    def write(b):
        stage(b, 0, op=way)
        if b.rank < 2:
            b.do("head", 0, b.rank + 1, reads=[("X", b.rank + 1)], writes=[("d", b.rank + 1)])
        b.do("backward", 0, reads=[("graph", b.rank)])

    assert signs(written(write)) == PAPER_TABLE_1[method]
