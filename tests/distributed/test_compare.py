"""`python -m lpcompile compare`: real processes once, then what it does with what they tell, and what it refuses."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from itertools import pairwise

import pytest
import torch

import lpcompile
from lpcompile.cli.main import main
from lpcompile.compare import request as requests
from lpcompile.compare import run as module
from lpcompile.compare.page import page
from lpcompile.compare.properties import NAMES
from lpcompile.compare.request import CompareRequest
from lpcompile.compare.results import VERSION, Comparison
from lpcompile.compare.run import compare
from lpcompile.compare.table import text
from lpcompile.draw.charts import apart, ticks
from lpcompile.errors import TrainingError, UsageError
from lpcompile.runtime.engine.memory import Alive
from lpcompile.runtime.launch.launch import Interrupted
from lpcompile.runtime.methods import METHODS
from tests.runtime.small import mlp
from tests.training.net_source import net_source


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    file = tmp_path_factory.mktemp("net") / "net.py"
    file.write_text(net_source())
    return f"{file}:build"


class Page(HTMLParser):
    """What a browser would draw, as far as tests ask: (class, title) of boxes, names, and whatever is fetched."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.boxes, self.titles, self.fetched, self.open = [], [], [], [], ""
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.tags.append(tag)
        self.open = f"{tag} {given.get('class', '')}"
        self.fetched += [v for n, v in attributes if n in ("src", "href") and not v.startswith("data:")]
        if tag == "rect" and "box" in given.get("class", ""):
            self.boxes.append(given["class"].split()[1])

    def handle_data(self, data):
        if self.open == "text title":
            self.titles.append(data)

    def handle_endtag(self, tag):
        self.open = ""


def test_two_methods_on_real_processes(net, tmp_path, capfd):
    """All columns, marks, JSON and HTML, from one epoch of plain training, bp and multiplier."""
    html, data = tmp_path / "page.html", tmp_path / "found.json"
    words = [net, "-K", "2", "--methods", "bp,multiplier", "--epochs", "1", "--batch", "64", "--size", "8", "--input"]
    words += ["1x8x8", "--cost", "flops", "--init", "consistent"]
    words += ["--target", "0.05", "--html", str(html), "--json", str(data)]
    assert main(["compare", *words]) == 0
    out, err = capfd.readouterr()
    assert "[1/2] bp: epoch 1 of 1, " in err and "[2/2] multiplier: epoch 1 of 1, " in err
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    assert [line.split("|")[1].strip() for line in lines] == [
        "method", "BP on one core", "bp", "multiplier", "method", "bp", "multiplier"]  # fmt: skip
    assert "s to 5.0 %" in lines[0] and re.search(r"\d\.\d\d \(\d\.\d\d-\d\.\d\d\)", lines[2])

    saved = json.loads(data.read_text())
    assert saved["version"] == VERSION
    found = Comparison.from_json(saved)
    serial, (bp, multiplier) = found.serial, found.rows
    assert bp.accuracy == pytest.approx(serial.accuracy, abs=1e-6), "bp is plain training on two ranks"
    assert bp.sent == 2 * 64 * 4 * 6 * 6 * 4, "X up and p down, float32"
    assert [len(row.ranks) for row in (serial, bp, multiplier)] == [1, 2, 2]
    assert all(0 <= rank["idle"] < 1 and rank["tensors"] > 0 for row in found.rows for rank in row.ranks)
    assert max(rank["tensors"] for rank in bp.ranks) < serial.ranks[0]["tensors"], "half of the model is less"
    assert sum(rank["idle"] for rank in bp.ranks) > 0.3, "ranks of bp take turns"
    assert multiplier.micro == 2 and bp.reached == bp.seconds[0]
    assert [m[0] for m in bp.marks.values()] == list("✓××××××")

    drawn = Page(html.read_text())
    assert not drawn.fetched and "script" not in drawn.tags
    assert drawn.titles == ["BP on one core", "bp", "multiplier"]
    assert {"forward", "backward", "auxiliary", "step", "wait", "data"} <= set(drawn.boxes)
    for row in (serial, bp, multiplier):
        for lane in row.timeline:
            for kind in ("forward", "backward"):
                numbers = [e["batch"] for e in lane if e["kind"] == kind]
                assert {n: numbers.count(n) for n in (1, 2, 3)} == dict.fromkeys((1, 2, 3), row.micro)


