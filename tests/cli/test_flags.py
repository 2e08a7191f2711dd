"""Flags are declared once: what they are called, what their help says, and where their values go."""

from __future__ import annotations

import argparse
import dataclasses
import inspect
import re
from pathlib import Path

import pytest

from lpcompile.bench.request import BenchRequest
from lpcompile.cli import train
from lpcompile.cli.flags import DEFAULT_METHOD, FLAGS, Parser, option, settle, typed
from lpcompile.cli.main import COMMANDS, build_parser, main
from lpcompile.compare.request import CompareRequest
from lpcompile.compile import parallelize
from lpcompile.passes.auxnet.layers import INITS
from lpcompile.passes.profile.profile import SOURCES
from lpcompile.planning.auxiliary.auxnets import FORMS
from lpcompile.runtime import methods
from lpcompile.runtime.engine.settings import Settings
from lpcompile.runtime.loop.options import LoopOptions
from lpcompile.runtime.penalty import psi
from lpcompile.simulate.device_spec import BUILT_IN
from lpcompile.sources import KINDS
from lpcompile.training.job import Job
from lpcompile.training.timm_recipe import TimmRecipe
from tests.fresh_python import printed


def command(name: str) -> Parser:
    parser = Parser(name)
    COMMANDS[name][0].add_arguments(parser)
    return parser


def help_of(name: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("COLUMNS", "10000")
    return command(name).format_help()


RECORDS = {
    "train": ((Job, Settings, LoopOptions, TimmRecipe), set()),
    "compare": ((CompareRequest,), {"html", "json"}),
    "bench": ((BenchRequest,), {"quick", "gate", "html", "json"}),
}


@pytest.mark.parametrize("name", RECORDS)
def test_every_flag_is_a_field_of_what_it_is_passed_on_to(name):
    records, own = RECORDS[name]
    known = [f.name for record in records for f in dataclasses.fields(record)]
    assert set(command(name).flag_defaults) - set(known) == own
    assert len(known) == len(set(known))  # a flag has one place to go


@pytest.mark.parametrize("name", RECORDS)
def test_the_defaults_that_help_texts_name_are_those_of_the_fields(name, monkeypatch):
    text, seen = re.sub(r"\n {10,}", " ", help_of(name, monkeypatch)), 0  # one line a flag
    defaults = {f.name: f.default for record in RECORDS[name][0] for f in dataclasses.fields(record)}
    for flag in command(name).flag_defaults:
        line = re.search(rf"^  {option(flag)}[ ,].*$", text, re.MULTILINE)
        said = re.search(r"\(default ([\w.-]+)[;)]|([\w.-]+) \(default[,)]", line[0]) if line else None
        if said and defaults.get(flag) is not None and flag not in ("contenders", "methods"):
            assert (said[1] or said[2]) == re.sub(r"\.0$", "", str(defaults[flag])), flag
            seen += 1
    assert seen >= 6


def test_inspect_and_emit_have_the_defaults_of_parallelize():
    signature = inspect.signature(parallelize).parameters
    for name in ("inspect", "emit"):
        given = {n: v for n, v in command(name).flag_defaults.items() if n in signature and n != "model"}
        assert given == {n: signature[n].default for n in given} and len(given) >= 8


def test_shared_flags_are_shared_and_have_choices_that_the_code_knows():
    uses = [name for parser in map(command, COMMANDS) for name in parser.flag_defaults]
    assert {name for name in FLAGS if uses.count(name) < 2} == {"debug"}  # which main adds to all
    for name, known in (("cost", SOURCES), ("aux", FORMS), ("init", INITS)):
        assert tuple(FLAGS[name]["choices"]) == known


def test_help_lists_what_the_tables_hold(monkeypatch):
    for name in methods.METHODS:
        assert re.search(rf"[ ]{name}\b", help_of("train", monkeypatch))
    assert f"scaled (default), {', '.join([*psi.KINDS][1:])}" in help_of("train", monkeypatch)
    for name in ("inspect", "simulate"):
        assert all(spec in help_of(name, monkeypatch) for spec in BUILT_IN)
    for name in ("inspect", "emit"):
        assert ", ".join(kind.example for kind in KINDS) in help_of(name, monkeypatch)
    assert "threads, limit, ddp, fsdp, torch-gpipe, torch-1f1b, torch-zb, and methods" in help_of("bench", monkeypatch)


def test_train_tells_methods_in_a_line_each(monkeypatch):
    lines = [f"  {name:<16}{method.summary}" for name, method in methods.METHODS.items()]
    assert help_of("train", monkeypatch).splitlines()[-len(lines) - 1 :] == ["methods:", *lines]


def test_what_help_says_of_methods_is_what_they_are():
    """Said in words where reading the methods would make every --help wait for torch."""
    assert methods.DEFAULT == DEFAULT_METHOD
    small = [name for name, m in methods.METHODS.items() if m.aux_budget_consistent == 0.05]
    assert sorted(small) == ["lagrangian", "penalty"] and {m.aux_budget for m in methods.METHODS.values()} == {0.1}
    assert "(default 0.1; penalty and lagrangian with a consistent start 0.05)" in FLAGS["aux_budget"]["help"]


@pytest.mark.parametrize("arguments", [[], ["inspect"], ["emit"], ["simulate"], ["compare"], ["zoo"], ["export"]])
def test_help_needs_no_torch(arguments):
    code = f"import sys, lpcompile.cli.main as m\ntry: m.main([*{arguments}, '--help'])\nexcept SystemExit: pass\n"
    code += "assert 'torch' not in sys.modules"
    assert "usage: lpcompile" in printed(code)


def test_what_was_typed_is_known_even_if_it_is_the_default():
    arguments = build_parser().parse_args(["simulate", "resnet20", "--nodes", "1"])
    settle(arguments, arguments.flag_defaults)
    assert arguments.typed == {"model", "nodes"}
    assert (arguments.nodes, arguments.per_device, arguments.json, arguments.K) == (1, 32, False, None)


@pytest.mark.parametrize(("environment", "starts"), [
    ({}, "python -m lpcompile train"), ({"RANK": "0", "LOCAL_WORLD_SIZE": "2"}, "torchrun --nproc-per-node 2 -m"),
])  # fmt: skip
def test_after_ctrl_c_the_command_that_goes_on_starts_as_many_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], starts: str
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("sys.argv", ["lpcompile", "train", "resnet20"])
    text = train._interrupted(Job("resnet20", watch=LoopOptions(save=str(tmp_path))))
    assert text.splitlines()[-1].startswith(f"go on: {starts}") and text.endswith("train resnet20 --resume")


