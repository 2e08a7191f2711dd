"""The report without a browser: what is on the page, that nothing leaves it, and the figures as files."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser
from io import BytesIO
from itertools import pairwise

import pytest
import torch
from PIL import Image
from torch import nn

from lpcompile import sources
from lpcompile.cli.main import main
from lpcompile.compile import parallelize
from lpcompile.core.plan import Plan
from lpcompile.core.tables import stage_table
from lpcompile.draw.figure import svg_file
from lpcompile.draw.png import png
from lpcompile.report.data import COMES_IN, StepNode, Sweep, generations, report_data
from lpcompile.report.page import figures, page, panels
from lpcompile.report.played import lanes, sweep, with_outlook
from lpcompile.simulate.outlook import outlook
from lpcompile.simulate.step import simulate

EVIL = "a</script><script>alert(1)</script>"
LANES = [
    [{"kind": kind, "batch": b, "begin": 10.0 * b + at + r, "end": 10.0 * b + at + r + 4, "name": f"{kind} {r}"}
     for b in range(3) for kind, at in (("forward", 0), ("backward", 4), ("step", 8))]
    for r in range(3)
]  # fmt: skip
SWEEP = [Sweep(k, 0.9 * k, 0.8 * k if k > 1 else None, float(k)) for k in range(1, 6)]


class Page(HTMLParser):
    """What a browser would see, as far as tests ask."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.fetched, self.named, self.texts, self.open = [], [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.open.append(tag)
        self.fetched += [v for n, v in attributes if n in ("src", "href", "srcset", "action", "data")]
        self.named += [(n, v) for n, v in attributes if n.startswith("data-") and "role" in given]

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))


@pytest.fixture(scope="module")
def program():
    source = sources.load("resnet20", batch=8, device="meta")
    return parallelize(
        source.model, 3, example_inputs=source.example_args, cost="flops", method="multiplier", memory_limit=2.0**30
    )


@pytest.fixture(scope="module")
def data(program):
    plain = report_data(program, program.plan, facts=["K = 3 is <fine>"], name="resnet20")
    return with_outlook(plain, outlook(program.plan, stages=[2, 3]))


