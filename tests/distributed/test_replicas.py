"""Replicas: two copies of two stages, each on half of every batch, are one copy on whole batches."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from lpcompile.errors import UsageError
from lpcompile.runtime.launch.launch import launch
from tests.distributed import jobs
from tests.runtime.small import batches, compiled, mlp, sgd

CASES = [
    ("bp", {}),
    ("1f1b", {"micro": 2}),
    ("zb", {"micro": 2}),
    ("penalty", {"psi": "l2", "beta": 1.0}),
    ("penalty", {"psi": "l2", "beta": 1.0, "clip": 0.05, "clip_scope": "global"}),
    ("multiplier", {"psi": "l2", "beta": 1.0, "micro": 2}),
    ("dgl", {"clip": 0.0}),
    ("pipedream", {"clip": 0.05}),
    ("pipedream", {"stash": "2bw", "micro": 2}),
    ("fr", {}),
]


def test_two_replicas_of_two_stages_train_as_one_on_the_joint_batch():
    refusal, *found = launch(jobs.all_replicated, (2, 2, CASES), world=4, K=2)
    assert "keeps values for each sample, which come to another replica" in refusal
    for (method, options), (state, shown, ends) in zip(CASES, found, strict=True):
        program = compiled(mlp(), 2, batches(1)[0][0])
        t = program.trainer(F.cross_entropy, optimizer=sgd, method=method, auxnets=jobs.linear(2), **options)
        for x, y in batches(4):
            order = [i for r in range(2) for i in range(r, len(y), 2)] if "micro" not in options else jobs.dealt(len(y))
            t.step(x[order], y[order])
        for name, tensor in t.state_dict().items():
            assert torch.allclose(tensor, state[name], rtol=0, atol=1e-12), (method, name)
        assert shown["loss"] == pytest.approx(t.evaluate(batches(4))["loss"], abs=1e-12)
        assert ends == [True, True, True]  # replicas equal at the end, one of them writes, all agree


def test_replicas_are_processes():
    program = compiled(mlp(), 2, batches(1)[0][0])
    with pytest.raises(UsageError, match=r"replicas=2 are processes of their own; start 4 of them \(torchrun"):
        program.trainer(F.cross_entropy, optimizer=sgd, replicas=2)
