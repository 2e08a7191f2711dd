"""The bench: its arithmetic, what it refuses, what it writes, and one quick run of everything for the table's form."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest

from lpcompile.bench import page as bench_html
from lpcompile.bench import table as bench_table
from lpcompile.bench.contenders.ways import CONTENDERS, LIMIT, PLAIN, THREADS
from lpcompile.bench.plans import Planned
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.runner import check_memory, refuse
from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.runtime.methods import METHODS
from tests.bench.small_bench import MACHINE, PARTS, small_bench
from tests.bench.test_gate import RULES, gate_file
from tests.distributed.deadline import started, wait_until


@pytest.mark.parametrize(("given", "says"), [
    ({"contenders": ("penalti",)}, "did you mean penalty"), ({"K": 1}, "needs 2 ranks"), ({"batch": 0}, "1 or more"),
    ({"steps": 0}, "1 or more"), ({"optimizer": "adam"}, "not one of sgd, adamw"),
    ({"device": "tpu"}, "neither cpu nor cuda"), ({"timeout": -1.0}, "more than 0"),
])  # fmt: skip
def test_what_cannot_be_measured_is_told_before_anything_starts(given, says):
    with pytest.raises(UsageError, match=says):
        BenchRequest("resnet20", **given).check()


def test_short_memory_is_told():
    check_memory(1)
    with pytest.raises(UsageError, match="name fewer of them with --contenders"):
        check_memory(2**60)


def test_a_bench_is_saved_and_read_again(tmp_path):
    found = small_bench(penalty=1.8, ddp=1.85)
    found.start, found.scaling = {"launch": 1.0}, [{"K": 2, "penalty": 1.9}]
    found.save(tmp_path / "b.json")
    assert Bench.from_json(json.loads((tmp_path / "b.json").read_text())) == found
    with pytest.raises(UsageError, match="no bench of version 1"):
        Bench.from_json({"version": 7})


def test_the_text_and_the_page_say_what_was_found():
    found = small_bench(threads=1.7, penalty=1.8, ddp=1.85)
    found.rows.append(BenchRow("fsdp", why="cannot: a <batch> of 3"))
    found.rows[-2].tried = {"2": 50.0}
    found.start, found.scaling = {"launch": 1.0}, [{"K": 2, "penalty": 1.9}, {"K": 4, "penalty": 3.1}]
    text = bench_table.text(found)
    assert re.search(r"^\| penalty +\| 55\.6 \(50\.0-61\.1\) +\| 1\.80 +\| 0\.90 +\| 0\.95 ", text, re.M)
    assert "| FSDP " in text and "cannot: a <batch> of 3" in text and "2: 50 ms" in text
    page = bench_html.page(found)
    assert (
        "a &lt;batch&gt; of 3" in page
        and page.count("<svg") == 3
        and "http" not in page.replace("http://www.w3.org", "")
    )
    assert bench_table.text(Bench(BenchRequest("m"), MACHINE)) == "nothing has been measured"


def test_a_column_is_one_entry(monkeypatch):
    more = bench_table.Column("steps", lambda row, found: str(row.steps))
    monkeypatch.setattr(bench_table, "COLUMNS", (*bench_table.COLUMNS, more))
    found = small_bench(penalty=1.8)
    found.rows.append(BenchRow("fsdp", why="cannot"))
    names, lines, _ = bench_table.measured_table(found)
    assert names[-1] == "steps" and [line[-1] for line in lines] == ["20", "20", "20", "–"]


def test_bad_usage_ends_before_processes_start(tmp_path, capsys):
    assert main(["bench", "resnet21"]) == 2
    assert "resnet20" in capsys.readouterr().err
    assert main(["bench", "resnet20", "--json", str(tmp_path / "no" / "b.json")]) == 2
    assert main(["bench", "resnet20", "--json", "/proc/b.json"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    both = str(tmp_path / "b")
    assert main(["bench", "resnet20", "--json", both, "--html", both]) == 2
    assert "give two files" in capsys.readouterr().err
    assert main(["bench", "resnet20", "--contenders", "ddq"]) == 2
    assert "did you mean ddp" in capsys.readouterr().err


def test_a_quick_run_of_everybody(tmp_path, capsys):
    """Form, not figures: every contender has run, and every column has something."""
    gate = gate_file(tmp_path, {"version": 1, "models": {"resnet20": [{**RULES[0], "least": 0.0}]}})
    files = {n: tmp_path / f"b.{n}" for n in ("json", "html")}
    given = ["--quick", "--batch", "16", "--input", "3x8x8", "--gate", str(gate)]
    assert main(["bench", "resnet20", *given, "--json", str(files["json"]), "--html", str(files["html"])]) == 0
    out, err = capsys.readouterr()
    found = Bench.from_json(json.loads(files["json"].read_text()))
    assert [r.name for r in found.rows] == list(CONTENDERS) and not [r.why for r in found.rows if r.why]
    for row in found.rows:
        assert row.steps == 4 and 0 < row.step[1] <= row.step[2] and row.rho > 0 and row.of_limit > 0, row.name
        assert len(row.ranks) == (1 if row.name in (PLAIN, THREADS) else 2)
        for rank in row.ranks:
            assert set(rank["parts"]) <= PARTS and rank["peak"] > 0 and 0 <= rank["idle"] < 1, row.name
            assert sum(rank["parts"].values()) > 0
        sends = row.name not in (PLAIN, THREADS, LIMIT)
        assert (sum(r["sent"] for r in row.ranks) > 0) is sends, row.name
    assert found.row("torch-gpipe").tried and found.row("penalty").ranks[0]["parts"]["aux"] > 0
    assert {"launch", "capture, measure and plan", "build", "first step", "checkpoint save", "checkpoint load"} == set(
        found.start
    )
    assert {"multiplier", "penalty", "K"} <= set(found.scaling[0])
    assert len(re.findall(r"^\| ", out, re.M)) > 2 * len(CONTENDERS) and "all 1 ratios are reached" in out
    assert f"[{len(CONTENDERS)}/{len(CONTENDERS)}] {list(METHODS)[-1]}: ready" in err and "round 1 of 1" in err
    assert "<svg" in files["html"].read_text()


def test_a_contender_that_cannot_run_does_not_stop_the_others(tmp_path, capsys):
    """FSDP refuses weights that lie channels last; the others go on with them, torch's pipelines included."""
    file = tmp_path / "b.json"
    given = [
        "--contenders",
        "ddp,fsdp,torch-1f1b,penalty",
        "--channels-last",
        "--transfer",
        "bf16",
        "--aux-dtype",
        "bf16",
    ]
    assert main(["bench", "resnet20", *given, "--quick", "--batch", "6", "--input", "3x8x8", "--json", str(file)]) == 0
    found = Bench.from_json(json.loads(file.read_text()))
    assert "contiguous weights only" in found.rows[2].why
    assert all(found.row(name).rho > 0 for name in ("ddp", "torch-1f1b", "penalty"))
    # λ and p, of half the bytes each, are together what torch's ranks count for one float32 boundary
    assert sum(r["sent"] for r in found.row("penalty").ranks) == found.row("torch-1f1b").ranks[0]["sent"]
    out = capsys.readouterr().out
    assert "sgd, channels last, bf16 transfers, bf16 AuxNets" in out and "cannot: FSDP shards" in out


