"""Facts that every measurement reports."""

from __future__ import annotations

import torch
from torch import nn

from lpcompile.errors import TrainingError, UsageError
from lpcompile.training.measures import bytes_of, machine, on, reason


def test_bytes_count_weights_buffers_and_optimizer_state_but_nothing_on_the_meta_device():
    model = nn.BatchNorm1d(4)  # 2 x 4 weights, 2 x 4 buffers of float32, one counter of int64
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    assert bytes_of(model, optimizer) == 8 * 4 + 8 * 4 + 8
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    assert bytes_of(model, optimizer) == 8 * 4 + 8 * 4 + 8 + 8 * 4
    assert bytes_of(model.to("meta"), torch.optim.SGD(model.parameters(), 0.1)) == 0


def test_a_run_that_failed_is_told_from_one_that_could_not_start():
    assert reason(TrainingError("x")) == "failed: x" and reason(UsageError("x")) == "cannot: x"


def test_the_machine_has_cores_and_a_date():
    found = machine()
    assert found["cores"] >= 1 and found["torch"] == torch.__version__ and len(found["date"].split("-")) == 3


def test_a_table_says_machine_commit_and_command():
    given = {"torch": "2.15", "cores": 2, "cpu": "EPYC", "date": "2026-01-02", "commit": "abc", "command": "bench x"}
    assert on(given) == "torch 2.15, 2 cores, EPYC, 2026-01-02, commit abc\n\n    bench x"
    assert on({"torch": "2.15", "cores": 2, "date": "2026-01-02", "commit": ""}) == "torch 2.15, 2 cores, 2026-01-02"
