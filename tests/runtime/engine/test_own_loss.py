"""The model's own loss: any form of a batch, and micro-batches weighted as the loss counts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.errors import InputError, UsageError
from lpcompile.runtime.engine.batches import shares
from lpcompile.runtime.engine.batches.forms import own_loss, parts_of
from lpcompile.runtime.loop.evaluate import over_all
from tests.runtime.small import Block


class Language(nn.Module):
    """A small language model that makes its own loss, in one of several ways."""

    def __init__(self, reduction="mean", shift=True, form=dict, seed=0):
        super().__init__()
        torch.manual_seed(seed)
        self.embed = nn.Embedding(11, 6, dtype=torch.float64)
        self.blocks = nn.ModuleList(Block() for _ in range(4))
        self.head = nn.Linear(6, 11, dtype=torch.float64)
        self.reduction, self.shift, self.form = reduction, shift, form

    def forward(self, input_ids, labels=None):
        x = self.embed(input_ids)
        for block in self.blocks:
            x = block(x)
        logits = self.head(x)
        if labels is None:
            return {"logits": logits}
        seen, wanted = (logits[:, :-1], labels[:, 1:]) if self.shift else (logits, labels)
        loss = F.cross_entropy(seen.reshape(-1, 11), wanted.reshape(-1), reduction=self.reduction)
        return {"loss": loss, "logits": logits} if self.form is dict else (logits, loss)


def texts(size=8, seed=1, ignored=True):
    g = torch.Generator().manual_seed(seed)
    ids = torch.randint(11, (size, 5), generator=g)
    labels = ids.clone()
    if ignored:
        for i in range(size):
            labels[i, : i % 4] = -100
        labels[-1] = -100
    return {"input_ids": ids, "labels": labels}


def sgd(parameters):
    return torch.optim.SGD(parameters, 0.5)


def plain(model, batch, steps=3):
    """Training on whole batches without lpcompile."""
    optimizer = sgd(model.parameters())
    for _ in range(steps):
        out = model(**batch)
        loss = out["loss"] if isinstance(out, dict) else out[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item(), model.state_dict()


@pytest.mark.parametrize("reduction, shift, form", [("mean", True, dict), ("mean", False, tuple), ("sum", True, dict)])
def test_micro_batches_train_the_loss_of_the_whole_batch(reduction, shift, form):
    batch = texts()
    model = Language(reduction, shift, form)
    program = lpcompile.parallelize(model, 2, example_inputs=texts(ignored=False), cost="flops")
    trainer = program.trainer(optimizer=lambda ps: torch.optim.SGD(ps, 0.5 if reduction == "mean" else 0.01), micro=4)
    assert trainer.settings.reduction == {"sum": "sum", "mean": "next labels" if shift else "labels"}[reduction]
    reference = Language(reduction, shift, form)
    optimizer = torch.optim.SGD(reference.parameters(), 0.5 if reduction == "mean" else 0.01)
    for _ in range(3):
        shown = trainer.step(batch)
        out = reference(**batch)
        loss = out["loss"] if form is dict else out[1]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        assert shown["loss"] == pytest.approx(loss.item(), rel=1e-12)
    for name, tensor in reference.state_dict().items():
        assert torch.allclose(tensor, model.state_dict()[name], rtol=0, atol=1e-12), name


def test_one_micro_batch_is_plain_training_bit_for_bit():
    model = Language()
    program = lpcompile.parallelize(model, 2, example_inputs=texts(), cost="flops")
    trainer = program.trainer(None, optimizer=sgd, micro=1, method="bp")
    for _ in range(3):
        shown = trainer.step(texts())
    loss, state = plain(Language(), texts())
    assert shown["loss"] == loss
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in state.items())


def test_evaluation_is_the_mean_over_labels_and_metrics_see_the_whole_data_set():
    model = Language()
    program = lpcompile.parallelize(model, 2, example_inputs=texts(), cost="flops")
    trainer = program.trainer(optimizer=sgd)
    data = [texts(8, 1), texts(3, 2), texts(8, 3, ignored=False)]
    together = {name: torch.cat([batch[name] for batch in data]) for name in data[0]}
    calls = []

    def right(logits, labels):
        calls.append(tuple(logits.shape))
        return (logits[:, :-1].argmax(-1) == labels[:, 1:]).double().mean()

    found = trainer.evaluate(data, metrics={"right": right})
    with torch.no_grad():
        out = model(**together)
    assert found["loss"] == pytest.approx(float(out["loss"]), rel=1e-12)
    assert calls == [(19, 5, 11)] and found["right"] == float(right(out["logits"], together["labels"]))
    with pytest.raises(InputError, match="pad them to one size"):
        over_all({"right": right}, [(torch.zeros(2, 5), None), (torch.zeros(2, 4), None)])


NAMES = ("input_ids", "mask")


@pytest.mark.parametrize(
    "loss_fn, batch, expected",
    [
        (None, (1, 2), ((1, 2), None, None)),
        (None, {"input_ids": 1, "mask": 2, "text": 3}, ({"input_ids": 1, "mask": 2}, None, None)),
        (F.mse_loss, {"input_ids": 1, "mask": 2, "labels": 3}, ({"input_ids": 1, "mask": 2}, 3, None)),
        (F.mse_loss, {"mask": 2, "a": 3, "b": 4}, ({"mask": 2}, {"a": 3, "b": 4}, None)),
        (F.mse_loss, [1, 2], (1, 2, None)),
        (F.mse_loss, ({"input_ids": 1}, 2, 3), ({"input_ids": 1}, 2, 3)),
    ],
)
def test_forms_of_a_batch(loss_fn, batch, expected):
    assert tuple(parts_of(NAMES, loss_fn, batch)) == expected


def test_forms_that_are_refused():
    with pytest.raises(InputError, match="a tuple of 4, and a batch for a loss function is"):
        parts_of(NAMES, F.mse_loss, (1, 2, 3, 4))
    with pytest.raises(InputError, match="the batch has pixels, and the model was compiled for input_ids, mask"):
        parts_of(NAMES, None, {"pixels": 1})
    with pytest.raises(UsageError, match=r"the model gives a Tensor of shape \[2, 3\] without one"):
        own_loss(torch.zeros(2, 3))


def test_losses_are_found_where_libraries_put_them():
    loss = torch.tensor(2.0)
    assert own_loss({"loss": loss}) == own_loss((torch.zeros(3), loss))
    assert own_loss(loss) == own_loss(torch.tensor([2.0]))


class Contrastive(Language):
    def forward(self, input_ids, labels=None):
        z = self.embed(input_ids).mean(1)
        for block in self.blocks:
            z = block(z)
        return {"loss": F.cross_entropy(z @ z.T, torch.arange(len(z))), "z": z}


class Weighted(Language):
    """Class weights, and samples that are all alike as in a fresh model: only gradients show the weights."""

    def __init__(self):
        super().__init__()
        nn.init.normal_(self.head.weight, std=1e-5)

    def forward(self, input_ids, labels=None):
        logits = super().forward(input_ids)["logits"].mean(1)
        weight = torch.linspace(1, 5, 11, dtype=torch.float64)
        return {"loss": F.cross_entropy(logits, labels[:, 0], weight=weight), "logits": logits}


@pytest.mark.parametrize("kind", [Contrastive, Weighted])
def test_a_loss_of_samples_together_is_trained_on_whole_batches(kind, caplog):
    model, batch = kind(), texts(ignored=False)
    program = lpcompile.parallelize(model, 2, example_inputs=batch, cost="flops", gate=False)
    assert program.trainer(optimizer=sgd, reduction="samples").micro > 1
    with pytest.raises(UsageError, match=r"neither the mean nor the sum of the losses of its parts .* pass micro=1"):
        program.trainer(optimizer=sgd, micro=4)
    trainer = program.trainer(optimizer=sgd)
    assert trainer.micro == 1 and "batches are not cut into micro-batches" in caplog.text
    for _ in range(3):
        shown = trainer.step(batch)
    loss, state = plain(kind(), batch)
    assert shown["loss"] == pytest.approx(loss, rel=1e-12)
    for name, tensor in state.items():
        assert torch.allclose(tensor, model.state_dict()[name], rtol=0, atol=1e-12), name


def test_labels_that_are_all_ignored_are_refused():
    program = lpcompile.parallelize(Language(), 2, example_inputs=texts(), cost="flops")
    trainer = program.trainer(optimizer=sgd, micro=2)
    batch = texts()
    with pytest.raises(InputError, match="no label of the batch of step 0 counts"):
        trainer.step({**batch, "labels": torch.full_like(batch["labels"], -100)})


def test_a_micro_batch_without_labels_has_a_loss_of_zero():
    x = torch.ones(2, requires_grad=True)
    loss = shares.silent([x * 2, (x / 0).sum()])
    loss.backward()
    assert loss == 0 and torch.equal(x.grad, torch.zeros(2))


def test_an_error_in_a_users_metric_names_it_and_says_what_it_was_given():
    says = r"metrics\['f1'\] raised AttributeError: .*logits'; it is given all outputs \(a tensor of shape \[4, 5\]\)"
    with pytest.raises(InputError, match=says):
        over_all({"f1": lambda out, y: out.logits}, [(torch.zeros(2, 5), torch.zeros(2))] * 2)
