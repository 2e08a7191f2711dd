"""lightning.Trainer with two stages in two processes, against lightning.Trainer."""

from __future__ import annotations

import os

import pytest
import torch

pytest.importorskip("lightning")

from lpcompile.runtime.launch import launch
from tests.integrations import lightning_jobs as jobs

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours")
    kept = dict(os.environ)
    os.environ |= {"TORCHELASTIC_RUN_ID": "test", "GROUP_RANK": "0"}  # Lightning starts no processes of its own
    try:
        return launch.launch(jobs.on_ranks, (str(folder),), world=2, timeout=240)
    finally:
        os.environ.clear()
        os.environ |= kept


def same(found, expected):
    for name, tensor in expected[0].items():
        assert torch.allclose(found[0][name], tensor, rtol=0, atol=3e-5), name
    assert found[1] == pytest.approx(expected[1], rel=1e-3, abs=1e-4)


def test_a_run_is_that_of_lightning_without_the_strategy(ours, tmp_path):
    same(ours["plain"], jobs.fitted(jobs.Classifier(), tmp_path))


def test_clipping_accumulation_and_a_model_called_as_self(ours, tmp_path):
    same(ours["clipped"], jobs.fitted(jobs.Whole(), tmp_path, gradient_clip_val=0.1, accumulate_grad_batches=2))


def test_a_run_goes_on_from_a_checkpoint_with_and_without_the_strategy(ours, tmp_path):
    same(ours["resumed"], ours["plain"])
    same(jobs.fitted(jobs.Classifier(), tmp_path, ckpt=ours["half"][2]), ours["plain"])


def test_metrics_are_those_of_lightning_without_the_strategy(ours, tmp_path):
    same(ours["measured"], jobs.fitted(jobs.Measured(), tmp_path))


def test_a_loss_sees_the_random_numbers_that_the_model_saw(ours):
    assert ours["denoised"][1]["loss"] < 1e-9


def test_callbacks_that_average_the_weights_of_the_whole_model_are_refused(ours):
    assert "StochasticWeightAveraging averages the weights of the whole model" in ours["averages"]


def test_a_training_step_whose_model_and_loss_cannot_be_told_apart_is_refused(ours):
    assert "and its loss cannot be told apart; let training_step call one module once" in ours["refused"]
