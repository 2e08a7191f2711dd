"""The paper's speedups: its placement, its schedule, and the fitted time to load data."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpcompile.simulate.paper_table import (
    PAPER,
    PaperRow,
    fitted_load,
    paper_row,
    paper_rows,
    paper_schedule,
    paper_text,
)
from tests.simulate.even_plan import IDEAL, even_plan


def test_the_papers_placement_adds_a_whole_auxnet_to_every_step():
    """T/K + T_aux, as the paper's formula says, where links and penalties are free."""
    model, aux = even_plan(1, "bp", units=54), even_plan(1, "bp", units=9)
    row = paper_row(model, aux, 3, 1.45, IDEAL, ("model", "aux"))
    assert row.step == pytest.approx(54 * 3 / 3 + 9 * 3, rel=1e-3)
    assert row.penalty < row.step and row.multiplier < row.step


@pytest.mark.parametrize("K", [2, 3, 5])
def test_the_papers_schedule_is_sound(K):
    assert paper_schedule(K).K == K  # verified as it is made


def test_the_time_to_load_data_is_found_again():
    rows = [PaperRow("m", "a", K, 0.0, 100.0, 100 / K + 17, 40.0, 40.0) for K in (2, 3, 4)]
    rows = [replace(row, paper=row.rho(30.0)) for row in rows]
    assert fitted_load(rows) == pytest.approx(0.3)
    text = paper_text(rows)
    assert "30.0 % of the serial step, is fitted" in text and "at most 0 % off" in text


def test_the_papers_table_is_within_a_few_percent_of_its_values_for_k():
    """The paper's K = 2, 3, 4: 1.26, 1.45, 1.68; the rows with other networks are less well met."""
    assert [row[3] for row in PAPER[:3]] == [1.26, 1.45, 1.68]
    rows = paper_rows()
    load = fitted_load(rows)
    off = [row.rho(load * row.serial) / row.paper - 1 for row in rows]
    assert max(map(abs, off[:3])) < 0.05 and max(map(abs, off)) < 0.15
    assert all(row.penalty < row.step for row in rows)
