"""From records to rows, to the methods to take, to table, page and picture."""

from __future__ import annotations

import pytest

from lpcompile.draw.figure import svg_file
from lpcompile.errors import UsageError
from lpcompile.study.answers import answer_text, answers, not_everywhere, over_models
from lpcompile.study.config import TUNING_SEED
from lpcompile.study.page import page
from lpcompile.study.picture import picture
from lpcompile.study.summary import COUNTED, rows_of, table_text
from lpcompile.study.times import MEASURED, time_key
from tests.study.small_study import record, small_study, spec


def timed(method, K, step, rho, kind=MEASURED):
    one = spec(method, K)
    key = time_key(one.network, one.entry, one.K, one.size)
    return {"key": key, "step": step, "plain": step * rho, "rho": rho, "kind": kind}


def test_a_row_has_the_mean_over_seeds_and_the_distance_to_plain_training_of_the_same_seed():
    found = [record(70.0), record(72.0, seed=1), record(69.0, "stream", 2), record(73.0, "stream", 2, 1),
             record(50.0, "stream", 2, 7), record(10.0, "stream", 2, TUNING_SEED)]  # fmt: skip
    plain, stream = rows_of(found)
    assert plain.mean == 71.0 and plain.gap is None and plain.rho == 1.0
    assert stream.accuracy == [69.0, 73.0, 50.0] and stream.gaps == {0: -1.0, 1: 1.0}  # seed 7 has no plain training
    assert stream.curve == [(1, 54.0), (2, 64.0)]


def test_a_method_is_on_the_frontier_unless_another_is_faster_and_more_accurate():
    rows = {row.entry: row for row in rows_of(small_study())}
    assert [name for name, row in rows.items() if row.frontier] == ["gpipe", "stream"]


def test_measured_speedups_replace_counted_ones_and_give_wall_clock_time():
    times = [timed("stream", 2, 50.0, 1.8)]
    rows = {row.entry: row for row in rows_of(small_study(), times)}
    assert (rows["stream"].rho, rows["stream"].kind, rows["gpipe"].kind) == (1.8, MEASURED, COUNTED)
    assert rows["stream"].seconds() == pytest.approx([0.5, 1.0])  # 10 steps an epoch
    assert rows["plain"].step == pytest.approx(90.0)  # timed beside it
    text = table_text(list(rows.values()))
    assert "| 1.80 " in text and "1.80 c" in text and "| 1.40 c" in text and "no step was timed" in text


def test_the_answers_name_the_most_accurate_and_the_fastest_within_reach():
    found = {line[1].partition(",")[0]: line[2:] for line in answers(rows_of(small_study()))}
    assert found["accuracy (within 0.5 of plain)"] == ["stream", "-0.2 ± 0.0", "resnet20 -0.2", "1.90", "1.00"]
    assert found["a slow link: no rank waits for one above"][:2] == ["penalty", "-10.0 ± 0.0"]
    slower = [*small_study(), *(record(60.0, "stream", 4, seed, rho=3.5) for seed in (0, 1))]
    assert [line[1] for line in answers(rows_of(slower)) if line[0] == "4"] == []  # ten points are too many


def test_without_plain_training_there_is_no_answer():
    with pytest.raises(UsageError, match="plain among its methods"):
        answer_text(rows_of([record(60.0, "stream", 2, rho=1.9)]))


def test_a_run_that_failed_is_counted_and_its_reason_shown():
    failed = {name: value for name, value in record(0.0, "dgl", 2).items() if name not in ("accuracy", "curve")}
    rows = rows_of([record(70.0), {**failed, "error": "PlanError: no head <b>"}])
    assert "PlanError: no head" in table_text(rows) and "1 failed" in table_text(rows)
    assert "no head &lt;b&gt;" in page(rows, [failed])


def test_a_row_with_fewer_seeds_than_others_says_so():
    found = [*small_study(), record(75.0, seed=2), record(74.0, "gpipe", 2, 2, rho=1.4)]
    rows = rows_of(found)
    cells = [line.split("|")[3:-2] for line in table_text(rows).splitlines() if line.startswith("| resnet20")]
    assert [(c[0].strip(" *"), c[-1].strip()) for c in cells] == [
        ("plain", "3"), ("gpipe", "3"), ("stream", "2 of 3"), ("penalty", "2 of 3")]  # fmt: skip
    assert "-0.20 ± 0.00" in table_text(rows) and "2 of 3" in page(rows, found)
    assert "stream | -0.2 ± 0.0 (2 of 3 seeds)" in " ".join(answer_text(rows).split())
    image = svg_file(picture(rows))
    assert ">K = 2, 3 seeds</text>" in image and ">stream -0.2 (2 of 3 seeds)</text>" in image
    assert ">gpipe +0.0</text>" in image


