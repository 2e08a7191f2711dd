"""`pipedream`, `ddg` and `fr` against their recursions written out in one process, and what they keep in between."""

from __future__ import annotations

import copy
import gc
import weakref
from collections import Counter

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.core.staleness import staleness
from lpcompile.errors import UsageError
from lpcompile.runtime.engine import memory
from lpcompile.runtime.engine.update import Updater
from lpcompile.runtime.engine.worker import Worker
from tests.runtime.methods.recursions import DECAY, double_buffered, replayed, stashed
from tests.runtime.small import Recorder, any_auxnets, batches, compiled, mlp, norm_mlp, recorded, sgd

RUN, APPLY = Worker.run_stage, Updater.apply


def falling(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)


def trained(method, K, data, model=None, how=None, **options):
    """The stages as they were before training, the weights after it, and the trainer."""
    program = compiled(model or mlp(), K, data[0][0], **(how or {}))
    stages = [copy.deepcopy(stage) for stage in program.stages]
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, scheduler=falling, method=method, **options)
    for x, y in data:
        trainer.step(x, y)
    return stages, trainer.state_dict(), trainer


def assert_close(found, expected):
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        torch.testing.assert_close(found[name], tensor, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_a_stashed_gradient_is_the_one_at_the_weights_of_its_forward(K):
    stages, found, trainer = trained("pipedream", K, batches(6))
    assert_close(found, stashed(stages, batches(6)))
    assert trainer.staleness == tuple(range(K - 1, -1, -1))


@pytest.mark.parametrize(("K", "M"), [(3, 2), (4, 2), (3, 4)])
def test_micro_batches_are_gathered_between_steps(K, M):
    stages, found, trainer = trained("pipedream", K, batches(4), micro=M)
    assert_close(found, stashed(stages, batches(4), M))
    assert trainer.staleness == tuple(-(-(K - 1 - r) // M) for r in range(K))


@pytest.mark.parametrize(("K", "M"), [(1, 2), (2, 1), (2, 2), (3, 2), (4, 2), (3, 4)])
def test_stream_takes_late_gradients_at_the_weights_that_it_expects(K, M):
    stages, found, _ = trained("stream", K, batches(5), micro=M)
    assert_close(found, stashed(stages, batches(5), M, predicted=True))


@pytest.mark.parametrize(("K", "M", "slack"), [(2, 1, 1), (2, 2, 1), (2, 4, 1), (2, 2, 3), (3, 2, 1), (3, 4, 2)])
def test_stream_with_slack_is_the_same_recursion_with_more_in_flight(K, M, slack):
    stages, found, trainer = trained("stream", K, batches(5), micro=M, slack=slack)
    assert_close(found, stashed(stages, batches(5), M, predicted=True, slack=slack))
    assert trainer.schedule.lag == (K - 1) * (1 + slack) and trainer.staleness[-1] == 0


def test_stream_predicts_no_update_where_gradients_are_accumulated():
    """Two calls a step: only the second is followed by an update."""
    _, found, trainer = trained("stream", 2, batches(6), micro=2, accumulate=2)
    seen = {n: t.clone() for n, t in found.items()}
    for x, y in batches(2):
        trainer.step(x, y)
    assert any(not torch.equal(seen[n], t) for n, t in trainer.state_dict().items())
    assert trainer.workers[0].expected == {}  # at rest


@pytest.mark.parametrize("K", [1, 2, 3, 4])
def test_a_replayed_gradient_is_the_one_at_the_weights_of_now(K):
    stages, found, trainer = trained("fr", K, batches(6))
    assert_close(found, replayed(stages, batches(6)))
    assert trainer.staleness == tuple(range(K - 1, -1, -1))


@pytest.mark.parametrize(("K", "M"), [(2, 1), (3, None), (3, 2), (4, 8)])
def test_double_buffered_weights_are_one_step_late_on_all_ranks(K, M):
    stages, found, trainer = trained("pipedream", K, batches(5), stash="2bw", micro=M)
    assert_close(found, double_buffered(stages, batches(5)))
    assert trainer.staleness == (1,) * K and trainer.micro == (M or K)


def test_with_one_stage_nothing_is_late_with_double_buffers_either():
    stages, found, trainer = trained("pipedream", 1, batches(3), stash="2bw")
    assert_close(found, stashed(stages, batches(3)))
    assert trainer.staleness == (0,)


@pytest.mark.parametrize("options", [{}, {"micro": 2, "clip": 0.1, "clip_scope": "global"}])
def test_pipedream_and_ddg_are_one_recursion_bitwise(options):
    left, right = (trained(method, 3, batches(6), **options)[1] for method in ("pipedream", "ddg"))
    assert all(torch.equal(left[n], right[n]) for n in left)


def float_batches(count=5):
    return batches(count, dtype=torch.float32)


@pytest.mark.parametrize(("method", "options"), [("pipedream", {}), ("pipedream", {"stash": "2bw"}), ("fr", {})])
def test_where_weights_do_not_move_gradients_and_statistics_are_those_of_bp(method, options):
    """So a batch counts once in BatchNorm's statistics, and a replay draws what the first forward drew."""
    found = []
    for name, given in (("bp", {"micro": 3} if options else {}), (method, options)):
        torch.manual_seed(4)
        program = compiled(norm_mlp(dropout=0.3), 3, float_batches()[0][0])
        trainer = program.trainer(F.cross_entropy, optimizer=Recorder, method=name, **given)
        losses = [trainer.step(x, y)["loss"] for x, y in float_batches()]
        trainer.flush()
        names = {p: n for n, p in program.module.named_parameters()}
        sums = {names[p]: g for p, g in recorded(trainer).items()}
        found.append((sums, dict(program.module.named_buffers()), losses))
    (gradients, buffers, losses), (late, counted, same) = found
    assert losses == same
    assert all(torch.equal(counted[n], b) for n, b in buffers.items())
    assert late.keys() == gradients.keys()
    assert all(torch.equal(late[n], g) for n, g in gradients.items())


@pytest.mark.parametrize(("method", "options"), [("pipedream", {}), ("pipedream", {"stash": "2bw"}), ("fr", {})])
def test_recomputed_activations_use_the_same_weights(method, options):
    found = []
    for checkpoint in (False, [0, 1]):
        torch.manual_seed(4)
        program = compiled(norm_mlp(dropout=0.2), 3, float_batches()[0][0])
        how = {"method": method, "checkpoint": checkpoint, **options}
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, **how)
        for x, y in float_batches():
            trainer.step(x, y)
        found.append(trainer.state_dict())
    assert all(torch.equal(found[0][n], found[1][n]) for n in found[0])


class Aside(torch.autograd.Function):
    """x * w, with w put aside where autograd does not look."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.w, ctx.x = w, x
        return x * w

    @staticmethod
    def backward(ctx, g):
        return g * ctx.w, (g * ctx.x).sum(0)


class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.full((6,), 1.1, dtype=torch.float64))
        self.v = nn.Parameter(torch.full((6,), 0.9, dtype=torch.float64))

    def forward(self, x):
        return Aside.apply(x, self.w) * self.v


@pytest.mark.parametrize("stash", ["all", "2bw"])
def test_weights_that_a_function_puts_aside_are_of_its_batch_too(stash):
    model = nn.Sequential(mlp(2)[:2], Scale(), mlp(3)[:3], Scale(), mlp(1))
    how = {"leaf": [Scale], "pins": {"cut": ["1", "3"]}}
    stages, found, _ = trained("pipedream", 3, batches(6), model, how, stash=stash)
    assert_close(found, (stashed if stash == "all" else double_buffered)(stages, batches(6)))


def test_versions_are_kept_only_while_they_are_needed():
    x = batches()[0][0]
    sizes = {}
    for method, stash in (("pipedream", "all"), ("pipedream", "2bw"), ("fr", "all")):
        program = compiled(mlp(), 4, x)
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, method=method, stash=stash)
        for x, y in batches(6):
            trainer.step(x, y)
        own = [memory.of(w)["parameters"] for w in trainer.workers]
        sizes[method, stash] = [memory.of(w)["versions"] / n for w, n in zip(trainer.workers, own, strict=True)]
        trainer.flush()
        assert all(memory.of(w)["versions"] == 0 for w in trainer.workers)
    assert sizes["pipedream", "all"] == [3, 2, 1, 0]
    assert sizes["pipedream", "2bw"] == [1, 1, 1, 0]  # the last rank is between batches at the end of a step
    assert sizes["fr", "all"] == [0, 0, 0, 0]


def test_fr_keeps_inputs_and_no_graph_between_steps(monkeypatch, few_objects):
    data, calls = batches(6), []

    def noted(w, lams, slot):
        found, loss = RUN(w, lams, slot)
        calls.append((w.rank, slot, torch.is_grad_enabled()))
        made.extend(weakref.ref(t) for t in (*found, loss) if t is not None and t.grad_fn is not None)
        return found, loss

    monkeypatch.setattr(Worker, "run_stage", noted)
    trainer = compiled(mlp(), 3, data[0][0]).trainer(F.cross_entropy, optimizer=sgd, method="fr")
    for x, y in data:
        made = []
        calls.clear()
        trainer.step(x, y)
        gc.collect()
        assert made and not any(ref() is not None for ref in made)
    assert sorted(calls) == [(0, 3, True), (0, 5, False), (1, 4, True), (1, 5, False), (2, 5, True)]
    kept = [sorted(kind for kind, *_ in w.values) for w in trainer.workers]
    assert kept == [["random", "random"], ["X", "random"], []]
    assert not any(t.requires_grad for t in trainer.workers[1].values["X", 1, 5])


class Counting(nn.Module):
    """Multiplies with a buffer that it has changed in place."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))

    def forward(self, x):
        self.count += 1
        return x * self.count


def test_a_buffer_that_is_changed_in_place_is_refused_with_a_reason():
    model = nn.Sequential(mlp(2)[:2], Counting(), mlp(2))
    program = compiled(model, 2, batches()[0][0], leaf=[Counting], pins={"cut": ["1"]})
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="pipedream")
    with pytest.raises(UsageError, match="stage 0 changes a buffer in place .* use method='fr' or 'bp'"):
        for x, y in batches(3):
            trainer.step(x, y)
    trainer = compiled(model, 2, batches()[0][0], leaf=[Counting], pins={"cut": ["1"]}).trainer(
        F.cross_entropy, optimizer=sgd, method="fr"
    )
    for x, y in batches(3):
        trainer.step(x, y)


def test_staleness_is_shown(caplog):
    program = compiled(mlp(), 3, batches()[0][0])
    with caplog.at_level("INFO", "lpcompile"):
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="pipedream")
    assert "pipedream: the whole batch at once, gradients late by 2, 1, 0 steps on ranks 0 to 2" in caplog.text
    assert str(trainer.schedule).startswith("pipedream: K = 3, staleness 2, 1, 0\n")
    trainer.switch("bp")
    assert trainer.staleness == (0, 0, 0) == staleness(trainer.schedule)
    assert str(trainer.schedule).startswith("bp: K = 3\n")


