"""`program.fit`: processes of its own, and the same weights as in one process."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F

from lpcompile.errors import UsageError
from lpcompile.runtime.comm import pack
from tests.distributed import jobs
from tests.runtime.small import batches, compiled, norm_mlp


@pytest.mark.parametrize("method", ["penalty", "dgl", "1f1b[micro=2]@0.5,multiplier"])
def test_fit_leaves_the_weights_that_one_process_would_find(method, one_thread):
    rate = 0.05
    data = batches(4, dtype=torch.float32)
    here, there = (compiled(norm_mlp(dropout=0.1), 2, data[0][0]) for _ in range(2))
    # AuxNets are made with fresh weights: both have the same
    for mine, other in zip(here.auxnets, there.auxnets, strict=True):
        other.load_state_dict(mine.state_dict())

    def optimizer(parameters):
        return torch.optim.SGD(parameters, rate, momentum=0.9)

    torch.manual_seed(0)
    found = there.fit(lambda out, y: F.cross_entropy(out, y), data, 2, optimizer=optimizer, method=method, test=data,
                      evaluate_every=0)  # fmt: skip
    torch.manual_seed(0)
    trainer = here.trainer(F.cross_entropy, optimizer=optimizer, method=method)
    trainer.fit(data, 2)
    trainer.recalibrate(data)  # as fit ends
    assert found["test recalibrated loss"] == pytest.approx(trainer.evaluate(data)["loss"], abs=1e-6)
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(tensor, there.module.state_dict()[name]), name
    for mine, other in zip((*here.auxnets, *here.heads), (*there.auxnets, *there.heads), strict=True):
        assert all(
            torch.equal(a, b) for a, b in zip(mine.state_dict().values(), other.state_dict().values(), strict=True)
        )


def test_what_cannot_be_sent_is_said():
    data = batches(1, dtype=torch.float32)
    program, lock = compiled(norm_mlp(), 2, data[0][0]), threading.Lock()

    def loss(out, y):
        with lock:
            return F.cross_entropy(out, y)

    with pytest.raises(UsageError, match=r"cannot be given to new processes: cannot pickle '_thread.lock' object"):
        program.fit(loss, data, optimizer=jobs.adam)


def outer(n):
    def inner(m):
        return n if m == 0 else inner(m - 1) + F.relu(torch.ones(())).item()

    return inner


def test_functions_are_sent_with_what_they_name():
    again = pack.loads(pack.dumps([outer(3), lambda x, y=2: x + y, F.cross_entropy, outer], "these"))
    assert again[0](2) == 5 and again[1](1) == 3
    assert again[2] is F.cross_entropy and again[3] is outer