def test_lists_are_not_shared_between_two_calls():
    first, second = (build_parser().parse_args(["inspect", "a", "--cut", name]) for name in "xy")
    assert (first.cut, second.cut) == (["x"], ["y"])


def test_only_typed_fields_are_passed_on():
    @dataclasses.dataclass
    class Record:
        batch: int = 64
        seed: int = 3

    arguments = argparse.Namespace(batch=8, seed=0, typed=frozenset({"batch", "model"}))
    assert Record(**typed(arguments, Record)) == Record(8, 3)


PARTS = [
    "--method",
    "multiplier",
    "--beta",
    "0.5",
    "--transfer",
    "bf16",
    "--lockstep",
    "--save",
    "run",
    "--keep",
    "3",
    "--lr",
    "0.2",
    "-K",
    "3",
]


def test_train_fills_the_job_its_settings_and_its_watch(monkeypatch):

    jobs = []
    monkeypatch.setattr("lpcompile.training.train.train", jobs.append)
    assert main(["train", "resnet20", *PARTS]) == 0
    options = {"beta": 0.5, "transfer": "bf16", "lockstep": True}
    assert jobs == [
        Job("resnet20", method="multiplier", K=3, lr=0.2, options=options, watch=LoopOptions(save="run", keep=3))
    ]


def test_bench_is_quick_as_far_as_nothing_else_is_typed(monkeypatch):
    requests = []
    monkeypatch.setattr("lpcompile.bench.request.check_model", requests.append)
    monkeypatch.setattr("lpcompile.bench.run.bench", lambda found, tell: None)
    assert main(["bench", "resnet20", "--quick", "--steps", "7", "--contenders", "ddp,ddp", "--seed", "0"]) == 0
    assert requests == [BenchRequest("resnet20", contenders=("ddp",), steps=7, cost="flops")]


def test_compare_takes_methods_by_name_or_all(monkeypatch):
    found = []
    monkeypatch.setattr("lpcompile.compare.run.compare", lambda comparison, keep: found.append(comparison.request))
    assert main(["compare", "resnet20", "--methods", "bp, dgl,bp", "--target", "0.9"]) == 0
    assert main(["compare", "resnet20"]) == 0
    assert found == [CompareRequest("resnet20", methods=("bp", "dgl"), target=0.9), CompareRequest("resnet20")]
