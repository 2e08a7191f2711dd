"""The data of an emitted program: each tensor once, with its names, ties and strides."""

from __future__ import annotations

import inspect
import json

import pytest
import torch
from torch import nn

from lpcompile import EmitError
from lpcompile.core.stage_io import TensorSpec
from lpcompile.emit.data import (
    describe,
    modules_to_json,
    named_tensors,
    shared,
    signature_from_json,
    signature_to_json,
    strides,
    ties,
    unused,
    weights,
)
from lpcompile.emit.write import program_parts
from tests.emit.programs import program_of


def tied() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.BatchNorm1d(4), nn.Linear(4, 4, bias=False))
    model[2].weight = model[0].weight
    model.register_buffer("scratch", torch.ones(2), persistent=False)
    return model


def test_a_tied_tensor_is_stored_once_and_its_names_are_a_group() -> None:
    kept, rest = weights(tied())
    assert "0.weight" in kept and "2.weight" not in kept
    assert list(rest) == ["scratch"]
    assert ties({"stage_0": tied()}) == [[["stage_0", "0.weight"], ["stage_0", "2.weight"]]]


def test_views_of_one_memory_are_copied() -> None:
    base = torch.zeros(6)
    module = nn.Module()
    module.register_buffer("low", base[:3])
    module.register_buffer("high", base[3:])
    kept = weights(module)[0]
    assert kept["low"].untyped_storage().data_ptr() != kept["high"].untyped_storage().data_ptr()


def test_a_tensor_in_a_plain_attribute_is_stored_outside_the_state_dict() -> None:
    layer = nn.Linear(2, 2)
    layer.table = torch.ones(3)  # type: ignore[assignment]
    assert named_tensors(layer)["table"][1] is False
    assert list(weights(layer)[1]) == ["table"]


def test_extra_state_and_meta_tensors_are_refused() -> None:
    class Extra(nn.Linear):
        def get_extra_state(self) -> int:
            return 1

    with pytest.raises(EmitError, match="keeps extra state of its own"):
        named_tensors(nn.Sequential(Extra(2, 2)))
    with pytest.raises(EmitError, match="weight has no values"):
        weights(nn.Linear(2, 2, bias=False, device="meta"))


def test_a_layer_in_two_stages_is_a_group() -> None:
    layer = nn.Linear(2, 2)
    parts = {"stage_0": nn.Sequential(layer), "stage_1": nn.Sequential(nn.ReLU(), layer)}
    assert shared(parts) == [[["stage_0", "0"], ["stage_1", "1"]]]


def test_strides_are_kept_for_channels_last_only() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3).to(memory_format=torch.channels_last))
    assert list(strides(model)) == ["1.weight"]


def test_tensors_that_no_stage_has_are_found() -> None:
    model = tied()
    assert list(unused(model, {"stage_0": nn.Sequential(*model)})) == ["scratch"]


def test_an_alias_of_a_module_names_the_first_one() -> None:
    layer = nn.Linear(2, 2)
    entries = modules_to_json(nn.Sequential(layer, layer))
    assert [e.get("same") for e in entries] == [None, None, "0"]


def test_a_description_is_json_and_its_signature_comes_back() -> None:
    program = program_of(nn.Sequential(nn.Linear(4, 4)), 1, torch.randn(2, 4))
    data = describe(program, program_parts(program))
    assert json.loads(json.dumps(data)) == data
    signature = program.captured._lp.signature
    again = signature_from_json(json.loads(json.dumps(signature_to_json(signature))))
    assert list(again.parameters.parameters) == list(signature.parameters.parameters)
    assert again.inputs == signature.inputs
    assert isinstance(again.inputs[0][1], TensorSpec)
    assert isinstance(again.parameters, inspect.Signature)
