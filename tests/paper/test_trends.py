"""Sentences from numbers."""

from __future__ import annotations

from lpcompile.paper.experiments import START, START_ROW
from lpcompile.paper.printed import BY_KEY, TABLES
from lpcompile.paper.results import PREDICTED, Result
from lpcompile.paper.trends import CLAIMS, reading, verdict
from lpcompile.study.times import MEASURED


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
    assert said.startswith("holds in part: 10⁴ 55.0 % against 40.0 % for 10⁶; but the best β is 10³")
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


def test_a_claim_that_norms_taken_anew_turn_is_said() -> None:
    """Of the committed runs the stored penalty has 20.6 %, and 30.6 % after BatchNorm statistics were taken anew."""
    given = {"BP": (37.0, 38.0), "penalty stored": (20.0, 21.0), "DDG": (36.0, 37.0), "FR": (37.0, 37.5),
             "penalty + AuxNet": (36.0, 36.5)}  # fmt: skip
    found = rows("8", given)
    assert "norms anew" not in verdict("8", found)
    found[1].recalibrated = [37.0, 37.5]
    said = verdict("8", found)
    assert said.startswith("holds: ")
    assert said.endswith("; with norms anew this turns: penalty + AuxNet 36.2 % against 37.2 % for stored penalty")


def test_a_difference_within_the_spread_over_seeds_is_none() -> None:
    given = {"BP": (60.0, 61.0), "penalty stored": (50.0, 58.0), "DDG": (60.0, 60.0), "FR": (60.0, 60.0),
             "penalty + AuxNet": (59.0, 60.0)}  # fmt: skip
    assert "does not hold" not in verdict("8", rows("8", given))
    wide = {**given, "penalty stored": (50.0, 60.5)}  # 4.2 points below, with a spread of 10.5
    assert "but penalty + AuxNet 59.5 % against 55.2 % for stored penalty" in verdict("8", rows("8", wide))


def test_a_smaller_auxnet_that_is_much_better_is_not_the_papers_trend() -> None:
    given = {"BP": (60.0, 60.0), "AuxNet WRN-28-10": (55.0, 55.5), "AuxNet WRN-16-10": (58.5, 59.0)}
    assert verdict("9", rows("9", given)).startswith("holds in part: the smallest is 1.2 points below BP; but from")


def test_fast_is_held_against_the_methods_that_are_compared() -> None:
    given = {name: (60.0, 60.5) for name in ("BP", "DDG", "FR", "penalty + AuxNet")} | {"penalty stored": (50.0, 50.5)}
    said = verdict("8", rows("8", given, {"DDG": 2.8, "FR": 2.1, "penalty + AuxNet": 2.4}))
    assert "ρ 2.40 against 2.10 for FR; but ρ 2.40 against 2.80 for DDG" in said
    given = {"BP": (60.0, 60.0), "FR": (58.0, 58.0), "Sync-DGL": (58.0, 58.0), "penalty + AuxNet": (58.5, 58.5)}
    speeds = {"FR": 0.7, "Sync-DGL": 1.6, "penalty + AuxNet": 1.3}
    said = verdict("10", rows("10", given, speeds))
    assert "58.0 % for FR (too near to tell apart)" in said and said.endswith("; but ρ 1.30 against 1.60 for Sync-DGL")


def test_a_measured_speedup_is_not_held_against_a_predicted_one() -> None:
    found = rows("6", {f"K = {K}": (60.0,) for K in (1, 2, 3, 4)}, {"K = 2": 1.9, "K = 3": 1.8, "K = 4": 2.4})
    for r in found:
        r.rho_kind, r.predicted = PREDICTED, r.rho
    assert "but ρ (predicted): K = 2 1.90, K = 3 1.80" in verdict("6", found)
    found[1].rho_kind, found[1].predicted = MEASURED, 1.5
    assert "ρ (predicted): K = 2 1.50, K = 3 1.80, K = 4 2.40" in verdict("6", found)


def test_runs_of_different_lengths_are_told() -> None:
    found = rows("5f", {c.name: (60.0,) for c in BY_KEY["5f"].columns})
    assert reading("5f", found) == ""
    found[0].steps = 480
    assert reading("5f", found).endswith("steps 480 at 1, 0 at 3, 0 at ∞")


def test_table_4_says_what_the_gap_does_not_come_from_only_where_its_rows_show_it() -> None:
    names = [c.name for c in BY_KEY["4"].columns]
    found = rows("4", {"BP": (60.0, 60.5), **{name: (40.0, 40.5) for name in names[1:]}})
    for r in found[1:]:
        r.share, r.curves = 0.2, [[{"epoch": 1, "violation": 0.5}, {"epoch": 2, "violation": 0.01}]]
    assert reading("4", found) == ""  # without the rows to compare with
    found += [Result(name, None, 2, False, 3, accuracy=[59.0, 59.5]) for name in (START_ROW, START)]
    said = reading("4", found)
    assert said.startswith("AuxNets of 20% to 20% of a stage end within 0.0 points")
    assert said.endswith("it is 59.2 %. That start lifts BP too, to 59.2 %, from which it is 0.0 points below")
    found[-1].accuracy = []
    assert reading("4", found) == ""
    found[-1].accuracy = [59.0, 59.0]
    found[1].accuracy = [50.0, 50.0]  # then size matters
    assert reading("4", found) == ""


def test_a_violation_that_stays_large_is_said() -> None:
    found = rows("10", {c.name: (60.0,) for c in BY_KEY["10"].columns})
    found[-1].curves = [[{"epoch": 1, "violation": 0.02}]]
    assert reading("10", found) == ""
    found[-1].curves = [[{"epoch": 1, "violation": 0.02}, {"epoch": 2, "violation": 0.4}]]
    assert reading("10", found).startswith("The violation is still 0.4 in the last epoch")


def test_what_a_consistent_start_gives_bp_is_told_beside_what_it_gives_the_method() -> None:
    given = {"as published (derived AuxNets)": (26.0, 27.0), "… but a consistent start": (39.0, 39.5),
             "lpcompile's settings": (38.0, 38.0), "BP": (37.0, 37.0), START: (41.0, 41.5)}  # fmt: skip
    said = verdict("ablation", [Result(n, None, 2, False, 3, accuracy=list(a)) for n, a in given.items()])
    assert "… but a consistent start +12.8" in said and f"BP has 37.0 %: {START} +4.2" in said


def test_a_run_that_diverged_does_not_flatten_the_others_in_silence() -> None:
    from lpcompile.paper.page import page

    found = rows("10", {c.name: (60.0, 60.0) for c in BY_KEY["10"].columns})
    found[0].curves = [[{"epoch": 1, "train loss": 2.0, "violation": None, "accuracy": 20.0}]]
    assert "larger ones" not in page({"10": found}, "", {})
    found[0].curves[0][0] = {**found[0].curves[0][0], "train loss": 400.0}  # type: ignore[index]
    assert "training loss of the serial model; larger ones drawn at 10" in page({"10": found}, "", {})
