"""Which links ranks use, and how long collectives take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpcompile.simulate.device_spec import LinkSpec
from lpcompile.simulate.interconnect import Interconnect, ring
from tests.simulate.even_plan import IDEAL


def test_an_all_reduce_over_nodes_goes_through_their_shared_links():
    device = replace(IDEAL, inside=LinkSpec(100, 0), across=LinkSpec(1, 0), gpus=4, links=2)
    inside = ring(4, 8e6, device.inside.time)
    assert Interconnect(device, 1, 4).average(8e6) == pytest.approx(inside)
    # two nodes: each replica of a node sends a quarter to its partner, over half a link
    assert Interconnect(device, 1, 8).average(8e6) == pytest.approx(inside + 2 * (2e6 / 2) / 0.5e6)


def test_the_replica_that_is_spread_over_most_nodes_is_played():
    device = replace(IDEAL, across=LinkSpec(1, 0), gpus=4)
    assert not any(Interconnect(device, 4, 8).crosses(r, r + 1) for r in range(3))
    assert any(Interconnect(device, 3, 8).crosses(r, r + 1) for r in range(2))


def test_a_ring_becomes_a_tree_where_latency_dominates():
    def latency(nbytes: float) -> float:
        return 1.0

    assert [ring(n, 8.0, latency) for n in (1, 2, 3, 64)] == [0, 2, 4, 12]


def test_a_collective_over_the_stages_of_several_nodes_uses_the_links_between_them():
    device = replace(IDEAL, inside=LinkSpec(1e9, 10), across=LinkSpec(1e9, 1000), gpus=4)
    assert [Interconnect(device, K).meeting() for K in (1, 4, 8)] == pytest.approx([0, 4 * 0.01, 6 * 1.0], rel=1e-3)