def seen(seconds, accuracy=(0.5, 0.9), **more):
    """What the ranks of a method would tell."""
    rank = {"idle": 0.1, "lost": 0.0, "sent": 100.0, "tensors": 2**20, "process": 2**28}
    lane = [{"kind": "forward", "batch": 1, "begin": 0.0, "end": 5.0, "name": "forward"}]
    shown = [{"accuracy": a, "loss": 1.0} for a in accuracy]
    shown[-1]["recalibrated accuracy"] = accuracy[-1]
    told = {"seconds": seconds, "samples": 640, "shown": shown, "micro": 1, "ranks": [rank] * 2, "timeline": [lane] * 2}
    return told | more


@pytest.fixture
def told(monkeypatch):
    """Processes that answer from a list: plain training, then methods and blocks in turn."""

    def answer(answers):
        given = iter(answers)

        def launch(function, args, **_):
            found = next(given)
            if isinstance(found, BaseException):
                raise found
            return found

        monkeypatch.setattr(module.launch, "launch", launch)
        monkeypatch.setattr(requests, "check_model", lambda request: None)

    return answer


def test_rho_is_taken_against_plain_training_just_before_and_after(told):
    told([seen([9.0, 4.0]), seen([9.0, 2.0]), 0.6, seen([9.0, 3.0], (0.5, 0.6)), 0.9])
    found = Comparison(CompareRequest("m", methods=("bp", "penalty"), epochs=2))
    compare(found)
    bp, penalty = found.rows
    assert bp.rho == pytest.approx([(4 + 6) / 2 / 2, 4 / 2, 6 / 2]), "the first epoch warms up and does not count"
    assert penalty.rho[0] == pytest.approx((6 + 9) / 2 / 3), "ten steps of 0.6 s before, of 0.9 s after"
    assert found.target == pytest.approx(0.95 * 0.9)
    assert bp.reached == 11.0 and penalty.reached is None and bp.rate == 320 and bp.sent == 200


def test_a_method_that_fails_does_not_lose_the_others(told, monkeypatch):
    failure = Interrupted("training stopped: rank 1 (stage 1) was killed by SIGKILL\nthen: rank 0 lost it")
    told([seen([1.0, 1.0]), failure, seen([1.0, 1.0]), 0.1])

    def check(job):
        if job.method == "penalty":
            raise UsageError("this model has no <head>")

    monkeypatch.setattr(requests.Job, "check", check)
    found, kept = Comparison(CompareRequest("m", methods=("bp", "penalty", "multiplier"), epochs=2)), []
    compare(found, lambda: kept.append(len(found.rows)))
    assert kept == [0, 1, 2, 3]
    assert [bool(row.seconds) for row in found.rows] == [False, False, True]
    shown = text(found)
    assert "| bp             | failed: training stopped: rank 1 (stage 1) was killed by SIGKILL" in shown
    assert "- penalty cannot: this model has no <head>" in shown
    drawn = page(found)
    assert "this model has no &lt;head&gt;" in drawn and "<head>" not in drawn.split("</head>")[1]
    assert Comparison.from_json(json.loads(json.dumps(found.to_json()))) == found


def test_ctrl_c_keeps_what_was_found(told, tmp_path, capsys):
    told([seen([1.0, 1.0]), seen([0.5, 0.5]), 0.1, KeyboardInterrupt()])
    file = tmp_path / "found.json"
    words = ["compare", "m", "--methods", "bp,penalty,multiplier", "--epochs", "2", "--json", str(file)]
    assert main(words) == 130
    assert [row["method"] for row in json.loads(file.read_text())["rows"]] == ["bp"]
    assert "| bp " in capsys.readouterr().out


