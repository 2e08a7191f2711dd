"""Language and other sequences."""

from __future__ import annotations

from typing import Any

import torch

from lpcompile.zoo.entry import Inputs, floats, generator
from lpcompile.zoo.strangers.table import Row, ids

_TEXT = ids(32)


def _x(name: str, kind: str = "Decoder", **options: Any) -> Row:
    """A language model of x-transformers, whose layers are built from many options."""
    from_options = {"num_tokens": 64, "max_seq_len": 32, "layers": kind, "options": options}
    return Row(name, "lpcompile.zoo.strangers.sequence:x_transformer", _TEXT, from_options, builds="x_transformers")


def x_transformer(num_tokens: int, max_seq_len: int, layers: str, options: dict[str, Any]) -> Any:
    import x_transformers

    whole = {k: options[k] for k in ("emb_dropout", "num_memory_tokens", "tie_embedding") if k in options}
    rest = {k: v for k, v in options.items() if k not in whole}
    stack = getattr(x_transformers, layers)(dim=64, depth=6, heads=4, attn_dim_head=16, **rest)
    return x_transformers.TransformerWrapper(num_tokens=num_tokens, max_seq_len=max_seq_len, attn_layers=stack, **whole)


_X_TRANSFORMERS = [
    _x("decoder", attn_dropout=0.1, ff_dropout=0.1),
    _x("encoder", "Encoder", emb_dropout=0.1),
    _x("rotary", rotary_pos_emb=True),
    _x("alibi", alibi_pos_bias=True),
    _x("rel_pos", rel_pos_bias=True),
    _x("swiglu", ff_glu=True, ff_swish=True, use_rmsnorm=True),
    _x("sandwich", sandwich_norm=True),
    _x("macaron", macaron=True),
    _x("memory", num_memory_tokens=4),
    _x("tied", tie_embedding=True),
    _x("one_kv", attn_one_kv_head=True),
    _x("shift", shift_tokens=1),
    _x("layer_dropout", layer_dropout=0.1),
]


def _series(batch: int) -> Inputs:
    """A time series of small numbers: a fresh iTransformer gives them back a thousand times as large."""
    return (0.001 * torch.randn(batch, 32, 8, generator=generator()),), {}


_LM = {"num_tokens": 64, "dim": 64, "depth": 6, "max_seq_len": 32, "heads": 4}
ROWS = [
    *_X_TRANSFORMERS,
    Row("lm", "performer_pytorch:PerformerLM", _TEXT, {**_LM, "dim_head": 16, "causal": False}),
    Row("performer", "performer_pytorch:Performer", floats(32, 64), {"dim": 64, "depth": 6, "heads": 4,
        "dim_head": 16}),
    Row("lm", "reformer_pytorch:ReformerLM", _TEXT, {**_LM, "bucket_size": 8, "ff_chunks": 2, "causal": True}),
    Row("full", "reformer_pytorch:ReformerLM", _TEXT, {**_LM, "bucket_size": 8, "use_full_attn": True,
        "ff_chunks": 1}),
    Row("lm", "linear_attention_transformer:LinearAttentionTransformerLM", _TEXT, {**_LM, "causal": False}),
    Row("lm", "sinkhorn_transformer:SinkhornTransformerLM", _TEXT, {**_LM, "bucket_size": 8, "causal": False}),
    Row("lm", "routing_transformer:RoutingTransformerLM", _TEXT, {**_LM, "window_size": 8, "causal": False}),
    Row("i_transformer", "iTransformer:iTransformer", _series, {"num_variates": 8, "lookback_len": 32, "dim": 64,
        "depth": 6, "heads": 4, "dim_head": 16, "pred_length": (4, 8), "use_reversible_instance_norm": True}),
    Row("nystrom", "nystrom_attention:Nystromformer", floats(32, 64), {"dim": 64, "depth": 6, "heads": 4,
        "dim_head": 16, "num_landmarks": 8}),
    Row("lm", "g_mlp_pytorch:gMLP", _TEXT, {"num_tokens": 64, "dim": 64, "depth": 6, "seq_len": 32}),
    Row("perceiver", "perceiver_pytorch:Perceiver", floats(16, 16, 3), {"input_channels": 3, "input_axis": 2,
        "num_freq_bands": 4, "max_freq": 10.0, "depth": 6, "num_latents": 16, "latent_dim": 32, "num_classes": 10,
        "cross_dim_head": 8, "latent_dim_head": 8, "latent_heads": 4}),
    Row("conformer", "conformer:Conformer", floats(32, 64), {"dim": 64, "depth": 6, "dim_head": 16, "heads": 4}),
    Row("hourglass", "hourglass_transformer_pytorch:HourglassTransformerLM", _TEXT, {"num_tokens": 64, "dim": 64,
        "max_seq_len": 32, "shorten_factor": 2, "depth": (2, 2, 2), "heads": 4, "dim_head": 16}),
    Row("mega", "mega_pytorch:Mega", _TEXT, {"num_tokens": 64, "dim": 64, "depth": 4, "ema_heads": 4,
        "attn_dim_qk": 16, "attn_dim_value": 64}),
    Row("h_transformer", "h_transformer_1d:HTransformer1D", _TEXT, {"num_tokens": 64, "dim": 64, "depth": 6,
        "max_seq_len": 32, "heads": 4, "dim_head": 16, "block_size": 8, "causal": False}),
    Row("token_shift", "token_shift_gpt:TokenShiftGPT", _TEXT, {"num_tokens": 64, "dim": 64, "max_seq_len": 32,
        "depth": 6}),
    Row("mamba", "lpcompile.zoo.strangers.sequence:mamba", floats(16, 32), builds="mambapy"),
    Row("tcn", "pytorch_tcn:TCN", floats(16, 32), {"num_inputs": 16, "num_channels": [16] * 6}),
    Row("block_recurrent", "block_recurrent_transformer_pytorch:BlockRecurrentTransformer", _TEXT, {
        "num_tokens": 64, "dim": 64, "depth": 6, "heads": 4, "dim_head": 16, "max_seq_len": 32, "block_width": 16,
        "num_state_vectors": 16, "recurrent_layers": (3,), "use_flash_attn": False}),
]  # fmt: skip


def mamba() -> Any:
    from mambapy.mamba import Mamba, MambaConfig

    return Mamba(MambaConfig(d_model=32, n_layers=6, d_state=8))
