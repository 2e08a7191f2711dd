"""`pipedream`, `ddg` and `fr` against their recursions written out in one process, and what they keep in between."""

from __future__ import annotations

import copy
import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from lpcompile.errors import UsageError
from lpcompile.runtime import memory
from lpcompile.runtime.worker import Worker
from lpcompile.staleness import staleness
from tests.runtime.small import Recorder, batches, compiled, mlp, norm_mlp, recorded, sgd

RUN = Worker.run_stage
LR, MOMENTUM, DECAY = 0.05, 0.9, 0.8


def falling(optimizer):
    return torch.optim.lr_scheduler.ExponentialLR(optimizer, DECAY)


def weights_of(stages):
    return [{n: p.detach().clone() for n, p in stage.named_parameters()} for stage in stages]


def gradient(function, weights, *others):
    """Gradients of a scalar in some weights and in other tensors."""
    leaves = {n: w.clone().requires_grad_() for n, w in weights.items()}
    free = [t.clone().requires_grad_() for t in others]
    found = torch.autograd.grad(function(leaves, *free), [*leaves.values(), *free])
    return dict(zip(leaves, found, strict=False)), found[len(leaves) :]


class Emulation:
    """Stages by their weights: `history[k][t]` is what stage k has when iteration t begins."""

    def __init__(self, stages):
        self.stages, self.K = stages, len(stages)
        self.history = [[w] for w in weights_of(stages)]
        self.speed = [{n: torch.zeros_like(v) for n, v in h[0].items()} for h in self.history]

    def run(self, k, weights, x):
        return functional_call(self.stages[k], weights, (x,))

    def loss(self, versions, x, y):
        for k, weights in enumerate(versions):
            x = self.run(k, weights, x)
        return F.cross_entropy(x, y)

    def update(self, k, gradients, lr):
        """SGD with momentum; a stage without a gradient keeps its weights and its momentum."""
        old = self.history[k][-1]
        if gradients is not None:
            self.speed[k] = {n: MOMENTUM * v + gradients[n] for n, v in self.speed[k].items()}
            old = {n: w - lr * self.speed[k][n] for n, w in old.items()}
        self.history[k].append(old)

    def state(self):
        return {n: w for h in self.history for n, w in h[-1].items()}


def learning_rate(t, steps):
    return LR * DECAY ** min(t, steps)  # steps that drain the pipeline come after the scheduler's last one


def stashed(stages, data, M=1):
    """w_k(t+1) = w_k(t) - η ∇_k Σ loss of M micro-batches, K-1-k behind the step's own.

    Each of them has the weights of all stages from when it came by.
    """
    e, steps = Emulation(stages), len(data)
    parts = [(x[8 * i // M : 8 * (i + 1) // M], y[8 * i // M : 8 * (i + 1) // M]) for x, y in data for i in range(M)]
    for t in range(steps + -(-(e.K - 1) // M)):
        updates = []
        for k in range(e.K):
            total = None
            for n in range(t * M - (e.K - 1 - k), (t + 1) * M - (e.K - 1 - k)):
                if 0 <= n < len(parts):
                    then = [h[n // M] for h in e.history]
                    loss = lambda w, k=k, n=n, then=then: e.loss([*then[:k], w, *then[k + 1 :]], *parts[n])  # noqa: E731
                    found, _ = gradient(loss, then[k])
                    total = {p: found[p] / M + (0 if total is None else total[p]) for p in found}
            updates.append(total)
        for k, total in enumerate(updates):
            e.update(k, total, learning_rate(t, steps))
    return e.state()


def replayed(stages, data):
    """w_k(t+1) = w_k(t) - η ∂stage_k(X_k[b]; w_k(t))/∂w_k · p_{k+1}[b] with b = t-(K-1-k)."""
    e, steps, X, p = Emulation(stages), len(data), {}, {}
    for t in range(steps + e.K - 1):
        if t < steps:
            X[0, t] = data[t][0]
            for k in range(e.K - 1):
                X[k + 1, t] = e.run(k, e.history[k][t], X[k, t])
        updates, made = [], {}
        for k in range(e.K):
            b = t - (e.K - 1 - k)
            if not 0 <= b < steps:
                updates.append(None)
                continue

            def local(w, x, k=k, b=b, p=p):
                out = e.run(k, w, x)
                return F.cross_entropy(out, data[b][1]) if k == e.K - 1 else (out * p[k + 1, b]).sum()

            found, (made[k, b],) = gradient(local, e.history[k][t], X[k, b])
            updates.append(found)
        p |= made
        for k, found in enumerate(updates):
            e.update(k, found, learning_rate(t, steps))
    return e.state()


def double_buffered(stages, data):
    """w(t+1) = w(t) - η ∇loss(batch t; w(t-1)), w(-1) = w(0)."""
    e, steps = Emulation(stages), len(data)
    for t, (x, y) in enumerate(data):
        then = [h[max(t - 1, 0)] for h in e.history]
        for k in range(e.K):
            loss = lambda w, k=k: e.loss([*then[:k], w, *then[k + 1 :]], x, y)  # noqa: E731, B023
            e.update(k, gradient(loss, then[k])[0], learning_rate(t + 1, steps))
    return e.state()


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


def test_fr_keeps_inputs_and_no_graph_between_steps(monkeypatch):
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
    assert "pipedream: gradients are late by 2, 1, 0 steps on ranks 0 to 2" in caplog.text
    assert str(trainer.schedule).startswith("pipedream: K = 3, staleness 2, 1, 0\n")
    trainer.switch("bp")
    assert trainer.staleness == (0, 0, 0) == staleness(trainer.schedule)
    assert str(trainer.schedule).startswith("bp: K = 3\n")


def test_a_warm_up_is_bp():
    program = compiled(mlp(), 3, batches()[0][0])
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="fr", warmup=2, warmup_violation=0.1)
    seen = [trainer.step(x, y)["method"] for x, y in batches(4)]
    assert seen == ["bp", "bp", "fr", "fr"] and trainer.violation_at_start is None


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