def test_notes_say_what_limits_the_numbers(told):
    busy = {"idle": 0.1, "lost": 0.3, "sent": 0.0, "tensors": 1, "process": 1}
    told([seen([1.0, 1.0]), seen([1.0, 1.0], micro=4, ranks=[busy], zeroed=6), 0.1])
    found = Comparison(CompareRequest("resnet20", K=3, methods=("penalty",), epochs=2))
    compare(found)
    found.machine["cores"] = 2
    assert "3 ranks shared 2 cores" in text(found)
    found.machine["cores"] = 4
    shown = text(found)
    assert "up to 30 % of a process's time its core worked for others" in shown
    assert "micro-batches a step: penalty 4" in shown and "(branches that AuxNets leave out): penalty 6;" in shown
    assert "for penalty the paper prints marks too, the same ones." in shown


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["resnet20", "--methods", "bp,penality"], 2, "there is no method 'penality'; the closest is 'penalty'"),
        (["resnet20", "--methods", ","], 2, "--methods names none; there are bp, "),
        (["resnet20", "-K", "1"], 2, "-K 1: a comparison needs 2 stages or more"),
        (["resnet20", "-K", "90"], 1, "K = 90 stages are too many: the model can be cut into at most"),
        (
            ["resnet20", "--micro", "5"],
            2,
            "--micro 5 does not divide --batch 64; it has 1, 2, 4, 8, 16, 32 equal parts",
        ),
        (["resnet20", "--target", "90"], 2, "--target 90 is no share of right answers: give 0.9 for 90 %"),
        (["resnet20", "--data", "/nowhere"], 2, "--data /nowhere: there is no such folder"),
        (["resnet20", "--optimizer", "adam"], 2, "--optimizer adam is not one of sgd, adamw"),
        (["resnet20", "--batch", "4096"], 2, "has 1438 training samples, fewer than one batch of 4096"),
        (["resnet20", "--html", "/nowhere/page.html"], 2, "--html /nowhere/page.html cannot be written"),
        (["gpt_tiny"], 2, "compare is for models of one image, and gpt_tiny takes"),
    ],
)
def test_what_cannot_be_is_said_before_anything_is_started(words, code, message, capsys, monkeypatch):
    monkeypatch.setattr(module.launch, "launch", lambda *a, **k: pytest.fail("a process was started"))
    assert main(["compare", *words]) == code
    error = capsys.readouterr().err
    assert message in error and "Traceback" not in error


def test_not_under_torchrun(monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["compare", "resnet20"]) == 2
    assert "run it without torchrun" in capsys.readouterr().err


def test_a_file_of_another_version_is_refused():
    with pytest.raises(UsageError, match=f"no comparison of version {VERSION}"):
        Comparison.from_json({"version": 0})


def test_names_beside_lines_do_not_cover_each_other():
    found = sorted(apart([30.0, 31.0, 290.0, 295.0, 296.0]))
    assert all(b - a >= 13 for a, b in pairwise(found)) and found[-1] <= 296
    assert ticks(8.9, 97.5) == [0, 20, 40, 60, 80] and ticks(0.0, 0.0) == [0.0] and ticks(0, 2, least=1) == [0, 1, 2]


def test_alive_counts_tensors_while_they_live():
    x = torch.ones(1000)
    with Alive() as alive:
        a = x + 1
        b = a.view(10, 100)
        x += 1
        del a
        assert alive.now == 4000, "a view keeps its tensor, an operation in place makes none"
        c = b * 2
        del b, c
    assert (alive.now, alive.most) == (0, 8000)


def test_a_plan_without_auxnets_can_be_followed():
    """As ranks follow the one that rank 0 measured for."""
    x = torch.randn(4, 6, dtype=torch.float64)
    plan = lpcompile.parallelize(mlp(), 3, example_inputs=x, cost="flops", method="bp").plan
    again = lpcompile.parallelize(mlp(), example_inputs=x, plan=plan)
    assert again.plan == plan and len(again.stages) == 3


def test_marks_name_all_columns_for_all_methods():
    for method in METHODS:
        assert list(module.marks(CompareRequest("m"), method)) == list(NAMES)
    assert issubclass(Interrupted, TrainingError)
