"""Models of transformers: any model type with random weights, or the architecture that a config.json describes."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lpcompile.errors import UsageError
from lpcompile.sources.inputs import InputRequest, InputShape, Source, no_shape, random_inputs
from lpcompile.sources.packages import import_package, unknown
from lpcompile.sources.python import call

TEXT_LENGTH = 128  # tokens of an example text
SPEECH_SAMPLES = 16_000  # one second of speech
TASKS = {  # the first of these mappings that has a model type chooses its head
    True: ("SEQ_TO_SEQ_CAUSAL_LM", "SPEECH_SEQ_2_SEQ"),  # encoder-decoders
    False: ("IMAGE_CLASSIFICATION", "CTC", "AUDIO_CLASSIFICATION"),
}


def from_transformers(name: str, request: InputRequest, model_kwargs: dict[str, object]) -> Source:
    spec = f"hf:{name}"
    transformers = import_package("transformers", spec)
    config = _config(transformers, name, model_kwargs)
    notes = ["random weights"]
    if getattr(config, "use_cache", False):
        config.use_cache = False
        notes.append("use_cache=False, as in training")
    model_class = _model_class(transformers, config)
    model = call(spec, model_class, {"config": config})
    args, kwargs = _inputs(spec, model, config, request)
    return Source(spec, model, args, kwargs, (f"{model_class.__name__}: {', '.join(notes)}",))


def _config(transformers: ModuleType, name: str, overrides: dict[str, object]) -> Any:
    types = list(transformers.CONFIG_MAPPING.keys())
    values: dict[str, Any] = {}
    if name.endswith(".json") or Path(name).is_dir():
        path = Path(name) / "config.json" if Path(name).is_dir() else Path(name)
        try:
            values = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise UsageError(f"hf:{name}: cannot read {path} as a configuration: {error}") from error
        name = str(values.pop("model_type", ""))
        if not name:
            raise UsageError(f"{path} has no model_type; transformers' save_pretrained writes one")
    if name not in types:  # model types are spelled with - or with _
        name = next((known for known in types if known.replace("-", "_") == name.replace("-", "_")), name)
    if name not in types:
        raise unknown("hf", name, types)
    return call(f"hf:{name}", transformers.AutoConfig.for_model, {"model_type": name, **values, **overrides})


def _model_class(transformers: ModuleType, config: Any) -> Any:
    """The class that the configuration names, or by default one with a head for classification or language."""
    for name in getattr(config, "architectures", None) or ():
        if hasattr(transformers, name):
            return getattr(transformers, name)
    auto = transformers.models.auto.modeling_auto
    masked = type(config) in auto.MODEL_FOR_MASKED_LM_MAPPING  # an encoder, even if it is offered as a decoder too
    text = ("SEQUENCE_CLASSIFICATION", "MASKED_LM") if masked else ("CAUSAL_LM", "SEQUENCE_CLASSIFICATION")
    for task in (*TASKS[bool(getattr(config, "is_encoder_decoder", False))], *text):
        mapping = getattr(auto, f"MODEL_FOR_{task}_MAPPING")
        if type(config) in mapping:
            return mapping[type(config)]
    if type(config) in auto.MODEL_MAPPING:
        found = auto.MODEL_MAPPING[type(config)]
        return found[0] if isinstance(found, tuple) else found
    raise UsageError(
        f"transformers offers no model class for the type {config.model_type!r} on its own; write a factory and pass "
        "package.module:factory"
    )


def _inputs(spec: str, model: nn.Module, config: Any, request: InputRequest) -> tuple[tuple[Any, ...], dict[str, Any]]:
    text = config.get_text_config()
    high = int(getattr(text, "vocab_size", None) or 2)
    main = str(getattr(model, "main_input_name", "input_ids"))
    default = _default(main, config, text)
    if default is None and request.shapes is None:
        raise no_shape(f"{spec} (main input {main})")
    args, kwargs = random_inputs(request, [] if default is None else [default], high=high)
    if request.shapes is not None and len(request.shapes) > 1:
        return args, kwargs  # the caller describes all inputs
    named = {main: args[0]} if args else kwargs
    if main == "input_ids" and main in named:
        named["attention_mask"] = torch.ones_like(named[main])
    if getattr(config, "is_encoder_decoder", False):
        generator = torch.Generator().manual_seed(request.seed + 1)
        size = (request.size, min(TEXT_LENGTH, _positions(text, "decoder")))
        ids = torch.randint(high, size, generator=generator, device="cpu")
        named["decoder_input_ids"] = ids.to(request.device)
    return (), named


def _positions(config: Any, side: str = "encoder") -> int:
    """The largest number of positions, minus the offset that some models add."""
    names = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "context_length")
    sided = {"decoder": ("max_target_positions", "max_decoder_position_embeddings"), "encoder": ()}[side]
    found = [value for name in (*sided, *names) if isinstance(value := getattr(config, name, None), int) and value > 0]
    return max(1, min(found, default=TEXT_LENGTH + 2) - 2)


def _default(main: str, config: Any, text: Any) -> InputShape | None:
    """The shape of one sample of the main input, read from the configuration."""
    vision = getattr(config, "vision_config", config)
    bands = getattr(config, "num_mel_bins", None)
    if main == "input_ids":
        return "", (min(TEXT_LENGTH, _positions(text)),), torch.int64
    if main == "pixel_values":
        size = getattr(vision, "image_size", None) or 224
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        return "", (getattr(vision, "num_channels", 3), height, width), torch.float32
    if main == "input_values" and bands is not None:  # a spectrogram, frames first
        return "", (config.max_length, bands), torch.float32
    if main == "input_values":
        return "", (SPEECH_SAMPLES,), torch.float32
    if main == "input_features" and bands is not None and hasattr(config, "max_source_positions"):
        return "", (bands, 2 * config.max_source_positions), torch.float32
    return None
