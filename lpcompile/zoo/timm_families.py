"""timm: one small model of every family, and some more that are built differently from it.

The table is written out instead of searched for, so that the zoo is the same list on every machine; a test compares
its families with those of the installed timm.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from lpcompile.zoo.entry import InputMaker, ZooEntry, floats

FAMILIES = {
    "beit": "beit_base_patch16_224",
    "byoanet": "haloregnetz_b",
    "byobnet": "mobileone_s1",
    "cait": "cait_xxs24_224",
    "coat": "coat_tiny",
    "convit": "convit_tiny",
    "convmixer": "convmixer_1024_20_ks9_p14",
    "convnext": "convnext_zepto_rms",
    "cpubone": "cpubone_nano",
    "crossvit": "crossvit_tiny_240",
    "csatv2": "csatv2",
    "cspnet": "cs3darknet_s",
    "davit": "davit_tiny",
    "deepseek_vit": "deepseek_vit_412m",
    "deit": "deit_tiny_patch16_224",
    "densenet": "densenet121",
    "dla": "dla46_c",
    "dpn": "dpn48b",
    "edgenext": "edgenext_xx_small",
    "efficientformer": "efficientformer_l1",
    "efficientformer_v2": "efficientformerv2_s0",
    "efficientnet": "mobilenetv2_035",
    "efficientvim": "efficientvim_m1",
    "efficientvit_mit": "efficientvit_b0",
    "efficientvit_msra": "efficientvit_m0",
    "eva": "eva02_tiny_patch14_224",
    "fasternet": "fasternet_t0",
    "fastvit": "fastvit_t8",
    "focalnet": "focalnet_tiny_srf",
    "gcvit": "gcvit_xxtiny",
    "gemma4_vit": "gemma4_vit_167m",
    "ghostnet": "ghostnet_050",
    "hardcorenas": "hardcorenas_a",
    "hgnet": "hgnetv2_b0",
    "hiera": "hiera_tiny_224",
    "hieradet_sam2": "hieradet_small",
    "hrnet": "hrnet_w18_small",
    "iformer": "iformer_t",
    "inception_next": "inception_next_atto",
    "inception_resnet_v2": "inception_resnet_v2",
    "inception_v3": "inception_v3",
    "inception_v4": "inception_v4",
    "lcnetv2": "lcnetv2_small",
    "levit": "levit_128s",
    "lowformer": "lowformer_b0",
    "mambaout": "mambaout_femto",
    "maxxvit": "maxvit_pico_rw_256",
    "metaformer": "poolformerv2_s12",
    "mlp_mixer": "gmlp_ti16_224",
    "mobilenetv3": "mobilenetv3_small_050",
    "mobilenetv5": "mobilenetv5_base",
    "mobilevit": "mobilevit_xxs",
    "mvitv2": "mvitv2_tiny",
    "naflexvit": "naflexvit_base_patch16_gap",
    "nasnet": "nasnetalarge",
    "nest": "nest_tiny",
    "nextvit": "nextvit_small",
    "nfnet": "nf_regnet_b0",
    "pit": "pit_ti_224",
    "pnasnet": "pnasnet5large",
    "pvt_v2": "pvt_v2_b0",
    "qwen3_vit": "qwen3_vit_88m",
    "rdnet": "rdnet_tiny",
    "regnet": "regnetx_002",
    "repghost": "repghostnet_050",
    "repvit": "repvit_m1",
    "res2net": "res2net50_14w_8s",
    "resnest": "resnest14d",
    "resnet": "resnet10t",
    "resnetv2": "resnetv2_18",
    "rexnet": "rexnet_100",
    "selecsls": "selecsls42",
    "senet": "legacy_seresnet18",
    "sequencer": "sequencer2d_s",
    "shvit": "shvit_s1",
    "sknet": "skresnet18",
    "starnet": "starnet_s050",
    "swiftformer": "swiftformer_xs",
    "swin_transformer": "swin_tiny_patch4_window7_224",
    "swin_transformer_v2": "swinv2_tiny_window8_256",
    "swin_transformer_v2_cr": "swinv2_cr_tiny_224",
    "tiny_vit": "tiny_vit_5m_224",
    "tnt": "tnt_s_patch16_224",
    "tresnet": "tresnet_m",
    "twins": "twins_svt_small",
    "vgg": "vgg11",
    "visformer": "visformer_tiny",
    "vision_transformer": "vit_tiny_patch16_224",
    "vision_transformer_hybrid": "vit_tiny_r_s16_p8_224",
    "vision_transformer_relpos": "vit_relpos_small_patch16_224",
    "vision_transformer_sam": "samvit_base_patch16_224",
    "vitamin": "vitamin_small_224",
    "volo": "volo_d1_224",
    "vovnet": "ese_vovnet19b_slim_dw",
    "xception": "legacy_xception",
    "xception_aligned": "xception41p",
    "xcit": "xcit_nano_12_p16_224",
}
MORE = """
    resnet18 resnet50d resnetv2_50 seresnet50 ecaresnet50t efficientnet_b0 efficientnetv2_rw_t mixnet_s
    tf_efficientnet_lite0 mnasnet_small fbnetc_100 vit_xsmall_patch16_clip_224 vit_small_patch16_rope_224
    vit_tiny_patch16_dinov3_qkvb deit_tiny_distilled_patch16_224 maxvit_nano_rw_256 coatnet_nano_rw_224
    convnextv2_atto repvgg_a0 gernet_s mobileone_s0 caformer_s18 mixer_s32_224 resmlp_12_224 mobilevitv2_050
    halonet26t lambda_resnet26t botnet26t_256 cspdarknet53 beitv2_base_patch16_224 coat_lite_tiny crossvit_9_240
    ghostnetv3_050 lcnet_035 twins_pcpvt_small
""".split()

# Smaller inputs where the published ones make a step take many seconds; the layers are the same.
INPUT_SIZE = {
    "csatv2": 256,
    "inception_resnet_v2": 160,
    "inception_v3": 160,
    "inception_v4": 160,
    "legacy_xception": 160,
    "nasnetalarge": 128,
    "pnasnet5large": 128,
    "xception41p": 160,
}
# Transformers that fix their grid when they are built are told the smaller input.
IMAGE_SIZE = {"gemma4_vit_167m": 96, "naflexvit_base_patch16_gap": 128, "qwen3_vit_88m": 128}
HEAVY = {"deepseek_vit_412m"}  # 412 million parameters at 546 px: a step takes minutes


def _entry(name: str) -> ZooEntry:
    def make() -> tuple[nn.Module, InputMaker]:
        import timm

        kwargs: dict[str, Any] = {"img_size": IMAGE_SIZE[name]} if name in IMAGE_SIZE else {}
        model: nn.Module = timm.create_model(name, pretrained=False, **kwargs)
        channels, height, width = model.pretrained_cfg["input_size"]  # type: ignore[index]
        size = INPUT_SIZE.get(name) or IMAGE_SIZE.get(name)
        return model, floats(channels, size or height, size or width)

    return ZooEntry(f"timm:{name}", "timm", make, heavy=name in HEAVY)


def entries() -> list[ZooEntry]:
    return [_entry(name) for name in (*FAMILIES.values(), *MORE)]
