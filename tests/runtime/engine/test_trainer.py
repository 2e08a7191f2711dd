"""The trainer in one process: what its calls return, and clear errors."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.errors import InputError, TrainingError, UsageError
from lpcompile.runtime.penalty import beta
from tests.fresh_python import printed
from tests.runtime.engine.training import data, trainer_of
from tests.runtime.small import compiled, norm_mlp, sgd


def test_fit_runs_epochs_and_lets_beta_rise_over_them():
    trainer = trainer_of(norm_mlp(), 2, data()[0][0], "penalty")
    seen = []
    trainer.fit(data(4), epochs=2, on_step=lambda m: seen.append(m["beta 1"]))
    assert len(seen) == 8 and seen == sorted(seen) and seen[0] == 0.5
    assert trainer.settings.total_steps == 8


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


def test_a_hook_that_expects_backward_after_forward_is_explained():
    class Clears(nn.Linear):
        def __init__(self, *sizes):
            super().__init__(*sizes)
            self.waiting = []

        def forward(self, x):
            self.waiting.append(1)
            return super().forward(x)

    def clear(module, *_):
        assert module.waiting, "nothing to clear"
        module.waiting.clear()

    layer = Clears(6, 6)
    layer.register_full_backward_hook(clear)
    model = nn.Sequential(layer, norm_mlp())
    program = compiled(model, 2, data()[0][0])
    program.trainer(F.cross_entropy, optimizer=sgd, method="bp").step(*data()[0])
    trainer = program.trainer(F.cross_entropy, optimizer=sgd, method="1f1b", micro=4)
    with pytest.raises(
        TrainingError, match=r"(?s)stage 0 fails while . micro-batches are in flight.*nothing to clear.*'bp'"
    ):
        trainer.step(*data()[0])


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
    assert trainer.hosts() == {1: 0}
    assert trainer.workers[0].updater.others["auxnet 1"] == ([], None)
    trainer.step(*data()[0])
    assert trainer.step(*data()[0])["violation 1"] == pytest.approx(0, abs=1e-3)


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


def test_errors_say_what_to_do():
    x = data()[0][0]
    program = compiled(norm_mlp(), 3, x)
    with pytest.raises(UsageError, match="there is no method 'penalti'; the closest is 'penalty'"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="penalti")
    with pytest.raises(UsageError, match="no option 'betta'; the closest is 'beta'"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", betta=1)
    with pytest.raises(UsageError, match="psi='l3' is not one of scaled, l2, mse, l1, linf"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", psi="l3")
    with pytest.raises(UsageError, match="micro=0 is not a whole number of at least 1"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="bp", micro=0)
    with pytest.raises(UsageError, match="1 AuxNets for 2 boundaries"):
        program.trainer(F.cross_entropy, optimizer=sgd, method="penalty", auxnets=[nn.Identity()])
    trainer = trainer_of(norm_mlp(), 2, x, "dgl-async", micro=4)  # others cut it into fewer
    with pytest.raises(InputError, match="a batch of 3 cannot be cut into 4 micro-batches; pass drop_last=True"):
        trainer.step(x[:3], torch.zeros(3, dtype=torch.long))
    stored = trainer_of(norm_mlp(), 2, x, "penalty-stored")
    with pytest.raises(InputError, match=r"trainer.step\(x, y, index=i\), or batches \(x, y, index\)$"):
        stored.step(*data()[0])
    with pytest.raises(InputError, match=r"index\), or keep κ in a network \(kappa='auxnet'\)$"):
        trainer_of(norm_mlp(), 2, x, "lagrangian").step(*data()[0])


def test_importing_lpcompile_does_not_import_the_runtime():
    code = "import sys, lpcompile; print('lpcompile.runtime.engine.trainer' in sys.modules)"
    assert printed(code) == "False"
    assert lpcompile.errors.ScheduleError.__mro__[1] is lpcompile.LpError


def test_what_travels_in_8_bits_repeats_and_trains_as_well():
    losses, sent = {}, {}
    for name, form in (("full", None), ("int8", "int8"), ("again", torch.int8)):
        trainer = trainer_of(norm_mlp(), 2, data(1)[0][0], "1f1b", transfer=form)
        steps = [trainer.step(*data(1)[0]) for _ in range(12)]
        losses[name], sent[name] = [s["loss"] for s in steps], steps[-1]["bytes"]
    assert losses["int8"] == losses["again"] != losses["full"] and sent["int8"] < sent["full"]
    assert losses["int8"] == pytest.approx(losses["full"], abs=0.05)
