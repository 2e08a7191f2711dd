"""One process and K gloo processes train to the same bits, for every method and option that touches messages."""

from __future__ import annotations

import pytest
import torch

from tests.runtime.cases import CASES, run_rank, train
from tests.runtime.ranks import started_once


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return started_once(tmp_path_factory, run_rank)


@pytest.mark.parametrize("K", [2, 3])
@pytest.mark.parametrize("i", range(len(CASES)), ids=[c.name for c in CASES])
def test_one_process_and_gloo_give_the_same_bits(runs, i, K):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        here = train(CASES[i], K)
    finally:
        torch.set_num_threads(threads)
    auxnets = {}
    for rank in range(K):
        there = torch.load(runs(K) / f"{i}-{rank}.pt", weights_only=True)
        assert list(there["model"]) == list(here["model"])
        for name, tensor in here["model"].items():
            assert torch.equal(tensor, there["model"][name]), name
        assert there["metrics"] == here["metrics"]
        assert there["evaluation"] == here["evaluation"]
        auxnets |= there["auxnets"]
    assert auxnets.keys() == here["auxnets"].keys()
    assert all(torch.equal(auxnets[n], t) for n, t in here["auxnets"].items())
