"""`python -m lpcompile train` and `export`, by itself and as two torchrun nodes; and what it says when it cannot."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.cli.main import main
from lpcompile.runtime.checkpoint import checkpoint
from lpcompile.training.build import compile_job
from lpcompile.training.job import Job
from tests.distributed.deadline import started, wait_until
from tests.runtime.ranks import free_port
from tests.training.net_source import net_source

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def net(tmp_path_factory):
    file = tmp_path_factory.mktemp("net") / "net.py"
    file.write_text(net_source())
    return f"{file}:build"


def arguments(net, *more):
    return [net, "--size", "8", "--batch", "256", "--epochs", "2", "--cost", "flops", "--evaluate-every", "0", *more]


@pytest.fixture(autouse=True)
def input_shape(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_train_kill_resume_export(net, tmp_path, capfd):
    """The command, a killed rank, --resume to the same weights, and a file that the model loads."""
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    common = arguments(net, "--input", "1x8x8", "--save-every", "3", "--keep", "9", "--epochs", "6")
    assert main(["train", *common, "--save", str(whole)]) == 0
    assert "K = 2, auto, 30 steps of 256" in capfd.readouterr().out
    log = ["--log", f"{broken}.jsonl", "--log-every", "1"]
    command = [sys.executable, "-m", "lpcompile", "train", *common, "--save", str(broken), *log]
    with started(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(broken.glob("step-*")), 90, "the first checkpoint", process)
        os.kill(ranks(process.pid)[-1], signal.SIGKILL)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert re.search(r"lpcompile: training stopped: rank 1 \(stage 1\) was killed by SIGKILL \(step \d+, ", error)
    assert main(["train", *common, "--save", str(broken), "--resume"]) == 0
    for folder in (whole, broken):
        assert main(["export", str(folder), f"{folder}.safetensors"]) == 0
    from safetensors.torch import load_file

    first, second = load_file(f"{whole}.safetensors"), load_file(f"{broken}.safetensors")
    assert first.keys() == second.keys() and all(torch.equal(first[n], second[n]) for n in first)
    model = build(net)
    model.load_state_dict(first, strict=True)


def test_ctrl_c_says_what_is_saved_and_how_to_go_on(net, tmp_path):
    common = arguments(net, "--input", "1x8x8", "--save-every", "2", "--epochs", "400", "--save", str(tmp_path / "run"))
    command = [sys.executable, "-m", "lpcompile", "train", *common]
    with started(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list((tmp_path / "run").glob("step-*")), 90, "the first checkpoint", process)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130 and "Traceback" not in error
    newest = max((tmp_path / "run").glob("step-*"))
    first, second = error.strip().splitlines()[-2:]
    assert first == f"stopped: the newest checkpoint is {newest}"
    assert second == f"go on: python -m lpcompile train {' '.join(common)} --resume"


def build(net) -> nn.Module:
    return lpcompile.sources.load(net, input_shape="1x8x8").model


def ranks(launcher):
    """Processes of the launcher's server, in the order in which they were started."""
    return sorted(pid for server in children(launcher) for pid in children(server))


def children(of):
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    return sorted(pid for pid, parent in parents.items() if parent == of)