def test_an_odd_batch_has_no_two_halves_for_ddp():
    with pytest.raises(UsageError, match="a batch of 5 has no 2 equal parts"):
        refuse(BenchRow("ddp"), BenchRequest("resnet20", batch=5), Planned({}, {}, 0))


def test_torchs_pipelines_cannot_run_where_ours_cannot():
    with pytest.raises(UsageError, match="too many stages"):
        refuse(BenchRow("torch-1f1b"), BenchRequest("resnet20"), Planned({}, {"1f1b": "too many stages"}, 0))


MODELS = """
import torch
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(16, 16), nn.Linear(16, 16)
    def forward(self, x):
        return x + self.b(torch.relu(self.a(x))).transpose(1, 2).contiguous().transpose(1, 2)

class Tied(nn.Module):
    \"\"\"Tokens in and out by one table, boundaries that are transposed, and a layer that nobody uses.\"\"\"
    def __init__(self):
        super().__init__()
        self.table, self.blocks = nn.Embedding(20, 16), nn.Sequential(*(Block() for _ in range(6)))
        self.out, self.unused = nn.Linear(16, 20, bias=False), nn.Linear(2, 2)
        self.out.weight = self.table.weight
    def forward(self, x):
        return self.out(self.blocks(self.table(x)))

def tied():
    return Tied(), torch.randint(0, 20, (8, 4))

def half():
    blocks = nn.Sequential(*(nn.Sequential(nn.Linear(16, 16), nn.ReLU()) for _ in range(6)))
    return blocks.bfloat16(), torch.randn(8, 16).bfloat16()
"""


def test_models_with_unusual_layouts(tmp_path, capsys):
    """Tied weights under fused SGD, transposed boundaries, unused layers, and bfloat16."""
    (tmp_path / "mine.py").write_text(MODELS)
    for name in ("tied", "half"):
        file = tmp_path / f"{name}.json"
        given = ["--quick", "--batch", "8", "--contenders", "ddp,torch-1f1b,pipedream,multiplier", "--json", str(file)]
        assert main(["bench", f"{tmp_path}/mine.py:{name}", *given]) == 0, capsys.readouterr().out
        assert not [row.why for row in Bench.from_json(json.loads(file.read_text())).rows if row.why]
    assert main(["bench", f"{tmp_path}/mine.py:tied", "--quick", "--batch", "6"]) == 2
    assert "inputs of 8 samples, not of 6; ask for --batch 8" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_and_sigterm_keep_what_was_measured_and_leave_no_process(number, tmp_path):
    file, log = tmp_path / "b.json", tmp_path / "log"
    given = ["--quick", "--steps", "4000", "--batch", "4", "--input", "3x8x8", "--contenders", "penalty"]
    command = [sys.executable, "-m", "lpcompile", "bench", "resnet20", *given, "--json", str(file)]
    with log.open("w") as err, started(command, stdout=subprocess.DEVNULL, stderr=err) as run:
        wait_until(lambda: "round 3 " in log.read_text(), 120, "the third round of the bench", run)
        for _ in range(2):  # the second must not keep the first from ending all processes
            os.kill(run.pid, number)
            time.sleep(0.05)
        assert run.wait(60) == 130, log.read_text()
        wait_until(lambda: not session_alive(run.pid), 10, "the end of all processes of the bench")
    found = Bench.from_json(json.loads(file.read_text()))
    assert 8 <= found.row("penalty").steps < 4000 and found.row("penalty").rho > 0


def session_alive(leader):
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return False
    return True


def test_torchs_zero_bubble_takes_no_compiled_stages():
    with pytest.raises(UsageError, match="torch's zero-bubble schedule takes no stages that torch.compile made"):
        refuse(BenchRow("torch-zb"), BenchRequest("resnet20", compile=True), Planned({}, {}, 0))
