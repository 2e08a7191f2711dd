"""The networks of the paper and two small transformers, built in so that nothing needs to be downloaded.

    model = lpcompile.models.resnet110()
    inputs = lpcompile.models.REGISTRY["resnet110"].inputs(batch=128)

`resnet` and `wide_resnet` are for CIFAR, `transformer` has a ViT and a GPT. Plain torch: imports no other room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lpcompile.models.resnet import (
    ResNet,
    preact_resnet20,
    preact_resnet110,
    resnet20,
    resnet32,
    resnet54,
    resnet56,
    resnet110,
)
from lpcompile.models.transformer import GPT, VisionTransformer, gpt_30m, gpt_tiny, vit_s16_96
from lpcompile.models.wide_resnet import (
    WideResNet,
    wide_resnet16_4,
    wide_resnet16_10,
    wide_resnet28_10,
    wide_resnet40_10,
)

__all__ = [
    "GPT",
    "REGISTRY",
    "BuiltInModel",
    "ResNet",
    "VisionTransformer",
    "WideResNet",
    "gpt_30m",
    "gpt_tiny",
    "preact_resnet20",
    "preact_resnet110",
    "resnet20",
    "resnet32",
    "resnet54",
    "resnet56",
    "resnet110",
    "vit_s16_96",
    "wide_resnet16_4",
    "wide_resnet16_10",
    "wide_resnet28_10",
    "wide_resnet40_10",
]


@dataclass(frozen=True)
class BuiltInModel:
    """A built-in model: its factory and the input it expects, without the batch dimension.

    `vocabulary` is set for models that take token ids instead of floats.
    """

    factory: Callable[..., nn.Module]
    input_shape: tuple[int, ...] = (3, 32, 32)
    vocabulary: int | None = None

    def inputs(self, batch: int, seed: int = 0) -> Tensor:
        """A random mini-batch; the caller's random state is not changed."""
        generator = torch.Generator().manual_seed(seed)
        if self.vocabulary is None:
            return torch.randn(batch, *self.input_shape, generator=generator)
        return torch.randint(self.vocabulary, (batch, *self.input_shape), generator=generator)


REGISTRY: dict[str, BuiltInModel] = {
    factory.__name__: BuiltInModel(factory)
    for factory in (
        resnet20,
        resnet32,
        resnet54,
        resnet56,
        resnet110,
        preact_resnet20,
        preact_resnet110,
        wide_resnet16_4,
        wide_resnet16_10,
        wide_resnet28_10,
        wide_resnet40_10,
    )
}
REGISTRY["vit_s16_96"] = BuiltInModel(vit_s16_96, (3, 96, 96))
REGISTRY["gpt_tiny"] = BuiltInModel(gpt_tiny, (64,), vocabulary=256)
REGISTRY["gpt_30m"] = BuiltInModel(gpt_30m, (64,), vocabulary=2048)
