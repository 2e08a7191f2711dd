"""gpipe, 1f1b and zero bubble give plain training's gradients, as torch's own engine does on the same stages."""

from __future__ import annotations

import logging
import weakref
from dataclasses import replace

import pytest
import torch
import torch.multiprocessing as mp
import torch.nn.functional as F

from lpcompile.errors import UsageError
from lpcompile.runtime.engine.handlers import stage
from lpcompile.runtime.methods import METHODS, ScheduleOptions
from tests.runtime.cases import resnet
from tests.runtime.methods import torch_engine
from tests.runtime.methods.torch_engine import Masked, tokens
from tests.runtime.ranks import free_port
from tests.runtime.small import Recorder, Routed, Wide, bare_plan, batches, compiled, mlp, norm_mlp, recorded, sgd

pytestmark = pytest.mark.usefixtures("one_thread")  # as ranks have
PIPELINES = [m.name for m in METHODS.values() if m.pipeline and m.chunks == 1]


def schedule_of(method, K, micro):
    return METHODS[method].schedule(bare_plan(K, method), ScheduleOptions(micro=micro))


def test_a_rank_receives_one_micro_batch_ahead_and_sends_input_gradients_before_it_turns_to_weights():
    assert [str(item) for item in schedule_of("zb", 3, 2).ranks[1]] == [
        "recv X1 from 0", "recv p2 from 2",
        "recv X1[+1] from 0", "wait X1", "forward", "send X2 to 2",
        "wait X1[+1]", "forward [+1]", "send X2[+1] to 2",
        "recv p2[+1] from 2", "wait p2", "backward_input", "send p1 to 0",
        "wait p2[+1]", "backward_input [+1]", "send p1[+1] to 0",
        "backward_weight", "backward_weight [+1]",
        "step",
    ]  # fmt: skip


def graphs_kept(items):
    """The most graphs that a rank keeps at a time, by its instructions."""
    kept, most = 0, 0
    for item in items:
        kept += (item.op == "forward") - (item.op in ("backward", "backward_weight"))
        most = max(most, kept)
    return most


@pytest.mark.parametrize("K", [1, 2, 3, 5])
def test_graphs_that_a_rank_keeps(K):
    M = 2 * K
    kept = {method: [graphs_kept(items) for items in schedule_of(method, K, M).ranks] for method in PIPELINES}
    zbh2 = {1: [1], 2: [3, 4], 3: [5, 6, 6], 5: [9, 10, 10, 10, 10]}[K]
    assert kept == {"gpipe": [M] * K, "1f1b": [K - r for r in range(K)], "zb": [K] * K, "zbh2": zbh2}
    assert [graphs_kept(items) for items in schedule_of("bp", K, M).ranks] == [1] * K


class Token:
    pass


class Mark(torch.autograd.Function):
    """Nothing but a node in the graph, with something that lives as long as it does."""

    alive = weakref.WeakSet()

    @staticmethod
    def forward(ctx, x):
        ctx.token = Token()
        Mark.alive.add(ctx.token)
        return x.view_as(x)

    @staticmethod
    def backward(ctx, g):
        return g


@pytest.mark.parametrize(("method", "most"), [("gpipe", 4), ("1f1b", 1)])
def test_as_many_graphs_are_alive_as_the_schedule_says(method, most):
    """Counted while the last stage trains, where the loss can see it."""
    x, y = batches(1)[0]
    counts = []

    def loss(out, y):
        out = Mark.apply(out)
        counts.append(len(Mark.alive))
        return F.cross_entropy(out, y)

    compiled(mlp(), 2, x).trainer(loss, optimizer=sgd, method=method, micro=4).step(x, y)
    assert max(counts) == most


class Models:
    """Programs by name and K, each compiled once; `fresh` has the first weights again."""

    def __init__(self):
        self.done = {}

    def fresh(self, name, K):
        if (name, K) not in self.done:
            torch.manual_seed(0)
            program = compiled(MAKE[name](), K, data_of(name)[0][0], max_width=3)
            self.done[name, K] = program, {n: t.clone() for n, t in program.module.state_dict().items()}
        program, start = self.done[name, K]
        program.module.load_state_dict(start)
        program.module.zero_grad()
        torch.manual_seed(3)
        return program


