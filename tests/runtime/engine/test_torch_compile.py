"""Stages run by torch.compile."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.engine.training import data, run, trainer_of
from tests.runtime.small import norm_mlp


@pytest.mark.parametrize("method", ["multiplier", "zbh2", "fr"])
def test_compiled_stages_train_to_what_stages_train_to(monkeypatch, caplog, method):
    """torch's own tracing and autograd, without the C++ that makes it fast (and takes minutes). A backward that is not
    divided is said."""
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
        assert ("weight gradients are not put off" in caplog.text) == (asked and method == "zbh2")
    assert len(made) == 2 + (method == "multiplier")
    assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(*(e.values() for e in ends), strict=True))
