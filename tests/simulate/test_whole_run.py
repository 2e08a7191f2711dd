"""A recipe is planned for its longest phase, and its whole run is predicted from all of them."""

from __future__ import annotations

import json

import pytest
import torch

import lpcompile
from lpcompile.cli.compare import method_names
from lpcompile.cli.main import main
from lpcompile.core.plan import Plan
from lpcompile.runtime.methods.recipe import End, Phase
from lpcompile.simulate.device_spec import device_spec
from lpcompile.simulate.outlook import outlook
from lpcompile.simulate.scaling import split
from lpcompile.simulate.whole_run import whole_run

RECIPE = "1f1b[micro=4]@0.25,stream[micro=4]@0.75,penalty"


def planned(method):
    model, x = lpcompile.models.resnet20(), torch.randn(16, 3, 8, 8)
    return lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", method=method, gate=False)


def test_a_recipe_is_planned_for_its_longest_phase_and_remembered():
    program = planned(RECIPE)
    assert program.plan.method == "stream" and program.plan.training == RECIPE
    assert Plan.from_json(program.plan.to_json()) == program.plan and f"trains by {RECIPE}" in str(program.plan)
    again = planned([Phase("1f1b", {"micro": 4}, (End("share", 0.25),)),
                     Phase("stream", {"micro": 4}, (End("share", 0.75),)), Phase("penalty")])  # fmt: skip
    assert again.plan == program.plan
    assert planned("stream").plan.training == "stream" and planned("stream").plan.recipe == ""


def test_the_auxnets_of_a_phase_are_derived_though_the_stages_are_planned_without():
    program = planned("1f1b[micro=2]@2steps,penalty@4steps,stream[micro=2]")
    trainer = program.trainer(torch.nn.functional.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.1),
                              warmup=0)  # fmt: skip
    batch = torch.randn(16, 3, 8, 8), torch.arange(16) % 10
    found = [trainer.step(*batch) for _ in range(5)]
    assert [one["method"] for one in found] == ["1f1b"] * 2 + ["penalty"] * 2 + ["stream"]
    assert "violation 1" in found[2] and len(program.auxnets) == 1 and program.plan.boundaries[0].aux is None


def test_the_whole_run_is_the_time_of_its_phases():
    plan = planned(RECIPE).plan
    run = whole_run(plan)
    assert [one.share for one in run.phases] == pytest.approx([0.25, 0.5, 0.25])
    assert 1 / run.rho == pytest.approx(sum(one.share / one.rho for one in run.phases))
    assert run.phases[0].rho < run.phases[1].rho and run.phases[0].micro == 4
    assert outlook(plan).run == run and whole_run(planned("stream").plan) is None


def test_scaling_weighs_the_phases_too():
    plan, device = planned("bp").plan, device_spec("v100")
    alone = [split(plan, device, method, 2, 1, 16) for method in ("1f1b", "stream")]
    both = split(plan, device, "1f1b@0.5,stream", 2, 1, 16)
    assert both.step == pytest.approx(sum(one.step for one in alone) / 2, rel=0.05)
    assert both.method == "1f1b@0.5,stream" and both.memory >= max(one.memory for one in alone) * 0.99


def test_the_commands_take_recipes(capsys):
    assert main(["inspect", "resnet20", "-K", "2", "--batch", "16", "--cost", "flops", "--method", RECIPE]) == 0
    text = capsys.readouterr().out
    assert "whole run: ρ =" in text and "penalty" in text
    assert main(["inspect", "resnet20", "-K", "2", "--cost", "flops", "--method", "zb@0.5,stream", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["outlook"]["run"]["rho"] > 1
    assert main(["simulate", "resnet20", "--gpus", "2", "--batch", "64", "--method", "1f1b@0.5,stream"]) == 0
    assert "1f1b@0.5,stream" in capsys.readouterr().out
    assert method_names("1f1b,penalty@0.5,stream,zb") == ("1f1b", "penalty@0.5,stream", "zb")
    assert main(["train", "resnet20", "--method", "penalti@0.5,stream"]) == 2
    assert "there is no method 'penalti'" in capsys.readouterr().err
