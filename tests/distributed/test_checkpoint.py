"""A run goes on from a checkpoint bit for bit; what is saved is whole, safe to read, and the model's own."""

from __future__ import annotations

import json
import logging

import pytest
import torch

from lpcompile.core.system import checksum
from lpcompile.errors import UsageError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.launch.launch import launch
from tests.distributed import jobs

K = 2


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    return folder, launch(jobs.straight, (K, str(folder)), world=K)


def same(left, right):
    return list(left) == list(right) and all(torch.equal(left[n], right[n]) for n in left)


@pytest.mark.parametrize("step", [3, 6])  # in the first epoch, and in the second
def test_new_processes_go_on_bit_for_bit(saved, step):
    folder, expected = saved
    found = launch(jobs.resumed, (K, str(folder), step), world=K)
    for name in jobs.METHODS:
        assert same(found[name], expected[name]), name


def test_a_checkpoint_is_named_and_holds_the_plan(saved):
    folder, _ = saved
    names = sorted(p.name for p in (folder / "penalty").iterdir())
    assert names == ["step-00000003", "step-00000006", "step-00000008"]
    found = checkpoint.describe(folder / "penalty" / "step-00000008")
    assert found["K"] == K and found["plan"]["method"] == "multiplier"


@pytest.mark.parametrize("other", [1, 3])
def test_it_loads_at_another_K(saved, other, caplog):
    folder, expected = saved
    if other == 1:
        with caplog.at_level(logging.WARNING, "lpcompile"):
            state, moments, steps, lr = jobs.at_another_K(1, str(folder))
        assert "was saved with K = 2" in caplog.text and "AuxNets and their optimizers" in caplog.text
        assert len(moments) == len(list(jobs.Net().parameters()))
    else:
        state, moments, steps, lr = launch(jobs.at_another_K, (other, str(folder)), world=other)
    model = jobs.Net().state_dict()
    assert same(state, {n: expected["multiplier"][n] for n in model})
    assert moments and all(t.abs().sum() > 0 for t in moments.values())
    assert steps == jobs.STEPS + 1
    assert lr == pytest.approx(schedule_after(jobs.STEPS // 2), rel=1e-6)


def schedule_after(steps):
    optimizer = jobs.adam([torch.nn.Parameter(torch.zeros(1))])
    scheduler = jobs.one_cycle(optimizer)
    for _ in range(steps):
        optimizer.step()
        scheduler.step()
    return optimizer.param_groups[0]["lr"]


def test_it_exports_to_a_file_that_the_original_model_loads(saved, tmp_path):
    from safetensors.torch import load_file

    folder, expected = saved
    file = tmp_path / "model.safetensors"
    assert checkpoint.export(folder / "penalty", file) == len(jobs.Net().state_dict())
    model = jobs.Net(seed=4)
    model.load_state_dict(load_file(file), strict=True)
    assert all(torch.equal(t, expected["penalty"][n]) for n, t in model.state_dict().items())


def test_a_checkpoint_of_another_model_is_refused(saved):
    message = jobs.of_another_model(1, saved[0] / "penalty")
    assert "is a checkpoint of another model" in message and "norm" in message
    assert "train the model that it was made of" in message


def test_no_checkpoint_is_said(tmp_path):
    with pytest.raises(UsageError, match="there is no checkpoint in"):
        checkpoint.find(tmp_path)


def test_nothing_is_unpickled(saved, monkeypatch):
    import pickle

    def refuse(*args, **kwargs):
        raise AssertionError("unpickled")

    monkeypatch.setattr(pickle, "load", refuse)
    monkeypatch.setattr(pickle, "Unpickler", refuse)
    monkeypatch.setattr(torch, "load", refuse)
    jobs.at_another_K(1, str(saved[0]))


def test_an_index_cannot_name_other_files(saved, tmp_path):
    import shutil

    copy = tmp_path / "step-00000001"
    shutil.copytree(saved[0] / "penalty" / "step-00000008", copy)
    index = json.loads((copy / "index.json").read_text())
    index["model/0.linear.weight"] = "../rank0.safetensors"
    (copy / "index.json").write_text(json.dumps(index))
    listed = json.loads((copy / "checksums.json").read_text()) | checksum.sums(copy, ["index.json"])
    (copy / "checksums.json").write_text(json.dumps(listed | {checksum.OWN: checksum.of_data(listed)}))
    with pytest.raises(UsageError, match="which is not one of its own"):
        checkpoint.model_state(copy)
