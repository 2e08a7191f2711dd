"""Markdown tables."""

from __future__ import annotations

from lpcompile.draw.markdown import MAX_REASON, markdown, shortened


def test_a_cell_cannot_end_its_column():
    assert markdown(["a", "b"], [["x|y", "1.50"]]).splitlines()[2].split() == ["|", "x/y", "|", "1.50", "|"]


def test_a_reason_is_one_short_line():
    assert shortened("why\nbecause") == "why"
    assert shortened("x" * 100) == "x" * MAX_REASON + "…"
