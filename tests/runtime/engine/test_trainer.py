"""The trainer in one process: plain training where it must be, state that survives, clear errors."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.core.method import BatchFacts
from lpcompile.errors import InputError, TrainingError, UsageError
from lpcompile.runtime.engine import memory
from lpcompile.runtime.methods import METHODS, get_method
from lpcompile.runtime.penalty import beta
from tests.runtime.small import (
    Wide,
    any_auxnets,
    batches,
    compiled,
    norm_mlp,
    sgd,
)


def data(count=5, **options):
    return batches(count, dtype=torch.float32, **options)


def adam(parameters):
    return torch.optim.AdamW(parameters, 0.01)


def plain(model, data, make=sgd, clip=None, loss=F.cross_entropy, scheduler=None):
    """Training as a user writes it."""
    model = copy.deepcopy(model).train()
    optimizer = make(list(model.parameters()))
    lr = scheduler(optimizer) if scheduler else None
    for x, y in data:
        optimizer.zero_grad()
        out = model(*x) if isinstance(x, tuple) else model(x)
        loss(out, y).backward()
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        if lr:
            lr.step()
    return model.state_dict()


def trainer_of(model, K, x, method="bp", loss=F.cross_entropy, make=sgd, **options):
    program = compiled(model, K, x, **({"max_width": 3} if isinstance(model, Wide) else {}))
    if K > 1 and "auxnets" not in options and method != "bp":
        options["auxnets"] = any_auxnets(program)
    return program.trainer(loss, optimizer=make, method=method, **options)


def run(trainer, data):
    metrics = [trainer.step(x, y, torch.arange(len(y))) for x, y in data]
    return trainer.state_dict(), metrics


def assert_same(left, right):
    assert list(left) == list(right)
    for name in left:
        assert torch.equal(left[name], right[name]), name


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("make", [sgd, adam])
def test_with_one_stage_every_method_is_plain_training_bitwise(method, make):
    model = norm_mlp(dropout=0.3)
    torch.manual_seed(1)
    expected = plain(model, data(last=5), make)
    torch.manual_seed(1)
    assert_same(run(trainer_of(model, 1, data()[0][0], method, make=make), data(last=5))[0], expected)


@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("clip", [None, 0.3])
def test_bp_is_plain_training_bitwise(K, clip):
    model = norm_mlp()
    expected = plain(model, data(last=5))
    if clip is None:
        assert_same(run(trainer_of(model, K, data()[0][0]), data(last=5))[0], expected)
    else:  # the norm is summed in another order over ranks
        expected = plain(model, data(), clip=clip)
        found, _ = run(trainer_of(model, K, data()[0][0], clip=clip, clip_scope="global"), data())
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-6)


def test_bp_with_several_inputs_a_dict_output_and_tied_parameters():
    torch.manual_seed(0)
    model = Wide()
    given = [((x, torch.arange(len(x)) % 10), y) for x, y in data()]
    loss = lambda out, y: F.cross_entropy(out["logits"], y)  # noqa: E731
    expected = plain(model, given, loss=loss)
    trainer = trainer_of(model, 3, given[0][0], loss=loss)
    assert trainer.plan.tied
    found, _ = run(trainer, given)
    for name, tensor in expected.items():  # autograd adds a tied parameter's uses one by one, we stage by stage
        torch.testing.assert_close(found[name], tensor, rtol=1e-5, atol=1e-7)


def test_bp_follows_lr_schedulers_and_accumulation():
    model = norm_mlp()
    scheduler = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)  # noqa: E731
    expected = plain(model, data(), scheduler=scheduler)
    assert_same(run(trainer_of(model, 2, data()[0][0], scheduler=scheduler), data())[0], expected)
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], accumulate=2)
    before = copy.deepcopy(trainer.state_dict())
    trainer.step(*data()[0])
    assert torch.equal(before["0.linear.weight"], trainer.state_dict()["0.linear.weight"])
    trainer.step(*data()[1])
    assert not torch.equal(before["0.linear.weight"], trainer.state_dict()["0.linear.weight"])


def test_a_loss_with_parameters_trains_them():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))

        def forward(self, out, y):
            return F.cross_entropy(out * self.scale, y)

    loss = Scaled()
    run(trainer_of(norm_mlp(), 2, data()[0][0], "penalty", loss), data())
    assert loss.scale.item() != 1.0


def test_autocast_matches_plain_autocast_training():
    model, (x, y) = norm_mlp(), data()[0]
    other = copy.deepcopy(model)
    optimizer = sgd(list(other.parameters()))
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(other(x), y)
    loss.backward()
    optimizer.step()
    found, _ = run(trainer_of(model, 3, x, autocast=torch.bfloat16), [(x, y)])
    assert_same(found, other.state_dict())


def test_float16_scales_the_loss_and_skips_steps_that_overflow():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], autocast=torch.float16)
    updater = trainer.workers[0].updater
    assert updater.scale == 2.0**16
    before = copy.deepcopy(trainer.state_dict()["6.weight"])
    x, y = data()[0]
    trainer.workers[0].updater.scale = trainer.workers[1].updater.scale = 1e38
    trainer.step(x, y)
    assert torch.equal(before, trainer.state_dict()["6.weight"]) and updater.scale == 5e37
    trainer.workers[0].updater.scale = trainer.workers[1].updater.scale = 1024.0
    trainer.step(x, y)
    assert not torch.equal(before, trainer.state_dict()["6.weight"])


def test_recomputing_activations_changes_nothing():
    torch.manual_seed(4)
    left, _ = run(trainer_of(norm_mlp(dropout=0.2), 2, data()[0][0], "penalty"), data())
    torch.manual_seed(4)
    right, _ = run(trainer_of(norm_mlp(dropout=0.2), 2, data()[0][0], "penalty", checkpoint=True), data())
    assert_same(left, right)


def test_the_users_random_numbers_are_left_alone():
    trainer = trainer_of(norm_mlp(dropout=0.5), 2, data()[0][0], "penalty", noise=0.1)
    torch.manual_seed(9)
    expected = torch.rand(3)
    torch.manual_seed(9)
    trainer.step(*data()[0])
    assert torch.equal(torch.rand(3), expected)


OPTIONS = [
    ("bp", {}),
    ("penalty", {"beta": "adaptive", "accumulate": 2, "noise": 0.1}),
    ("penalty-stored", {}),
    ("lagrangian", {}),
    ("lagrangian", {"kappa": "auxnet"}),
    ("multiplier", {"micro": 2, "warmup": 2}),
    ("multiplier", {"micro": 1}),
    ("pipedream", {"accumulate": 2}),
    ("pipedream", {"stash": "2bw", "clip": 0.5}),
    ("ddg", {"warmup": 2}),
    ("fr", {"micro": 2}),
]


@pytest.mark.parametrize(("method", "options"), OPTIONS)
def test_a_saved_state_goes_on_to_the_same_bits(method, options, tmp_path):
    def make():
        torch.manual_seed(0)
        scheduler = lambda o: torch.optim.lr_scheduler.StepLR(o, 2, 0.5)  # noqa: E731
        return trainer_of(norm_mlp(dropout=0.2), 3, data()[0][0], method, make=adam, scheduler=scheduler, **options)

    first = make()
    run(first, data(3))
    torch.save(first.state(), tmp_path / "state.pt")
    expected, metrics = run(first, data(4, seed=8))
    torch.manual_seed(77)
    second = make()
    run(second, data(1, seed=5))  # whatever it did before is forgotten
    second.load_state(torch.load(tmp_path / "state.pt", weights_only=True))
    found, again = run(second, data(4, seed=8))
    assert_same(found, expected)
    shown = [[{k: v for k, v in m.items() if "ms" not in k} for m in ms] for ms in (metrics, again)]
    assert shown[0] == shown[1]


def test_switching_to_bp_keeps_optimizer_state_and_goes_on_exactly():
    trainer = trainer_of(norm_mlp(), 3, data()[0][0], "multiplier", micro=2)
    run(trainer, data(3))
    trainer.flush()
    model, momentum = copy.deepcopy(trainer.program.module), {}
    for w in trainer.workers:
        for p, s in w.updater.optimizer.state.items():
            name = next(n for n, q in trainer.program.module.named_parameters() if q is p)
            momentum[name] = s["momentum_buffer"].clone()
    trainer.switch("bp", micro=1, clip=0)
    found, _ = run(trainer, data(2, seed=8))
    optimizer = sgd(list(model.parameters()))
    for name, p in model.named_parameters():
        optimizer.state[p]["momentum_buffer"] = momentum[name]
    for x, y in data(2, seed=8):
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    assert_same(found, model.state_dict())
    trainer.switch("penalty", micro=1)
    assert trainer.step(*data()[0])["violation 1"] > 0


def test_a_warm_up_ends_when_the_auxnets_are_near_enough(caplog):
    options = {"warmup": 400, "warmup_violation": 0.35, "aux_optimizer": adam, "beta": 1.0}
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", **options)
    x, y = data()[0]
    with caplog.at_level("INFO", "lpcompile"):
        while trainer.method.name == "warmup":
            trainer.step(x, y)
    assert 0 < trainer.steps < 400 and trainer.violation_at_start < 0.35
    assert "decoupled after a warm-up, largest violation" in caplog.text


@pytest.mark.parametrize(("init", "warm"), [("fresh", True), ("consistent", False)])
def test_auxnets_that_start_elsewhere_are_warmed_up(init, warm):
    model, x = lpcompile.models.ResNet(14, 3, width=4), torch.randn(8, 3, 8, 8)
    program = compiled(model, 2, x, aux_init=init)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", total_steps=50)
    assert (trainer.method.name == "warmup") is warm and trainer.warmup == (5 if warm else 0)
    for _ in range(6):
        trainer.step(x, torch.arange(8) % 3)
    assert trainer.method.name == "penalty"
    asked = program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", warmup=0)
    assert asked.method.name == "penalty"


@pytest.mark.parametrize(("method", "batch", "K", "micro"), [
    ("multiplier", 64, 2, 2), ("multiplier", 64, 4, 4), ("multiplier", 16, 4, 2), ("multiplier", 16, 2, 1),
    ("multiplier", 7, 3, 1),
    ("penalty", 64, 2, 2), ("penalty", 64, 4, 2), ("penalty", 31, 2, 1), ("lagrangian", 32, 3, 2),
    ("penalty-stored", 64, 2, 1), ("pipedream", 64, 2, 1), ("multiplier", 64, 1, 1),
])  # fmt: skip
def test_how_many_micro_batches_where_nobody_says(method, batch, K, micro):
    assert get_method(method).default_micro(BatchFacts(K, batch, saved=2**28)) == micro
    assert get_method("penalty").default_micro(BatchFacts(K, batch, saved=2**25)) == 1


def test_the_last_steps_may_be_exact(caplog):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "multiplier", micro=2, total_steps=5, finish=2)
    with caplog.at_level("INFO", logger="lpcompile"):
        methods = [trainer.step(*batch)["method"] for batch in data(5)]
    assert methods == ["multiplier"] * 3 + ["bp"] * 2
    assert "step 3: the last 2 steps are exact" in caplog.text


def test_load_state_dict_takes_the_models_own_keys():
    trainer = trainer_of(norm_mlp(), 3, data()[0][0], "penalty")
    other = norm_mlp(seed=5)
    trainer.load_state_dict(other.state_dict())
    assert_same(trainer.state_dict(), other.state_dict())
    other.load_state_dict(trainer.state_dict(), strict=True)
    with pytest.raises(UsageError, match=r"not the state of Sequential: missing \['0.linear.bias'"):
        trainer.load_state_dict({})


def test_evaluation_is_the_serial_models_and_leaves_training_alone():
    trainer = trainer_of(norm_mlp(dropout=0.2), 3, data()[0][0], "penalty")
    run(trainer, data())
    before = copy.deepcopy(trainer.state_dict())
    found = trainer.evaluate(data(2), recalibrate=data(3), aux=True)
    model = copy.deepcopy(trainer.program.module).eval()
    losses = [F.cross_entropy(model(x), y).item() for x, y in data(2)]
    assert found["loss"] == pytest.approx(sum(losses) / 2)
    assert {"accuracy", "aux accuracy", "recalibrated accuracy", "recalibrated loss"} <= set(found)
    assert_same(trainer.state_dict(), before)
    assert all(m.training for m in trainer.program.module.modules())
    assert found["recalibrated loss"] != found["loss"]


def test_recalibration_takes_statistics_on_x_and_nothing_else():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    trainer.fit(data(4))
    before = {name: t.clone() for name, t in trainer.state_dict().items()}
    reference = norm_mlp()
    reference.load_state_dict(before)
    trainer.recalibrate(data(3))
    for module in reference.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.reset_running_stats()
            module.momentum = None
    with torch.no_grad():
        for x, _ in data(3):
            reference.train()(x)
    for name, tensor in trainer.state_dict().items():
        expected = reference.state_dict()[name] if "running" in name else before[name]
        torch.testing.assert_close(tensor, expected, msg=name)
    assert any(not torch.equal(before[n], t) for n, t in trainer.state_dict().items())


def test_a_relative_beta_is_the_same_on_both_sides_of_a_boundary():
    program = compiled(norm_mlp(), 3, data()[0][0], hosts=[1, 2])  # AuxNets above their boundaries: both ranks weigh
    rule = beta.relative(1.0, 3.0, least=1e-9)
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="multiplier", micro=2, beta=rule, warmup=0)
    found = [trainer.step(*batch) for batch in data(4)]
    trainer.flush()
    for k in (1, 2):
        below, above = (float(trainer.workers[r].betas[k].at(0)) for r in (k - 1, k))
        assert below == above > 0
    assert {"beta 1", "beta 2"} <= set(found[-1]) and found[-1]["beta 1"] != found[-2]["beta 1"]


def test_a_trace_weighs_what_graphs_keep():
    """Two micro-batches, one graph at a time: half of what a whole batch keeps."""
    kept = {}
    for method, micro in (("penalty", 1), ("multiplier", 2)):
        program = compiled(norm_mlp(), 2, data()[0][0])
        trainer = program.trainer(F.cross_entropy, optimizer=sgd, method=method, micro=micro, trace=True)
        trainer.fit(data(4))
        kept[method] = [memory.of(w)["activations"] for w in trainer.workers]
    assert all(0.4 * a < b < 0.6 * a for a, b in zip(kept["penalty"], kept["multiplier"], strict=True)), kept


def test_fit_runs_epochs_and_lets_beta_rise_over_them():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    seen = []
    trainer.fit(data(4), epochs=2, on_step=lambda m: seen.append(m["beta 1"]))
    assert len(seen) == 8 and seen == sorted(seen) and seen[0] == 0.5
    assert trainer.settings.total_steps == 8


def test_trace_names_the_instructions():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", trace=True)
    trainer.step(*data()[0])
    names = {name for name, *_ in trainer.trace}
    assert {"forward", "backward", "aux_forward 1", "step"} <= names
    assert all(end >= begin for *_, begin, end in trainer.trace)


def test_profiler_ranges_are_named_after_instructions():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    with torch.profiler.profile() as profile:
        trainer.step(*data()[0])
    assert "rank 1: backward" in {event.key for event in profile.key_averages()}


def test_tied_auxnets_run_where_their_stage_is():
    x = data()[0][0]
    program = compiled(norm_mlp(), 2, x, [1])
    stage = program.stages[0]
    trainer = program.trainer(
        F.cross_entropy, optimizer=sgd, method="multiplier", auxnets=[nn.Sequential(stage)], micro=2
    )
    assert trainer._hosts() == {1: 0}
    assert trainer.workers[0].updater.others["auxnet 1"] == ([], None)
    trainer.step(*data()[0])
    assert trainer.step(*data()[0])["violation 1"] == pytest.approx(0, abs=1e-3)


@pytest.mark.parametrize("policy", ["stop", "warn"])
def test_a_boundary_that_collapses_is_named(policy):
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", collapse=policy, check_every=1)
    trainer.step(*data()[0])
    for p in trainer.auxnets[1].module.parameters():
        torch.nn.init.zeros_(p)
    words = r"step 1, rank \d, boundary 1: λ is nearly the same for all samples .*lam_weight=0.5"
    if policy == "stop":
        with pytest.raises(TrainingError, match=words):
            trainer.step(*data()[1])
    else:
        with pytest.warns(UserWarning, match=words):
            trainer.step(*data()[1])


def test_values_that_are_not_finite_stop_training():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty", check_every=1000)
    trainer.step(*data()[0])
    x, y = data()[0]
    with pytest.raises(TrainingError, match=r"step 1, rank \d.*the (loss|violation) is nan; lower the learning rate"):
        trainer.step(x * float("inf"), y)


def test_outputs_of_earlier_stages_may_be_passed_by_but_not_used():
    class Heads(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(6, 6) for _ in range(4))
            self.early, self.late = nn.Linear(6, 3), nn.Linear(6, 3)

        def forward(self, x):
            early = None
            for i, layer in enumerate(self.layers):
                x = x + torch.tanh(layer(x))
                early = self.early(x) if i == 0 else early
            return {"early": early, "late": self.late(x)}

    torch.manual_seed(0)
    program = compiled(Heads(), 2, data()[0][0])
    assert program.stages[0]._lp_io[True].outputs == (0,)
    fine = program.trainer(lambda out, y: F.cross_entropy(out["late"], y), optimizer=sgd, method="bp")
    fine.step(*data()[0])
    bad = program.trainer(lambda out, y: F.cross_entropy(out["early"], y), optimizer=sgd, method="bp")
    with pytest.raises(UsageError, match=r"the loss uses output 0 of the model, which is made before the last stage"):
        bad.step(*data()[0])


def test_errors_say_what_to_do():
    x = data()[0][0]
    program = compiled(norm_mlp(), 3, x)
    with pytest.raises(UsageError, match="there is no method 'penalti'; the closest is 'penalty'"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="penalti")
    with pytest.raises(UsageError, match="no option 'betta'; the closest is 'beta'"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", betta=1)
    with pytest.raises(UsageError, match="psi='l3' is not one of scaled, l2, l1, linf"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", psi="l3")
    with pytest.raises(UsageError, match="micro=0 is not a whole number of at least 1"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", micro=0)
    with pytest.raises(UsageError, match="1 AuxNets for 2 boundaries"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", auxnets=[nn.Identity()])
    trainer = trainer_of(norm_mlp(), 2, x, "multiplier", micro=4)
    with pytest.raises(InputError, match="a batch of 3 cannot be cut into 4 micro-batches; pass drop_last=True"):
        trainer.step(x[:3], torch.zeros(3, dtype=torch.long))
    stored = trainer_of(norm_mlp(), 2, x, "penalty-stored")
    with pytest.raises(InputError, match=r"pass their indices, trainer.step\(x, y, index=i\)"):
        stored.step(*data()[0])


def test_importing_lpcompile_does_not_import_the_runtime():
    import subprocess
    import sys

    code = "import sys, lpcompile; print('lpcompile.runtime.engine.trainer' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "False"
    assert lpcompile.errors.ScheduleError.__mro__[1] is lpcompile.LpError


@pytest.mark.parametrize("method", ["multiplier", "zb", "fr"])
def test_compiled_stages_train_to_what_stages_train_to(monkeypatch, method):
    """torch's own tracing and autograd, without the C++ that makes it fast (and takes minutes)."""
    made = []

    def compile(module, **given):
        made.append(module)
        return real(module, backend="aot_eager", **given)

    real = torch.compile
    monkeypatch.setattr(torch, "compile", compile)
    ends = []
    for asked in (False, True):
        trainer = trainer_of(norm_mlp(), 2, data(1)[0][0], method, micro=2, compile=asked)
        run(trainer, data(4))
        ends.append(trainer.state_dict())
    assert len(made) == 2 + (method == "multiplier")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*(e.values() for e in ends), strict=True))


def test_what_travels_as_bfloat16_is_half_as_much_and_rounded():
    sent = []
    for dtype in (None, torch.bfloat16):
        trainer = trainer_of(norm_mlp(), 2, data(1)[0][0], "pipedream", transfer=dtype)
        x, y = data(1)[0]
        sent.append(trainer.step(x, y)["bytes"])
    assert sent[1] * 2 == sent[0] > 0
    with pytest.raises(UsageError, match="in full precision"):
        trainer_of(norm_mlp(), 2, data(1)[0][0], "dgl-async", transfer=torch.bfloat16)
    with pytest.raises(UsageError, match="transfer=torch.float16 is not one of"):
        trainer_of(norm_mlp(), 2, data(1)[0][0], transfer=torch.float16)
