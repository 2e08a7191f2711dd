"""The work of all contenders: model, batches, loss, micro-batches."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

from lpcompile.bench.contenders.ways import micro_choices
from lpcompile.bench.contenders.work import WorkSpec, logits, loss, slice_of, work
from lpcompile.errors import UsageError
from tests.simulate.even_plan import even_plan


def test_losses_for_what_models_give():
    found = torch.randn(4, 5, requires_grad=True)
    classes = torch.randint(0, 5, (4,))
    assert torch.equal(loss(found, classes), F.cross_entropy(found, classes))
    tokens = torch.randint(0, 5, (4, 3))
    words = torch.randn(4, 3, 5)
    assert torch.equal(
        loss({"logits": words, "loss": found}, tokens), F.cross_entropy(words.flatten(0, 1), tokens.flatten())
    )
    assert logits((torch.arange(3), found)) is found
    assert (
        torch.equal(loss((found,), found.detach() + 1), torch.tensor(1.0)) or loss((found,), found.detach() + 1) > 0.99
    )
    with pytest.raises(UsageError, match="no tensor of numbers"):
        logits({"ids": torch.arange(3)})


def test_every_contender_gets_the_same_work():
    task = WorkSpec("resnet20", 2, 4, "3x8x8")
    one, other = work(task), work(task)
    for (x, y, index), (x2, y2, index2) in zip(one.batches, other.batches, strict=True):
        assert torch.equal(x, x2) and torch.equal(y, y2) and torch.equal(index, index2)
    assert all(torch.equal(p, q) for p, q in zip(one.model.parameters(), other.model.parameters(), strict=True))
    assert torch.cat([b[2] for b in one.batches]).tolist() == list(range(16))
    x = one.batches[0][0]
    assert torch.equal(torch.cat([slice_of(x, r, 2) for r in range(2)]), x)


def test_micro_batches_are_tried_only_where_results_do_not_depend_on_them():
    plan = dataclasses.replace(even_plan(2), batch=16, batch_free=True)
    assert micro_choices("torch-1f1b", plan) == [2, 4, 8] == micro_choices("gpipe", plan)  # none of single samples
    assert micro_choices("torch-1f1b", dataclasses.replace(plan, batch=2)) == [2]
    assert micro_choices("zbh2", plan) == [2, 3, 4, 8]  # 3: the fewest that leave no bubble at K = 2
    assert micro_choices("multiplier", plan) == [] == micro_choices("ddp", plan)
    assert micro_choices("zb", dataclasses.replace(plan, batch_free=False)) == []
