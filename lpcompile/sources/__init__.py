"""Model sources: from a name such as `resnet110`, `timm:convnext_tiny` or `net.py:build` to a model with inputs.

    source = lpcompile.sources.load("torchvision:resnet50", batch=8)
    source.model(*source.example_args, **source.example_kwargs)

Nothing is ever downloaded: all weights are random. `KINDS` is the table of sources, which help texts and errors read;
`build` builds what a name asks for, `packages`, `hf` and `python` are the loaders, `inputs` makes example inputs.
torch, torchvision, timm and transformers are imported only when a model is loaded. Imports core and models.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lpcompile.sources.inputs import DEFAULT_BATCH, Shape, Source

__all__ = ["DEFAULT_BATCH", "KINDS", "Source", "SourceKind", "kind_of", "load"]


@dataclass(frozen=True)
class SourceKind:
    """One way to name a model. `fresh`: the weights are known to be random, so a consistent start may zero some."""

    form: str
    example: str
    about: str
    loader: str  # "module:function" of `lpcompile.sources`, called with the name, the inputs wanted and model arguments
    prefix: str = ""  # before the name and a colon
    fresh: bool = True


BUILT_IN = SourceKind("NAME", "resnet110 and other built-in models", "a model of lpcompile.models", "build:built_in")
PYTHON = SourceKind("package.module:factory or file.py", "package.module:factory, file.py:factory",
              "a class or function of yours", "python:from_python", fresh=False)  # fmt: skip
PACKAGES = (
    SourceKind("torchvision:NAME", "torchvision:resnet50", "a model of torchvision", "packages:from_torchvision",
         "torchvision"),
    SourceKind("timm:NAME", "timm:convnext_tiny", "a model of timm", "packages:from_timm", "timm"),
    SourceKind("hf:TYPE", "hf:bert or hf:config.json", "a model type of transformers, or the path of a config.json",
         "hf:from_transformers", "hf"),
)  # fmt: skip
KINDS = (BUILT_IN, *PACKAGES, PYTHON)


def kind_of(spec: str) -> SourceKind:
    """The kind of source that `spec` asks for, whether or not it exists."""
    before = spec.partition(":")[0]
    other = PYTHON if spec.endswith(".py") or ":" in spec else BUILT_IN
    return next((kind for kind in PACKAGES if kind.prefix == before), other)


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

    `input_shape` is for models whose input shapes are not known: "3x32x32", or "3x32x32,16:int64" for two, without the
    batch dimension. `model_kwargs` go to the factory. `device="meta"` allocates no weights: enough for a plan by FLOPs.
    `channels_last` stores weights and images in that memory format. The caller's random state is not changed.
    """
    from lpcompile.sources.build import build

    return build(spec, batch, input_shape, seed, device, channels_last, model_kwargs)


def __getattr__(name: str) -> Any:
    """Names of `inputs`, imported at first use: they need torch, and help texts do not."""
    if name not in ("Source", "DEFAULT_BATCH", "parse_arguments"):
        raise AttributeError(f"module 'lpcompile.sources' has no attribute {name!r}")
    return getattr(importlib.import_module("lpcompile.sources.inputs"), name)
