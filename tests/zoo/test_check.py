"""What the zoo's checks find, and how they tell it."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest
import torch
from torch import nn

from lpcompile.compile import parallelize
from lpcompile.zoo import find
from lpcompile.zoo.aux_check import aux_check
from lpcompile.zoo.check import check, differences, short
from lpcompile.zoo.emit_check import emit_check
from lpcompile.zoo.entry import ZooEntry, ZooRow, floats
from lpcompile.zoo.run import report, run


def small(depth: int = 6) -> nn.Module:
    return nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)) for _ in range(depth)))


def entry(make: object = small, name: str = "user:Small") -> ZooEntry:
    return ZooEntry(name, "user", lambda: (make(), floats(4)))  # type: ignore[operator]


def test_a_model_that_is_exact_has_a_row_with_its_plan() -> None:
    row = check(entry(), K=3, peers=False)
    assert (row["status"], row["K"], row["width"], row["batch_free"]) == ("exact", 3, 1, True)
    assert row["parameters"] == 6 * (4 * 4 + 4 + 2 * 4) and "pipeline" not in row


def test_fewer_stages_than_asked_are_told_and_a_model_that_does_not_build_is_no_crash() -> None:
    row = check(entry(lambda: small(2)), K=9, peers=False)
    assert row["status"] == "exact" and row["K"] < 9 and "K = 9 stages are too many" in row["fewer"]
    row = check(entry(lambda: 1 / 0))
    assert row["status"] == "does not build" and row["why"] == "ZeroDivisionError: division by zero"


def test_a_peer_that_traces_the_model_is_exact() -> None:
    row = check(entry(), K=2)
    assert (row["symbolic_trace"], row["pipeline"]) == ("exact", "exact")


@pytest.mark.parametrize("what", ["output 0", "gradient of 0.0.weight", "buffer 0.1.running_mean"])
def test_a_difference_in_the_last_digits_is_found(what: str) -> None:
    model = small(2).train()
    other = copy.deepcopy(model)
    inputs = floats(4)(3)
    assert differences(model, other, inputs, owner=other) == []
    if what.startswith("gradient"):
        other.get_parameter("0.0.weight").register_hook(lambda gradient: gradient + 1e-6)

    def call(x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = other(x)
        if what.startswith("buffer"):
            other.get_buffer("0.1.running_mean").data += 1e-6
        return out + 1e-6 if what.startswith("output") else out

    assert f"{what} (train)" in differences(model, call, inputs, evaluate=False, owner=other)


def test_auxnets_and_emitted_code_are_checked() -> None:
    model, inputs = small().train(), floats(4)(3)
    program = parallelize(model, 3, example_inputs=inputs[0], cost="flops", gate=False)
    row = aux_check(model, program, inputs)
    assert row["aux"] == "right" and len(row["aux_kinds"]) == 3  # two at K = 3, one at K = 2
    assert emit_check(model, program, inputs)["emit"] == "exact"


def row(name: str, **more: object) -> ZooRow:
    return {"name": name, "suite": name.split(":")[0], "status": "exact", "K": 4, "imbalance": 1.1, **more}


def test_the_report_counts_by_suite_and_names_what_is_not_exact() -> None:
    rows = [
        row("timm:a"),
        row("timm:b", K=2, fewer="too many"),
        row("hf:c", status="refused", why="a branch"),
        row("hf:d", status="does not build", why="no"),
        row("hf:e", imbalance=1.5, emit="wrong: x", aux="AuxNet 0"),
    ]
    text = report(rows, 4).splitlines()
    timm = next(line for line in text if line.startswith("timm")).split("  ")
    assert [part.strip() for part in timm if part.strip()] == ["timm", "2", "1 (50 %)", "1 (50 %)", "0 (0 %)",
                                                               "0 (0 %)", "1 (50 %)", "-", "-", "-", "-"]  # fmt: skip
    assert next(line for line in text if line.startswith("all")).split()[1] == "4"  # what does not build is left out
    misses = {"  hf:c: refused, a branch", "  hf:d: does not build, no", "  timm:b: exact, too many"}
    assert misses | {"  hf:e: exact, wrong: x", "  hf:e: exact, AuxNet 0"} <= set(text)
    assert text[-1] == "max/mean of 1.25 or more: hf:e 1.50"


def test_models_in_the_output_file_are_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text(json.dumps(row("user:UNet")) + "\n\n")
    assert run([find("user:UNet")], output=file) == [row("user:UNet")]


def test_long_errors_are_cut() -> None:
    assert short(ValueError("a\n  b " + "c" * 500)) == "ValueError: a b " + "c" * 296
