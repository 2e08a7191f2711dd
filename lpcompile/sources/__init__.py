"""From what a person types to a model with inputs: `resnet110`, `timm:convnext_tiny`, `net.py:build`.

    source = lpcompile.sources.load("torchvision:resnet50", batch=8)
    source.model(*source.example_args, **source.example_kwargs)

Nothing is ever downloaded: all weights are random. torchvision, timm and transformers are imported only when a
specification asks for them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch.utils import _pytree as pytree

from lpcompile.core import memory_format
from lpcompile.errors import UsageError
from lpcompile.models import REGISTRY
from lpcompile.sources import hf, packages, python
from lpcompile.sources.inputs import DEFAULT_BATCH, Shape, Source, Tensors, closest, parse_input, random_inputs

__all__ = ["DEFAULT_BATCH", "Source", "load"]


def load(
    spec: str,
    *,
    batch: int | None = None,
    input_shape: Shape | None = None,
    seed: int = 0,
    device: str = "cpu",
    channels_last: bool = False,
    **model_kwargs: object,
) -> Source:
    """Build the model that `spec` names, and example inputs for it.

    - `resnet110`: a model of `lpcompile.models`
    - `torchvision:resnet50`, `timm:convnext_tiny`
    - `hf:bert` (any model type of transformers, or the path of a config.json)
    - `package.module:factory`, `path/net.py:factory`, `path/net.py`

    `input_shape` is for models whose inputs nothing else tells: "3x32x32", or "3x32x32,16:int64" for two, without the
    batch dimension. `model_kwargs` go to the factory. `device="meta"` allocates no weights: enough for a plan by FLOPs.
    `channels_last` lays out weights and images that way. The caller's random state is left as it was.
    """
    if batch is not None and batch < 1:
        raise UsageError(f"batch is {batch}; it must be at least 1")
    wanted = None if input_shape is None else parse_input(input_shape)
    try:
        found = _load(spec, batch, wanted, seed, device, model_kwargs)
    except UsageError as error:
        if device != "meta" or not isinstance(error.__cause__, (NotImplementedError, RuntimeError)):
            raise
        # it computes its sizes with tensors: needs values
        found = _load(spec, batch, wanted, seed, "cpu", model_kwargs)
    return _channels_last(found) if channels_last else found


def _channels_last(source: Source) -> Source:
    laid_out = memory_format.in_channels_last(source.model)
    if not memory_format.lies_channels_last(laid_out):
        raise UsageError(f"{source.name} has no convolution that could lie channels last: leave that out")
    given = (source.example_args, source.example_kwargs)
    args, kwargs = pytree.tree_map_only(torch.Tensor, memory_format.channels_last, given)
    return replace(source, model=laid_out, example_args=args, example_kwargs=kwargs)


def _load(spec: str, batch: int | None, wanted: Any, seed: int, device: str, model_kwargs: dict[str, object]) -> Source:
    with torch.random.fork_rng(devices=[]), torch.device(device):
        torch.manual_seed(seed)
        return _dispatch(spec, Tensors(batch, wanted, seed, device), dict(model_kwargs))


def _dispatch(spec: str, tensors: Tensors, model_kwargs: dict[str, object]) -> Source:
    kind, _, name = spec.partition(":")
    if kind == "torchvision":
        return packages.from_torchvision(name, tensors, model_kwargs)
    if kind == "timm":
        return packages.from_timm(name, tensors, model_kwargs)
    if kind == "hf":
        return hf.from_transformers(name, tensors, model_kwargs)
    if spec.endswith(".py") or ":" in spec:
        return python.from_python(spec, tensors, model_kwargs)
    return _from_registry(spec, tensors, model_kwargs)


def _from_registry(spec: str, tensors: Tensors, model_kwargs: dict[str, object]) -> Source:
    if spec not in REGISTRY:
        from lpcompile.zoo.vision import NAMES

        known = [*REGISTRY, *NAMES]
        found = [name if name in REGISTRY else f"torchvision:{name}" for name in closest(spec, known)]
        hint = f"did you mean {', '.join(found)}?" if found else f"the built-in models are {', '.join(REGISTRY)}."
        raise UsageError(
            f"no built-in model {spec!r}; {hint} "
            "Models from elsewhere are written torchvision:NAME, timm:NAME, hf:TYPE, package.module:factory or file.py"
        )
    entry = REGISTRY[spec]
    model = python.call(spec, entry.factory, model_kwargs)
    vocabulary = model_kwargs.get("vocabulary", entry.vocabulary)
    dtype = torch.float32 if vocabulary is None else torch.int64
    high = vocabulary if isinstance(vocabulary, int) else 2
    args, kwargs = random_inputs(tensors, [("", entry.input_shape, dtype)], high=high)
    return Source(spec, model, args, kwargs)
