"""Images and video: classification, segmentation, restoration, diffusion."""

from __future__ import annotations

from typing import Any

import torch

from lpcompile.zoo.entry import InputMaker, floats, generator, token_ids
from lpcompile.zoo.strangers.table import Row, images, with_steps

_VIT: dict[str, Any] = {"image_size": 64, "patch_size": 16, "num_classes": 10, "dim": 64, "depth": 6, "heads": 4}
_VIT |= {"mlp_dim": 128}
_SMALL, _TINY = floats(3, 64, 64), floats(3, 32, 32)


def _vit(name: str, path: str, inputs: InputMaker = _SMALL, without: str = "", **options: Any) -> Row:
    given = {k: v for k, v in (_VIT | options).items() if k not in without.split()}
    return Row(name, f"vit_pytorch.{path}", inputs, given)


_VIDEO = floats(3, 8, 32, 32)
_VIT_PYTORCH = [
    _vit("vit", "vit:ViT", dropout=0.1, emb_dropout=0.1),
    _vit("simple_vit", "simple_vit:SimpleViT"),
    _vit("deepvit", "deepvit:DeepViT"),
    _vit("cait", "cait:CaiT", cls_depth=2),
    _vit("cait_layer_dropout", "cait:CaiT", cls_depth=2, layer_dropout=0.1),
    _vit("xcit", "xcit:XCiT", cls_depth=2, local_patch_kernel_size=3),
    _vit("parallel_vit", "parallel_vit:ViT", num_parallel_branches=2),
    _vit("patch_dropout", "vit_with_patch_dropout:ViT", patch_dropout=0.25),
    _vit("patch_merger", "vit_with_patch_merger:ViT", patch_merge_layer=3, patch_merge_num_tokens=4),
    _vit("small_dataset", "vit_for_small_dataset:ViT", patch_size=8),
    _vit("rvt", "rvt:RvT"),
    _vit("qk_norm", "simple_vit_with_qk_norm:SimpleViT"),
    _vit("registers", "simple_vit_with_register_tokens:SimpleViT", num_register_tokens=4),
    _vit("hyper_connections", "simple_vit_with_hyper_connections:SimpleViT", num_residual_streams=2),
    _vit("value_residual", "simple_vit_with_value_residual:SimpleViT"),
    _vit("na_vit", "na_vit:NaViT", lambda batch: (([[images(1, 64)[0], images(1, 64)[0, :, :32]],
         [images(1, 64)[0, :, :, :32]]],), {})),
    _vit("fft", "simple_vit_with_fft:SimpleViT", freq_patch_size=16),
    _vit("learnable_memory", "learnable_memory_vit:ViT"),
    _vit("vit_3d", "vit_3d:ViT", _VIDEO, image_size=32, patch_size=8, image_patch_size=8, frames=8,
         frame_patch_size=2, without="patch_size"),
    _vit("vivit", "vivit:ViViT", _VIDEO, image_size=32, image_patch_size=8, frames=8, frame_patch_size=2,
         spatial_depth=3, temporal_depth=3, without="patch_size depth"),
    _vit("vit_1d", "vit_1d:ViT", floats(3, 64), seq_len=64, patch_size=8, without="image_size"),
    Row("mobile_vit", "vit_pytorch.mobile_vit:MobileViT", _SMALL, {"image_size": (64, 64), "dims": [32, 40, 48],
        "channels": [16, 16, 24, 24, 32, 32, 40, 40, 48, 48, 64], "num_classes": 10}),
    Row("cct", "vit_pytorch.cct:CCT", _TINY, {"img_size": 32, "embedding_dim": 64, "n_conv_layers": 1,
        "kernel_size": 3, "stride": 1, "padding": 1, "num_layers": 6, "num_heads": 2, "mlp_ratio": 2.0,
        "num_classes": 10, "positional_embedding": "learnable"}),
    Row("cvt", "vit_pytorch.cvt:CvT", _SMALL, {"num_classes": 10, "s1_emb_dim": 16, "s2_emb_dim": 32,
        "s3_emb_dim": 48, "s2_heads": 2, "s3_heads": 3, "s3_depth": 4}),
    Row("pit", "vit_pytorch.pit:PiT", _SMALL, {"image_size": 64, "patch_size": 8, "dim": 32, "num_classes": 10,
        "depth": (2, 2, 2), "heads": 2, "mlp_dim": 64}),
    Row("max_vit", "vit_pytorch.max_vit:MaxViT", _SMALL, {"num_classes": 10, "dim_conv_stem": 16, "dim": 16,
        "dim_head": 8, "depth": (1, 1, 2), "window_size": 4}),
    Row("nest", "vit_pytorch.nest:NesT", _SMALL, {"image_size": 64, "patch_size": 4, "dim": 32, "heads": 2,
        "num_hierarchies": 3, "block_repeats": (2, 2, 4), "num_classes": 10}),
    Row("twins_svt", "vit_pytorch.twins_svt:TwinsSVT", floats(3, 128, 128), {"num_classes": 10, "s1_emb_dim": 16,
        "s2_emb_dim": 16, "s3_emb_dim": 32, "s4_emb_dim": 32, "s1_local_patch_size": 4, "s2_local_patch_size": 4,
        "s3_local_patch_size": 2, "s4_local_patch_size": 2, "s1_global_k": 4, "s2_global_k": 4, "s3_global_k": 2,
        "s4_global_k": 2}),
    Row("levit", "vit_pytorch.levit:LeViT", _SMALL, {"image_size": 64, "num_classes": 10, "stages": 3,
        "dim": (32, 48, 64), "depth": 2, "heads": (2, 3, 4), "mlp_mult": 2}),
]  # fmt: skip


