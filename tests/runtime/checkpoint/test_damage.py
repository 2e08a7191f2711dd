"""A flipped bit, a cut or a missing file is found and named; a run goes on from the newest checkpoint that is whole."""

from __future__ import annotations

import json
import logging
import shutil

import pytest
import torch
import torch.nn.functional as F

from lpcompile.cli.main import main
from lpcompile.core.system import checksum
from lpcompile.errors import TrainingError
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.runtime.loop.loop import run
from lpcompile.runtime.loop.options import LoopOptions
from tests.runtime.small import batches, compiled, norm_mlp, sgd

FILES = ["rank0.safetensors", "rank0.json", "rank1.json", "run.json", "index.json", "checksums.json"]


def trainer():
    program = compiled(norm_mlp(), 2, batches(1, dtype=torch.float32)[0][0])
    return program.trainer(F.cross_entropy, optimizer=sgd, method="bp")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Checkpoints of steps 2 and 4."""
    folder = tmp_path_factory.mktemp("whole")
    watch = LoopOptions(save=str(folder), save_every=2, evaluate_every=0, train_batches=0)
    run(trainer(), batches(4, dtype=torch.float32), 1, watch=watch)
    return folder


@pytest.fixture
def folder(whole, tmp_path):
    return shutil.copytree(whole, tmp_path / "run")


def flip(file):
    """One bit, as a disk or a memory module does."""
    data = bytearray(file.read_bytes())
    data[-2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_a_flipped_bit_is_found_in_every_file(folder, name, capsys):
    flip(folder / "step-00000004" / name)
    with pytest.raises(TrainingError, match=r"step-00000004 is damaged: ") as error:
        trainer().load(folder)
    assert name in str(error.value)
    assert main(["checkpoint", "verify", str(folder)]) == 1
    out = capsys.readouterr().out
    assert "step-00000002: whole" in out and "step-00000004: damaged: " in out and name in out


def test_export_refuses_a_damaged_checkpoint_in_one_line(folder, tmp_path, capsys):
    flip(folder / "step-00000004" / "rank0.safetensors")
    assert main(["export", str(folder), str(tmp_path / "model.safetensors")]) == 1
    error = capsys.readouterr().err
    assert "rank0.safetensors has another SHA-256" in error and error.count("\n") == 1
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("harm", [
    flip, lambda file: file.write_bytes(file.read_bytes()[:-1]), lambda file: file.unlink(),
], ids=["flipped", "cut", "missing"])  # fmt: skip
def test_a_run_goes_on_from_the_newest_whole_checkpoint(folder, harm, caplog):
    harm(folder / "step-00000004" / "rank0.safetensors")
    t, data = trainer(), batches(4, dtype=torch.float32)
    with caplog.at_level(logging.WARNING, "lpcompile"):
        run(t, data, 1, watch=LoopOptions(save=str(folder), resume=True, evaluate_every=0, train_batches=0))
    assert "step-00000004 is damaged: rank0.safetensors" in caplog.text
    assert "going on from" in caplog.text and "step-00000002" in caplog.text
    assert checkpoint.damage(folder / "step-00000004") is None  # written again


def test_a_folder_without_a_whole_checkpoint_is_no_start(folder):
    for step in ("step-00000002", "step-00000004"):
        flip(folder / step / "rank0.safetensors")
    with pytest.raises(TrainingError, match=r"no checkpoint in .* is whole, .*step-00000004 is damaged.*leave out"):
        checkpoint.resumable(folder)


@pytest.mark.parametrize("name", ["run.json", "checksums.json", "index.json"])
@pytest.mark.parametrize("content", ["", "null", "[]", "{}", '{"a": 1}', "[" * 100_000])
def test_odd_content_is_found_and_its_file_named(folder, name, content):
    (folder / "step-00000004" / name).write_text(content)
    found = checkpoint.damage(folder / "step-00000004")
    assert name in found and "\n" not in found


@pytest.mark.parametrize("content", [{"version": 1}, [], {"version": 2, "model": 3}, "x"])
def test_odd_json_in_a_manifest_is_said_in_one_line(folder, content, tmp_path, capsys):
    (folder / "step-00000004" / "run.json").write_text(json.dumps(content))
    assert main(["export", str(folder), str(tmp_path / "model.safetensors")]) == 1
    error = capsys.readouterr().err
    assert error.startswith("lpcompile: ") and error.count("\n") == 1 and "step-00000004" in error


def test_a_file_without_a_checksum_is_found(folder):
    sums = folder / "step-00000004" / "checksums.json"
    listed = json.loads(sums.read_text())
    del listed["rank0.json"]
    sums.write_text(json.dumps(listed | {checksum.OWN: checksum.of_data(listed)}))
    assert checkpoint.damage(sums.parent) == "checksums.json does not list rank0.json"


def test_a_damaged_list_of_checksums_is_not_blamed_on_the_files_that_it_lists(folder):
    sums = folder / "step-00000004" / "checksums.json"
    text = sums.read_text()
    for old, new in (('"rank0.json"', '"rank1.json"'), ('"bytes"', '"bxtes"'), ('"sha256": "', '"sha256": "f')):
        sums.write_text(text.replace(old, new, 1))
        assert checkpoint.damage(sums.parent) == "checksums.json has another SHA-256 than when it was written"


def test_an_index_that_is_wrong_when_tensors_are_read_is_told_in_one_line(folder):
    index = folder / "step-00000004" / "index.json"
    index.write_text(index.read_text().replace('"run/', '"ruN/'))
    with pytest.raises(TrainingError, match=r"step-00000004 cannot be loaded \(KeyError: 'run/") as error:
        checkpoint.load(trainer(), index.parent, verified=True)
    assert "\n" not in str(error.value)


def test_verify_says_when_there_is_nothing(tmp_path, capsys):
    assert main(["checkpoint", "verify", str(tmp_path)]) == 2
    assert "there is no checkpoint" in capsys.readouterr().err
