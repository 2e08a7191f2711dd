"""`dgl` and `dgl-async` in one process: every stage learns from its own loss, and from nothing else."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from lpcompile.errors import UsageError
from lpcompile.runtime.comm.buffer import Buffer, BufferEntry
from lpcompile.runtime.engine import memory
from tests.runtime.small import (
    Ids,
    Recorder,
    Routed,
    Wide,
    batches,
    compiled,
    mlp,
    norm_mlp,
    recorded,
    sgd,
)


def setup(method, K=3, model=None, x=None, loss=F.cross_entropy, optimizer=Recorder, **options):
    x = batches()[0][0] if x is None else x
    program = compiled(model or mlp(), K, x, method="dgl", max_width=3)
    return program, program.trainer(loss, optimizer=optimizer, method=method, clip=0, **options)


def several(result):
    return result if isinstance(result, tuple) else (result,)


def greedy(stages, heads, micro, learnt):
    """Gradients of Σ_k weight · loss(head_k(stage_k(X_k))) with every X_k cut off, by autograd.

    learnt: for each stage (number of a micro-batch, weight), where micro-batches are the (x, y) in `micro`.
    """
    found = {}
    for k, stage in enumerate(stages):
        for i, weight in learnt[k]:
            x, y = micro[i]
            X = (x,)
            for below in stages[:k]:
                X = several(below(*X))
            out = stage(*(t.detach() for t in X))
            loss = F.cross_entropy(heads[k](*several(out)) if k < len(heads) else out, y)
            weights = [*stage.parameters(), *(heads[k].parameters() if k < len(heads) else ())]
            for p, g in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                found[p] = found.get(p, 0) + weight * g
    return found


def assert_gradients(trainer, expected):
    found = recorded(trainer)
    assert set(found) == set(expected)
    for p, g in expected.items():
        torch.testing.assert_close(found[p], g, rtol=1e-9, atol=1e-12)


def cut(data, micro):
    return [(x.chunk(micro)[i], y.chunk(micro)[i]) for x, y in data for i in range(micro)]


@pytest.mark.parametrize("method", ["dgl", "dgl-async"])
@pytest.mark.parametrize(("K", "micro"), [(2, 1), (3, 2), (4, 4)])
def test_each_stage_gets_the_gradient_of_its_own_loss(method, K, micro):
    program, trainer = setup(method, K, micro=micro)
    data = batches(3)
    for x, y in data:
        metrics = trainer.step(x, y)
    every = [(i, 1 / micro) for i in range(3 * micro)]
    assert_gradients(trainer, greedy(program.stages, program.heads, cut(data, micro), [every] * K))
    assert sorted(n for n in metrics if "loss" in n) == ["loss", *(f"loss {r}" for r in range(K - 1))]


def test_no_gradient_crosses_a_boundary():
    _, trainer = setup("dgl", 3)
    sent = [item.ref.kind for items in trainer.schedule.ranks for item in items if item.op == "send"]
    assert set(sent) == {"X"} and len(sent) == 2
    given = []
    trainer.workers[1].stage.module.register_forward_pre_hook(lambda m, args: given.extend(args))
    trainer.step(*batches()[0])
    assert given and not any(t.requires_grad for t in given)


def run(method, data, model=norm_mlp, **options):
    torch.manual_seed(3)
    _, trainer = setup(method, 3, model(), data[0][0], optimizer=sgd, **options)
    metrics = [trainer.step(x, y) for x, y in data]
    return trainer.state_dict(), [w.head.state()[0] for w in trainer.workers if w.head], metrics


def test_where_nobody_is_ahead_dgl_async_is_dgl_bitwise():
    """Also with dropout, uneven micro-batches and running statistics."""
    data = batches(4, size=7, dtype=torch.float32)
    model = lambda: norm_mlp(dropout=0.2)  # noqa: E731
    one, other = (run(method, data, model, micro=2) for method in ("dgl", "dgl-async"))
    assert all(torch.equal(t, other[0][n]) for n, t in one[0].items())
    assert all(torch.equal(t, b[n]) for a, b in zip(one[1], other[1], strict=True) for n, t in a.items())
    assert other[2][-1]["reused 2"] == 0 and other[2][-1]["skipped 2"] == 0
    assert {n: v for n, v in other[2][-1].items() if "loss" in n} == {
        n: v for n, v in one[2][-1].items() if "loss" in n
    }


@pytest.mark.parametrize(
    ("policy", "drawn"),
    [("least-reused", [[0, 1, 2, 3], [2, 3, 2, 3]]), ("newest", [[0, 1, 2, 3], [3, 3, 3, 3]])],
)
def test_what_is_drawn_again_is_learnt_again_with_its_own_targets(policy, drawn):
    """Rank 0 offers four micro-batches before rank 1 draws: two are left in a buffer of two."""
    program, trainer = setup("dgl-async", 2, micro=4, buffer=2, buffer_policy=policy)
    data = batches(1)
    metrics = trainer.step(*data[0])
    parts = [[(i, 1 / 4) for i in mine] for mine in drawn]
    assert_gradients(trainer, greedy(program.stages, program.heads, cut(data, 4), parts))
    assert [memory.of(w)["replay"] for w in trainer.workers] == [0, 2 * 2 * (6 + 1) * 8]  # X and targets, two by two
    assert metrics["skipped 1"] == 2 and metrics["reused 1"] == (0.5 if policy == "least-reused" else 1.5)


def test_inputs_of_later_stages_and_integers_travel_with_x():
    """Ids are an input that every stage takes; stages above must use those of the micro-batch that they drew."""
    torch.manual_seed(0)
    x, y = batches(1, dtype=torch.float32)[0]
    ids = torch.arange(8) % 10
    loss = lambda out, y: F.cross_entropy(out["logits"], y)  # noqa: E731
    _, trainer = setup("dgl-async", 2, Ids(10, 4), (x, ids), loss, micro=2, buffer=1)
    seen = []
    trainer.workers[1].stage.module.register_forward_pre_hook(lambda m, args: seen.append(args[-1].clone()))
    given = ids.clone()
    trainer.step((x, given), y)
    given.zero_()  # the user's tensor, after the step
    assert trainer.workers[0].onward == (1,)
    assert all(torch.equal(t, ids[4:]) for t in seen) and len(seen) == 2
    kept = trainer.buffers.buffers[1].kept[0].entry
    assert torch.equal(kept.inputs[1], ids[4:]) and torch.equal(kept.target, y[4:])
    data = batches(2, dtype=torch.float32)
    _, trainer = setup("dgl-async", 3, Routed(), data[0][0], optimizer=sgd)  # codes cross as integers
    assert all(trainer.step(x, y)["loss"] > 0 for x, y in data)


def test_tied_parameters_sum_their_gradients_over_stages():
    torch.manual_seed(0)
    data = [((x, torch.arange(len(x)) % 10), y) for x, y in batches(2, dtype=torch.float32)]
    loss = lambda out, y: F.cross_entropy(out["logits"], y)  # noqa: E731
    program, trainer = setup("dgl", 2, Wide(), data[0][0], loss)
    (x, ids), y = data[0]
    trainer.step((x, ids), y)
    embed, out = program.module.embed.weight, program.stages[0](x, ids)
    local = loss({"logits": program.heads[0](*out, ids)[0]}, y)
    last = loss({"logits": program.stages[1](*(t.detach() for t in out), ids)[0]}, y)
    expected = torch.autograd.grad(local, embed)[0] + torch.autograd.grad(last, embed)[0]
    torch.testing.assert_close(recorded(trainer)[embed], expected)


def test_a_loss_with_weights_has_a_copy_for_every_head():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

        def forward(self, out, y):
            return F.cross_entropy(out * self.scale, y)

    loss = Scaled()
    _, trainer = setup("dgl", 2, loss=loss, optimizer=sgd)
    for x, y in batches():
        trainer.step(x, y)
    own = trainer.workers[0].head.loss_fn.scale
    assert own is not loss.scale and 1.0 != own.item() != loss.scale.item() != 1.0


def test_heads_of_the_users_own():
    torch.manual_seed(4)
    heads = [nn.Linear(6, 3, dtype=torch.float64) for _ in range(2)]
    program, trainer = setup("dgl", 3, heads=heads)
    data = batches(2)
    for x, y in data:
        trainer.step(x, y)
    assert_gradients(trainer, greedy(program.stages, heads, data, [[(0, 1.0), (1, 1.0)]] * 3))
    with pytest.raises(UsageError, match=r"1 heads for K = 3 stages; pass heads=\[...\] with one module for every"):
        setup("dgl", 3, heads=heads[:1])


class TwoOutputs(nn.Module):
    """A side output after the first blocks, and one at the end."""

    def __init__(self):
        super().__init__()
        self.body, self.side = mlp(), nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x):
        x = self.body[0](x)
        side = self.side(x)
        for layer in self.body[1:]:
            x = layer(x)
        return {"out": x, "side": side}


def test_an_output_that_no_head_gives_may_be_passed_by_but_not_used():
    x, y = batches()[0]
    _, trainer = setup("dgl", 2, TwoOutputs(), loss=lambda out, y: F.cross_entropy(out["out"], y))
    assert trainer.step(x, y)["loss 0"] > 0
    both = lambda out, y: F.cross_entropy(out["out"], y) + F.cross_entropy(out["side"], y)  # noqa: E731
    _, trainer = setup("dgl", 2, TwoOutputs(), loss=both)
    with pytest.raises(UsageError, match=r"uses output 1 of the model, which the heads .* do not give.*heads="):
        trainer.step(x, y)


def test_stages_without_parameters_to_train_hold_nobody_up():
    model = mlp()
    model[-1].requires_grad_(False)
    model[0].requires_grad_(False)
    program, trainer = setup("dgl", 4, model)
    trainer.step(*batches()[0])
    found = recorded(trainer)
    assert all((p in found) == p.requires_grad for p in model.parameters())
    assert all(p in found for head in program.heads for p in head.parameters())


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        ("dgl-async", {"clip_scope": "global"}, r"clip_scope='global' needs all gradients' norms in every step"),
        ("dgl-async", {"autocast": torch.float16}, r"float16's common loss scale .*use clip_scope='rank' and torch.bf"),
        ("dgl-async", {"buffer": 0}, r"buffer=0 is not a whole number of at least 1"),
        ("dgl-async", {"buffer_policy": "best"}, r"buffer_policy='best' is not one of least-reused, newest, random"),
        ("dgl", {"warmup": 3}, r"warmup=3 prepares λ for decoupling, and 'dgl' has none; leave it out"),
    ],
)
def test_what_cannot_be_is_refused(method, options, message):
    with pytest.raises(UsageError, match=message):
        setup(method, 2, **options)


def test_dgl_async_refuses_parameters_that_stages_share():
    x = batches(1, dtype=torch.float32)[0][0]
    with pytest.raises(UsageError, match=r"gradients of embed.weight in stages .* are summed .*use method='dgl'"):
        setup("dgl-async", 2, Wide(), (x, torch.arange(8)))


@pytest.mark.parametrize("method", ["dgl", "dgl-async"])
def test_state_goes_on_bitwise_with_heads_and_their_optimizers(method):
    data = batches(6, dtype=torch.float32)
    options = {"optimizer": sgd, "micro": 2}
    _, straight = setup(method, 3, norm_mlp(dropout=0.2), data[0][0], **options)
    _, other = setup(method, 3, norm_mlp(dropout=0.2, seed=8), data[0][0], **options)
    for x, y in data[:3]:
        straight.step(x, y)
    other.load_state(copy.deepcopy(straight.state()))
    for trainer in (straight, other):
        for x, y in data[3:]:
            trainer.step(x, y)
    for a, b in zip(straight.workers, other.workers, strict=True):
        assert all(torch.equal(t, b.stage.module.state_dict()[n]) for n, t in a.stage.module.state_dict().items())
        if a.head is not None:
            assert all(torch.equal(t, b.head.state()[0][n]) for n, t in a.head.state()[0].items())


def test_methods_can_be_switched_to_and_from_dgl():
    x, y = batches()[0]
    program = compiled(mlp(), 2, x, method="bp")  # planned for another method: heads are derived when they are needed
    trainer = program.trainer(F.cross_entropy, optimizer=sgd)
    trainer.step(x, y)
    for method in ("dgl", "dgl-async", "bp"):
        trainer.switch(method)
        trainer.step(x, y)
    assert list(trainer.state_dict()) == list(program.module.state_dict())


def entry(number):
    return BufferEntry((torch.tensor([number]),), {}, None, 1, 1.0)


def drawn(buffer, count=1):
    return [int(buffer.draw()[0].X[0]) for _ in range(count)]


def test_a_buffer_draws_and_gives_up_by_its_policy():
    buffer = Buffer()
    buffer.size = 3
    assert buffer.draw() is None
    for i in range(3):
        buffer.put(entry(i))
    assert drawn(buffer, 4) == [0, 1, 2, 0]
    buffer.put(entry(3))  # 0 was drawn most often
    assert drawn(buffer, 4) == [3, 1, 2, 3] and buffer.skipped == 0
    for i in range(4, 9):
        buffer.put(entry(i))
    assert sorted(drawn(buffer, 3)) == [6, 7, 8] and buffer.skipped == 2
    buffer.policy = "newest"
    buffer.put(entry(9))
    assert drawn(buffer, 2) == [9, 9] and sorted(int(k.entry.X[0]) for k in buffer.kept) == [7, 8, 9]
    buffer.policy = "random"
    torch.manual_seed(0)
    first = drawn(buffer, 20)
    torch.manual_seed(0)
    assert drawn(buffer, 20) == first and set(first) == {7, 8, 9}
    buffer.fail(RuntimeError("Connection closed by peer"))
    with pytest.raises(RuntimeError, match="closed by peer"):
        buffer.draw(wait=True)
