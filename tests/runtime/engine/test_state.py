"""State of a trainer: saved, loaded, and under the model's own keys."""

from __future__ import annotations

import pytest
import torch

from lpcompile.errors import UsageError
from tests.runtime.engine.training import adam, assert_same, data, run, trainer_of
from tests.runtime.small import norm_mlp

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
    ("dgl", {"reconstruct": 0.5, "accumulate": 2}),
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


def test_load_state_dict_takes_the_models_own_keys():
    trainer = trainer_of(norm_mlp(), 3, data()[0][0], "penalty")
    other = norm_mlp(seed=5)
    trainer.load_state_dict(other.state_dict())
    assert_same(trainer.state_dict(), other.state_dict())
    other.load_state_dict(trainer.state_dict(), strict=True)
    with pytest.raises(UsageError, match=r"not the state of Sequential: missing \['0.linear.bias'"):
        trainer.load_state_dict({})
