"""A bounded campaign: a few kinds of accidents with fixed seed, and what a user finds afterwards."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.faults.campaign import Campaign, Trial, blamed, failed, table
from tests.faults.job import Work

TIMEOUT = 5.0


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    return Campaign(tmp_path_factory.mktemp("faults"), 0, TIMEOUT)


def accident(campaign, where, method, K, victim, signal, text, rank=1):
    """A run in which the signal is sent at the first note that begins so; the run and its result."""
    folder = campaign.folder / f"{where} {victim} {signal} {text}".replace("/", "")
    (folder / "saved").mkdir(parents=True)
    trial = Trial(0, where, Work(method, K, str(folder), TIMEOUT, False, rank, 0, victim, signal, text))
    return campaign.run(trial)


@pytest.mark.parametrize(
    ("where", "method", "victim", "signal", "text"),
    [
        ("local", "bp", "rank", "SIGSTOP", "(compiling"),
        ("local", "dgl-async", "rank", "SIGSTOP", "draw"),
        ("local", "penalty", "rank", "SIGSTOP", "(saving"),
        ("local", "stream", "rank", "SIGSTOP", "(loading"),
        ("local", "1f1b", "rank", "SIGTERM", "backward"),
        ("local", "zb", "launcher", "SIGKILL", "forward"),
        ("local", "gpipe", "server", "SIGKILL", "forward"),
        ("torchrun", "zbv", "rank", "SIGKILL", "backward_input"),
        ("torchrun", "interleaved", "rank", "SIGKILL", "forward"),
        ("torchrun", "multiplier", "rank", "SIGSTOP", "forward"),
        ("torchrun", "pipedream", "rank", "SIGKILL", "backward"),
        ("torchrun", "penalty-stored", "rank", "SIGINT", "send"),
        ("torchrun", "dgl", "launcher", "SIGKILL", "forward"),
    ],
)
def test_after_an_accident_the_job_has_ended_and_goes_on_bit_for_bit(campaign, where, method, victim, signal, text):
    trial = accident(campaign, where, method, 2, victim, signal, text)
    assert trial.fired["text"].startswith(text) and not failed(trial), f"{trial} {trial.error}"
    assert (trial.same is None) == (method == "dgl-async")
    assert (trial.blamed is None) == (victim == "launcher")


def test_the_first_rank_that_a_message_names_is_the_one_that_is_blamed():
    work = Work("bp", 2, "", 5.0, rank=1, victim="rank", signal="SIGSTOP")
    trial = Trial(0, "local", work, fired={"time": 0.0})
    assert blamed(trial, "training stopped: rank 1 (stage 1) has not moved\nthen: rank 0 (stage 0) lost the others")
    assert blamed(trial, "training stopped: rank 0 (stage 0) has not moved") is False
    assert blamed(trial, "") is False and blamed(Trial(0, "local", work), "") is None
    torchrun = "Failures: rank : 0 (local_rank: 0)\nRoot Cause (first observed failure):\n  rank : 1 (local_rank: 1)"
    assert blamed(trial, torchrun)
    assert blamed(replace(trial, work=replace(work, victim="launcher")), "") is None


def test_the_table_counts_by_victim_and_signal():
    works = [Work("bp", 2, "", 5.0, victim="rank", signal=s) for s in ("SIGKILL", "SIGSTOP")]
    trials = [Trial(i, "local", w, {"time": 0.0}, 1.5, False, i, 0, True, i == 0) for i, w in enumerate(works)]
    last = table(trials).splitlines()[-1].split("  ")
    assert [part.strip() for part in last if part.strip()] == ["all", "2", "0", "1", "0", "2 of 2", "1 of 2", "1.5"]
