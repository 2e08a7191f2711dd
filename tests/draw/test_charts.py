"""Charts: what is drawn where."""

from __future__ import annotations

from lpcompile.draw.charts import MIN_BOX_WIDTH, WIDTH, bars, chart, timelines
from lpcompile.draw.figure import Dot, Group, Rect, Text, flat


def drawn(figure, kind):
    return [item for item, _ in flat(figure.items) if isinstance(item, kind)]


def test_parts_of_bars_are_as_long_as_their_values_and_follow_each_other():
    rows = [
        ("rank 0", [("forward", 1.0, "f"), ("backward", 3.0, "b")], "4 ms"),
        ("rank 1", [("forward", 2.0, "f")], ""),
    ]
    first, second, other = drawn(bars("load", rows, [("step", 5.0, "bound")], "ms"), Rect)
    assert second.width == 3 * first.width and other.width == 2 * first.width
    assert second.x == first.x + first.width and other.x == first.x and other.y > first.y


def test_curves_have_a_dot_for_each_value_and_larger_values_are_higher():
    figure = chart([("ρ", [1, 2, 4], [1.0, 1.5, 3.0], "")], "ρ", "K")
    dots = drawn(figure, Dot)
    assert [dot.title for dot in dots] == ["ρ: 1 % at 1", "ρ: 1.5 % at 2", "ρ: 3 % at 4"]
    assert dots[0].y > dots[1].y > dots[2].y and dots[0].x < dots[1].x < dots[2].x < WIDTH


def test_long_names_have_room_beside_the_curves_and_a_curve_keeps_its_colour_on_other_charts():
    """At 96 pixels, "penalty + AuxNet, augmentation" and "…, no augmentation" once looked the same."""
    long, short = "penalty + AuxNet, no augmentation", "BP"
    figure = chart([(long, [1, 2], [1.0, 2.0], "")], "ρ", "K", hues=[short, long])
    name = next(text for text in drawn(figure, Text) if text.text == long)
    assert name.x + 6 * len(long) <= WIDTH
    both = chart([(short, [1, 2], [1.0, 2.0], ""), (long, [1, 2], [1.0, 2.0], "")], "ρ", "K")
    groups = [item for item in (*figure.items, *both.items) if isinstance(item, Group)]
    assert groups[0].hue == groups[2].hue != groups[1].hue


def test_an_instruction_is_numbered_where_there_is_room_and_never_too_thin_to_see():
    long = {"kind": "forward", "batch": 2, "begin": 0.0, "end": 100.0, "name": "forward"}
    short = {"kind": "backward", "batch": 3, "begin": 100.0, "end": 100.001, "name": "backward"}
    figure = timelines([("bp", [[long, short]])])
    boxes = [rect for rect in drawn(figure, Rect) if rect.role.startswith("box")]
    assert [text.text for text in drawn(figure, Text) if text.role == "batch"] == ["2"]
    assert [box.title for box in boxes] == ["forward, mini-batch 2: 100.00 ms", "backward, mini-batch 3: 0.00 ms"]
    assert boxes[1].width == MIN_BOX_WIDTH
