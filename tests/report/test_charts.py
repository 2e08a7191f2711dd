"""The charts and the graph of a report, from plans alone."""

from __future__ import annotations

from dataclasses import replace

import pytest

from lpcompile.draw.figure import Group, Rect, Text, flat
from lpcompile.report.charts import load, memory, sweep
from lpcompile.report.data import Sweep, report_data
from lpcompile.report.graph import MAX_TALL, graph, shorten
from tests.simulate.even_plan import even_plan


def rects(figure, role):
    return [item for item, _ in flat(figure.items) if isinstance(item, Rect) and item.role == role]


def texts(figure):
    return [item.text for item, _ in flat(figure.items) if isinstance(item, Text)]


def test_the_load_of_every_rank_fills_the_step_with_work_and_idle_time():
    plan = even_plan(3, "penalty")
    figure = load(plan)
    boxes = [item for item, _ in flat(figure.items) if isinstance(item, Rect)]
    for what in ("forward", "backward"):
        titles = [f"{what}: {getattr(stage, what):.4g} ms" for stage in plan.stages]
        assert [box.title for box in boxes if box.role == f"box {what}"] == titles
    lengths = {y: sum(box.width for box in boxes if box.y == y) for y in {box.y for box in boxes}}
    assert len(lengths) == 3 and max(lengths.values()) == pytest.approx(min(lengths.values()))
    assert f"step {plan.step:.4g} ms" in texts(figure)


def test_a_memory_limit_is_a_line_with_its_size():
    data = report_data(None, even_plan(2, "bp"))
    assert "peak memory per rank, no limit was given" in texts(memory(data))
    limited = replace(data, limits=(2.0**30, 2.0**30))
    assert "limit 1.0 GiB" in texts(memory(limited)) and "peak memory per rank" in texts(memory(limited))


def test_a_sweep_without_simulated_points_has_two_curves():
    data = report_data(None, even_plan(2, "bp"))
    points = [Sweep(K, 0.9 * K, None, float(K)) for K in (1, 2)]
    names = ("limit", "planned", "simulated")
    assert [name in texts(sweep(replace(data, sweep=tuple(points)))) for name in names] == [True, True, False]
    points.append(Sweep(3, 2.0, 1.9, 3.0))
    assert all(name in texts(sweep(replace(data, sweep=tuple(points)))) for name in names)


@pytest.mark.parametrize("units", [1, MAX_TALL, MAX_TALL + 1, 3 * MAX_TALL])
def test_no_two_units_of_a_stage_overlap_and_all_lie_inside_it(units):
    figure = graph(report_data(None, even_plan(1, "bp", units=units)))
    (stage,), boxes = rects(figure, "stage"), rects(figure, "unit")
    assert len({(box.x, box.y) for box in boxes}) == units
    assert len({box.x for box in boxes}) == -(-units // MAX_TALL)
    for box in boxes:
        assert stage.x < box.x and box.x + box.width < stage.x + stage.width
        assert stage.y < box.y and box.y + box.height < stage.y + stage.height


def test_every_boundary_and_auxnet_can_be_clicked():
    figure = graph(report_data(None, even_plan(3, "penalty")))
    named = [item.data for item in figure.items if isinstance(item, Group) and item.data]
    assert [data for data in named if data[0] in ("boundary", "aux")] == [
        ("boundary", "0"), ("aux", "0"), ("boundary", "1"), ("aux", "1"),
    ]  # fmt: skip


def test_a_long_name_loses_its_middle():
    assert shorten("short", 8) == "short"
    assert shorten("features.denseblock4", 9) == "feat…ock4" and len(shorten("x" * 50, 22)) == 22
