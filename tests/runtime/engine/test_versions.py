"""Weight stashing on one worker: a backward finds the weights of its forward."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from lpcompile.core.schedule import Instruction
from lpcompile.errors import UsageError
from lpcompile.runtime.engine import versions
from lpcompile.runtime.engine.update import Updater

STASH = Instruction("stash")


def worker(value=2.0):
    weight = nn.Parameter(torch.tensor([value]))
    updater = Updater([weight], torch.optim.SGD([weight], 1.0))
    return SimpleNamespace(rank=0, values={}, trained=[weight], aux_trained={}, updater=updater, ahead=0, expected={},
                           tied={}, method=SimpleNamespace(name="pipedream"))  # fmt: skip


def step(w, by=1.0):
    """What the instruction `step` does with optimizers: in place, apart from kept versions."""
    w.trained[0].grad = torch.tensor([by])
    with versions.apart(w), torch.no_grad():
        w.updater.optimizer.step()
        w.updater.optimizer.zero_grad()


def test_a_backward_meets_the_weights_of_its_forward_after_a_step():
    w = worker()
    weight, x = w.trained[0], torch.tensor([3.0], requires_grad=True)
    versions.stash(w, STASH, slot=0)
    with versions.held(w, 0):
        out = x * weight
    step(w)
    with versions.held(w, 0):
        assert weight.item() == 2.0
        out.backward()
    assert x.grad.item() == 2.0 and weight.item() == 1.0  # ∂out/∂x is the old weight


def test_each_micro_batch_has_its_own_version():
    w = worker()
    for slot in range(3):
        versions.stash(w, STASH, slot)
        step(w)
    seen = []
    for slot in range(3):
        with versions.held(w, slot):
            seen.append(w.trained[0].item())
    assert seen == [2.0, 1.0, 0.0] and w.trained[0].item() == -1.0


def test_without_a_stash_the_weights_are_the_newest_and_steps_make_no_copies():
    w = worker()
    before = w.trained[0].data_ptr()
    step(w)
    with versions.held(w, 0):
        assert w.trained[0].item() == 1.0
    assert w.trained[0].data_ptr() == before


def test_only_versions_that_a_step_left_behind_count_as_older():
    w = worker()
    versions.stash(w, STASH, 0)
    versions.stash(w, STASH, 1)
    assert versions.older_tensors(w) == []
    step(w)
    assert [t.item() for t in versions.older_tensors(w)] == [2.0]  # one tensor, kept by two micro-batches


def test_an_auxnet_is_copied_while_a_graph_of_it_is_kept():
    w = worker()
    aux = nn.Parameter(torch.tensor([5.0]))
    w.aux_trained = {1: (aux,)}
    w.values["aux", 1, 0] = ((), versions.now([aux]))
    with versions.apart(w), torch.no_grad():
        aux.sub_(1.0)
    assert aux.item() == 4.0
    with versions.put([aux], w.values["aux", 1, 0][1]):
        assert aux.item() == 5.0


def test_the_newest_weights_come_back_after_an_error():
    w = worker()
    versions.stash(w, STASH, 0)
    step(w)
    with pytest.raises(KeyError), versions.held(w, 0):
        raise KeyError
    assert w.trained[0].item() == 1.0


def test_a_buffer_that_is_changed_in_place_is_named_with_a_remedy():
    w = worker()
    versions.stash(w, STASH, 0)
    buffer = torch.ones(1)
    out = w.trained[0] * buffer
    buffer.add_(1)
    with pytest.raises(UsageError, match=r"stage 0 changes a buffer in place .* 'pipedream' .*use method='fr' or 'bp'"):  # noqa: SIM117
        with versions.held(w, 0):
            out.backward()


@pytest.mark.parametrize(("accumulate", "expected"), [(1, 0.0), (2, 1.0)])
def test_a_prediction_continues_the_last_update_unless_none_will_come(accumulate, expected):
    w = worker(2.0)
    w.ahead, w.step, w.settings = 1, 0, SimpleNamespace(accumulate=accumulate)
    before = versions.now(w.trained)
    step(w)
    versions.look_ahead(w, before)
    versions.predict(w, Instruction("predict", ahead=1), 3)
    assert [float(t) for t in w.values["W", 0, 3]] == [expected]
    assert w.trained[0].item() == 1.0
