"""Build the model that a specification names, by the loader of its kind."""

from __future__ import annotations

import importlib
from dataclasses import replace

import torch
from torch.utils import _pytree as pytree

from lpcompile.core import memory_format
from lpcompile.errors import UsageError
from lpcompile.models import REGISTRY
from lpcompile.sources import BUILT_IN, KINDS, kind_of
from lpcompile.sources.inputs import InputRequest, Shape, Source, closest, parse_input, random_inputs
from lpcompile.sources.packages import TORCHVISION_CLASSIFIERS
from lpcompile.sources.python import call


def build(
    spec: str,
    batch: int | None,
    input_shape: Shape | None,
    seed: int,
    device: str,
    channels_last: bool,
    model_kwargs: dict[str, object],
) -> Source:
    """See `lpcompile.sources.load`."""
    if batch is not None and batch < 1:
        raise UsageError(f"batch is {batch}; it must be at least 1")
    request = InputRequest(batch, None if input_shape is None else parse_input(input_shape), seed, device)
    try:
        found = _on_device(spec, request, model_kwargs)
    except UsageError as error:
        if device != "meta" or not isinstance(error.__cause__, (NotImplementedError, RuntimeError)):
            raise
        # the model computes sizes with tensors and needs their values
        found = _on_device(spec, replace(request, device="cpu"), model_kwargs)
    return _channels_last(found) if channels_last else found


def _on_device(spec: str, request: InputRequest, model_kwargs: dict[str, object]) -> Source:
    kind = kind_of(spec)
    module, _, function = kind.loader.partition(":")
    loader = getattr(importlib.import_module(f"lpcompile.sources.{module}"), function)
    name = spec.partition(":")[2] if kind.prefix else spec
    with torch.random.fork_rng(devices=[]), torch.device(request.device):
        torch.manual_seed(request.seed)
        source: Source = loader(name, request, dict(model_kwargs))
    return source


def _channels_last(source: Source) -> Source:
    laid_out = memory_format.in_channels_last(source.model)
    if not memory_format.lies_channels_last(laid_out):
        raise UsageError(f"{source.name} has no convolution that could lie channels last: leave that out")
    given = (source.example_args, source.example_kwargs)
    args, kwargs = pytree.tree_map_only(torch.Tensor, memory_format.channels_last, given)
    return replace(source, model=laid_out, example_args=args, example_kwargs=kwargs)


def built_in(name: str, request: InputRequest, model_kwargs: dict[str, object]) -> Source:
    """A model of `lpcompile.models`."""
    if name not in REGISTRY:
        raise _unknown(name)
    entry = REGISTRY[name]
    model = call(name, entry.factory, model_kwargs)
    vocabulary = model_kwargs.get("vocabulary", entry.vocabulary)
    dtype = torch.float32 if vocabulary is None else torch.int64
    high = vocabulary if isinstance(vocabulary, int) else 2
    args, kwargs = random_inputs(request, [("", entry.input_shape, dtype)], high=high)
    return Source(name, model, args, kwargs)


def _unknown(name: str) -> UsageError:
    found = [
        near if near in REGISTRY else f"torchvision:{near}"
        for near in closest(name, [*REGISTRY, *TORCHVISION_CLASSIFIERS])
    ]
    hint = f"did you mean {', '.join(found)}?" if found else f"the built-in models are {', '.join(REGISTRY)}."
    elsewhere = ", ".join(kind.form for kind in KINDS if kind is not BUILT_IN)
    return UsageError(f"no built-in model {name!r}; {hint} Models from elsewhere are written {elsewhere}")