def _smp(kind: str, encoder: str = "resnet18", **options: Any) -> Row:
    return Row(f"{kind}_{encoder}", f"segmentation_models_pytorch:{kind}", _SMALL,
               {"encoder_name": encoder, "encoder_weights": None, "classes": 3, **options})  # fmt: skip


_SEGMENTATION = [
    _smp("Unet"),
    _smp("Unet", "mobilenet_v2"),
    _smp("UnetPlusPlus"),
    _smp("FPN"),
    _smp("PSPNet"),
    _smp("Linknet"),
    _smp("DeepLabV3"),
    _smp("DeepLabV3Plus", "efficientnet-b0"),
    _smp("MAnet"),
    _smp("Segformer"),
    _smp("UPerNet"),
]


def _cv(name: str, size: int = 64, **options: Any) -> Row:
    return Row(name, "pytorchcv.model_provider:get_model", floats(3, size, size), {"pretrained": False, **options},
               (name,))  # fmt: skip


_PYTORCHCV = [
    _cv(name, 32)
    for name in ("resnet20_cifar10", "preresnet20_cifar10", "wrn16_10_cifar10", "densenet40_k12_cifar10",
                 "pyramidnet110_a48_cifar10", "seresnet20_cifar10", "shakeshakeresnet20_2x16d_cifar10",
                 "diaresnet20_cifar10", "ror3_56_cifar10", "rir_cifar10")
] + [
    _cv(name, 224) for name in ("shufflenet_g1_wd4", "squeezenet_v1_1", "mobilenet_wd4", "igcv3_wd4", "ghostnet")
]  # fmt: skip

_CADENE = [
    Row(name, f"pretrainedmodels:{name}", floats(3, size, size), {"num_classes": 10, "pretrained": None})
    for name, size in (("resnet18", 96), ("dpn68", 224), ("bninception", 224))
]


def _clip(batch: int) -> Any:
    return (images(batch, 32), token_ids(batch, 8, 48)), {}


_OTHERS = [
    Row("b0", "efficientnet_pytorch:EfficientNet.from_name", _SMALL, {"num_classes": 10}, ("efficientnet-b0",)),
    Row("b1", "efficientnet_pytorch:EfficientNet.from_name", _SMALL, {"num_classes": 10}, ("efficientnet-b1",)),
    Row("clip_vit", "open_clip.model:CLIP", _clip, {"embed_dim": 32,
        "vision_cfg": {"layers": 4, "width": 64, "patch_size": 8, "image_size": 32, "head_width": 16},
        "text_cfg": {"context_length": 8, "vocab_size": 49, "width": 64, "heads": 4, "layers": 4}}),
    Row("mixer", "mlp_mixer_pytorch:MLPMixer", _SMALL,
        {"image_size": 64, "channels": 3, "patch_size": 16, "dim": 64, "depth": 6, "num_classes": 10}),
    Row("g_mlp", "g_mlp_pytorch:gMLPVision", _SMALL,
        {"image_size": 64, "patch_size": 16, "num_classes": 10, "dim": 64, "depth": 6}),
    Row("timesformer", "timesformer_pytorch:TimeSformer", lambda batch: (
        (torch.randn(batch, 4, 3, 32, 32, generator=generator()),), {}), {"dim": 64, "image_size": 32,
        "patch_size": 8, "num_frames": 4, "num_classes": 10, "depth": 6, "heads": 4, "dim_head": 16}),
    Row("axial", "axial_attention:AxialImageTransformer", floats(32, 16, 16), {"dim": 32, "depth": 6, "heads": 4,
        "dim_index": 1, "axial_pos_emb_shape": (16, 16), "reversible": False}),
    Row("uformer", "uformer_pytorch:Uformer", _SMALL, {"dim": 16, "stages": 3, "num_blocks": 2, "window_size": 8,
        "dim_head": 8, "heads": 2, "ff_mult": 2}),
    Row("unet", "denoising_diffusion_pytorch:Unet", with_steps(3, 32), {"dim": 16, "dim_mults": (1, 2, 4),
        "flash_attn": False}),
    Row("unet_2d", "diffusers:UNet2DModel", with_steps(3, 32), {"sample_size": 32, "block_out_channels": (16, 32),
        "norm_num_groups": 8, "layers_per_block": 2, "attention_head_dim": 8,
        "down_block_types": ("DownBlock2D", "AttnDownBlock2D"), "up_block_types": ("AttnUpBlock2D", "UpBlock2D")}),
    Row("vae", "diffusers:AutoencoderKL", _TINY, {"block_out_channels": (16, 32), "norm_num_groups": 8,
        "down_block_types": ("DownEncoderBlock2D",) * 2, "up_block_types": ("UpDecoderBlock2D",) * 2}),
    Row("dit", "diffusers:DiTTransformer2DModel", lambda batch: ((torch.randn(batch, 4, 16, 16,
        generator=generator()),), {"timestep": torch.arange(batch) + 3, "class_labels": torch.arange(batch)}),
        {"num_attention_heads": 4, "attention_head_dim": 16, "num_layers": 6, "sample_size": 16}),
]  # fmt: skip

ROWS = [*_VIT_PYTORCH, *_SEGMENTATION, *_PYTORCHCV, *_CADENE, *_OTHERS]
