"""How many micro-batches a step has: by measured times, by defaults, and never more than a batch allows."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.core.method import BatchFacts
from lpcompile.core.plan import Plan
from lpcompile.errors import UsageError
from lpcompile.planning import micro_choice
from lpcompile.runtime.methods import AUTO, CHOSEN, get_method

ZBH2, STREAM = get_method("zbh2"), get_method("stream")


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.1)


@pytest.mark.parametrize("overhead", [0.0, 100.0])
def test_small_micro_batches_are_taken_only_where_they_run_as_fast(monkeypatch, overhead):
    """A micro-batch of n samples takes n ms and the overhead."""
    asked = []

    def times(captured, units, tensors, sizes, **options):
        asked.extend(sizes)
        return {size: size + overhead for size in sizes}

    monkeypatch.setattr(micro_choice, "micro_times", times)
    x = torch.randn(64, 3, 16, 16)
    plan = lpcompile.parallelize(lpcompile.models.resnet20(), 2, example_inputs=x, gate=False, cache=False).plan
    assert plan.batch_norm and sorted(asked) == [16, 22, 32]  # never less than 16 samples with BatchNorm
    assert plan.micro == (2 if overhead else 4)


def test_slots_of_stream_are_as_long_as_the_largest_micro_batch(monkeypatch):
    """15 samples in 4 parts are 4, 4, 4 and 3: four slots of 4, where 3 parts are three slots of 5."""
    monkeypatch.setattr(micro_choice, "micro_times", lambda *given, **options: {s: float(s) for s in given[3]})
    model, x = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(6))), torch.randn(15, 6)
    assert lpcompile.parallelize(model, 2, example_inputs=x, method="stream", gate=False, cache=False).plan.micro == 3


def test_measured_times_come_from_the_cache_the_second_time(monkeypatch, tmp_path):
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    x, model = torch.randn(64, 3, 8, 8), lpcompile.models.ResNet(14, width=4)
    first = lpcompile.parallelize(model, 2, example_inputs=x, gate=False).plan
    monkeypatch.setattr("lpcompile.passes.profile.micro_time.whole_step", None)
    assert lpcompile.parallelize(model, 2, example_inputs=x, gate=False).plan.micro == first.micro


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        (BatchFacts(2, 64, norm=True), (2, 3, 4)),
        (BatchFacts(4, 64, norm=True), (2, 3, 4)),
        (BatchFacts(4, 32, norm=True), (2,)),  # of 16 samples, though fewer than K leave ranks idle
        (BatchFacts(4, 31, norm=True), (1,)),
        (BatchFacts(2, 7, norm=True), (1,)),
        (BatchFacts(2, 16), (2, 3, 4)),
        (BatchFacts(2, 1), (1,)),
        (BatchFacts(1, 64), ()),
        (BatchFacts(4, 64, free=False), ()),
    ],
)
def test_the_choices_of_an_exact_pipeline(facts, expected):
    assert ZBH2.micro_choices(facts) == expected
    assert (ZBH2.default_micro(facts) or 1) in (expected or (1,))


def test_stream_has_at_least_as_many_micro_batches_as_stages():
    assert STREAM.micro_choices(BatchFacts(3, 128, norm=True)) == (3, 4, 5, 6)
    assert STREAM.micro_choices(BatchFacts(3, 40, norm=True)) == ()


@pytest.mark.parametrize("batch", [1, 2, 5, 17, 64])
def test_the_default_trains_any_batch_as_plain_training_does(batch):
    """Without BatchNorm and dropout micro-batches change nothing but the order of sums."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(5))).double()
    plain = torch.nn.Sequential(*(torch.nn.Linear(6, 6) for _ in range(5))).double()
    plain.load_state_dict(model.state_dict())
    x, y = torch.randn(batch, 6, dtype=torch.float64), torch.arange(batch) % 6
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    assert program.plan.method == CHOSEN == get_method(AUTO).name
    trainer = program.trainer(F.cross_entropy, optimizer=sgd)
    optimizer = sgd(list(plain.parameters()))
    for _ in range(3):
        trainer.step(x, y)
        optimizer.zero_grad()
        F.cross_entropy(plain(x), y).backward()
        optimizer.step()
    for name, tensor in trainer.state_dict().items():
        torch.testing.assert_close(tensor, plain.state_dict()[name], rtol=1e-9, atol=1e-12)


def test_exact_refuses_what_is_not():
    """In compiling, and in all training of the program, also from a plan that was made for another method."""
    model, x = lpcompile.models.ResNet(14, width=4), torch.randn(4, 3, 8, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", exact=True, gate=False)
    assert Plan.from_json(program.plan.to_json()).exact
    words = "does not have plain training's gradients; use method='auto'"
    for method in ("stream", "1f1b@0.5,penalty"):
        with pytest.raises(UsageError, match=words):
            lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", method=method, exact=True)
        with pytest.raises(UsageError, match=words):
            program.trainer(F.cross_entropy, optimizer=sgd, method=method)
        with pytest.raises(UsageError, match=words):
            program.fit(F.cross_entropy, [(x, torch.zeros(4))], optimizer=sgd, method=method)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd)
    with pytest.raises(UsageError, match=words):
        trainer.switch("stream")
    with pytest.raises(UsageError, match=r"transfer=torch.int8 rounds gradients between ranks"):
        program.trainer(F.cross_entropy, optimizer=sgd, transfer="int8")
    with pytest.raises(UsageError, match=r"clip_scope='rank' clips every stage by its own norm"):
        program.trainer(F.cross_entropy, optimizer=sgd, clip=1.0, clip_scope="rank")
    other = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", method="stream", gate=False)
    with pytest.raises(UsageError, match=words):
        lpcompile.parallelize(model, 2, example_inputs=x, plan=other.plan, exact=True)


@pytest.mark.parametrize("option", [{"init": "consistent"}, {"aux_dtype": torch.bfloat16}])
def test_options_of_auxnets_are_refused_where_a_method_trains_without_them(option):
    model, x = lpcompile.models.ResNet(14, width=4), torch.randn(4, 3, 8, 8)
    with pytest.raises(UsageError, match=r"is for AuxNets, and 'zbh2' trains without them; name a method"):
        lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", **option)


def test_auxnets_are_there_on_demand_and_are_emitted(tmp_path):
    model, x = lpcompile.models.ResNet(14, width=4), torch.randn(4, 3, 8, 8)
    program = lpcompile.parallelize(model, 3, example_inputs=x, cost="flops")
    assert program.auxnets[0](x).shape == program.stages[0](x).shape
    folder = program.emit(tmp_path / "out")
    assert sorted(p.name for p in folder.glob("auxnet_*.py")) == ["auxnet_0.py", "auxnet_1.py"]
    loaded = lpcompile.load(folder)
    assert torch.equal(loaded.auxnets[0](x), program.auxnets[0](x))
    assert torch.equal(loaded(x), program(x))
