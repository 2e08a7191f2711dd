"""transformers: tiny models of many architectures, with random weights, so that nothing is downloaded."""

from __future__ import annotations

from torch import nn

from lpcompile.zoo import hf_decoders, hf_media, hf_text
from lpcompile.zoo.entry import InputMaker, ZooEntry

MODELS = [
    *hf_text.ENCODERS,
    *hf_decoders.DECODERS,
    *hf_text.ENCODER_DECODERS,
    *hf_media.VISION,
    *hf_media.AUDIO,
]


def _entry(row: hf_text.HfModel) -> ZooEntry:
    name, config, model, kwargs, inputs = row

    def make() -> tuple[nn.Module, InputMaker]:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**kwargs)), inputs

    return ZooEntry(f"hf:{name}", "hf", make)


def entries() -> list[ZooEntry]:
    return [_entry(row) for row in MODELS]
