"""One configuration of the recorder, widened where something is refused."""

from __future__ import annotations

import gc
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from lpcompile.passes.capture.attempt import Attempt
from lpcompile.passes.capture.record.refusal import Unrecordable
from lpcompile.passes.capture.recording import Again, Recording
from lpcompile.passes.capture.signature import make_signature, rebuilder


class Whole(nn.Module):
    def __init__(self, draws: bool) -> None:
        super().__init__()
        self.layer, self.draws = nn.Linear(2, 2), draws

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (random.random() if self.draws else 1.0)


class Model(nn.Module):
    def __init__(self, draws: bool = False) -> None:
        super().__init__()
        self.inner = Whole(draws)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


def attempt_for(model: nn.Module, x: Tensor) -> tuple[Attempt, Any]:
    signature = make_signature(model, (x,), {})
    return Attempt(model, signature, kept_whole=set(), real=False, specialise=False), rebuilder(signature)


def targets(recording: Recording) -> list[str]:
    return [str(n.target) for n in recording.graph.nodes if n.op == "call_module"]


def test_a_recording_has_the_graph_and_the_structure_of_the_output() -> None:
    x = torch.ones(3, 2)
    attempt, rebuild = attempt_for(Model(), x)
    recording = attempt.record([x], True, rebuild)
    assert targets(recording) == ["inner.layer"] and recording.tree.count == 1
    assert not recording.reads_training, "evaluation is the same graph"


def test_the_model_keeps_its_mode_and_its_attributes() -> None:
    x, model = torch.ones(3, 2), Model()
    attempt, rebuild = attempt_for(model, x)
    attempt.record([x], False, rebuild)
    assert model.training and not isinstance(model.inner.layer.weight, FakeTensor)


def test_a_draw_from_pythons_generator_is_recorded_twice_to_find_its_module() -> None:
    x = torch.ones(3, 2)
    attempt, rebuild = attempt_for(Model(draws=True), x)
    with pytest.raises(Again):
        attempt.record([x], True, rebuild)
    with pytest.raises(Unrecordable, match="Python's or numpy's random generator") as error:
        attempt.record([x], True, rebuild)
    assert error.value.path == "inner"
    attempt.keep_whole(error.value)
    assert targets(attempt.record([x], True, rebuild)) == ["inner"]
    assert attempt.notes[0].startswith("inner is kept whole: forward draws from Python's")


def test_from_the_second_refusal_on_all_modules_of_a_class_stay_whole() -> None:
    model = nn.Sequential(*(Whole(False) for _ in range(4)))
    attempt, _ = attempt_for(model, torch.ones(3, 2))
    attempt.keep_whole(Unrecordable("0", "it branches"))
    assert attempt.kept_whole == {"0"}
    attempt.keep_whole(Unrecordable("1", "it branches"))
    assert attempt.kept_whole == {"0", "1", "2", "3"}
    assert attempt.notes[1] == "1 is kept whole (and 2 more Whole): it branches"


@pytest.mark.parametrize("real", [False, True])
def test_garbage_waits_while_fake_tensors_are_recorded_and_not_while_real_ones_are(real: bool) -> None:
    enabled = []

    class Looks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            enabled.append(gc.isenabled())
            return x + 1

    x = torch.ones(3, 2)
    attempt, rebuild = attempt_for(Looks(), x)
    attempt.real = real
    attempt.record([x], True, rebuild)
    assert enabled == [real] and gc.isenabled()
