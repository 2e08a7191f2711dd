"""The built-in networks are the published ones, start well, and leave the caller's random state alone."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile.models as models

# Counted from this code, with ten classes (ViT: a thousand), to pin it. They agree with what is published to the digits
# given there: 0.27, 0.46, 0.85 and 1.7 million for ResNet-20, 32, 56 and 110, 36.5 for WRN-28-10, 22 for ViT-S.
PARAMETERS = {
    "resnet20": 269_722,
    "resnet32": 464_154,
    "resnet54": 853_018,
    "resnet56": 853_018,
    "resnet110": 1_727_962,
    "preact_resnet20": 269_722,
    "preact_resnet110": 1_727_962,
    "wide_resnet16_4": 2_748_890,
    "wide_resnet16_10": 17_116_634,
    "wide_resnet28_10": 36_479_194,
    "wide_resnet40_10": 55_841_754,
    "vit_s16_96": 21_989_224,
    "gpt_tiny": 220_544,
    "gpt_30m": 30_835_840,
}
SMALL = ["resnet20", "preact_resnet20", "wide_resnet16_4", "gpt_tiny"]


def test_every_built_in_model_keeps_its_size() -> None:
    with torch.device("meta"):
        sizes = {name: sum(p.numel() for p in entry.factory().parameters()) for name, entry in models.REGISTRY.items()}
    assert sizes == PARAMETERS


@pytest.mark.parametrize("name", SMALL)
def test_a_model_trains_a_step_with_every_parameter(name: str) -> None:
    entry = models.REGISTRY[name]
    model = entry.factory()
    output = model(entry.inputs(2))
    output.square().mean().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert torch.isfinite(output).all()


def test_the_depth_counts_convolutions_and_the_classifier() -> None:
    model = models.resnet110()
    assert sum(isinstance(module, nn.Conv2d | nn.Linear) for module in model.modules()) == 110
    assert [len(group) for group in (model.layer1, model.layer2, model.layer3)] == [18, 18, 18]


def test_activations_keep_their_size_through_110_layers() -> None:
    torch.manual_seed(0)
    model = models.resnet110().train()
    logits = model(models.REGISTRY["resnet110"].inputs(4))
    assert 0.01 < logits.std().item() < 10


@pytest.mark.parametrize("preact", [False, True])
def test_zero_init_residual_makes_every_same_shape_block_an_identity(preact: bool) -> None:
    model = models.ResNet(20, preact=preact, zero_init_residual=True)
    x = torch.rand(2, 16, 8, 8)  # not negative, so that a closing relu changes nothing
    assert torch.equal(model.layer1(x), x)


def test_num_classes_and_projection_shortcut_are_options() -> None:
    model = models.resnet20(num_classes=100, shortcut="projection")
    assert model(torch.randn(1, 3, 32, 32)).shape == (1, 100)
    assert sum(p.numel() for p in model.parameters()) > sum(
        p.numel() for p in models.resnet20(num_classes=100).parameters()
    )


def test_dropout_of_a_wide_resnet_works_in_train_mode_only() -> None:
    model = models.WideResNet(10, 1, dropout=0.5)
    x = torch.randn(2, 3, 8, 8)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_gpt_ties_its_head_to_the_embedding_unless_told_otherwise() -> None:
    tied, untied = models.gpt_tiny(), models.gpt_tiny(tied=False)
    assert tied.head.weight is tied.tokens.weight
    assert untied.head.weight is not untied.tokens.weight


def test_gpt_does_not_look_ahead() -> None:
    model = models.gpt_tiny().eval()
    ids = models.REGISTRY["gpt_tiny"].inputs(1)
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 256
    assert torch.equal(model(ids)[0, :-1], model(changed)[0, :-1])


def test_a_depth_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"6n \+ 2 layers .* depth 54"):
        models.ResNet(54)
    with pytest.raises(ValueError, match=r"6n \+ 4 layers .* depth 20"):
        models.WideResNet(20, 10)


def test_inputs_repeat_and_do_not_touch_the_random_state() -> None:
    before = torch.get_rng_state()
    first, second = (models.REGISTRY["resnet20"].inputs(2) for _ in range(2))
    assert torch.equal(first, second)
    assert torch.equal(before, torch.get_rng_state())
