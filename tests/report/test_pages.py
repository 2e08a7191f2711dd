"""The pages of bench, compare and inspect in a real Chromium: light, dark, and at a phone's width."""

from __future__ import annotations

from io import BytesIO

import pytest
from PIL import Image

from lpcompile.draw.html import cell
from lpcompile.report.page import columns_of
from tests.report import sample_pages
from tests.report.browser import WHY, Browser, chromium
from tests.report.test_browser import file as report_file  # noqa: F401

browsing = pytest.mark.skipif(chromium() is None, reason=WHY)


@pytest.mark.parametrize(("text", "shown"), [
    ("604,736", "num"), ("18.7 ± 0.3", "num"), ("384.4 MiB / 11.2 MiB", "num"), ("9.5 %", "num"), ("–", "num"),
    ("1.73 (1.43-1.79)", "num"), ("12.4 % (over budget)", "num"), ("1.02e-05", "num"),
    ("1f1b", ""), ("2 plain trainings at once: the limit", ""), ("layer1.0", ""), ("float32[B, 16]", ""), ("", ""),
])  # fmt: skip
def test_numbers_stand_right_and_names_left(text, shown):
    assert cell(text).startswith(f"<td class={shown}>" if shown else "<td>")


def test_bars_of_characters_are_drawn():
    assert cell("██████") == '<td class=bar><i style="width:50%"></i></td>'


@pytest.fixture(scope="module")
def pages(tmp_path_factory, report_file):  # noqa: F811
    folder = tmp_path_factory.mktemp("pages")
    (folder / "bench.html").write_text(sample_pages.bench_text(alone=False))
    (folder / "compare.html").write_text(sample_pages.compare_text(alone=False))
    return {"bench": folder / "bench.html", "compare": folder / "compare.html", "report": report_file}


@pytest.fixture(scope="module")
def screens(tmp_path_factory):
    """Browsers: light, dark, and a phone."""
    folders = [tmp_path_factory.mktemp(name) for name in ("light", "dark", "phone")]
    with Browser(folders[0]) as light, Browser(folders[1], dark=True) as dark, Browser(folders[2]) as phone:
        phone.phone()
        yield {"light": light, "dark": dark, "phone": phone}


@browsing
@pytest.mark.parametrize("screen", ["light", "dark", "phone"])
@pytest.mark.parametrize("name", ["bench", "compare", "report"])
def test_every_page_on_every_screen(name, screen, pages, screens, tmp_path):
    browser = screens[screen]
    browser.open(pages[name])
    assert browser.errors == [] and browser.fetched == [pages[name].as_uri()]
    assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out to the side"
    image = Image.open(BytesIO(browser.screenshot(tmp_path / "page.png"))).convert("RGB")
    assert image.getpixel((3, 3)) == ((20, 23, 28) if screen == "dark" else (255, 255, 255))
    letters = browser.value("""[...document.querySelectorAll('svg:not(.graph) text')].map(t =>
        parseFloat(getComputedStyle(t).fontSize) * t.getScreenCTM().a)""")
    assert min(letters) >= 9 or (name == "report" and screen == "phone"), "text in charts can be read"
    wide = browser.value(
        "[...document.querySelectorAll('.charts svg')].map(s => s.clientWidth / s.parentNode.clientWidth)"
    )
    assert min(wide) > 0.95, "charts use the width"
    right = browser.value(
        "[...document.querySelectorAll('td.num')].every(c => getComputedStyle(c).textAlign == 'right')"
    )
    assert right and browser.value("document.querySelectorAll('td.num').length") > 10


@browsing
def test_a_bench_has_colours_for_families_and_a_warning(pages, screens):
    browser = screens["light"]
    browser.open(pages["bench"])
    assert browser.text(".warning").startswith("the machine was not alone: other programs took 20 % of its cores' time")
    colours = browser.value("""[...new Set([...document.querySelectorAll('.speedup rect')].map(r =>
        getComputedStyle(r).fill))].length""")
    assert colours == 6
    assert "cannot: a batch of 5" in browser.text("td.why")
    browser.open(pages["compare"])
    assert browser.text(".warning").startswith("the machine was not alone: up to 30 %")
    assert "no column of seconds to 95.0 %: nobody reached it" in browser.text("ul")
    assert "–" not in browser.text("tbody tr:nth-child(2)")


def test_pages_of_a_machine_that_was_alone_have_no_warning():
    assert 'class="warning"' not in sample_pages.bench_text() + sample_pages.compare_text()


def test_any_number_of_cards_stands_in_rows_that_are_as_even_as_can_be():
    assert [columns_of(cards, 6) for cards in (0, 1, 6, 7, 8, 9)] == [1, 1, 6, 4, 4, 5]
    assert [columns_of(cards, 4) for cards in (6, 8)] == [3, 4]


@browsing
def test_cards_stand_in_even_rows_and_the_panel_is_not_empty(pages, screens):
    for screen, columns in (("light", 6), ("phone", 2)):
        browser = screens[screen]
        browser.open(pages["report"])
        rows = browser.value("""(() => { const at = {}; for (const c of document.querySelectorAll('.cards div')) {
            const y = c.getBoundingClientRect().y; at[y] = (at[y] || 0) + 1; } return Object.values(at); })()""")
        assert set(rows) == {columns}
        assert browser.text("#panel h2") == "Stage 0 on rank 0"
        assert browser.value("document.querySelectorAll('td.bar i').length") == 3
