"""support.py, which an emitted folder uses without lpcompile."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from lpcompile.emit.support import at, fill, get, load_stages, put, serial, share, tie
from tests.emit.programs import program_of


def test_stages_of_a_folder_are_the_model_in_both_modes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU()) for _ in range(4)))
    x = torch.randn(3, 4)
    folder = program_of(model, 2, x).emit(tmp_path / "program")
    for training in (False, True):
        stages = load_stages(folder, training)
        assert len(stages) == 2
        assert torch.equal(serial(stages, x, folder=folder), model.train(training)(x))


def test_support_needs_no_lpcompile(tmp_path: Path) -> None:
    folder = program_of(nn.Sequential(nn.Linear(4, 4)), 1, torch.randn(3, 4)).emit(tmp_path / "program")
    code = "import sys, support; support.load_stages(); assert 'lpcompile' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", code], cwd=folder, check=False, timeout=120).returncode == 0


def test_put_keeps_requires_grad_and_reaches_any_name() -> None:
    module = nn.Module()
    module._modules["a b"] = nn.Linear(2, 2).requires_grad_(False)
    put(module, "a b.weight", torch.ones(2, 2))
    assert torch.equal(get(module, "a b.weight"), torch.ones(2, 2))
    assert not get(module, "a b.weight").requires_grad
    assert at(module, "a b") is module._modules["a b"]
    assert get(module, "nothing") is None


def test_an_rnn_runs_with_the_tensor_that_was_put() -> None:
    rnn = nn.RNN(2, 2)
    with torch.no_grad():
        put(rnn, "weight_ih_l0", torch.zeros(2, 2))
        assert torch.equal(rnn(torch.ones(1, 1, 2))[0], rnn(torch.zeros(1, 1, 2))[0])


def test_fill_lays_tensors_out_as_they_were() -> None:
    conv = nn.Conv2d(2, 2, 2)
    like = torch.randn(2, 2, 2, 2).to(memory_format=torch.channels_last)
    fill(conv, {"weight": like.contiguous()}, {"weight": list(like.stride())})
    assert conv.weight.stride() == like.stride() and torch.equal(conv.weight, like)


def test_ties_and_shared_layers_become_one_object() -> None:
    parts = {"stage_0": nn.Sequential(nn.Linear(2, 2)), "stage_1": nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))}
    tie([[["stage_0", "0.weight"], ["stage_1", "1.weight"], ["stage_9", "0.weight"]]], parts)
    share([[["stage_0", "0"], ["stage_1", "0"]]], parts)
    assert parts["stage_1"][1].weight is parts["stage_0"][0].weight
    assert parts["stage_1"][0] is parts["stage_0"][0]
