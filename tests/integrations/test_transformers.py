"""transformers.Trainer with two stages in two processes, against transformers.Trainer."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("accelerate")
transformers = pytest.importorskip("transformers")

from lpcompile.errors import UsageError  # noqa: E402
from lpcompile.integrations.padding import padded  # noqa: E402
from lpcompile.integrations.stand_in import named  # noqa: E402
from lpcompile.integrations.transformers import Trainer  # noqa: E402
from lpcompile.runtime.launch import launch  # noqa: E402
from tests.integrations import hf_jobs  # noqa: E402

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


@pytest.fixture(scope="module")
def ours(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ours")
    return folder, launch.launch(hf_jobs.on_ranks, (str(folder), list(hf_jobs.CASES)), world=2, timeout=240)


def plain(name, folder, resume=None):
    kind, options, rest = hf_jobs.CASES[name]
    trainer = hf_jobs.made(kind, transformers.Trainer, folder, options, rest)
    trainer.train(resume_from_checkpoint=resume)
    return hf_jobs.outcome(trainer)


def same(found, expected):
    for name, tensor in expected[0].items():
        assert torch.allclose(found[0][name], tensor, rtol=0, atol=3e-5), name
    assert len(found[1]) == len(expected[1])
    for mine, theirs in zip(found[1], expected[1], strict=True):
        assert mine == pytest.approx(theirs, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("name", list(hf_jobs.CASES))
def test_a_run_is_that_of_transformers_own_trainer(name, ours, tmp_path):
    same(ours[1][name], plain(name, tmp_path))


def test_a_loss_sees_the_random_numbers_that_the_model_saw(ours):
    assert len(ours[1]["noisy"]) == 3 and max(ours[1]["noisy"]) < 1e-9


def test_a_run_goes_on_from_a_checkpoint_with_and_without_lpcompile(ours, tmp_path):
    folder, found = ours
    same(found["resumed"], found["best"])
    same(plain("best", tmp_path, resume=f"{folder}/best/checkpoint-4"), found["best"])


def test_a_checkpoint_has_the_random_stream_of_each_rank(tmp_path):
    """From which dropout is drawn: a run that goes on draws as one that was not broken."""
    kind, options, rest = hf_jobs.CASES["gpt2"]
    trainer = hf_jobs.made(kind, Trainer, tmp_path, options, rest, K=2, cost="flops")
    drawn = torch.arange(5, dtype=torch.uint8)
    for rank in (0, 1):
        worker = SimpleNamespace(rank=rank, random=[drawn + rank])
        trainer.engine = SimpleNamespace(workers=[worker])
        trainer._save_rng_state(str(tmp_path))
        worker.random = None
        trainer._load_rng_state(str(tmp_path))
        assert torch.equal(worker.random[0], drawn + rank)
    trainer.engine.workers[0].rank = 2  # of a run with more stages: it keeps its own
    trainer._load_rng_state(str(tmp_path))
    assert torch.equal(worker.random[0], drawn + 1)


def test_by_itself_it_starts_its_ranks_and_the_model_has_the_weights(ours, tmp_path):
    kind, options, rest = hf_jobs.CASES["gpt2"]
    trainer = hf_jobs.made(kind, Trainer, tmp_path, options, rest, K=2, cost="flops")
    output = trainer.train()
    same(hf_jobs.outcome(trainer), ours[1]["gpt2"])
    assert output.global_step == trainer.state.global_step == 6
    assert trainer.model.lm_head.weight is trainer.model.transformer.wte.weight
    assert trainer.evaluate()["eval_loss"] > 0


def test_a_trainer_of_ones_own_is_the_same_on_its_ranks(tmp_path, capfd):
    """Its arguments, what was set and added after it was made, and what its callbacks note; only one rank prints."""

    def trained(base, **ours):
        trainer = hf_jobs.made("bert", hf_jobs.weighing(base), tmp_path, {}, {"weights": [1.0, 2.0, 5.0]}, **ours)
        note = hf_jobs.Note()
        trainer.add_callback(note)
        trainer.train_dataset = hf_jobs.Texts(20, classes=3, seed=2)
        trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), 0.1, momentum=0.9)
        trainer.train()
        return hf_jobs.outcome(trainer), note.losses

    expected, losses = trained(transformers.Trainer)
    capfd.readouterr()
    found, noted = trained(Trainer, K=2, cost="flops")
    same(found, expected)
    assert noted == pytest.approx(losses, rel=1e-3) and capfd.readouterr().out.count("train_runtime") == 1


def test_texts_made_by_a_collator_are_padded_as_what_they_were_made_from():
    batch = {"input_ids": torch.ones(2, 4), "attention_mask": torch.ones(2, 4), "labels": torch.ones(2, 3)}
    batch |= {"decoder_input_ids": torch.ones(2, 3)}
    found = padded(batch, {"input_ids": 6, "labels": 5}, 9)
    assert {name: list(t.shape) for name, t in found.items()} == {
        "input_ids": [2, 6], "attention_mask": [2, 6], "labels": [2, 5], "decoder_input_ids": [2, 5]
    }  # fmt: skip
    assert found["labels"][0, 4] == -100 and found["decoder_input_ids"][0, 4] == 9


def test_arguments_of_a_call_have_names_whatever_a_model_calls_itself():
    class Model(torch.nn.Linear):
        def forward(model, x, scale=None):
            return x

    assert named(Model(1, 1), (2,), {"scale": 3}) == {"x": 2, "scale": 3}


def test_arguments_that_stages_do_not_follow_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"neftune_noise_alpha=5\) stands for hooks on the embedding; leave it out"):
        Trainer(hf_jobs.gpt2(), hf_jobs.arguments(tmp_path, neftune_noise_alpha=5), K=2)
