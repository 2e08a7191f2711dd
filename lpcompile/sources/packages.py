"""Models of torchvision and timm, whose packages know the input sizes."""

from __future__ import annotations

import importlib
import inspect
from types import ModuleType
from typing import Any

import torch
from torch import nn

from lpcompile.errors import UsageError
from lpcompile.sources.inputs import InputRequest, InputShape, Source, closest, no_shape, random_inputs
from lpcompile.sources.python import call

TORCHVISION_CLASSIFIERS = """
    alexnet convnext_base convnext_large convnext_small convnext_tiny densenet121 densenet161 densenet169 densenet201
    efficientnet_b0 efficientnet_b1 efficientnet_b2 efficientnet_b3 efficientnet_b4 efficientnet_b5 efficientnet_b6
    efficientnet_b7 efficientnet_v2_l efficientnet_v2_m efficientnet_v2_s googlenet inception_v3 maxvit_t mnasnet0_5
    mnasnet0_75 mnasnet1_0 mnasnet1_3 mobilenet_v2 mobilenet_v3_large mobilenet_v3_small regnet_x_16gf regnet_x_1_6gf
    regnet_x_32gf regnet_x_3_2gf regnet_x_400mf regnet_x_800mf regnet_x_8gf regnet_y_128gf regnet_y_16gf
    regnet_y_1_6gf regnet_y_32gf regnet_y_3_2gf regnet_y_400mf regnet_y_800mf regnet_y_8gf resnet101 resnet152 resnet18
    resnet34 resnet50 resnext101_32x8d resnext101_64x4d resnext50_32x4d shufflenet_v2_x0_5 shufflenet_v2_x1_0
    shufflenet_v2_x1_5 shufflenet_v2_x2_0 squeezenet1_0 squeezenet1_1 swin_b swin_s swin_t swin_v2_b swin_v2_s swin_v2_t
    vgg11 vgg11_bn vgg13 vgg13_bn vgg16 vgg16_bn vgg19 vgg19_bn vit_b_16 vit_b_32 vit_h_14 vit_l_16 vit_l_32
    wide_resnet101_2 wide_resnet50_2
""".split()


def import_package(name: str, spec: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if error.name is not None and error.name.partition(".")[0] != name:
            raise UsageError(f"{spec}: {name} is installed but cannot be imported: {error}") from error
        raise UsageError(f"{spec} needs {name}, which is not installed; pip install {name}") from error


def unknown(kind: str, name: str, known: list[str]) -> UsageError:
    found = closest(name, known)
    hint = f"did you mean {', '.join(f'{kind}:{other}' for other in found)}?" if found else "check the spelling"
    return UsageError(f"{kind} has no model {name!r}; {hint}")


def from_torchvision(name: str, request: InputRequest, model_kwargs: dict[str, object]) -> Source:
    spec = f"torchvision:{name}"
    torchvision = import_package("torchvision", spec)
    known = torchvision.models.list_models()
    if name not in known:
        raise unknown("torchvision", name, known)
    builder = torchvision.models.get_model_builder(name)
    arguments: dict[str, object] = {"weights": None}
    if "weights_backbone" in inspect.signature(builder).parameters:
        arguments["weights_backbone"] = None  # its default would be downloaded
    if name in ("inception_v3", "googlenet"):
        arguments["init_weights"] = False  # their own initialisation is ten times as slow as the default one
    model = call(spec, builder, arguments | model_kwargs)
    shape = None if request.shapes else _torchvision_shape(torchvision, name)
    if shape is None and not request.shapes:
        raise no_shape(spec)
    args, kwargs = random_inputs(request, _images(shape))
    return Source(spec, model, args, kwargs)


def _torchvision_shape(torchvision: ModuleType, name: str) -> tuple[int, ...] | None:
    """The sample shape that the published weights were made for; reading their descriptions downloads nothing.

    The smallest of several: larger ones belong to weights for a model that is built with other arguments.
    """
    found: list[tuple[int, ...]] = []
    video = ".video." in torchvision.models.get_model_builder(name).__module__
    for weights in torchvision.models.get_model_weights(name):
        settings = getattr(weights.transforms, "keywords", {})
        size = settings.get("crop_size", settings.get("resize_size"))
        if size is None:
            continue
        height, width = (size, size) if isinstance(size, int) else tuple(size)
        found.append((3, 16, height, width) if video else (3, height, width))
    return min(found, default=None)


def from_timm(name: str, request: InputRequest, model_kwargs: dict[str, object]) -> Source:
    spec = f"timm:{name}"
    timm = import_package("timm", spec)
    if not timm.is_model(name):
        raise unknown("timm", name, timm.list_models())
    model = call(spec, timm.create_model, {"model_name": name, "pretrained": False} | model_kwargs)
    shape = None if request.shapes else _timm_shape(model, model_kwargs)
    if shape is None and not request.shapes:
        raise no_shape(spec)
    args, kwargs = random_inputs(request, _images(shape))
    return Source(spec, model, args, kwargs)


def _timm_shape(model: nn.Module, model_kwargs: dict[str, object]) -> tuple[int, ...] | None:
    config: Any = getattr(model, "pretrained_cfg", None) or {}
    shape = config.get("input_size")
    if shape is None:
        return None
    channels, height, width = shape
    size: Any = model_kwargs.get("img_size", (height, width))
    height, width = (size, size) if isinstance(size, int) else size
    chosen: Any = model_kwargs.get("in_chans", channels)
    return (chosen, height, width)


def _images(shape: tuple[int, ...] | None) -> list[InputShape]:
    return [] if shape is None else [("", shape, torch.float32)]