class Evil(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleDict({EVIL: nn.Linear(8, 8), "<b>&\"'$title": nn.Linear(8, 8)})

    def forward(self, x):
        for block in self.blocks.values():
            x = x + torch.relu(block(x))
        return x


def test_the_page_shows_graph_load_memory_timelines_sweep_tables_and_source(data):
    text = page(data)
    shown = Page(text)
    assert ("svg" in shown.tags) and shown.tags.count("svg") == 5
    plan = data.plan
    assert [v for n, v in shown.named if n == "data-unit"] == [str(i) for i in range(len(plan.units))]
    assert {v for n, v in shown.named if n == "data-boundary"} == {v for n, v in shown.named if n == "data-aux"}
    words = [word for _, word in shown.texts]
    for wanted in ("limit 1.0 GiB", "AuxNet 0", "λ1", "X2", "rank 2", "planned", "simulated", "limit", "Stages",
                   "Boundaries", "AuxNets", "Units", "K = 3 is <fine>", "resnet20 in 3 stages", "Ranks, simulated",
                   "Critical path", "Boundaries against their neighbours", "Other K"):  # fmt: skip
        assert wanted in words, wanted
    for row in stage_table(plan).rows:
        assert all(str(value) in words for value in row[:-1])  # the last is the load, which is drawn


def test_a_click_shows_the_source_that_emit_writes_and_the_steps_of_a_block(data, program, tmp_path):
    found = panels(data)
    program_on_cpu = parallelize(sources.load("resnet20", batch=8).model, 3, cost="flops", method="multiplier",
                                 example_inputs=torch.zeros(8, 3, 32, 32))  # fmt: skip
    folder = program_on_cpu.emit(tmp_path / "emitted")
    assert [stage["source"] for stage in found["stages"]] == [(folder / f"stage_{k}.py").read_text() for k in range(3)]
    assert found["aux"][1]["source"] == (folder / "auxnet_1.py").read_text()
    block = next(u for u in found["units"] if u["name"] == "layer1.0")
    rows = block["nodes"]
    assert ["layer1.0.conv1", "Conv2d", "float32[B, 16, 32, 32]"] in [row[:3] for row in rows]
    name, _, _, lane, joined = next(row for row in rows if len(row[4]) == 2)
    assert (name, lane) == ("add", 0)
    assert [rows[i][3] for i in joined] == [1, 0], "what came in stays beside the branch until both are added"


def test_a_block_says_how_many_of_its_steps_depend_on_each_other():
    """q, k and v of one input are one generation."""
    nodes = [StepNode("x", COMES_IN, "", 0, ()), *(StepNode(name, "Linear", "", 0, (0,)) for name in "qkv"),
             StepNode("attention", "softmax", "", 0, (1, 2, 3))]  # fmt: skip
    assert generations(nodes) == [["q", "k", "v"], ["attention"]]


def test_a_panel_shows_the_longest_chain_of_a_block(data):
    block = next(u for u in panels(data)["units"] if u["name"] == "layer1.0")
    steps = [row for row in block["nodes"] if row[1] != COMES_IN]
    assert ["steps", f"{len(steps)}, the longest chain {len(steps) - 1}"] in block["facts"], "the shortcut is apart"


def test_the_page_fetches_nothing_and_has_one_script_of_ours(data):
    text = page(data)
    shown = Page(text)
    assert shown.fetched == ["data:,"]
    assert shown.tags.count("script") == 2 and "link" in shown.tags
    assert not re.search(r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML", text)
    assert set(re.findall(r"https?://[^\s\"']*", text)) == {"http://www.w3.org/2000/svg"}


def test_simulated_lanes_hold_whole_mini_batches_and_no_rank_does_two_things_at_once(program):
    found = lanes(simulate(program.plan))
    assert len(found) == 3
    end = max(event["end"] for lane in found for event in lane)
    for lane in found:
        lane = sorted(lane, key=lambda event: event["begin"])
        assert lane[0]["begin"] >= 0 and lane[-1]["end"] <= end
        assert all(a["end"] <= b["begin"] + 1e-9 for a, b in pairwise(lane))
        for kind in ("forward", "backward"):
            numbers = [event["batch"] for event in lane if event["kind"] == kind]
            assert len(numbers) >= 2 and numbers == sorted(numbers) and numbers[0] >= 1


def test_the_sweep_stays_below_its_limit(program):
    found = sweep(program.plan)
    assert [point.K for point in found] == list(range(1, 9))
    assert found[2].planned == program.plan.rho
    assert all(point.simulated is not None and point.simulated <= point.limit + 1e-9 for point in found)


def test_names_cannot_leave_their_place():
    program = parallelize(Evil(), 2, example_inputs=torch.zeros(4, 8), cost="flops", method="multiplier")
    text = page(report_data(program, program.plan, name=EVIL))
    shown = Page(text)
    assert shown.tags.count("script") == 2 and "b" in shown.tags and "img" not in shown.tags
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", text, re.S)
    assert EVIL in json.loads(scripts[0])["units"][0]["name"]
    assert any(EVIL in word for tag, word in shown.texts if tag == "h1")
    assert "$title" in json.loads(scripts[0])["units"][-1]["name"]


def test_resnet152_is_small_enough_to_mail(tmp_path, capsys):
    file = tmp_path / "page.html"
    assert main(["inspect", "torchvision:resnet152", "-K", "4", "--cost", "flops", "--html", str(file)]) == 0
    out, err = capsys.readouterr()
    assert "K = 4 stages" in out and f"written to {file}" in err
    assert file.stat().st_size < 1_000_000
    text = file.read_text()
    assert "torchvision:resnet152 in 4 stages" in text and "class Stage3(nn.Module)" in text


def test_a_saved_plan_has_a_report_without_source(program, tmp_path, capsys):
    plan, file = tmp_path / "plan.json", tmp_path / "page.html"
    program.plan.save(plan)
    assert main(["inspect", str(plan), "--html", str(file)]) == 0
    found = panels(report_data(None, Plan.load(plan)))
    assert found["stages"][0]["source"] == "" and "name the model instead" in found["note"]
    assert "name the model instead" in file.read_text()


@pytest.mark.parametrize("option, value, message", [
    ("--html", "/nowhere/page.html", "--html /nowhere/page.html cannot be written"),
    ("--figures", __file__, "is a file; give a folder to write to"),
])  # fmt: skip
def test_what_cannot_be_written_is_said_first(option, value, message, capsys):
    assert main(["inspect", "resnet20", option, value]) == 2
    assert message in capsys.readouterr().err


def test_figures_are_files_that_any_viewer_shows(data, tmp_path, capsys):
    for figure in figures(data):
        root = ElementTree.fromstring(svg_file(figure))
        assert root.tag == "{http://www.w3.org/2000/svg}svg" and "var(" not in svg_file(figure)
        image = Image.open(BytesIO(png(figure)))
        assert image.size == (-(-2 * figure.width // 1), -(-2 * figure.height // 1))
        assert len(image.getcolors(1 << 20)) > 3
    command = ["inspect", "resnet20", "-K", "2", "--cost", "flops", "--figures", str(tmp_path / "made")]
    assert main(command) == 0
    assert sorted(f.name for f in (tmp_path / "made").iterdir()) == [
        f"{name}.{kind}" for name in ("graph", "load", "memory", "sweep", "timeline") for kind in ("png", "svg")
    ]
