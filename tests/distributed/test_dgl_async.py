"""Replay buffers between processes: nobody waits for a slow stage, and whoever is fast draws again."""

from __future__ import annotations

import json

import pytest
import torch

from lpcompile.cli.main import main
from lpcompile.runtime.launch.launch import Interrupted, launch
from tests.distributed import async_jobs as jobs
from tests.distributed.test_train import ROOT, arguments
from tests.runtime.small import norm_mlp
from tests.training.net_source import net_source


def same(states):
    return all(torch.equal(t, other[n]) for other in states for n, t in states[0].items())


def test_a_stage_that_stands_still_does_not_hold_up_the_one_before_it():
    """Rank 1 is in its first loss until rank 0 has done all its steps: if rank 0 had to wait, both would for ever."""
    (first, *rest), (second, quiet, after, state) = launch(jobs.one_stands_still, (1, 0), world=2)
    assert len(first) == jobs.STEPS and sum(m["wait ms"] for m in first) < 5000
    # the buffer of four was filled again and again; the last eight, and some more, may have come when rank 1 went on
    assert max(m["skipped 1"] for m in second) >= jobs.STEPS // 3
    assert quiet == 0 and after["reused 1"] == 0 and after["skipped 1"] == 0
    assert same([rest[2], state]) and list(state) == list(norm_mlp().state_dict())


def test_a_stage_that_is_faster_than_the_one_before_it_draws_again():
    """Rank 0 stands still in its second step, whose X has been offered: rank 1 does all its steps on two batches."""
    _, (second, *_) = launch(jobs.one_stands_still, (0, 1), world=2)
    reused = [m["reused 1"] for m in second]
    assert len(reused) == jobs.STEPS and reused[0] == 0 and sum(reused) >= jobs.STEPS * (jobs.STEPS / 2 - 1) / 2 - 30
    assert max(m["skipped 1"] for m in second) == 0


def test_in_dgl_too_a_stage_may_run_ahead_but_not_for_ever():
    """What it has sent is held until the stage above has it: eight messages at most."""
    held, state = launch(jobs.runs_ahead, world=2)
    assert held == [*range(1, 9), *[8] * 8] and list(state) == list(norm_mlp().state_dict())


def test_inputs_and_targets_travel_with_what_is_drawn_through_all_ranks():
    found = launch(jobs.three_ranks, world=3)
    assert [needs == {"inputs": True, "targets": True} for needs, _, _ in found] == [True, False, False]
    assert all(needs == {"inputs": False, "targets": False} for needs, _, _ in found[1:])
    metrics = found[0][1]
    assert {"loss 0", "loss 1", "loss", "reused 1", "reused 2"} <= set(metrics)
    assert same([state for _, _, state in found])


def test_a_run_goes_on_from_its_checkpoint(tmp_path):
    shown, steps, state = launch(jobs.saved_and_resumed, (str(tmp_path),), world=2)
    assert steps == 12 and all(s["test loss"] > 0 for s in shown)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["step-00000009", "step-00000012"]
    norm_mlp().load_state_dict(state, strict=True)


def test_the_command_trains_with_it(tmp_path, monkeypatch, capfd):
    file = tmp_path / "net.py"
    file.write_text(net_source())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    more = ("--input", "1x8x8", "--method", "dgl-async", "--buffer", "2", "--buffer-policy", "newest", "-K", "3")
    assert (
        main(["train", *arguments(f"{file}:build", *more), "--log", f"{tmp_path}/log.jsonl", "--log-every", "2"]) == 0
    )
    assert "epoch 2: test loss" in capfd.readouterr().out
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    # on the way rank 0 writes what it knows by itself; at the end the ranks meet
    assert "loss 0" in lines[0] and "loss" not in lines[0] and {"loss", "loss 1", "reused 2"} <= set(lines[-2])


def test_a_rank_that_fails_ends_the_others_too():
    with pytest.raises(Interrupted, match=r"(?s)rank 0 .*the loss is broken.*then: rank 1 .*(lost the others|draw)"):
        launch(jobs.one_fails, world=2, timeout=20)
