"""What ranks compare before the first step, and how their metrics are merged; without processes."""

from __future__ import annotations

import pytest

from lpcompile.errors import TrainingError
from lpcompile.runtime.comm import handshake


@pytest.fixture
def ranks(monkeypatch):
    """Let `ranks(a, b)` stand for two ranks with these facts."""

    def of(*facts):
        monkeypatch.setattr(handshake.exchange, "gathered", lambda mine, group: list(facts))

    return of


def test_metrics_are_the_longest_times_and_the_sum_of_bytes(ranks):
    ranks({"step ms": 3.0, "wait ms 0": 1.0, "bytes": 10, "loss": 0.1}, {"step ms": 5.0, "bytes": 20, "loss": 0.2})
    assert handshake.merge({}, None) == {"step ms": 5.0, "wait ms 0": 1.0, "bytes": 30, "loss": 0.2}


def test_ranks_that_agree_go_on(ranks):
    ranks({"plan": "a"}, {"plan": "a"})
    handshake.compare({"plan": "a"}, None)


@pytest.mark.parametrize(("name", "remedy"), [
    ("plan", "compile with cost='flops'"), ("torch version", "install the same version"), ("method", "same script"),
])  # fmt: skip
def test_a_difference_is_named_with_both_values_and_a_remedy(ranks, name, remedy):
    ranks({name: "a"}, {name: "b"})
    with pytest.raises(TrainingError, match=rf"agree on the {name}: rank 0 has a, rank 1 has b; .*{remedy}"):
        handshake.compare({name: "a"}, None)


@pytest.mark.parametrize(("environment", "several"), [
    ({}, False), ({"WORLD_SIZE": "1", "RANK": "0"}, False), ({"WORLD_SIZE": "2"}, False),
    ({"WORLD_SIZE": "2", "RANK": "0"}, True),
])  # fmt: skip
def test_several_ranks_are_known_by_torchruns_environment(monkeypatch, environment, several):
    for name in ("WORLD_SIZE", "RANK"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert handshake.in_torchrun() is several