def test_two_torchrun_nodes_train_as_the_command_does(net, tmp_path):
    """Two hosts, as far as torchrun knows, on loopback; an elastic launcher each."""
    port = free_port()
    common = arguments(net, "--input", "1x8x8", "--epochs", "1")
    commands = [
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
             "--nproc-per-node", "1", "--master-addr", "127.0.0.1", "--master-port", str(port),
             "-m", "lpcompile", "train", *common, "--save", str(tmp_path / "nodes")]
        for node in range(2)
    ]  # fmt: skip
    with contextlib.ExitStack() as stack:
        start = functools.partial(started, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        nodes = [stack.enter_context(start(command)) for command in commands]
        errors = [node.communicate(timeout=120)[1] for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], errors
    assert main(["train", *common, "--save", str(tmp_path / "alone")]) == 0
    states = [checkpoint.model_state(tmp_path / name) for name in ("nodes", "alone")]
    assert all(torch.equal(states[0][n], states[1][n]) for n in states[1])


def test_an_elastic_restart_goes_on_from_the_last_checkpoint(net, tmp_path):
    """torchrun starts both ranks again when one is killed; nobody says --resume.

    Its store outlives the restart, with the addresses of the processes that were killed.
    """
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    common = arguments(net, "--input", "1x8x8", "--save-every", "3", "--keep", "9", "--epochs", "8")
    assert main(["train", *common, "--save", str(whole)]) == 0
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}",
        "-m", "lpcompile", "train", *common, "--save", str(broken),
    ]  # fmt: skip
    with started(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: list(broken.glob("step-*")), 90, "the first checkpoint", process)
        os.kill(children(process.pid)[-1], signal.SIGKILL)
        _, error = process.communicate(timeout=180)
    assert process.returncode == 0 and "going on from" in error, error
    states = [checkpoint.model_state(folder) for folder in (whole, broken)]
    assert all(torch.equal(states[0][n], states[1][n]) for n in states[0])


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["resnet20", "--data", "/nowhere"], 2, "--data /nowhere: there is no such folder; give digits, cifar10,"),
        (["resnet20", "--method", "penality"], 2, "there is no method 'penality'; the closest is 'penalty'"),
        (["resnet20", "--method", "pipedream", "--stash", "some"], 2, "stash='some' is not one of all, 2bw"),
        (["resnet20", "-K", "0"], 2, "all are numbers of 1 or more"),
        (["resnet20", "--resume"], 2, "--resume needs the folder of the checkpoints: --save DIR"),
        (["resnet20", "--batch", "5", "--replicas", "2"], 2, "--batch 5 cannot be shared by 2 replicas"),
        (["resnet20", "--schedule", "linear"], 2, "--schedule linear is not one of one-cycle, cosine, steps, constant"),
        (["resnet20", "--method", "gpipe", "--micro", "3"], 2, "micro=3 does not divide the batch of 64, and 'gpipe'"),
        (
            ["resnet20", "--method", "1f1b", "-K", "3", "--micro", "2"],
            2,
            "'1f1b' cannot run 2 micro-batches on 3 stages",
        ),
        (
            ["resnet20", "--method", "zb", "--batch", "62", "--replicas", "2"],
            2,
            "batch of 31 has no such equal parts",
        ),
        (["gpt_tiny", "-K", "1"], 2, "train is for models of one image"),
        (["resnet20", "--device", "cuda"], 1, "--device cuda: torch sees no GPU on this machine; use --device cpu"),
        (["resnet20", "--save", "/dev/null/run"], 1, "--save /dev/null/run cannot be written: Not a directory; give"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(words, code, text, capsys):
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("there are GPUs")
    assert main(["train", *words]) == code
    error = capsys.readouterr().err
    assert text in error and "Traceback" not in error


def test_too_many_stages_and_too_few_classes(net, capsys):
    with pytest.raises(lpcompile.PlanError, match="K = 40 stages are too many: the model can be cut into at most"):
        compile_job(Job(net, K=40, cost="flops"), build(net), torch.randn(4, 1, 8, 8), None)
    assert main(["train", *arguments(net.replace("build", "two"), "--input", "1x8x8", "-K", "1")]) == 2
    assert "gives [2, 2] and digits has 10 classes" in capsys.readouterr().err


def test_more_stages_than_processes(net, monkeypatch, capsys):
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert main(["train", *arguments(net, "-K", "3")]) == 2
    error = capsys.readouterr().err
    assert "are 3 ranks, but 2 processes were started; use torchrun --nproc-per-node 3, or -K 2" in error


def test_a_checkpoint_of_another_model(net, tmp_path, capsys):
    common = ["--input", "1x8x8", "-K", "1", "--epochs", "1", "--save", str(tmp_path)]
    assert main(["train", *arguments(net, *common)]) == 0
    run = next(tmp_path.glob("step-*")) / "run.json"
    assert json.loads(run.read_text())["K"] == 1
    assert main(["train", "resnet20", "-K", "2", "--cost", "flops", "--save", str(tmp_path), "--resume"]) == 2
    assert "is a checkpoint of another model" in capsys.readouterr().err
