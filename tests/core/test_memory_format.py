"""Models that lie channels last: compiled as they are, and what we add to them lies the same way."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import lpcompile
from lpcompile.core.memory_format import channels_last, lies_channels_last
from lpcompile.errors import UsageError
from lpcompile.models import ResNet
from lpcompile.sources import load


def program(K=2, **options):
    torch.manual_seed(0)
    model = ResNet(14, 3, width=4).to(memory_format=torch.channels_last)
    x = channels_last(torch.randn(4, 3, 8, 8))
    options = {"method": "multiplier", **options}
    return lpcompile.parallelize(model, K, example_inputs=x, cost="flops", **options), x


def test_only_weights_that_can_lie_in_no_other_way_tell():
    assert not lies_channels_last(torch.nn.Conv2d(3, 4, 1).to(memory_format=torch.channels_last))
    assert not lies_channels_last(torch.nn.Conv2d(3, 4, 3))
    assert lies_channels_last(torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last))


def test_auxnets_and_features_lie_as_the_model_does():
    made, x = program(init="consistent")
    assert all(lies_channels_last(module) for module in (*made.stages, *made.auxnets))
    assert made.stages[0](x).is_contiguous(memory_format=torch.channels_last)
    assert made.plan.boundaries[0].aux.violation == 0


@pytest.mark.parametrize("method", ["penalty", "multiplier", "pipedream"])
def test_it_trains_to_what_the_contiguous_model_trains_to(method):
    """Up to rounding: convolutions sum in another order."""
    ends = []
    for last in (True, False):
        made, x = program(init="consistent")
        if not last:
            made.module.to(memory_format=torch.contiguous_format)
            for net in made.auxnets:
                net.to(memory_format=torch.contiguous_format)
        trainer = made.trainer(F.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.01), method=method)
        assert trainer.channels_last is last
        for _ in range(3):
            trainer.step(x.contiguous(), torch.arange(4) % 3)
        ends.append(trainer.state_dict())
    assert all(torch.allclose(a, b, atol=1e-4) for a, b in zip(*(e.values() for e in ends), strict=True))


def test_a_checkpoint_of_it_goes_on_bit_for_bit(tmp_path):
    y = torch.arange(4) % 3

    def trainer():
        made, x = program(init="consistent")
        return made.trainer(F.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.01, momentum=0.9)), x

    first, x = trainer()
    first.step(x, y)
    first.save(tmp_path)
    first.step(x, y)
    other, _ = trainer()
    other.load(tmp_path)
    other.step(x, y)
    here, there = first.state_dict(), other.state_dict()
    assert all(torch.equal(here[name], there[name]) for name in here)


def test_an_emitted_program_lies_the_same_way(tmp_path):
    made, x = program()
    made.emit(tmp_path / "build")
    loaded = lpcompile.load(tmp_path / "build")
    assert torch.equal(loaded.eval()(x), made.eval()(x))


def test_by_name():
    source = load("resnet20", batch=2, channels_last=True)
    assert lies_channels_last(source.model)
    assert source.example_args[0].is_contiguous(memory_format=torch.channels_last)
    with pytest.raises(UsageError, match="gpt_tiny has no convolution"):
        load("gpt_tiny", channels_last=True)
