"""Every classification model of torchvision, with random weights."""

from __future__ import annotations

from typing import Any

from torch import nn

from lpcompile.sources.packages import TORCHVISION_CLASSIFIERS
from lpcompile.zoo.entry import InputMaker, ZooEntry, floats

# Convolutional models take any size, and a small one runs the same layers in a fraction of the time.
SMALL_IMAGE = 96
FIXED_IMAGE = {"inception_v3": 299}
HEAVY = {"regnet_y_128gf", "vit_h_14"}  # 645 and 632 million parameters


def _input_size(name: str) -> int:
    return FIXED_IMAGE.get(name, 224 if name.startswith(("vit", "maxvit")) else SMALL_IMAGE)


def _entry(name: str) -> ZooEntry:
    def make() -> tuple[nn.Module, InputMaker]:
        import torchvision

        # The two inceptions draw truncated normals, ten times as slow as the default initialisation.
        kwargs: dict[str, Any] = {"init_weights": False} if name in ("inception_v3", "googlenet") else {}
        size = _input_size(name)
        return torchvision.models.get_model(name, weights=None, **kwargs), floats(3, size, size)

    return ZooEntry(f"torchvision:{name}", "torchvision", make, heavy=name in HEAVY)


def entries() -> list[ZooEntry]:
    return [_entry(name) for name in TORCHVISION_CLASSIFIERS]