def test_a_warm_up_is_an_exact_pipeline():
    program = compiled(mlp(), 3, batches()[0][0])
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="fr", warmup=2, warmup_violation=0.1)
    seen = [trainer.step(x, y)["method"] for x, y in batches(4)]
    assert seen == ["1f1b", "1f1b", "fr", "fr"] and trainer.violation_at_start is None


@pytest.mark.parametrize(
    ("method", "options"),
    [("pipedream", {}), ("pipedream", {"stash": "2bw"}), ("fr", {}), ("multiplier", {"micro": 1, "beta": 1.0})],
)
def test_a_loss_scale_that_moves_leaves_what_is_under_way_right(method, options, monkeypatch):
    """Gradients carry the scale that their batch began with; a power of two changes no bit."""
    found, steps = [], Counter()
    for moves in ((1.0,) * 9, (2.0, 0.25, 2.0, 4.0, 0.5, *(1.0,) * 4)):

        def apply(updater, norms, look, moves=moves):
            assert APPLY(updater, norms, look)
            updater.scale *= moves[steps[updater]]
            steps[updater] += 1

        monkeypatch.setattr(Updater, "apply", apply)
        torch.manual_seed(0)
        program = compiled(mlp(dtype=torch.float32), 3, float_batches()[0][0])
        nets = {"auxnets": any_auxnets(program)} if method == "multiplier" else {}
        how = {"method": method, "autocast": torch.float16, **options, **nets}
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, **how)
        for w in trainer.workers:
            w.updater.scale = 1024.0
        for x, y in float_batches():
            trainer.step(x, y)
        found.append(trainer.state_dict())
    assert all(torch.equal(found[0][n], t) for n, t in found[1].items())


def test_what_has_no_meaning_is_refused():
    program = compiled(mlp(), 4, batches()[0][0])

    def make(**options):
        return program.trainer(F.cross_entropy, optimizer=sgd, method="pipedream", **options)

    with pytest.raises(UsageError, match=r"stash='2bw' with micro=2 for K=4: .* give micro=3 or more, or stash='all'"):
        make(stash="2bw", micro=2)
    with pytest.raises(UsageError, match="stash='2bw' with accumulate=2: it gathers gradients over the micro-batches"):
        make(stash="2bw", accumulate=2)
    with pytest.raises(UsageError, match="stash='some' is not one of all, 2bw"):
        make(stash="some")
