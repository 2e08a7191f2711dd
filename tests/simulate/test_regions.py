"""Which way to train is fastest where: cases whose order can be told by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpcompile.core.cost import STATE_COPIES
from lpcompile.simulate.device_spec import LinkSpec
from lpcompile.simulate.regions.places import FAMILIES, family, regions, too_large
from lpcompile.simulate.regions.text import cell_text, counted, regions_json, regions_page, regions_text
from lpcompile.simulate.scaling import SHARDED, data_parallel, sharded
from tests.simulate.even_plan import IDEAL, even_plan

PLAN = even_plan(1, "bp", units=16, output_bytes=1000)  # 64,000 bytes of weights, 48 ms a step of 128 samples


def test_data_parallelism_wins_where_links_are_fast_and_stages_where_they_are_slow():
    fast, slow = regions(PLAN, IDEAL, (2,), (128,), (1e15, 1e6))
    assert family(fast.fastest(exact=True).method) == "DDP" and fast.fastest(exact=True).step == pytest.approx(24)
    assert slow.fastest(exact=True).method == "zbh2" and slow.lead(exact=True) > 2
    assert family(slow.fastest().method) in ("stream", "AuxNets", "pipeline")


def test_copies_that_do_not_fit_are_left_out():
    """Activations take 8 MB a copy, and half of that on a stage."""
    small = replace(IDEAL, memory_gib=7e6 / 2**30)
    (found,) = regions(PLAN, small, (2,), (128,), (1e15,))
    assert {family(one.method) for one in found.splits}.isdisjoint(("DDP", "FSDP")) and found.splits
    assert not any(too_large(one, small) for one in found.splits)


def test_a_place_where_nothing_runs_is_empty():
    (found,) = regions(PLAN, IDEAL, (64,), (3,), (1e9,))
    assert found.fastest() is None and cell_text(found, False) == "–" and found.lead() == 1


def test_sharded_weights_take_little_memory_and_half_as_many_bytes_again():
    link = LinkSpec(64_000 / 1e6 / 64, 0)  # 64 ms for all weights
    device = replace(IDEAL, inside=link, gpus=8)
    whole, parts = data_parallel(PLAN, device, 2, 256), sharded(PLAN, device, 2, 256)
    assert whole.step == pytest.approx(48 + (64 - 32), rel=1e-3)
    assert parts.step == pytest.approx(48 + (32 - 16) + (64 - 32), rel=1e-3) and parts.method == SHARDED
    assert whole.memory - parts.memory == pytest.approx(STATE_COPIES * 64_000 / 2 - 2 * 4000)


def test_a_device_that_copies_messages_itself_computes_less_meanwhile():
    device = replace(IDEAL, inside=LinkSpec(64_000 / 1e6 / 16, 0), gpus=8)  # 16 ms, less than the backward
    assert data_parallel(PLAN, device, 2, 256).step == pytest.approx(48, rel=1e-3)
    assert data_parallel(PLAN, replace(device, overlap=0.25), 2, 256).step == pytest.approx(48 + 12, rel=1e-3)


def test_table_page_and_json_show_the_same():
    found = regions(PLAN, IDEAL, (2, 4), (64, 128), (1e10, 1e6))
    text, page = regions_text(found, PLAN, IDEAL, 1), regions_page(found, PLAN, IDEAL, 1, "<command>")
    assert "| 10 Gb/s" in text and "K = 4: the fastest of all" in text and counted(found, True) in text
    for region in found:
        assert cell_text(region, True) in text and cell_text(region, True) in page
    assert "&lt;command&gt;" in page and "http" not in page.replace("http://www.w3.org", "")
    assert all(f">{name}<" in page for name in FAMILIES)
    data = regions_json(found, PLAN, IDEAL, 1, {"commit": "abc"})
    assert len(data["regions"]) == 8 and data["machine"] == {"commit": "abc"}
