"""Splits over many devices against times that can be computed by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpcompile.simulate.device_spec import LinkSpec
from lpcompile.simulate.scaling import data_parallel, splits
from lpcompile.simulate.scaling_text import advice, split_table
from tests.simulate.even_plan import IDEAL, even_plan

METHODS = ("multiplier", "gpipe", "1f1b")


GOLDEN = """\
    method         K    replicas    micro    step ms    ρ     samples/s    efficiency    idle    memory
--  -------------  ---  ----------  -------  ---------  ----  -----------  ------------  ------  --------
*   data parallel  1    4           1        12         4.00  10,667       100 %         0 %     4.0 MiB
    gpipe          2    2           4        15         3.20  8,533        80 %          20 %    4.4 MiB
    gpipe          4    1           8        16.5       2.91  7,758        73 %          27 %    5.8 MiB
    1f1b           2    2           4        15         3.20  8,533        80 %          20 %    2.2 MiB
    1f1b           4    1           8        16.5       2.91  7,758        73 %          27 %    2.4 MiB"""


def test_the_table_of_splits_in_full():
    rows = splits(even_plan(1, "bp", units=16), IDEAL, 4, 128, ("gpipe", "1f1b"))
    assert split_table(rows) == GOLDEN


def test_data_parallelism_alone_hides_its_all_reduce_behind_the_backward():
    plan = even_plan(1, "bp", units=16)  # 64,000 bytes of parameters, 32 ms backward
    slow = replace(IDEAL, inside=LinkSpec(64_000 / 1e6 / 64, 0), gpus=8)  # 64 ms for all of them
    free, late = (data_parallel(plan, device, 2, 256) for device in (IDEAL, slow))
    assert free.step == pytest.approx(48, rel=1e-3)
    assert late.step == pytest.approx(48 + (64 - 32), rel=1e-3)


def test_a_batch_that_replicas_cannot_divide_gives_no_row():
    rows = splits(even_plan(1, "bp", units=16), IDEAL, 4, 2, METHODS)
    assert [(one.method, one.K) for one in rows] == [("multiplier", 2), ("multiplier", 4)]


def test_layer_parallelism_wins_where_gradients_are_dear_and_the_advice_says_so():
    plan = even_plan(1, "bp", units=16, output_bytes=100)
    dear = replace(IDEAL, inside=LinkSpec(0.001, 0), gpus=4)  # 64 ms for all parameters
    for device, begin in ((dear, "Use multiplier with K = 4 stages x 1 replicas: "), (IDEAL, "Use data parallel: ")):
        said = advice(splits(plan, device, 4, 128, METHODS), "multiplier", METHODS[1:], device)
        assert said.startswith(begin) and " times as fast as " in said
