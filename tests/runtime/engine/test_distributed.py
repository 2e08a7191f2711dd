"""What only several processes can show: they agree, share their start, keep their own part, and go on from a state."""

from __future__ import annotations

import pytest
import torch
import torch.multiprocessing as mp

from tests.runtime.ranks import check, free_port
from tests.runtime.small import norm_mlp

K = 2


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(check, (K, free_port(), str(folder)), nprocs=K)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(K)]


def same(left, right):
    return list(left) == list(right) and all(torch.equal(left[n], right[n]) for n in left)


def test_ranks_that_would_do_different_things_stop_with_one_message(found):
    assert found[0]["options"] == found[1]["options"]
    assert "the ranks do not agree on the option beta: rank 0 has 1.0, rank 1 has 2.0" in found[0]["options"]
    assert "start all ranks with the same script and arguments" in found[0]["options"]


def test_the_number_of_processes_must_be_the_number_of_stages(found):
    words = (
        "the program has 3 stages but 2 processes were started; start as many as stages (torchrun --nproc-per-node 3)"
    )
    assert all(f["too many stages"].startswith(words) for f in found)


def test_all_ranks_start_from_rank_zeros_weights(found):
    assert same(found[0]["start"], found[1]["start"])
    assert same(found[0]["start"], norm_mlp(seed=0).state_dict())


def test_a_rank_keeps_only_its_own_stage(found):
    assert all(f["held"] == f["own"] for f in found)
    assert sum(f["own"] for f in found) == sum(p.numel() for p in norm_mlp().parameters())


def test_only_ranks_that_need_data_are_given_it(found):
    assert [f["needs"]["targets"] for f in found] == [False, True]
    assert found[0]["needs"]["inputs"]


def test_each_rank_goes_on_from_its_own_state(found):
    assert same(found[0]["end"], found[1]["end"])
    assert same(found[0]["resumed"], found[0]["end"])
    assert not same(found[0]["start"], found[0]["end"])


def test_a_state_of_the_model_is_spread_over_the_ranks(found):
    assert same(found[0]["loaded"], found[0]["start"])
