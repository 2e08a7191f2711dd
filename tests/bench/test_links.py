"""A bench over hosts that are apart: names of contenders, plans for a link, tables, and a short real run."""

from __future__ import annotations

import json

import pytest

from lpcompile.bench import page as bench_html
from lpcompile.bench import table as bench_table
from lpcompile.bench.contenders.ways import exists, planned_as, slack_of, transfer_of
from lpcompile.bench.links import SHARE_OF_BYTES, forms_of
from lpcompile.bench.request import BenchRequest
from lpcompile.bench.results import Bench
from lpcompile.bench.runner import patience
from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.runtime.comm.link import LinkTimes
from lpcompile.simulate.device_spec import THIS_MACHINE, LinkSpec, apart
from tests.bench.small_bench import over_a_link, small_bench
from tests.runtime.launch.test_hosts import needs_hosts


def test_a_contender_may_have_messages_of_its_own_form():
    assert all(map(exists, ("ddp+bf16", "stream+int8", "1f1b+bf16", "stream")))
    assert all(map(exists, ("stream+slack", "stream+int8+slack", "stream+slack+bf16")))
    assert not any(map(exists, ("1f1b+slack", "ddp+slack", "stream+slack+slack", "stream+int8+bf16", "torch-zb+slack")))
    assert (slack_of("stream+int8+slack"), slack_of("stream+int8")) == (1, 0)
    assert transfer_of("stream+slack", None) is None and transfer_of("stream+slack+int8", None) == "int8"
    assert not any(map(exists, ("ddp+int8", "fsdp+bf16", "plain+bf16", "stream+int4", "stream+")))
    assert planned_as("stream+int8") == "stream" and planned_as("torch-1f1b") == "1f1b"
    assert transfer_of("stream+int8", "bf16") == "int8" and transfer_of("stream", "bf16") == "bf16"
    assert transfer_of("ddp", "int8") == "bf16" and transfer_of("ddp", None) is None


@pytest.mark.parametrize(("given", "says"), [
    ({"rate": ("1gbit",)}, "give --hosts 2 with it"), ({"hosts": 3, "rate": ("1gbit",)}, "-K 2 are fewer"),
    ({"hosts": 2, "rate": ("fast",)}, "'fast' is no rate of a link"),
    ({"hosts": 2, "rate": ("1gbit",), "device": "cuda"}, "--device cuda is not"),
])  # fmt: skip
def test_hosts_and_rates_are_checked_before_anything_starts(given, says):
    with pytest.raises(UsageError, match=says):
        BenchRequest("resnet20", **given).check()


def test_planners_see_a_link_that_is_faster_for_messages_in_fewer_bits():
    request = BenchRequest("resnet20", contenders=("ddp", "stream", "stream+int8"))
    found = forms_of({"1gbit": LinkTimes(120_000.0, 0.1)}, request)["1gbit"]
    assert {form: link.bytes_per_ms for form, link in found.items()} == {None: 120_000.0, "int8": 480_000.0}
    assert SHARE_OF_BYTES["bf16"] == 0.5


def test_ranks_that_wait_for_a_slow_link_are_not_taken_for_dead():
    """Of 31 million parameters DDP sends 124 MB a step and FSDP half as much again: 60 s at 25 Mb/s."""
    assert patience(BenchRequest("gpt_30m"), 124_000_000) == 60
    assert patience(BenchRequest("gpt_30m", hosts=2, rate=("1gbit", "25mbit")), 124_000_000) > 2 * 60
    assert patience(BenchRequest("gpt_30m", hosts=2, rate=("10gbit",), timeout=90), 124_000_000) == 90


def test_a_slow_link_leaves_the_cores_free_and_a_fast_one_does_not():
    slow, fast = apart(LinkSpec(0.0125, 100.0)), apart(LinkSpec(10.0, 10.0))
    assert slow.overlap > 0.99 and fast.overlap == THIS_MACHINE.overlap and slow.gpus == 1
    assert slow.across.time(12_500) == pytest.approx(1.1)


def test_the_table_of_a_rate_has_ratios_to_ddp_to_no_limit_and_to_the_simulator(tmp_path):
    found = over_a_link()
    text = bench_table.text(found)
    assert "over links of 25mbit (measured 0.024 Gb/s, 120 µs)" in text
    line = next(li for li in text.splitlines() if li.startswith("| stream, cut for this link"))
    assert [c.strip() for c in line.split("|")[2:7]] == ["100.0 (100.0-100.0)", "3", "20.00", "0.53", "1.00"]
    assert "95.0 (-5 %)" in line and "out of <luck>" in text and "network namespaces" in text
    for row in found.rows:  # "ddp+bf16" is data parallelism, "stream+int8" a delayed method
        row.name = {"ddp": "ddp+bf16", "stream": "stream+int8"}.get(row.name, row.name)
    page = bench_html.page(found)
    assert "data parallel: ρ = 1.800" in page and "delayed: ρ = 1.900" in page
    assert "25mbit" in page and "out of &lt;luck&gt;" in page and "95.0 (-5 %)" in page
    found.save(tmp_path / "b.json")
    assert Bench.from_json(json.loads((tmp_path / "b.json").read_text())) == found


def test_a_machine_that_was_not_alone_is_warned_about():
    found = small_bench(ddp=1.8)
    assert "WARNING" not in bench_table.text(found)
    found.others = 0.31
    assert "other programs took 31 % of its cores' time" in bench_table.text(found)


@needs_hosts
def test_a_quick_run_over_a_real_link(tmp_path, capsys):
    """Form, not figures: DDP and a pipeline with 8-bit messages between two namespaces."""
    file = tmp_path / "b.json"
    given = ["--hosts", "2", "--rate", "200mbit", "--quick", "--batch", "8", "--timeout", "300"]
    assert main(["bench", "gpt_tiny", *given, "--contenders", "ddp,stream+int8+slack", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    (one,) = Bench.from_json(json.loads(file.read_text())).links
    assert [r.name for r in one.rows if r.step and not r.why] == ["ddp", "stream+int8+slack"]
    assert 0 < one.gigabytes_per_s < 0.03 and "stream+int8+slack" in one.simulated
    assert "over links of 200mbit" in out and "wrong" not in out
