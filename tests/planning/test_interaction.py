"""Samples that influence each other in the model are found by trial, and micro-batches are not tiny then."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import lpcompile
from lpcompile.planning.interaction import NOTE
from lpcompile.runtime.methods.zero_bubble import NORM_SAMPLES


class OwnNorm(nn.Module):
    def forward(self, x):
        return (x - x.mean(0)) / (x.var(0) + 1e-5).sqrt()


class FunctionalNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("var", torch.ones(6))

    def forward(self, x):
        return F.batch_norm(x, self.mean, self.var, training=self.training)


class Counts(nn.Module):
    """A layer that is kept whole, for it changes its own attributes."""

    def __init__(self):
        super().__init__()
        self.seen = 0

    def forward(self, x):
        self.seen += 1
        return x - x.mean(0, keepdim=True)


def net(layer):
    torch.manual_seed(0)
    return nn.Sequential(*[nn.Sequential(nn.Linear(6, 6), layer(), nn.Tanh()) for _ in range(4)], nn.Linear(6, 3))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (OwnNorm, True),
        (FunctionalNorm, True),
        (Counts, True),
        (lambda: nn.BatchNorm1d(6), True),
        (lambda: nn.LayerNorm(6), False),
        (lambda: nn.Dropout(0.5), False),
    ],
)
def test_micro_batches_of_samples_that_influence_each_other_have_enough_of_them(layer, expected):
    model, x = net(layer), torch.zeros(40, 6)  # whose rows are alike
    before = {name: t.clone() for name, t in model.state_dict().items()}
    plan = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", gate=False).plan
    assert plan.batch_norm == expected and plan.micro == (40 // NORM_SAMPLES if expected else 4)
    assert (NOTE in plan.notes) == (expected and not isinstance(model[0][1], nn.BatchNorm1d))
    assert all(torch.equal(t, before[name]) for name, t in model.state_dict().items())
    assert getattr(model[0][1], "seen", 0) == 0 and model.training


class Sized(nn.Module):
    """Remembers the image sizes that it runs on; may take one alone."""

    def __init__(self, only=None, mixes=False):
        super().__init__()
        self.layers = nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1) for _ in range(4)))
        self.only, self.mixes = only, mixes

    def forward(self, x):
        if type(x) is torch.Tensor:  # no recording
            SEEN.append(x.shape[-1])
        assert self.only in (None, x.shape[-1])
        x = self.layers(x.reshape(len(x), 3, x.shape[2], x.shape[3]))
        return x + x.mean(0) if self.mixes else x


SEEN: list[int] = []


@pytest.mark.parametrize(
    ("options", "sizes"), [({}, [64, 64]), ({"mixes": True}, [64, 64]), ({"only": 160}, [64, 160, 160])]
)
def test_the_trial_takes_small_images_where_the_model_does(options, sizes):
    SEEN.clear()
    model, x = Sized(**options), torch.randn(4, 3, 160, 160)
    plan = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops", gate=False).plan
    assert SEEN == sizes and plan.batch_norm == options.get("mixes", False)
