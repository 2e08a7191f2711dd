"""Tiny configurations of the text encoders and encoder-decoders of transformers."""

from __future__ import annotations

from typing import Any

from lpcompile.zoo.entry import InputMaker, padded_text, plain_text, source_and_target

# Name, configuration class, model class, configuration arguments, input maker.
HfModel = tuple[str, str, str, dict[str, Any], InputMaker]

SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {
    "vocab_size": 99,
    "hidden_size": 32,
    "num_hidden_layers": 8,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}
SEQ2SEQ = {
    **SPECIAL,
    "vocab_size": 99,
    "d_model": 32,
    "encoder_layers": 6,
    "decoder_layers": 6,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "max_position_embeddings": 64,
    "use_cache": False,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
T5 = {
    "vocab_size": 99,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 64,
    "num_layers": 6,
    "num_heads": 4,
    "use_cache": False,
    "decoder_start_token_id": 0,
}


def _encoder(name: str, stem: str, **extra: Any) -> HfModel:
    return name, f"{stem}Config", f"{stem}ForSequenceClassification", {**ENCODER, **extra}, padded_text


def _seq2seq(name: str, stem: str, **extra: Any) -> HfModel:
    return name, f"{stem}Config", f"{stem}ForConditionalGeneration", {**SEQ2SEQ, **extra}, source_and_target


ENCODERS: list[HfModel] = [
    _encoder("bert", "Bert"),
    _encoder("roberta", "Roberta", pad_token_id=1),
    _encoder("electra", "Electra", embedding_size=32),
    (
        "distilbert",
        "DistilBertConfig",
        "DistilBertForSequenceClassification",
        {
            "vocab_size": 99,
            "dim": 32,
            "n_layers": 8,
            "n_heads": 4,
            "hidden_dim": 64,
            "max_position_embeddings": 64,
        },
        padded_text,
    ),
    _encoder("albert", "Albert", embedding_size=32),
    _encoder("mpnet", "MPNet"),
    _encoder(
        "deberta_v2",
        "DebertaV2",
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        position_biased_input=False,
        max_relative_positions=32,
    ),
    _encoder("deberta", "Deberta", relative_attention=True, pos_att_type=["p2c", "c2p"], max_relative_positions=32),
    _encoder("modernbert", "ModernBert", **SPECIAL, cls_token_id=1, sep_token_id=2),
    _encoder("camembert", "Camembert", pad_token_id=1),
    _encoder("xlm_roberta", "XLMRoberta", pad_token_id=1),
    _encoder("xlm_roberta_xl", "XLMRobertaXL", pad_token_id=1),
    _encoder("xmod", "Xmod", pad_token_id=1, default_language="en_XX", languages=["en_XX"]),
    _encoder("roberta_prelayernorm", "RobertaPreLayerNorm", pad_token_id=1),
    _encoder("data2vec_text", "Data2VecText", pad_token_id=1),
    _encoder("ernie", "Ernie"),
    _encoder("megatron_bert", "MegatronBert"),
    _encoder("mobilebert", "MobileBert", embedding_size=32, intra_bottleneck_size=32, true_hidden_size=32),
    _encoder("squeezebert", "SqueezeBert", embedding_size=32),
    _encoder("convbert", "ConvBert", embedding_size=32),
    _encoder("rembert", "RemBert", input_embedding_size=32, output_embedding_size=32),
    _encoder("roformer", "RoFormer", embedding_size=32),
    (
        "nystromformer",
        "NystromformerConfig",
        "NystromformerForSequenceClassification",
        {**ENCODER, "num_landmarks": 4, "segment_means_seq_len": 16},
        plain_text,
    ),
    _encoder("ibert", "IBert", pad_token_id=1),
    _encoder("layoutlm", "LayoutLM"),
    _encoder("lilt", "Lilt", hidden_size=48, max_2d_position_embeddings=64, channel_shrink_ratio=2),
    _encoder("luke", "Luke", entity_vocab_size=10, entity_emb_size=16),
    _encoder("esm", "Esm", mask_token_id=3, pad_token_id=1),
    _encoder("nomic_bert", "NomicBert"),
    _encoder("eurobert", "EuroBert", **SPECIAL),
    _encoder("longformer", "Longformer", attention_window=8, pad_token_id=1),
    _encoder("big_bird", "BigBird", attention_type="original_full"),
    _encoder("yoso", "Yoso", use_expectation=True),
    (
        "fnet",
        "FNetConfig",
        "FNetForSequenceClassification",
        {**ENCODER, "use_tpu_fourier_optimizations": False},
        plain_text,
    ),
    (
        "funnel",
        "FunnelConfig",
        "FunnelForSequenceClassification",
        {"vocab_size": 99, "block_sizes": [2, 2, 2], "d_model": 32, "n_head": 4, "d_head": 8, "d_inner": 64},
        padded_text,
    ),
    (
        "xlnet",
        "XLNetConfig",
        "XLNetForSequenceClassification",
        {"vocab_size": 99, "d_model": 32, "n_layer": 6, "n_head": 4, "d_inner": 64, "use_mems_train": False},
        padded_text,
    ),
    (
        "flaubert",
        "FlaubertConfig",
        "FlaubertForSequenceClassification",
        {"vocab_size": 99, "emb_dim": 32, "n_layers": 6, "n_heads": 4, "max_position_embeddings": 64},
        padded_text,
    ),
]

ENCODER_DECODERS: list[HfModel] = [
    ("t5", "T5Config", "T5ForConditionalGeneration", T5, source_and_target),
    (
        "t5_gated",
        "T5Config",
        "T5ForConditionalGeneration",
        {**T5, "feed_forward_proj": "gated-gelu"},
        source_and_target,
    ),
    ("mt5", "MT5Config", "MT5ForConditionalGeneration", T5, source_and_target),
    ("umt5", "UMT5Config", "UMT5ForConditionalGeneration", T5, source_and_target),
    ("longt5", "LongT5Config", "LongT5ForConditionalGeneration", {**T5, "local_radius": 4}, source_and_target),
    (
        "switch_transformers",
        "SwitchTransformersConfig",
        "SwitchTransformersForConditionalGeneration",
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 2, "num_sparse_decoder_layers": 2},
        source_and_target,
    ),
    _seq2seq("bart", "Bart"),
    _seq2seq("mbart", "MBart"),
    _seq2seq("plbart", "PLBart"),
    _seq2seq("mvp", "Mvp"),
    _seq2seq("pegasus", "Pegasus"),
    _seq2seq("pegasus_x", "PegasusX", block_size=8, num_global_tokens=4),
    _seq2seq("blenderbot", "Blenderbot"),
    _seq2seq("blenderbot_small", "BlenderbotSmall"),
    _seq2seq("m2m_100", "M2M100"),
    ("marian", "MarianConfig", "MarianMTModel", SEQ2SEQ, source_and_target),
    _seq2seq("led", "LED", attention_window=8, max_encoder_position_embeddings=64, max_decoder_position_embeddings=64),
]
