"""The report in a real Chromium: it draws, nothing is fetched, no error is logged, and a user's hands work."""

from __future__ import annotations

from io import BytesIO

import pytest
import torch
from PIL import Image

from lpcompile import sources
from lpcompile.compile import parallelize
from lpcompile.core.plan import Plan
from lpcompile.planning.replan import replan
from lpcompile.report.data import report_data
from lpcompile.report.page import page
from tests.report.browser import WHY, Browser, chromium
from tests.report.test_report import EVIL, LANES, SWEEP, Evil

pytestmark = pytest.mark.skipif(chromium() is None, reason=WHY)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    source = sources.load("resnet20", batch=8, device="meta")
    program = parallelize(
        source.model, 3, example_inputs=source.example_args, cost="flops", method="multiplier", memory_limit=2.0**30
    )
    found = tmp_path_factory.mktemp("page") / "page.html"
    program.plan.save(found.with_name("plan.json"))
    found.write_text(page(report_data(program, program.plan, LANES, SWEEP, name="resnet20")))
    return found


@pytest.fixture(scope="module")
def shared(file, tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("browser")) as browser:
        yield browser


@pytest.fixture
def browser(shared, file):
    """A fresh page; whatever a test did, no error may have been logged."""
    shared.open(file)
    yield shared
    assert shared.errors == [] and shared.fetched == [file.as_uri()]


def view_box(browser):
    return [float(v) for v in browser.value("document.querySelector('#view svg').getAttribute('viewBox')").split()]


def test_it_draws_and_nothing_is_fetched(browser):
    assert browser.text("h1") == "resnet20 in 3 stages"
    sizes = browser.value("[...document.querySelectorAll('svg')].map(s => s.getBoundingClientRect().width)")
    assert len(sizes) == 5 and min(sizes) > 300
    assert browser.value("document.documentElement.scrollWidth <= innerWidth"), "nothing sticks out to the side"
    inside = browser.value("""[...document.querySelectorAll('#view [data-unit] text')].every(t =>
        t.getBBox().width <= t.parentNode.querySelector('.unit').getBBox().width)""")
    assert inside, "names fit their boxes"


def test_a_click_on_a_stage_shows_its_blocks_and_its_source(browser):
    browser.click('#view [data-stage="1"] .title')
    assert browser.text("#panel h2") == "Stage 1 on rank 1"
    assert "class Stage1(nn.Module)" in browser.text("#panel pre")
    blocks = browser.value("[...document.querySelectorAll('#panel ol button')].map(b => b.textContent)")
    units = browser.value("JSON.parse(document.getElementById('data').textContent)")
    assert blocks == [units["units"][i]["name"] for i in units["stages"][1]["units"]]
    browser.click("#panel ol button")
    assert browser.text("#panel h2") == blocks[0] and browser.value("!!document.querySelector('#panel svg.steps')")
    browser.click("#panel ol button")
    assert browser.text("#panel h2") == "Stage 1 on rank 1", "and back"


def test_blocks_boundaries_and_auxnets_can_be_clicked(browser):
    browser.click('#view [data-unit="2"] .unit')
    assert browser.value("document.querySelectorAll('#panel svg.steps .dot').length") > 4
    assert browser.value("document.querySelectorAll('#view .chosen').length") == 1
    browser.click('#view [data-boundary="1"] .pill')
    assert browser.text("#panel h2") == "Boundary 2" and "float32[B, " in browser.text("#panel dl")
    browser.click('#view [data-aux="0"] .aux')
    assert browser.text("#panel h2").startswith("AuxNet 0") and "class AuxNet0" in browser.text("#panel pre")
    browser.click('.keys [data-stage="2"]')
    assert browser.text("#panel h2") == "Stage 2 on rank 2"


def test_search_finds_blocks_by_name_and_by_layer(browser):
    browser.click("#search")
    browser.type("FC")
    assert browser.text("#found").startswith("1 of ")
    browser.key("Escape")
    assert browser.text("#found") == "" and browser.value("document.querySelectorAll('.hit').length") == 0
    browser.type("conv2d")
    count = browser.value("document.querySelectorAll('.hit').length")
    assert count > 5 and browser.text("#found").startswith(f"{count} of ")
    before = view_box(browser)
    browser.key("Enter")
    browser.key("Enter")
    assert browser.text("#found") == f"2 of {count}" and view_box(browser) != before
    assert browser.value("document.querySelector('.chosen').classList.contains('hit')")


def test_zoom_by_buttons_and_wheel_and_moving_by_mouse(browser):
    whole = view_box(browser)
    browser.click("#in")
    x, y, width, height = view_box(browser)
    assert width == pytest.approx(0.75 * whole[2], abs=0.1) and height == pytest.approx(0.75 * whole[3], abs=0.1)
    browser.drag("#view svg", 120, 0)
    moved = view_box(browser)
    assert moved[0] < x - 20 and moved[1:] == [y, width, height]
    assert browser.text("#panel").startswith("Click a stage"), "a drag is no click"
    at, scrolled = browser.place("#view svg"), browser.value("scrollY")
    browser.mouse("mouseWheel", *at, deltaX=0, deltaY=400)
    assert view_box(browser)[2] > width
    assert browser.value("scrollY") == scrolled, "the wheel zooms and does not scroll"
    browser.click("#fit")
    assert view_box(browser) == pytest.approx(whole, abs=0.01)


def test_many_stages_begin_at_the_first_and_a_plan_alone_says_why_it_has_no_source(shared, file, tmp_path):
    plan = Plan.load(file.with_name("plan.json"))
    wide = tmp_path / "wide.html"
    wide.write_text(page(report_data(None, replan(plan, 9))))
    shared.open(wide)
    assert shared.value("document.querySelectorAll('#view [data-stage] .stage').length") == 9
    seen = view_box(shared)
    shared.click("#fit")
    whole = view_box(shared)
    assert seen[0] == 0 and seen[2] < 0.8 * whole[2]
    shared.click('.keys [data-stage="8"]')
    assert "a saved plan holds no code" in shared.text("#panel") and shared.errors == []


def test_names_of_a_model_are_text_and_nothing_else(shared, tmp_path):
    program = parallelize(Evil(), 2, example_inputs=torch.zeros(4, 8), cost="flops", method="multiplier")
    file = tmp_path / "evil.html"
    file.write_text(page(report_data(program, program.plan, name=EVIL)))
    shared.open(file)
    shared.click('#view [data-stage="0"] .title')
    shared.click("#panel ol button")
    assert shared.text("#panel h2") == f"blocks.{EVIL}" and shared.text("h1") == f"{EVIL} in 2 stages"
    assert shared.value("document.scripts.length") == 2 and shared.errors == []


def test_light_and_dark(file, tmp_path, browser):
    light = Image.open(BytesIO(browser.screenshot(tmp_path / "light.png"))).convert("RGB")
    with Browser(tmp_path, dark=True) as other:
        other.open(file)
        dark = Image.open(BytesIO(other.screenshot(tmp_path / "dark.png"))).convert("RGB")
        assert other.errors == []
    assert light.getpixel((3, 3)) == (255, 255, 255) and dark.getpixel((3, 3)) == (20, 23, 28)
    assert light.size == dark.size
    for image in (light, dark):  # boxes of all three stages, and bars
        assert len(image.getcolors(1 << 24)) > 200
