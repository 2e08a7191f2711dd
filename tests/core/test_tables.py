"""Tables by columns, and how numbers are shown."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from lpcompile.core.tables import (
    Column,
    aux_table,
    bar,
    boundary_table,
    cut_table,
    percent,
    size,
    stage_table,
    summary,
    table_of,
    unit_table,
    with_spread,
)
from tests.simulate.even_plan import even_plan


def test_a_column_gets_a_value_and_shows_it():
    columns = [Column("word", str.upper), Column("length", len, "{:.1f}".format)]
    found = table_of(["a", "bcd"], columns)
    assert (found.headers, found.rows) == (["word", "length"], [["A", "1.0"], ["BCD", "3.0"]])
    assert found.splitlines() == ["word    length", "------  --------", "A       1.0", "BCD     3.0"]


@pytest.mark.parametrize(
    "nbytes, shown", [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 19, "1.5 MiB"), (5 << 40, "5120.0 GiB")]
)
def test_sizes_have_the_largest_unit_that_leaves_a_whole_number(nbytes, shown):
    assert size(nbytes) == shown


def test_a_bar_has_at_least_one_block_and_at_most_its_width():
    assert [len(bar(share)) for share in (0.0, 0.5, 1.0, 7.0)] == [1, 6, 12, 12] and bar(1.0, 3) == "███"
    assert percent(0.204) == "20 %"


def test_spreads_of_several_units_add_up_in_quadrature():
    assert with_spread(10.0, [3.0, 4.0]) == "10 ± 5" and with_spread(10.0, [0.0]) == "10"


def test_stages_and_units_show_the_unit_of_their_costs_and_the_largest_stage_has_a_full_bar():
    plan = even_plan(2, "bp", units=4)
    measured, counted = stage_table(plan), stage_table(replace(plan, cost="flops"))
    assert measured.headers[3] == "forward ms" and counted.headers[3] == "forward GFLOP"
    assert [row[-1] for row in measured.rows] == [bar(1.0)] * 2
    assert [row[:2] + row[4:5] for row in unit_table(plan).rows] == [
        [stage, f"block{i}", "25.0 %"] for i, stage in enumerate("0011")
    ]


def test_auxnets_are_listed_by_boundary_with_their_host_rank():
    plan = even_plan(3, "penalty")
    assert [row[:2] for row in aux_table(plan).rows] == [[str(b.index), str(b.aux.rank)] for b in plan.boundaries]
    assert [row[0] for row in boundary_table(plan).rows] == ["1", "2"]
    assert aux_table(even_plan(3, "bp")).rows == []


@dataclass(frozen=True)
class ACut:
    position: int
    path: str
    after: str
    legal: bool
    specs: tuple[str, ...] = ()
    reason: str = ""


def test_a_legal_cut_shows_what_it_carries_and_an_illegal_one_why_not():
    cuts = [ACut(1, "a.b", "add", True, ("float32[B]", "int64[B]")), ACut(2, "", "relu", False, reason="in place")]
    assert cut_table(cuts).rows == [["1", "a.b", "yes", "float32[B], int64[B]"], ["2", "relu", "no", "in place"]]


def test_the_summary_names_tied_parameters_and_every_note():
    plan = replace(even_plan(2, "bp"), tied=(("head.weight", (0, 1)),), notes=("slow",))
    assert summary(plan)[-2:] == [
        "tied: head.weight is used in stages 0, 1; their gradients are summed",
        "note: slow",
    ]
