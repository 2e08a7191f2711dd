"""Whether checkpoints can be written is found out before training; a disk that fills up later gets one more try."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections import namedtuple

import pytest
import torch
import torch.nn.functional as F

from lpcompile.errors import TrainingError
from lpcompile.runtime.checkpoint import room, storage
from lpcompile.runtime.checkpoint.save import SaveError
from lpcompile.runtime.launch.launch import launch
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import batches, compiled, norm_mlp, sgd

DATA = batches(4, dtype=torch.float32)
SAVE = storage.save_file


def trained(folder, epochs=1, **options):
    program = compiled(norm_mlp(), 2, DATA[0][0])
    t = program.trainer(F.cross_entropy, optimizer=sgd, method="bp")
    watch = LoopOptions(**{"save": str(folder), "save_every": 1, "evaluate_every": 0, "train_batches": 0, **options})
    run(t, DATA, epochs, watch=watch)
    return t


def full_disk(times, on_rank=None):
    """`save_file` that fails these times, counted from 1, perhaps on one rank only."""
    count = [0]

    def save_file(tensors, file):
        count[0] += 1
        if count[0] in times and (on_rank is None or file.name == f"rank{on_rank}.safetensors"):
            raise OSError(errno.ENOSPC, "No space left on device", str(file))
        SAVE(tensors, file)

    return save_file


def names(folder):
    return sorted(p.name for p in folder.iterdir())


def test_a_full_disk_gets_another_try_at_the_next_checkpoint(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(storage, "save_file", full_disk({2}))
    with caplog.at_level(logging.ERROR, "lpcompile"):
        trained(tmp_path)
    assert "no checkpoint can be written at step 2: rank 0: [Errno 28] No space left on device" in caplog.text
    assert "training goes on, and ends if the next checkpoint, at step 3, cannot be written either" in caplog.text
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


@pytest.mark.parametrize(("times", "options", "step", "left"), [
    ({2, 3}, {}, 3, ["step-00000001"]), ({2}, {"save_strict": True}, 2, ["step-00000001"]),
    ({4}, {}, 4, ["step-00000002", "step-00000003"]),
])  # fmt: skip
def test_a_disk_that_stays_full_ends_the_run_and_leaves_older_checkpoints(
    tmp_path, monkeypatch, times, options, step, left
):
    monkeypatch.setattr(storage, "save_file", full_disk(times))
    with pytest.raises(SaveError, match=f"no checkpoint can be written at step {step}: .*No space left on device"):
        trained(tmp_path, **options)
    assert names(tmp_path) == left


def on_one_rank(folder):
    storage.save_file = full_disk({2}, on_rank=1)
    return trained(folder).steps


def test_a_disk_that_is_full_for_one_rank_is_known_to_all(tmp_path):
    assert launch(on_one_rank, (str(tmp_path),), world=2) == 4
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_two_runs_do_not_save_into_one_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(room, "PATIENCE", 0.1)
    held = room._locked(tmp_path)
    with pytest.raises(TrainingError, match=r"another run is saving into .*; wait until it has ended, or give --save"):
        trained(tmp_path)
    os.close(held)  # as when its process has ended
    trained(tmp_path)
    trained(tmp_path, resume=True)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_checkpoints_of_an_earlier_run_are_not_replaced_by_one_from_the_beginning(tmp_path):
    trained(tmp_path)
    said = r"has checkpoints of an earlier run, the newest step-00000004, and this one begins at step 0; go on from it"
    with pytest.raises(TrainingError, match=said):
        trained(tmp_path)
    assert names(tmp_path) == ["step-00000003", "step-00000004"]


def test_a_checkpoint_stays_that_has_fewer_steps_than_another_runs(tmp_path):
    t = trained(tmp_path, save_every=0)
    t.steps = 1
    assert t.save(tmp_path, keep=1).is_dir()


@pytest.mark.parametrize(("times", "options"), [({1}, {}), ({1, 2}, {}), ({1}, {"save_strict": True})])
def test_the_best_checkpoint_gets_another_try_too(tmp_path, monkeypatch, caplog, times, options):
    monkeypatch.setattr(storage, "save_file", full_disk(times))
    watch = {"save_every": 0, "evaluate_every": 1, "best": "train loss", "train_batches": 1, **options}
    if len(times) == 2 or options:
        with pytest.raises(SaveError, match="no checkpoint can be written at step"):
            trained(tmp_path, epochs=2, **watch)
        return
    with caplog.at_level(logging.ERROR, "lpcompile"):
        trained(tmp_path, epochs=2, **watch)
    assert "training goes on, and ends if the next best checkpoint cannot be written either" in caplog.text
    assert names(tmp_path / "best") == ["best.json", "step-00000008"]


@pytest.mark.parametrize(
    "content", ["", "[]", '{"epoch": 1}', '{"figure": "f", "value": {}, "epoch": 0}', "[" * 100_000]
)
def test_a_broken_note_of_the_best_checkpoint_is_told_in_one_line(tmp_path, content):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "best.json").write_text(content)
    with pytest.raises(TrainingError, match=r"best/best.json is broken .*; remove it to look for the best") as error:
        trained(tmp_path, evaluate_every=1, best="train loss", train_batches=1)
    assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_is_refused_before_training(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TrainingError, match=r"--save .*file/run cannot be written: Not a directory; give"):
        trained(tmp_path / "file" / "run")


def test_room_for_two_checkpoints_is_looked_for_before_training(tmp_path, monkeypatch):
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(room.shutil, "disk_usage", lambda folder: usage(1000))
    with pytest.raises(TrainingError, match=r"has room for 0.0 MiB, and two checkpoints take .* free some"):
        trained(tmp_path)
    assert names(tmp_path) == []


def test_the_expected_size_is_that_of_a_checkpoint(tmp_path):
    t = trained(tmp_path)
    size = (tmp_path / "step-00000004" / "rank0.safetensors").stat().st_size
    assert room.nbytes(t) == pytest.approx(size, rel=0.9)


def test_what_a_killed_run_left_half_written_is_removed(tmp_path):
    (tmp_path / ".part-step-00000009").mkdir(parents=True)
    (tmp_path / ".part-step-00000009" / "rank0.json").write_text("{}")
    (tmp_path / "best" / ".part-step-00000008").mkdir(parents=True)
    for file in (".probe-7", ".probe-7.renamed", "best/.best.json.7-9"):
        (tmp_path / file).write_text("{}")
    trained(tmp_path, save_every=0)
    assert names(tmp_path) == ["best", "step-00000004"] and names(tmp_path / "best") == []
    shutil.rmtree(tmp_path)
