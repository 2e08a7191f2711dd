"""Models and calls that capture refuses, and what its errors say."""

from __future__ import annotations

import random
import re

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import CaptureError, InputError, UsageError
from tests.passes.capture.models import Loop, Net, Structured


def test_calls_that_differ_from_the_recorded_one_are_named():
    model = Structured()
    pair, mask = (torch.randn(2, 4), torch.randn(2, 4)), torch.rand(2, 4) > 0.5
    captured = lpcompile.capture(model, (pair,), {"mask": mask})
    with pytest.raises(InputError, match="'mask' was given when the model was captured but is missing"):
        captured(pair)
    with pytest.raises(InputError, match="'flag' is given now but was not"):
        captured(pair, mask=mask, flag=False)
    with pytest.raises(InputError, match=r"compiled for float32\[B, 4\]"):
        captured((torch.randn(2, 4), torch.randn(2, 5)), mask=mask)
    with pytest.raises(InputError, match="cannot be called like this"):
        captured(pair, mask=mask, unknown=1)


class RootBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, flag=True):
        if x.sum() > 0:
            x = self.lin(x)
        return x


def test_a_model_that_cannot_be_captured_names_line_reason_and_remedy():
    with pytest.raises(CaptureError) as error:
        lpcompile.capture(RootBranch(), torch.ones(2, 4))
    text = str(error.value)
    assert "test_refusals.py:" in text and "if x.sum() > 0:" in text
    assert "front_end='specialise'" in text and "concrete_args=" in text


class Shuffles(nn.Module):
    """Layers in an order that one of Python's generators draws."""

    def __init__(self, order) -> None:
        super().__init__()
        self.layers, self.order = nn.ModuleList(nn.Linear(4, 4) for _ in range(3)), order

    def forward(self, x):
        for index in self.order():
            x = torch.relu(self.layers[index](x))
        return x


def drawn_order():
    return random.sample(range(3), 3)


def test_a_draw_of_python_that_is_no_step_is_named_by_its_own_line():
    with pytest.raises(CaptureError) as error:
        lpcompile.capture(Shuffles(drawn_order), torch.ones(2, 4))
    text = str(error.value)
    assert "random generator" in text and "return random.sample(range(3), 3)" in text


def test_specialise_freezes_the_branch_when_asked():
    model, x = RootBranch(), torch.ones(2, 4)
    captured = lpcompile.capture(model, x, front_end="specialise")
    assert torch.equal(captured(x), model(x))


def test_a_model_that_fails_by_itself_gets_its_own_error():
    with pytest.raises(CaptureError, match="the model itself fails on the example inputs"):
        lpcompile.capture(nn.Linear(4, 4), torch.randn(2, 5))


def test_bad_arguments_are_refused_with_a_remedy():
    with pytest.raises(UsageError, match="expected a torch.nn.Module"):
        lpcompile.capture("resnet50", torch.randn(2, 4))
    with pytest.raises(UsageError, match="pass model._orig_mod"):
        lpcompile.capture(torch.compile(nn.Linear(4, 4)), torch.randn(2, 4))
    with pytest.raises(UsageError, match=r"no such module.*closest: blocks"):
        lpcompile.capture(Net(), torch.randn(2, 3, 8, 8), leaf=["block"])
    with pytest.raises(UsageError, match="front_end='magic' is not one of"):
        lpcompile.capture(Net(), torch.randn(2, 3, 8, 8), front_end="magic")
    with pytest.raises(CaptureError, match="run the model once"):
        lpcompile.capture(nn.LazyLinear(4), torch.randn(2, 4))
    with pytest.raises(CaptureError, match="weight is lazy and has no shape yet; run the model once"):
        lpcompile.parallelize(nn.Sequential(nn.Linear(4, 4), nn.LazyBatchNorm1d()), 2, example_inputs=torch.randn(2, 4))


def test_an_exception_that_forward_swallows_is_still_a_refusal():
    def body(model, x):
        try:
            return x * int(x.sum())
        except Exception:
            return x

    with pytest.raises(CaptureError, match="depends on the values in a tensor"):
        lpcompile.capture(Loop(body), torch.randn(2, 4))


def test_a_shape_that_depends_on_data_is_refused():
    with pytest.raises(CaptureError, match="the shape of a result depends on the values"):
        lpcompile.capture(Loop(lambda m, x: x.sum() / x[x > 0].shape[0]), torch.randn(2, 4))


class Detector(nn.Module):
    """Matches boxes, as detection models of torchvision do in training."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = nn.Linear(4, 8), nn.Linear(8, 4)

    def forward(self, images, targets):
        if any((t["boxes"] < 0).any() for t in targets):
            raise ValueError("boxes")
        return self.head(self.backbone(torch.stack(images)))


def test_a_detection_model_is_refused_in_one_line():
    images, targets = [torch.randn(4)] * 2, [{"boxes": torch.ones(n, 4)} for n in (1, 2)]
    with pytest.raises(CaptureError) as error:
        lpcompile.capture(Detector(), (images, targets))
    assert re.fullmatch(
        r"cannot capture Detector: it matches boxes, whose number differs from image to image \(.*:\d+ in .*\); train "
        r"Detector undivided, or call a program of its backbone in it: "
        r"lpcompile\.parallelize\(model\.backbone, \.\.\.\)",
        str(error.value),
    )
