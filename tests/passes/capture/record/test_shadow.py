"""A copy of the model with fake tensors, in the model's own names."""

from __future__ import annotations

import threading

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lpcompile.passes.capture.record.shadow import Shadow, named_tensors


class Holder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.again = self.layer
        self.register_buffer("table", torch.zeros(3))
        self.plain = torch.ones(2)
        self.several = [torch.ones(1), "text", torch.ones(1)]


def test_all_tensors_are_named_also_those_in_plain_attributes_and_lists() -> None:
    names = [name for name, _ in named_tensors(Holder())]
    assert names == ["layer.weight", "layer.bias", "again.weight", "again.bias", "table", "plain", "_several_0",
                     "_several_2"]  # fmt: skip


def test_the_shadow_is_fake_and_answers_in_the_models_names() -> None:
    model = Holder()
    shadow = Shadow(model, FakeTensorMode())
    weight = shadow.root.layer.weight
    assert isinstance(weight.data, FakeTensor) or isinstance(weight, FakeTensor)
    assert shadow.name_of(weight) == "layer.weight" and shadow.original(weight) is model.layer.weight
    assert shadow.root.again is shadow.root.layer and shadow.path_of(shadow.root.layer) == "layer"
    assert shadow.name_of(torch.ones(1)) is None and shadow.path_of(nn.Linear(1, 1)) is None


def test_side_effects_stay_on_the_shadow() -> None:
    model = Holder()
    shadow = Shadow(model, FakeTensorMode())
    shadow.root.calls = 1
    shadow.root.several.append("more")
    assert not hasattr(model, "calls") and len(model.several) == 3


def test_without_fakes_the_shadow_is_the_model() -> None:
    model = Holder()
    assert Shadow(model, None).root is model


def test_what_cannot_be_copied_is_shared() -> None:
    model = Holder()
    model.lock = threading.Lock()
    assert Shadow(model, FakeTensorMode()).root.lock is model.lock
