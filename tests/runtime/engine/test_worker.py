"""One rank's state: figures of a step, random numbers, what a step forgets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lpcompile.core.stage_io import StageIO, TensorSpec
from lpcompile.runtime.comm.transport import Local
from lpcompile.runtime.engine.settings import settings
from lpcompile.runtime.engine.worker import Net, Worker, differentiable


def spec(dtype=torch.float32, requires_grad=True):
    return TensorSpec((4, 3), dtype, requires_grad, (1, 0))


def worker(**options):
    """Rank 0 of two; its boundary carries floats and integers."""
    net = Net(nn.BatchNorm1d(3), StageIO((), (0,), (spec(),), ()))
    specs = {1: (spec(), spec(torch.int64, False))}
    return Worker(0, 2, net, specs, None, torch.device("cpu"), settings(options), Local())


def test_metrics_are_means_by_weight_and_are_taken_once():
    w = worker()
    w.note("loss", torch.tensor(1.0), 0.25)
    w.note("loss", torch.tensor(3.0), 0.75)
    assert w.take_metrics() == {"loss": 2.5}
    assert w.take_metrics() == {}


def test_a_new_step_forgets_old_micro_batches_and_looks_at_boundaries_now_and_then():
    w = worker(check_every=5)
    w.batches = {n: None for n in range(4)}
    w.begin_step(None, step=9, apply=True, oldest=2)
    assert list(w.batches) == [2, 3] and w.look
    w.begin_step(None, step=10, apply=False, oldest=2)
    assert not w.look and not w.apply


def test_a_rank_draws_from_its_own_stream_and_goes_on_where_it_was():
    torch.manual_seed(3)
    w = worker()
    outside = torch.get_rng_state()
    with w.own_random():
        first = torch.rand(2)
    with w.own_random():
        second = torch.rand(2)
    assert torch.equal(torch.get_rng_state(), outside) and not torch.equal(first, second)
    torch.manual_seed(3)
    with worker().own_random():
        assert torch.equal(torch.rand(4), torch.cat([first, second]))


def test_a_second_forward_leaves_running_statistics_alone_also_after_an_error():
    w = worker()
    norm = w.stage.module
    before = {name: b.clone() for name, b in norm.named_buffers()}
    with pytest.raises(KeyError), w.statistics_kept(norm):
        norm(torch.randn(4, 3) + 5)
        raise KeyError
    assert all(torch.equal(b, before[name]) for name, b in norm.named_buffers())


def test_gradients_travel_for_floats_only_and_lam_whole():
    w = worker(transfer=torch.bfloat16)
    assert [s.dtype for s in w.carried(("lam", 1, 0))] == [torch.float32, torch.int64]
    assert [s.dtype for s in w.carried(("p", 1, 0))] == [torch.float32]
    sent = w.message(("lam", 1, 0), (torch.ones(4, 3), torch.ones(4, 3, dtype=torch.int64)))
    assert [t.dtype for t in sent] == [torch.bfloat16, torch.int64]
    assert [t.dtype for t in w.unpacked(("lam", 1, 0), sent)] == [torch.float32, torch.int64]


def test_above_frozen_layers_all_floats_have_gradients():
    frozen = (spec(requires_grad=False), spec(torch.int64, False))
    assert differentiable(frozen) == (0,)
    assert differentiable((*frozen, spec())) == (2,)
