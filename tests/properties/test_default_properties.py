"""The default trains as the exact reference does, bit for bit, and so as plain training does: whatever the recipe."""

from __future__ import annotations

import copy
import functools
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import lpcompile
from lpcompile.study.networks import PreActNet
from tests.properties.strategies import examples, one_of
from tests.runtime.small import compiled

BATCH = 32


class Tied(nn.Module):
    """A byte model whose first and last stage share a table, with dropout and torch's own attention."""

    def __init__(self, drop=0.1):
        super().__init__()
        self.table = nn.Embedding(16, 8)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, drop, batch_first=True, norm_first=True) for _ in range(8)
        )
        self.norm, self.head = nn.LayerNorm(8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids):
        x = self.table(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))[:, -1]


MAKE = {
    "resnet": lambda: lpcompile.models.ResNet(20, 10, width=4),
    "wide": lambda: lpcompile.models.WideResNet(16, 1),
    "preact": lambda: PreActNet(20, 4),
    "vit": lambda: lpcompile.models.VisionTransformer(8, 4, dim=8, depth=8, heads=2, num_classes=10),
    "gpt": lambda: lpcompile.models.GPT(vocabulary=16, context=4, dim=8, depth=8, heads=2),
    "tied": Tied,
    "tied, no dropout": lambda: Tied(0.0),
}
OPTIMIZERS = {
    "sgd": lambda ps: torch.optim.SGD(ps, 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
    "adamw": lambda ps: torch.optim.AdamW(ps, 2e-3, eps=1e-3, weight_decay=0.05),
}
SCHEDULERS = {
    "": None,
    "one cycle": lambda of: torch.optim.lr_scheduler.OneCycleLR(of, [g["lr"] for g in of.param_groups], 10),
}


@dataclass(frozen=True)
class Training:
    """How a model is trained. sizes: of its batches; the last one of an epoch may be small."""

    model: str
    K: int
    optimizer: str
    scheduler: str
    sizes: tuple[int, ...]
    clip: float | None
    accumulate: int
    autocast: torch.dtype | None
    checkpoint: bool

    def options(self):
        names = ("clip", "accumulate", "autocast", "checkpoint")
        return {name: getattr(self, name) for name in names} | {
            "optimizer": OPTIMIZERS[self.optimizer],
            "scheduler": SCHEDULERS[self.scheduler],
        }

    def data(self):
        g = torch.Generator().manual_seed(3)
        for size in self.sizes:
            words = torch.randint(16, (size, 4), generator=g)
            target = torch.randint(10, (size,), generator=g)
            if self.model == "gpt":
                yield words, words.roll(-1, 1)
            else:
                text = self.model.startswith("tied")
                yield (words if text else torch.randn(size, 3, 8, 8, generator=g)), target


def trainings(models):
    return st.builds(
        Training,
        model=one_of(*models),
        K=one_of(2, 3, 4, 8),
        optimizer=one_of(*OPTIMIZERS),
        scheduler=one_of(*SCHEDULERS),
        sizes=one_of((BATCH, BATCH, BATCH), (BATCH, 5, BATCH, 12)),
        clip=one_of(None, 0.3),
        accumulate=one_of(1, 2),
        autocast=one_of(None, torch.bfloat16),
        checkpoint=one_of(False, True),
    )


def loss_fn(out, target):
    return F.cross_entropy(out.flatten(0, -2).float(), target.flatten())


@functools.cache
def program_of(model, K):
    """Compiled once, with the weights that it begins with; as many stages as the model has."""
    torch.manual_seed(0)
    x, _ = next(Training(model, K, "", "", (BATCH,), None, 1, None, False).data())
    module = MAKE[model]()
    found = compiled(module, min(K, 4) if model in ("wide", "resnet") else K, x, method="auto")
    return found, copy.deepcopy(module.state_dict())


def fresh(how):
    program, start = program_of(how.model, how.K)
    program.module.load_state_dict(start)
    program.module.zero_grad()  # batches that were accumulated and not applied
    return program


def trained(how, method=None, micro=None):
    """Losses, weights and buffers, and the optimizers' state by parameter."""
    program = fresh(how)
    torch.manual_seed(5)
    trainer = program.trainer(loss_fn, method=method, micro=micro, **how.options())
    usual = trainer.micro
    losses = [trainer.step(x, y)["loss"] for x, y in how.data()]
    names = {p: name for name, p in program.module.named_parameters()}
    state = {
        f"{names[p]} {kind}": torch.as_tensor(value).clone()
        for w in trainer.workers
        for p, kept in w.updater.optimizer.state.items()
        for kind, value in kept.items()
        if value is not None
    }
    return losses, {n: t.clone() for n, t in trainer.state_dict().items()} | state, usual


@examples(8)
@given(trainings([name for name in MAKE if name != "tied, no dropout"]))
def test_the_default_is_the_exact_reference_to_the_bit(how):
    """With the same micro-batches: all forwards first, or one micro-batch after the other."""
    losses, found, micro = trained(how)
    for method in ("gpipe", "bp") if BATCH % micro == 0 else ("bp",):
        expected = trained(how, method, micro)
        assert losses == expected[0], method
        different = [name for name, t in expected[1].items() if not torch.equal(found[name], t)]
        assert found.keys() == expected[1].keys() and not different, f"{method}: {different}"


@examples(5)
@given(trainings(["vit", "gpt", "tied, no dropout"]))
def test_without_batch_norm_and_dropout_the_default_is_plain_training(how):
    """On whole batches, as a user writes it: a difference is rounding."""
    if how.autocast is not None:  # rounds each product of a micro-batch, and the sum of all
        return
    _, found, _ = trained(how)
    model = fresh(how).module
    optimizer = OPTIMIZERS[how.optimizer](list(model.parameters()))
    scheduler = SCHEDULERS[how.scheduler](optimizer) if how.scheduler else None
    for i, (x, y) in enumerate(how.data()):
        (loss_fn(model(x), y) / how.accumulate).backward()
        if (i + 1) % how.accumulate == 0:
            if how.clip:
                nn.utils.clip_grad_norm_(model.parameters(), how.clip)
            optimizer.step()
            optimizer.zero_grad()
            if scheduler is not None:
                scheduler.step()
    for name, t in model.state_dict().items():
        torch.testing.assert_close(found[name], t, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")
