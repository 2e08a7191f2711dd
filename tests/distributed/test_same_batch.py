"""Ranks under torchrun that would train on different batches: one order for all where we shuffle, else a refusal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lpcompile.errors import TrainingError
from lpcompile.runtime.launch.launch import launch
from tests.distributed.uneven import main
from tests.runtime.ranks import free_port

ROOT = Path(__file__).parents[2]


def torchrun(K, method, how):
    """Exit code and output of the script `uneven`, run as K ranks."""
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(K), "--master-addr", "127.0.0.1",
        "--master-port", str(free_port()), "-m", "tests.distributed.uneven", str(K), method, how,
    ]  # fmt: skip
    done = subprocess.run(
        command, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, timeout=240
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(("K", "method"), [(2, "bp"), (3, "stream")])
def test_a_script_without_a_seed_trains_under_torchrun(K, method):
    code, text = torchrun(K, method, "fit")
    found = [float(value) for value in re.findall(r"RESULT (\S+)", text)]
    assert code == 0 and len(found) == K, text
    assert len(set(found)) == 1 and found[0] > 0.6, found  # 0.4 with each other's targets


def test_a_loop_by_hand_without_a_seed_ends_at_its_first_step_under_torchrun():
    code, text = torchrun(2, "bp", "unseeded")
    assert code == 1 and not re.search(r"^RESULT", text, re.MULTILINE)
    assert "batch 0: rank 1 has other targets in its batch than rank 0; every rank must take the same batches" in text


@pytest.mark.parametrize(("method", "how"), [("bp", "workers"), ("stream", "generator"), ("1f1b", "trainer.fit")])
def test_ranks_shuffle_alike_by_any_random_state(method, how):
    assert launch(main, (2, method, how), world=2) > 0.6  # 0.4 with each other's targets


def test_learning_rates_may_differ_from_layer_to_layer():
    assert launch(main, (2, "bp", "layers"), world=2) > 0.6


@pytest.mark.parametrize(("K", "method", "how", "said"), [
    (3, "penalty", "unseeded", r"batch 0: rank \d has other targets"),
    (2, "multiplier", "later", r"batch 3: rank 1 has other targets in its batch than rank 0"),
    (3, "dgl", "later", r"batch 3: rank 2 has other targets in its batch than rank [01]"),
    (3, "pipedream", "later", r"batch 3: rank 2 has other targets in its batch than rank [01]"),
    (2, "gpipe", "smaller", r"batch 3: rank 1 has a batch of 24 samples, rank 0 one of 32"),
    (2, "penalty", "larger", r"batch 3: rank 1 has a batch of 40 samples, rank 0 one of 32"),
    (2, "bp", "ends", r"rank 1 ended after 3 steps and rank 0 goes on: their loaders have different lengths"),
    (2, "bp", "alone", r"rank 0 ended after 14 steps and rank 1 goes on: .* or rank 0 alone evaluates, saves or takes"),
    (2, "bp", "longer", r"agree on the number of batches of the training data: rank 0 has 16, rank 1 has 14"),
    (2, "bp", "rate", r"agree on the optimizer: rank 0 has SGD\(lr=0.05, .*rank 1 has SGD\(lr=0.1"),
    (2, "bp", "scheduler", r"do not agree on the scheduler: rank 0 has none, rank 1 has StepLR\("),
    (2, "bp", "milestones", r"do not agree on the scheduler: rank 0 has MultiStepLR\(.*\{9: 1\}.*rank 1 .*\{5: 1\}"),
    (2, "bp", "factor", r"do not agree on the scheduler: rank 0 has LambdaLR\(.*functions=.*rank 1 has LambdaLR\("),
    (2, "bp", "seed", r"do not agree on the option --seed: rank 0 has 0, rank 1 has 7"),
    (2, "bp", "save", r"do not agree on the option --save: rank 0 has None, rank 1 has run"),
    (2, "bp", "evaluation", r"rank 1 has other targets in its batch than rank 0"),
])  # fmt: skip
def test_a_difference_between_ranks_is_named_and_ends_all_of_them(K, method, how, said):
    with pytest.raises(TrainingError, match=said):
        launch(main, (K, method, how), world=K)
