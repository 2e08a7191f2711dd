"""A flag that a mode would ignore is refused, before anything is loaded or measured."""

from __future__ import annotations

import json

import pytest

from lpcompile import sources
from lpcompile.cli.main import main
from lpcompile.errors import UsageError
from lpcompile.planning import print_after
from lpcompile.training.job import Job
from tests.simulate.even_plan import even_plan


@pytest.fixture(autouse=True)
def nothing_is_done(monkeypatch, tmp_path):
    """Every way to begin fails the test; there is a saved plan in the current folder."""
    monkeypatch.chdir(tmp_path)
    even_plan(2, units=8).save("plan.json")

    def begun(*given: object, **named: object) -> None:
        pytest.fail("it began")

    monkeypatch.setattr(sources, "load", begun)
    for place in ("simulate.calibrate.calibrate", "simulate.check.check", "simulate.paper_table.paper_rows",
                  "training.train.train", "zoo.run.run"):  # fmt: skip
        monkeypatch.setattr(f"lpcompile.{place}", begun)


def refused(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(line.split()) == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    "flag",
    ["--method multiplier", "--cost flops", "--input 3x32x32", "--json", "--trace t.json", "--nodes 1", "--gpus 2",
     "--per-device 32"],
)  # fmt: skip
def test_a_check_reads_few_flags(flag, capsys):
    error = refused(f"simulate resnet20 --check {flag}", capsys)
    assert f"{flag.split()[0]} has no effect with --check, which reads only -K, --batch, --device-spec" in error


@pytest.mark.parametrize("spec", ["v100", "h100", "nominal"])
def test_a_check_is_of_this_machine(spec, capsys):
    error = refused(f"simulate resnet20 --check --device-spec {spec}", capsys)
    assert f"--device-spec {spec}: --check measures this machine; leave it out, or give this-machine" in error


def test_a_check_is_of_one_number_of_stages(capsys):
    assert "-K 2,4: --check measures one number of stages" in refused("simulate resnet20 --check -K 2,4", capsys)


@pytest.mark.parametrize("spec", ["this-machine", "mine.json"])
def test_a_check_takes_this_machine_and_its_calibration(spec, monkeypatch, tmp_path, capsys):
    from lpcompile.simulate.device_spec import THIS_MACHINE

    (tmp_path / "mine.json").write_text(json.dumps(THIS_MACHINE.to_json()))
    asked = []
    monkeypatch.setattr("lpcompile.simulate.check.check", lambda models, **given: asked.append((models, given)) or [])
    assert main(["simulate", "resnet20", "--check", "-K", "3", "--device-spec", spec]) == 0
    assert asked == [(["resnet20"], {"K": 3, "batch": None, "device": THIS_MACHINE})]


@pytest.mark.parametrize(
    "flag",
    ["-K 2", "--method multiplier", "--batch 8", "--nodes 2", "--gpus 8", "--per-device 4", "--input 8", "--cost flops",
     "--trace t.json", "--check", "--calibrate c.json"],
)  # fmt: skip
def test_the_papers_table_reads_few_flags(flag, capsys):
    error = refused(f"simulate --paper {flag}", capsys)
    assert (
        f"{flag.split()[0]} has no effect with --paper, which reads only --device-spec, --json; leave it out" in error
    )


def test_the_papers_table_has_its_own_models(capsys):
    assert "MODEL has no effect with --paper" in refused("simulate resnet20 --paper", capsys)


@pytest.mark.parametrize("flag", ["-K 2", "--method bp", "--device-spec h100", "--json", "--check"])
def test_a_calibration_reads_few_flags(flag, capsys):
    error = refused(f"simulate --calibrate spec.json {flag}", capsys)
    assert f"{flag.split()[0]} has no effect with --calibrate, which reads only --gpus; leave it out" in error


@pytest.mark.parametrize("flag", ["--input 8", "--cost measured"])
def test_a_saved_plan_has_its_inputs_and_costs(flag, capsys):
    error = refused(f"simulate plan.json {flag}", capsys)
    assert f"{flag.split()[0]} has no effect with a saved plan; leave it out" in error


@pytest.mark.parametrize("flag", ["--graph", "--cuts", "--units"])
def test_json_of_inspect_has_no_tables(flag, capsys):
    assert f"{flag} has no effect with --json; leave it out" in refused(f"inspect resnet20 --json {flag}", capsys)
    assert f"{flag} has no effect with --json; leave it out" in refused(f"inspect plan.json --json {flag}", capsys)


@pytest.mark.parametrize("flag", ["--threads 2", "--no-cache"])
@pytest.mark.parametrize("command", ["inspect resnet20", "emit resnet20 -o out"])
def test_counted_costs_are_not_measured(command, flag, capsys):
    error = refused(f"{command} --cost flops {flag}", capsys)
    assert f"{flag.split()[0]} has no effect with --cost flops; leave it out" in error