MAKE = {"mlp": mlp, "dropout": lambda: norm_mlp(dropout=0.2), "wide": Wide, "routed": Routed, "masked": Masked,
        "resnet": resnet}  # fmt: skip


def data_of(name):
    """Three batches of 8; the last has 6 where a micro-batch may have one sample."""
    dtype = torch.float64 if name in ("mlp", "masked") else torch.float32
    data = batches(3, dtype=dtype, last=None if name == "dropout" else 6)
    if name == "wide":
        return [((x, torch.arange(len(x)) % 10), y) for x, y in data]
    if name == "masked":
        return [(tokens(len(y)), y) for _, y in data]
    return [(x.repeat(1, 32).view(len(x), 3, 8, 8), y) for x, y in data] if name == "resnet" else data


def loss_of(name):
    return (lambda out, y: F.cross_entropy(out["logits"], y)) if name == "wide" else F.cross_entropy


@pytest.fixture(scope="module")
def models():
    return Models()


def plain_gradients(model, data, micro, loss, least=1):
    """Accumulated as a user would write it: by parameter, over all batches. least: samples of a micro-batch."""
    parameters, sums = list(model.parameters()), {}
    for x, y in data:
        x, n = x if isinstance(x, tuple) else (x,), len(y)
        count = min(micro, n // least)
        for i in range(count):
            part = slice(n * i // count, n * (i + 1) // count)
            (loss(model(*(t[part] for t in x)), y[part]) * (len(y[part]) / n)).backward()
        for p in parameters:
            if p.grad is not None:
                sums[p] = sums.get(p, 0) + p.grad
                p.grad = None
    return sums


@pytest.mark.parametrize("method", PIPELINES)
@pytest.mark.parametrize(("name", "K"), [("mlp", 2), ("mlp", 3), ("masked", 3), ("routed", 2), ("resnet", 3)])
def test_gradients_are_those_of_plain_training_on_the_same_micro_batches(models, method, name, K):
    """Bit for bit, also of a last batch whose micro-batches are not equal (with BatchNorm they are fewer, of as many
    samples as usual), and where all stages need a mask."""
    program, data = models.fresh(name, K), data_of(name)
    expected = plain_gradients(program.module, data, 4, loss_of(name), least=2 if name == "resnet" else 1)
    program = models.fresh(name, K)
    trainer = program.trainer(loss_of(name), optimizer=Recorder, method=method, micro=4)
    for x, y in data:
        trainer.step(x, y)
    found = recorded(trainer)
    assert found.keys() >= expected.keys()
    for p, g in found.items():
        assert torch.equal(g, expected.get(p, torch.zeros_like(p)))  # zero comes from codes, which have no gradient


def trained(models, name, K, method, **options):
    data, program = data_of(name), models.fresh(name, K)
    trainer = program.trainer(loss_of(name), optimizer=sgd, method=method, micro=4, **options)
    losses = [trainer.step(x, y)["loss"] for x, y in data]
    return losses, {n: t.clone() for n, t in trainer.state_dict().items()}


@pytest.mark.parametrize(
    ("name", "K", "options"),
    [
        ("dropout", 3, {"clip": 0.5, "clip_scope": "global"}),  # running statistics and masks too
        ("wide", 2, {"accumulate": 3}),  # a table that all stages share, several tensors at a boundary, a dict
        ("wide", 3, {"autocast": torch.float16}),
        ("routed", 3, {"checkpoint": True}),
    ],
)
def test_they_train_as_bp_does_with_as_many_micro_batches(models, name, K, options):
    losses, expected = trained(models, name, K, "bp", **options)
    for method in PIPELINES:
        found = trained(models, name, K, method, **options)
        assert found[0] == losses, method
        assert all(torch.equal(found[1][n], t) for n, t in expected.items()), method


@pytest.mark.parametrize("method", ["gpipe", "zb"])
def test_with_one_micro_batch_they_are_plain_training(models, method):
    found = []
    for name, options in (("bp", {}), (method, {"micro": 1})):
        program = models.fresh("dropout", 3)
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, method=name, **options)
        for x, y in data_of("dropout"):
            trainer.step(x, y)
        found.append({n: t.clone() for n, t in trainer.state_dict().items()})
    assert all(torch.equal(found[0][n], t) for n, t in found[1].items())


@pytest.fixture(scope="module")
def engines(tmp_path_factory):
    """What torch's own engine finds with K gloo processes, one stage each."""
    folder = tmp_path_factory.mktemp("engine")
    mp.spawn(torch_engine.check, ({K: free_port() for K in (3, 2)}, str(folder)), nprocs=3)
    return {K: [torch.load(folder / f"{K}-{rank}.pt", weights_only=True) for rank in range(K)] for K in (2, 3)}


@pytest.mark.parametrize("method", [name for name in PIPELINES if METHODS[name].torch_schedule])
@pytest.mark.parametrize("name", ["mlp", "masked"])
@pytest.mark.parametrize("K", [2, 3])
def test_torchs_engine_finds_the_same_gradients_on_our_stages(engines, models, name, K, method):
    program, (x, y) = models.fresh(name, K), data_of(name)[0]
    trainer = program.trainer(F.cross_entropy, optimizer=Recorder, method=method, micro=torch_engine.MICRO)
    trainer.step(x, y)
    mine = recorded(trainer)
    theirs = {n: g for rank in engines[K] for n, g in rank[name, method].items()}
    assert len(theirs) == len(mine)
    assert all(torch.equal(mine[p], theirs[n]) for n, p in program.module.named_parameters())


def test_weight_gradients_are_left_for_later(models):
    """All matrices and filters of a transformer and a residual network, none where activations are recomputed."""
    for name, together in (("masked", False), ("resnet", False), ("masked", True)):
        program, (x, y) = models.fresh(name, 2), data_of(name)[0]
        trainer = program.trainer(F.cross_entropy, optimizer=Recorder, method="zb", micro=2, checkpoint=together)
        w, seen = trainer.workers[1], []

        def look(worker, item, slot, w=w, seen=seen):
            stage.backward_input(worker, item, slot)
            if slot == 0:
                seen.append([p.grad is None for p in w.stage.module.parameters() if p.dim() > 1])

        program_ = trainer.prepared[1]
        program_[1] = tuple(replace(op, handler=look) if op.item.op == "backward_input" else op for op in program_[1])
        trainer.step(x, y)
        assert seen and {gone for line in seen for gone in line} == {not together}, name


def test_micro_batches_that_do_not_divide_the_batch_are_refused(models):
    program = models.fresh("mlp", 3)
    with pytest.raises(UsageError, match=r"micro=3 does not divide the batch of 8, and 'gpipe' cuts it into equal "
                       r"micro-batches; use micro=1 or 2 or 4 or 8, or compile for the batch"):  # fmt: skip
        program.trainer(F.cross_entropy, optimizer=sgd, method="gpipe", micro=3)
    with pytest.raises(UsageError, match=r"micro=3 does not divide the batch of 8"):  # before processes are started
        program.fit(F.cross_entropy, data_of("mlp"), optimizer=sgd, method="zb", micro=3)
    with pytest.raises(UsageError, match=r"cannot run 2 micro-batches on 3 stages: torch says .* use a multiple of 3"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="1f1b", micro=2)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="bp", micro=3)
    with pytest.raises(UsageError, match=r"micro=3 does not divide the batch of 8"):
        trainer.switch("gpipe")
    assert (trainer.micro, trainer.target.name, trainer.schedule.method) == (3, "bp", "bp")


def test_batch_norm_over_micro_batches_is_said_once(models, caplog):
    program = models.fresh("dropout", 3)
    text = "1f1b: 6 BatchNorm layers take their statistics over micro-batches of 2 samples, not over whole batches"
    with caplog.at_level(logging.WARNING, "lpcompile"):
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="1f1b", micro=4)
        trainer.load_state(trainer.state())
    assert caplog.text.count(text) == 1
    caplog.clear()
    with caplog.at_level(logging.WARNING, "lpcompile"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="gpipe", micro=1)
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", micro=4)
        models.fresh("masked", 3).trainer(F.cross_entropy, optimizer=sgd, method="1f1b", micro=4)
    assert not caplog.text
