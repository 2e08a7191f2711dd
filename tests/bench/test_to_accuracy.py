"""Training to an accuracy: when it ends, what the table says, and a short real run."""

from __future__ import annotations

import json

import pytest

from lpcompile.bench import page as bench_html
from lpcompile.bench import rank
from lpcompile.bench import table as bench_table
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench, BenchRow
from lpcompile.bench.to_accuracy import accuracy_cells, to_accuracy
from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from tests.bench.small_bench import small_bench


class Learning:
    """A contender whose accuracy grows by a tenth with each pass of three steps."""

    class work:
        train = range(3)

    def __init__(self):
        self.steps = self.ends = 0

    def step(self):
        self.steps += 1

    def finish(self):
        self.ends += 1

    def accuracy(self):
        return self.steps / 30


def test_training_ends_with_the_accuracy_or_with_the_last_pass():
    one = Learning()
    curve = rank.train_to(one, 0.2, 9, "cpu")
    assert [(steps, accuracy) for steps, _, accuracy in curve] == [(3, 0.1), (6, 0.2)] and one.ends == 2
    assert curve[0][1] < curve[1][1]
    assert len(rank.train_to(Learning(), 0.95, 4, "cpu")) == 4


def reached() -> Bench:
    found = small_bench(ddp=1.8, stream=1.9)
    found.request = BenchRequest("resnet20", contenders=("ddp", "stream"), to_accuracy=0.9, epochs=3)
    curves = {"plain": [[10, 8.0, 0.92]], "ddp": [[10, 4.0, 0.91]], "stream": [[10, 2.0, 0.88], [20, 4.0, 0.85]]}
    for row in found.rows:
        row.curve = curves.get(row.name, [])
    return found


def test_the_table_has_seconds_only_of_those_that_reached_it(tmp_path):
    found = reached()
    rows = {row.name: accuracy_cells(row, found, row.name)[1:] for row in found.rows if row.curve}
    assert rows["ddp"] == ["4.0", "2.00", "10", "400.0", "0.910"]
    assert rows["stream"] == ["–", "–", "20", "200.0", "0.880"]
    text, page = bench_table.text(found), bench_html.page(found)
    for shown in ("training to a test accuracy of 0.9 on digits", "at most 3 passes", "learning rate of 0.05"):
        assert shown in text and shown in page
    found.save(tmp_path / "b.json")
    assert Bench.from_json(json.loads((tmp_path / "b.json").read_text())) == found


@pytest.mark.parametrize(("given", "says"), [
    ({"to_accuracy": 90.0}, "such as 0.9"), ({"to_accuracy": 0.9, "epochs": 0}, "--epochs 0"),
    ({"to_accuracy": 0.9, "lr": -1.0}, "--lr -1"), ({"to_accuracy": 0.9, "data": "no/such"}, "no such folder"),
    ({"to_accuracy": 0.9, "compile": True}, "leave --hosts, --compile"),
])  # fmt: skip
def test_what_cannot_be_is_refused_before_anything_starts(given, says):
    with pytest.raises(UsageError, match=says):
        BenchRequest("resnet20", **given).check()


def test_flags_of_a_data_set_need_an_accuracy(capsys):
    assert main(["bench", "resnet20", "--epochs", "3"]) == 2
    assert "--epochs has no effect without --to-accuracy" in capsys.readouterr().err


def test_an_exact_method_learns_what_plain_training_learns():
    """One pass over the digits: same batches, same bits, so the same accuracy; torch's stages make one model again."""
    request = BenchRequest("resnet20", contenders=("bp", "torch-1f1b"), batch=256, cost="flops", to_accuracy=1.0,
                           epochs=1, timeout=300)  # fmt: skip
    found = Bench(request, rows=[BenchRow(name) for name in ("plain", "limit", *request.contenders)])
    to_accuracy(found, lambda _: None)
    plain, bp, torchs = (found.trained(name).reached for name in ("plain", "bp", "torch-1f1b"))
    assert plain[0] == bp[0] == 5 and plain[2] == pytest.approx(bp[2], abs=1e-6) and 0 < torchs[2] < 1
    assert found.trained("limit") is None and not any(row.why for row in found.rows)
