"""Sentences from numbers."""

from __future__ import annotations

from lpcompile.paper.printed import BY_KEY, TABLES
from lpcompile.paper.results import Result
from lpcompile.paper.trends import CLAIMS, verdict


def rows(key: str, values: dict[str, tuple[float, ...]], rho: dict[str, float] | None = None) -> list[Result]:
    found = []
    for column in BY_KEY[key].columns:
        accuracy = list(values.get(column.name, ()))
        plain = column.name in ("BP", "K = 1") or column.name.endswith(", BP")
        result = Result(column.name, column, 2, plain, 3, accuracy=accuracy, why="" if accuracy else "not run yet")
        result.rho = (rho or {}).get(column.name)
        found.append(result)
    return found


def test_the_papers_own_figures_hold() -> None:
    for table in TABLES:
        given = {c.name: (c.accuracy,) for c in table.columns if c.accuracy is not None}
        said = verdict(table.key, rows(table.key, given, {c.name: c.rho for c in table.columns if c.rho is not None}))
        assert table.key in CLAIMS
        assert said.startswith("open" if table.key == "5f" else "holds"), (table.key, said)


def test_a_trend_that_bends_is_said_with_its_figures() -> None:
    said = verdict("7", rows("7", {"β = 10³": (60.0,), "β = 10⁴": (55.0,), "β = 10⁵": (50.0,), "β = 10⁶": (40.0,)}))
    assert said.startswith("does not hold: the best β is 10³")
    said = verdict("6", rows("6", {"K = 1": (60.0,), "K = 2": (59.0,), "K = 3": (58.5,), "K = 4": (50.0,)}))
    assert said.startswith("holds in part: ") and "; but K = 4 is 10.0 points below BP" in said


def test_a_spread_over_seeds_widens_what_counts_as_the_same() -> None:
    near = {"K = 1": (60.0,), "K = 2": (58.5,), "K = 3": (61.0, 59.0), "K = 4": (59.0,)}
    assert verdict("6", rows("6", near)).startswith("holds")
    sharp = {**near, "K = 3": (61.0,)}
    assert "but accuracy does not rise with K" in verdict("6", rows("6", sharp))


def test_at_chance_nothing_holds_and_nothing_fails() -> None:
    said = verdict("6", rows("6", {"K = 1": (11.0,), "K = 2": (11.0,), "K = 3": (10.5,), "K = 4": (10.0,)}))
    assert said.startswith("open: no row learnt much, the best has 11.0 %")


def test_a_sentence_on_fewer_runs_than_there_are_to_be_says_so() -> None:
    given = {"K = 1": (60.0, 61.0), "K = 2": (59.5,), "K = 3": (59.0, 59.0), "K = 4": (59.0, 59.0)}
    found = rows("6", given)
    assert verdict("6", found).endswith(" (so far, from 7 of 8 runs)")
    found[1].failed = 1
    assert "so far" not in verdict("6", found)


def test_without_a_row_the_answer_is_open() -> None:
    assert verdict("8", rows("8", {"BP": (60.0,)})) == "open: penalty + AuxNet: not run yet"
