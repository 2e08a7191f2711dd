"""Small models of every family that AuxNets must work on: real architectures with few channels and random weights."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.passes.auxnet.derive import aux_io
from lpcompile.passes.split.split import stage_io
from lpcompile.program import Program

Call = dict[str, Any]


def image(size: int = 32) -> Call:
    return {"example_inputs": torch.randn(2, 3, size, size)}


def tokens(vocabulary: int = 99) -> Call:
    return {"example_inputs": torch.randint(0, vocabulary, (2, 12))}


def torchvision_model(name: str, **kwargs: Any) -> nn.Module:
    import torchvision

    model: nn.Module = getattr(torchvision.models, name)(weights=None, num_classes=7, **kwargs)
    return model


def resnext() -> nn.Module:
    from torchvision.models.resnet import Bottleneck, ResNet

    return ResNet(Bottleneck, [3, 3, 3, 3], num_classes=7, groups=8, width_per_group=4)


def vit() -> nn.Module:
    from torchvision.models import VisionTransformer

    return VisionTransformer(32, 8, 6, 4, 64, 128, num_classes=7)


def swin() -> nn.Module:
    from torchvision.models import SwinTransformer

    return SwinTransformer([4, 4], 32, [2, 4, 2], [2, 4, 8], [4, 4], num_classes=7, stochastic_depth_prob=0.0)


def convnext() -> nn.Module:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    return ConvNeXt([CNBlockConfig(16, 32, 3), CNBlockConfig(32, None, 6)], num_classes=7)


def bert() -> nn.Module:
    from transformers import BertConfig, BertModel

    return BertModel(
        BertConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=64,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
        )
    )


def gpt2() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=99,
            n_embd=32,
            n_layer=6,
            n_head=4,
            n_positions=32,
            attn_pdrop=0.0,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
        )
    )


def llama() -> nn.Module:
    from transformers import LlamaConfig, LlamaForCausalLM

    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=99,
            hidden_size=32,
            num_hidden_layers=6,
            num_attention_heads=4,
            intermediate_size=64,
            num_key_value_heads=2,
        )
    )


def encoder(norm_first: bool) -> nn.Module:
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True, norm_first=norm_first)
    stack = nn.TransformerEncoder(layer, 6, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(99, 32), stack, nn.Linear(32, 7))


FAMILIES: dict[str, tuple[Callable[[], nn.Module], Call]] = {
    "post-activation ResNet": (models.resnet20, image()),
    "pre-activation ResNet": (models.preact_resnet20, image()),
    "WideResNet": (models.wide_resnet16_4, image(16)),
    "ResNet with projections": (partial(torchvision_model, "resnet18"), image(64)),
    "ResNeXt": (resnext, image(64)),
    "RegNet": (partial(torchvision_model, "regnet_y_400mf"), image(64)),
    "ConvNeXt": (convnext, image()),
    "EfficientNet": (partial(torchvision_model, "efficientnet_b0"), image(64)),
    "MobileNetV2": (partial(torchvision_model, "mobilenet_v2"), image(64)),
    "MobileNetV3": (partial(torchvision_model, "mobilenet_v3_small"), image(64)),
    "ViT": (vit, image()),
    "Swin": (swin, image()),
    "BERT": (bert, tokens()),
    "GPT-2": (gpt2, tokens()),
    "Llama": (llama, tokens()),
    "torch.nn, norm after": (partial(encoder, False), tokens()),
    "torch.nn, norm first": (partial(encoder, True), tokens()),
}


def compiled(name: str, K: int = 2, **options: Any) -> Program:
    torch.manual_seed(0)
    build, call = FAMILIES[name]
    return lpcompile.parallelize(build(), K, **call, cost="flops", gate=False, **{"method": "multiplier", **options})


def boundaries(program: Program, tensors: list[torch.Tensor]) -> list[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """(λ, X) at every boundary in training mode."""
    program.train()
    pairs, lam = [], list[torch.Tensor]()
    with torch.no_grad():
        for stage, aux in zip(program.stages, program.auxnets, strict=False):
            io, own = stage_io(stage), aux_io(aux)
            x = _several(stage(*lam, *(tensors[i] for i in io.inputs)))[: len(io.boundary)]
            lam = _several(aux(*(lam if own.lams else ()), *(tensors[i] for i in own.inputs)))
            pairs.append((lam, x))
    return pairs


def _several(result: Any) -> list[torch.Tensor]:
    return list(result) if isinstance(result, tuple) else [result]
