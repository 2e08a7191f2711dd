"""Dict batches and the model's own loss over processes: the weights that one process would find."""

from __future__ import annotations

import torch

import lpcompile
from tests.runtime.engine.test_own_loss import Language, texts


def right(logits, labels):
    return (logits[:, :-1].argmax(-1) == labels[:, 1:]).double().mean()


def test_fit_trains_the_models_own_loss_on_dicts(one_thread):
    data = [texts(8, seed) for seed in range(3)]
    programs = [lpcompile.parallelize(Language(), 2, example_inputs=data[0], cost="flops") for _ in range(2)]
    here, there = programs
    options = {"optimizer": lambda ps: torch.optim.SGD(ps, 0.2), "micro": 2}
    found = there.fit(None, data, 2, test=data, metrics={"right": right}, evaluate_every=0, **options)
    trainer = here.trainer(None, **options)
    trainer.fit(data, 2)
    shown = trainer.evaluate(data, metrics={"right": right})
    assert found["test loss"] == shown["loss"] and found["test right"] == shown["right"]
    for name, tensor in trainer.state_dict().items():
        assert torch.equal(tensor, there.module.state_dict()[name]), name
