"""Figures as SVG and as PNG: the same colours, and text on any machine."""

from __future__ import annotations

from io import BytesIO

from PIL import Image

from lpcompile.draw import png as figure_png
from lpcompile.draw.figure import DARK, LIGHT, STYLES, Figure, Group, Line, Rect, Text, css, look, svg, svg_file
from lpcompile.draw.png import png


def test_a_role_looks_the_same_as_class_and_as_attribute():
    figure = Figure("f", 60, 20, (Group((Rect(0, 0, 40, 20, "unit", "<t>"), Text(5, 5, "<a&b>", "label")), 120),
                                  Line(((45.0, 0.0), (45.0, 20.0)), "limit")))  # fmt: skip
    assert '<g style="--hue:120"><rect class="unit" ' in svg(figure) and "&lt;a&amp;b&gt;" in svg(figure)
    green = look("unit", 120)["fill"]
    assert f'fill="{green}"' in svg_file(figure)
    image = Image.open(BytesIO(png(figure)))
    assert "#{:02x}{:02x}{:02x}".format(*image.getpixel((60, 30))) == green
    column = [image.getpixel((90, y)) == (201, 55, 44) for y in range(40)]
    assert any(column) and not all(column), "dashed"
    used = {value for style in STYLES.values() for value in style.values()}
    assert set(LIGHT) == set(DARK) and all(f"--{name}:" in css() for name in used & set(LIGHT))


def test_without_a_font_that_has_greek_letters_are_words(monkeypatch):
    monkeypatch.setattr(figure_png, "FONTS", ())
    figure_png._font.cache_clear()
    try:
        image = Image.open(BytesIO(png(Figure("f", 90, 20, (Text(0, 14, "λ1 → ρ", "label"),)))))
        assert image.width == 180 and len(image.getcolors(1 << 16)) > 1, "something is written"
        assert "λ1 → ρ".translate(figure_png.WORDS) == "lambda1 -> rho"
    finally:
        figure_png._font.cache_clear()


def test_only_groups_that_a_script_finds_are_buttons():
    box = Rect(0, 0, 4, 4, "unit")
    assert 'data-unit="3" tabindex="0" role="button"' in svg(Figure("f", 9, 9, (Group((box,), 10, ("unit", "3")),)))
    assert "button" not in svg(Figure("f", 9, 9, (Group((box,), 10),)))
    assert "button" not in svg_file(Figure("f", 9, 9, (Group((box,), 10, ("unit", "3")),)))