def test_plain_training_from_a_consistent_start_is_shown_but_no_method_to_take():
    start = [record(74.0 + seed, "plain", 2, seed, name="plain, consistent", init="consistent") for seed in (0, 1)]
    rows = rows_of([*small_study(), *start])
    row = next(row for row in rows if row.entry == "plain, consistent")
    assert (row.gap, row.rho, row.frontier) == (4.0, 1.0, True)
    assert ">plain, consistent +4.0</text>" in svg_file(picture(rows))
    assert "consistent" not in str(answers(rows))


def test_means_are_of_the_same_models_and_seeds():
    other = [record(50.0 + seed, model="vit", seed=seed) for seed in (0, 1, 2)]
    other += [record(48.0 + 2 * seed, "stream", 2, seed, model="vit", rho=1.7) for seed in (1, 2)]
    rows = [row for row in rows_of([*small_study(), *other]) if not row.plain]
    [stream] = over_models(rows)
    assert stream.gaps == pytest.approx({1: -0.6}) and stream.by_model == pytest.approx({"resnet20": -0.2, "vit": -1.0})
    assert stream.cells()[2] == "vit -1.0" and stream.rho == pytest.approx(1.8)  # seed 1 is what both have
    assert not_everywhere(rows) == ["K = 2, not on every model with the same seeds, so not judged: gpipe, penalty."]


def test_the_picture_has_a_panel_for_each_k_and_a_whisker_over_seeds():
    four = [record(60.0 + 2 * seed, "stream", 4, seed, rho=3.5) for seed in (0, 1)]
    image = svg_file(picture(rows_of([*small_study(), *four])))
    assert ">K = 2, 2 seeds</text>" in image and ">K = 4, 2 seeds</text>" in image
    assert "<title>stream: -9.50 ± 0.71 points at ρ = 3.50</title>" in image
    assert ">K = 4, 1 seed</text>" in svg_file(picture(rows_of([*small_study(), four[0]])))


def test_page_and_picture_show_every_method():
    rows = rows_of(
        small_study(), [timed(m, 2, 50.0, r) for m, r in (("gpipe", 1.4), ("stream", 1.9), ("penalty", 1.8))]
    )
    whole, image = page(rows, small_study()), svg_file(picture(rows))
    for name in ("gpipe", "stream", "penalty"):
        assert f">{name} " in image and f"{name}:" in whole
    assert "plain training</text>" in image and "plain:" in whole
    assert "seconds of training" in whole and "commit abc" in whole
    assert "stream" not in svg_file(picture(rows, ["gpipe"]))


def test_a_method_that_was_not_timed_does_not_hide_the_others_over_time():
    rows = rows_of(small_study(), [timed("stream", 2, 50.0, 1.9)])
    assert "seconds of training" in page(rows, small_study())
    assert "seconds of training" not in page(rows_of(small_study()), small_study())


def test_exact_steps_before_and_between_decoupled_ones_count_in_the_speedup():
    """A warm-up of a tenth of a run was as long as all steps that were timed, and counted for the whole run."""
    times = [{**timed("penalty", 2, 50.0, 1.8), "exact step": 70.0}]
    found = [record(70.0), {**record(60.0, "penalty", 2), "exact": 0.25}]
    penalty = rows_of(found, times)[1]
    assert penalty.step == pytest.approx(55.0) and penalty.rho == pytest.approx(90.0 / 55.0)
    assert rows_of([record(70.0), record(60.0, "penalty", 2)], times)[1].rho == 1.8
    counted = {**record(60.0, "penalty@0.5,zbh2", 2, rho=2.0), "exact_steps": 5}  # of 20
    counted["simulated"]["exact rho"] = 1.0
    assert rows_of([record(70.0), counted])[1].rho == pytest.approx(1 / (0.75 / 2 + 0.25))
