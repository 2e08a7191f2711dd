"""Tiny configurations of the vision and audio models of transformers."""

from __future__ import annotations

from typing import Any

from lpcompile.zoo.entry import InputMaker, Inputs, floats, token_ids
from lpcompile.zoo.hf_text import SEQ2SEQ, HfModel

VIT = {
    "hidden_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "image_size": 32,
    "patch_size": 8,
}
SWIN = {
    "image_size": 64,
    "patch_size": 4,
    "embed_dim": 16,
    "depths": [2, 2, 4, 2],
    "num_heads": [2, 2, 4, 4],
    "window_size": 2,
}
CONVNEXT = {"hidden_sizes": [16, 24, 32, 48], "depths": [2, 2, 4, 2], "drop_path_rate": 0.1}
RESNET = {"embedding_size": 16, "hidden_sizes": [16, 32, 48, 64], "depths": [2, 2, 4, 2]}
PVT = {
    "image_size": 64,
    "hidden_sizes": [16, 24, 32, 48],
    "depths": [2, 2, 2, 2],
    "num_attention_heads": [1, 2, 2, 4],
    "mlp_ratios": [2, 2, 2, 2],
}
WAV2VEC2 = {
    "vocab_size": 32,
    "hidden_size": 32,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "conv_dim": (16, 16, 16),
    "conv_stride": (5, 4, 4),
    "conv_kernel": (10, 8, 8),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "layerdrop": 0.0,
    "apply_spec_augment": False,
}


def _image(name: str, stem: str, kwargs: dict[str, Any], size: int = 64) -> HfModel:
    return name, f"{stem}Config", f"{stem}ForImageClassification", kwargs, floats(3, size, size)


def _speech(name: str, stem: str, **extra: Any) -> HfModel:
    return name, f"{stem}Config", f"{stem}ForCTC", {**WAV2VEC2, **extra}, floats(4000)


def _mel_and_target(bands: int, frames: int) -> InputMaker:
    def make(batch: int) -> Inputs:
        args, _ = floats(bands, frames)(batch)
        return args, {"decoder_input_ids": token_ids(batch, 8)}

    return make


VISION: list[HfModel] = [
    _image("vit", "ViT", VIT, 32),
    _image("deit", "DeiT", VIT, 32),
    _image("beit", "Beit", {**VIT, "use_relative_position_bias": True}, 32),
    _image("data2vec_vision", "Data2VecVision", {**VIT, "use_shared_relative_position_bias": True}, 32),
    _image("dinov2", "Dinov2", {**VIT, "mlp_ratio": 2}, 32),
    _image("dinov2_with_registers", "Dinov2WithRegisters", {**VIT, "mlp_ratio": 2}, 32),
    _image("vit_msn", "ViTMSN", VIT, 32),
    _image("ijepa", "IJepa", VIT, 32),
    ("clip_vision", "CLIPVisionConfig", "CLIPVisionModel", VIT, floats(3, 32, 32)),
    ("siglip_vision", "SiglipVisionConfig", "SiglipVisionModel", VIT, floats(3, 32, 32)),
    (
        "yolos",
        "YolosConfig",
        "YolosModel",
        {**VIT, "image_size": [32, 32], "num_detection_tokens": 5},
        floats(3, 32, 32),
    ),
    _image("swin", "Swin", SWIN),
    _image("swinv2", "Swinv2", SWIN),
    _image("donut_swin", "DonutSwin", SWIN),
    _image("convnext", "ConvNext", CONVNEXT),
    _image("convnextv2", "ConvNextV2", CONVNEXT),
    _image("resnet", "ResNet", RESNET),
    _image("bit", "Bit", {**RESNET, "num_groups": 4}),
    _image("regnet", "RegNet", {**RESNET, "groups_width": 8}),
    _image(
        "focalnet", "FocalNet", {"image_size": 64, "embed_dim": 16, "depths": [2, 2, 4, 2], "focal_levels": [2] * 4}
    ),
    (
        "segformer",
        "SegformerConfig",
        "SegformerForSemanticSegmentation",
        {
            "depths": [2, 2, 2, 2],
            "hidden_sizes": [16, 24, 32, 48],
            "num_attention_heads": [1, 2, 2, 4],
            "decoder_hidden_size": 32,
        },
        floats(3, 64, 64),
    ),
    _image("mobilenet_v1", "MobileNetV1", {"image_size": 64, "depth_multiplier": 0.25}),
    _image("mobilenet_v2", "MobileNetV2", {"image_size": 64, "depth_multiplier": 0.35}),
    _image("efficientnet", "EfficientNet", {"image_size": 64, "width_coefficient": 0.25, "hidden_dim": 320}),
    _image(
        "mobilevit",
        "MobileViT",
        {"image_size": 64, "hidden_sizes": [32, 48, 64], "neck_hidden_sizes": [8, 16, 24, 32, 32, 32, 64]},
    ),
    _image("mobilevitv2", "MobileViTV2", {"image_size": 64, "width_multiplier": 0.25}),
    _image(
        "poolformer",
        "PoolFormer",
        {"hidden_sizes": [16, 24, 32, 48], "depths": [2, 2, 4, 2], "drop_path_rate": 0.1},
    ),
    _image("pvt", "Pvt", PVT),
    _image("pvt_v2", "PvtV2", PVT),
    _image("cvt", "Cvt", {"embed_dim": [16, 32, 48], "num_heads": [1, 2, 3], "depth": [1, 2, 4]}),
    _image(
        "levit",
        "Levit",
        {"image_size": 64, "hidden_sizes": [32, 48, 64], "num_attention_heads": [2, 3, 4], "depths": [2, 2, 2]},
    ),
    _image(
        "swiftformer",
        "SwiftFormer",
        {"image_size": 64, "depths": [2, 2, 4, 2], "embed_dims": [16, 24, 32, 48]},
    ),
    _image(
        "hiera",
        "Hiera",
        {
            "image_size": [64, 64],
            "embed_dim": 16,
            "depths": [1, 2, 3, 2],
            "num_heads": [1, 2, 4, 8],
            "masked_unit_size": [8, 8],
        },
    ),
    _image("hgnet_v2", "HGNetV2", {}),
    _image("textnet", "TextNet", {"image_size": [64, 64]}),
]

AUDIO: list[HfModel] = [
    _speech("wav2vec2", "Wav2Vec2"),
    _speech("hubert", "Hubert"),
    _speech("unispeech", "UniSpeech"),
    _speech("unispeech_sat", "UniSpeechSat"),
    _speech("wavlm", "WavLM"),
    _speech("sew", "SEW", squeeze_factor=2),
    _speech("data2vec_audio", "Data2VecAudio", num_conv_pos_embeddings=3, conv_pos_kernel_size=5),
    _speech(
        "wav2vec2_conformer", "Wav2Vec2Conformer", position_embeddings_type="relative", conv_depthwise_kernel_size=7
    ),
    (
        "ast",
        "ASTConfig",
        "ASTForAudioClassification",
        {
            "hidden_size": 32,
            "num_hidden_layers": 8,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "patch_size": 8,
            "max_length": 64,
            "num_mel_bins": 32,
        },
        floats(64, 32),
    ),
    (
        "whisper",
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            **{key: value for key, value in SEQ2SEQ.items() if key != "max_position_embeddings"},
            "num_mel_bins": 20,
            "encoder_layers": 4,
            "decoder_layers": 4,
            "max_source_positions": 32,
            "max_target_positions": 32,
        },
        _mel_and_target(20, 64),
    ),
]
