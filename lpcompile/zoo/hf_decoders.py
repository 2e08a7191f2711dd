"""Tiny configurations of the decoder-only language models of transformers: GPTs, Llamas, mixtures, state spaces."""

from __future__ import annotations

from typing import Any

from lpcompile.zoo.entry import padded_text, plain_text
from lpcompile.zoo.hf_text import ENCODER, SPECIAL, HfModel

DECODER = {**ENCODER, **SPECIAL, "use_cache": False}
GPT = {"vocab_size": 99, "n_embd": 32, "n_layer": 8, "n_head": 4, "n_positions": 64, "use_cache": False, **SPECIAL}
LLAMA_LIKE = {"num_key_value_heads": 2}
HEAD = {"num_key_value_heads": 2, "head_dim": 8}
MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


def _decoder(name: str, stem: str, **extra: Any) -> HfModel:
    return name, f"{stem}Config", f"{stem}ForCausalLM", {**DECODER, **extra}, padded_text


DECODERS: list[HfModel] = [
    ("gpt2", "GPT2Config", "GPT2LMHeadModel", GPT, padded_text),
    (
        "gpt_neo",
        "GPTNeoConfig",
        "GPTNeoForCausalLM",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_layers": 8,
            "num_heads": 4,
            "attention_types": [[["global", "local"], 4]],
            "max_position_embeddings": 64,
            "use_cache": False,
            **SPECIAL,
        },
        padded_text,
    ),
    _decoder("gpt_neox", "GPTNeoX"),
    ("gptj", "GPTJConfig", "GPTJForCausalLM", {**GPT, "rotary_dim": 4}, padded_text),
    ("codegen", "CodeGenConfig", "CodeGenForCausalLM", {**GPT, "rotary_dim": 4}, padded_text),
    ("gpt_bigcode", "GPTBigCodeConfig", "GPTBigCodeForCausalLM", GPT, padded_text),
    ("openai_gpt", "OpenAIGPTConfig", "OpenAIGPTLMHeadModel", GPT, padded_text),
    ("ctrl", "CTRLConfig", "CTRLLMHeadModel", {**GPT, "dff": 64}, padded_text),
    _decoder("opt", "OPT", ffn_dim=64, word_embed_proj_dim=32),
    (
        "bloom",
        "BloomConfig",
        "BloomForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "n_layer": 8, "n_head": 4, "use_cache": False, **SPECIAL},
        padded_text,
    ),
    (
        "mpt",
        "MptConfig",
        "MptForCausalLM",
        {"vocab_size": 99, "d_model": 32, "n_layers": 8, "n_heads": 4, "max_seq_len": 64, "use_cache": False},
        padded_text,
    ),
    _decoder("llama", "Llama", **LLAMA_LIKE),
    _decoder("mistral", "Mistral", **LLAMA_LIKE),
    _decoder("qwen2", "Qwen2", **HEAD),
    _decoder("qwen3", "Qwen3", **HEAD),
    _decoder("gemma", "Gemma", **HEAD),
    _decoder("gemma2", "Gemma2", **HEAD),
    ("gemma3", "Gemma3TextConfig", "Gemma3ForCausalLM", {**DECODER, **HEAD}, padded_text),
    _decoder("phi", "Phi", **LLAMA_LIKE),
    _decoder("phi3", "Phi3", **LLAMA_LIKE),
    _decoder("olmo", "Olmo", **LLAMA_LIKE),
    _decoder("olmo2", "Olmo2", **LLAMA_LIKE),
    _decoder("olmo3", "Olmo3", **LLAMA_LIKE),
    _decoder("granite", "Granite", **LLAMA_LIKE),
    _decoder("stablelm", "StableLm", **LLAMA_LIKE),
    _decoder("cohere", "Cohere", **LLAMA_LIKE),
    _decoder("cohere2", "Cohere2", **LLAMA_LIKE),
    _decoder("persimmon", "Persimmon"),
    _decoder("starcoder2", "Starcoder2", **LLAMA_LIKE),
    _decoder("glm", "Glm", **HEAD),
    _decoder("glm4", "Glm4", **HEAD),
    _decoder("nemotron", "Nemotron", **LLAMA_LIKE),
    _decoder("helium", "Helium", **HEAD),
    _decoder("smollm3", "SmolLM3", **LLAMA_LIKE),
    _decoder("exaone4", "Exaone4", **LLAMA_LIKE),
    _decoder("arcee", "Arcee", **LLAMA_LIKE),
    _decoder("apertus", "Apertus", **LLAMA_LIKE),
    _decoder("seed_oss", "SeedOss", **HEAD),
    _decoder("ministral", "Ministral", **HEAD),
    _decoder("bitnet", "BitNet", **LLAMA_LIKE),
    _decoder("diffllama", "DiffLlama", **LLAMA_LIKE),
    _decoder("nanochat", "NanoChat", **LLAMA_LIKE),
    _decoder("modernbert_decoder", "ModernBertDecoder", cls_token_id=1, sep_token_id=2),
    _decoder("biogpt", "BioGpt", layerdrop=0.0),
    (
        "xglm",
        "XGLMConfig",
        "XGLMForCausalLM",
        {
            "vocab_size": 99,
            "d_model": 32,
            "num_layers": 8,
            "attention_heads": 4,
            "ffn_dim": 64,
            "max_position_embeddings": 64,
            "layerdrop": 0.0,
            "use_cache": False,
            **SPECIAL,
        },
        padded_text,
    ),
    _decoder("falcon", "Falcon"),
    _decoder("mixtral", "Mixtral", **LLAMA_LIKE, num_local_experts=4),
    _decoder("qwen3_moe", "Qwen3Moe", **HEAD, **MOE),
    _decoder("olmoe", "Olmoe", **LLAMA_LIKE, num_experts=4, num_experts_per_tok=2),
    _decoder("granitemoe", "GraniteMoe", **LLAMA_LIKE, num_local_experts=4, num_experts_per_tok=2),
    (
        "mamba",
        "MambaConfig",
        "MambaForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 8, "state_size": 4, "use_cache": False, **SPECIAL},
        plain_text,
    ),
    (
        "mamba2",
        "Mamba2Config",
        "Mamba2ForCausalLM",
        {
            "vocab_size": 99,
            "hidden_size": 32,
            "num_hidden_layers": 8,
            "state_size": 8,
            "num_heads": 8,
            "head_dim": 8,
            "n_groups": 2,
            "chunk_size": 8,
            "use_cache": False,
            **SPECIAL,
        },
        plain_text,
    ),
    _decoder("lfm2", "Lfm2", **LLAMA_LIKE, full_attn_idxs=[2, 5]),
    (
        "rwkv",
        "RwkvConfig",
        "RwkvForCausalLM",
        {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 4, "context_length": 32, "use_cache": False},
        plain_text,
    ),
]