def test_a_graph_cannot_be_written_of_a_saved_plan(capsys):
    assert "neither cuts nor a graph" in refused("inspect plan.json --graph-file g.dot", capsys)
    assert "--print-after cannot be applied to a saved plan" in refused("inspect plan.json --print-after cuts", capsys)


@pytest.mark.parametrize("flag", ["--save-every 5", "--keep 1"])
def test_checkpoints_need_a_folder(flag, capsys):
    error = refused(f"train resnet20 {flag}", capsys)
    assert f"{flag.split()[0]} has no effect without --save; give both, or leave it out" in error


@pytest.mark.parametrize("flag", ["--cost flops", "--aux tied", "--aux-budget 0.1", "--aux-dtype bf16", "--init copy"])
def test_a_plan_to_follow_decides_costs_and_auxnets(flag, capsys):
    error = refused(f"train resnet20 --plan plan.json {flag}", capsys)
    assert f"{flag.split()[0]} has no effect with --plan; leave it out" in error


@pytest.mark.parametrize(
    "line",
    ["bp --beta 1", "1f1b --psi l1", "multiplier --buffer 4", "dgl --buffer-policy newest", "zbh2 --warmup 9",
     "stream --warmup-violation 0.1", "1f1b --finish 9", "dgl --warmup 9"],
)  # fmt: skip
def test_a_method_without_penalty_or_buffer_has_no_options_for_them(line, capsys):
    method, flag, _ = line.split()
    error = refused(f"train resnet20 --method {line}", capsys)
    assert f"{flag} has no effect with --method {method}; leave it out" in error


def test_a_plan_to_follow_has_as_many_stages_as_there_are_ranks(capsys):
    error = refused("train resnet20 --plan plan.json -K 3", capsys)
    assert "--plan plan.json has 2 stages and -K is 3; give -K 2, or another plan" in error


@pytest.mark.parametrize("command", ["emit plan.json -o out", "simulate plan.json --check"])
def test_a_saved_plan_is_no_model(command, capsys):
    assert "plan.json is a saved plan, which" in refused(command, capsys)


def test_named_models_of_the_zoo_are_checked_however_heavy(capsys):
    assert "--heavy has no effect on models that are named" in refused("zoo user:EarlyExits --heavy", capsys)


def test_passes_to_print_after_are_checked_and_handed_on(monkeypatch, capsys):
    monkeypatch.setattr(print_after, "_requested", ())
    error = refused("inspect resnet20 --print-after cuts,cats", capsys)
    assert "there is no pass 'cats'; the closest is 'cuts', all are capture, cuts, " in error
    assert print_after.requested(["cuts"], ["cuts"]) == set()
    with pytest.raises(pytest.fail.Exception, match="it began"):
        main(["inspect", "resnet20", "--print-after", "cuts, plan"])
    assert print_after.requested(["capture", "cuts", "plan"], ["capture", "cuts", "plan"]) == {"cuts", "plan"}


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("study smoke --table --methods stream", "--methods"),
        ("study smoke --times --epochs 3", "--epochs"),
        ("paper 1 2 --data digits", "--data"),
        ("paper 4 --show --jobs 2", "--jobs"),
        ("compare resnet20 --methods bp,stream --init fresh", "--init"),
        ("compare resnet20 --methods dgl --auxnet resnet20", "--auxnet"),
        ("train resnet20 --log-every 3", "--log-every"),
        ("train resnet20 -K 1 --method penalty --beta 2", "--beta"),
        ("train resnet20 --method penalty-stored --aux tied", "--aux"),
        ("train gpt_tiny --data text:book.txt --size 9", "--size"),
        ("inspect resnet20 --cost flops --method dgl --aux tied", "--aux"),
        ("emit resnet20 -o out --method dgl@0.5,bp --auxnet resnet20", "--auxnet"),
    ],
)
def test_what_nothing_reads_is_refused(line, flag, capsys):
    assert f"{flag} has no effect with " in refused(line, capsys)


@pytest.mark.parametrize(
    ("contenders", "flag"),
    [("ddp", "cost"), ("fsdp,threads", "transfer"), ("stream,torch-1f1b", "aux_dtype"), ("ddp+bf16", "init")],
)
def test_contenders_read_the_flags_that_they_have_a_use_for(contenders, flag):
    from lpcompile.cli.bench import unread_by

    assert flag in unread_by(tuple(contenders.split(",")))
    assert unread_by(("ddp", "penalty")) == []


@pytest.mark.parametrize("command", ["train", "compare"])
def test_images_have_one_size(command, capsys):
    error = refused(f"{command} resnet20 --input 3x8x8 --size 9", capsys)
    assert "--size 9 and --input 3x8x8 are of different images; give one" in error


@pytest.mark.parametrize("name", ["K", "replicas", "batch", "epochs"])
def test_counts_are_at_least_one(name):
    with pytest.raises(UsageError, match=f"{name} 0.*: all are numbers of 1 or more"):
        Job("resnet20", **{name: 0}).check()
