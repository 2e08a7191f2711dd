"""Data between ranks: what comes back, and that nothing of it is a pickle."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from lpcompile.errors import UsageError
from lpcompile.runtime.comm import exchange
from lpcompile.runtime.comm.buffer import BufferEntry
from lpcompile.runtime.comm.buffer_wire import _apart, _together

ROOT = Path(__file__).resolve().parents[3]
OF_OBJECTS = re.compile(r"(all_gather|gather|broadcast|scatter|send|recv)_object|object_list|state_dict_saver")
PICKLES = re.compile(r"^\s*(import|from) (pickle|cloudpickle|dill|shelve)\b|pickle\.loads?\b", re.MULTILINE)
# Between a launcher and the processes that it starts itself, through pipes that nobody else can open.
OWN_PROCESSES = {"runtime/comm/pack.py", "runtime/launch/launch.py", "runtime/launch/supervisor.py"}


@pytest.mark.parametrize("value", [None, 3, "text", [1.5, None], {"a": (1, 2), 3: {"b": torch.float16}}, float("inf")])
def test_plain_data_comes_back_as_it_was(value):
    assert exchange.from_bytes(exchange.to_bytes(value)) == value


@pytest.mark.parametrize(
    "tensor", [torch.randn(3, 4).T, torch.tensor(2), torch.zeros(0, 3), torch.ones(2, dtype=torch.bfloat16)]
)
def test_tensors_come_back_bit_for_bit(tensor):
    found = exchange.from_bytes(exchange.to_bytes({"x": [tensor], "n": 1}))
    assert found["n"] == 1 and found["x"][0].dtype == tensor.dtype and torch.equal(found["x"][0], tensor)


def test_objects_are_refused():
    with pytest.raises(UsageError, match="only tensors, numbers, texts and containers"):
        exchange.to_bytes({"odd": object()})


def test_no_collective_of_objects_is_used_and_no_pickle_is_read_from_a_rank():
    for folder in ("runtime", "lpcompile"):
        for file in sorted((ROOT / folder).rglob("*.py")):
            text, name = file.read_text(), str(file.relative_to(ROOT))
            assert not OF_OBJECTS.search(text), f"{name}: {OF_OBJECTS.search(text)[0]}"
            if name.removeprefix("lpcompile/") not in OWN_PROCESSES:
                assert not PICKLES.search(text), f"{name}: {PICKLES.search(text)[0]}"


def test_an_entry_of_a_replay_buffer_travels_as_data_and_tensors():
    target = {"ids": torch.arange(3), "none": None, "name": "digits", "pair": (1, torch.tensor(2.0))}
    entry = BufferEntry((torch.randn(3, 2), torch.zeros(0, 2)), {0: torch.ones(3), 2: torch.arange(3)}, target, 3, 0.5)
    data, tensors = _apart(entry)
    arriving = iter(tensors)
    found = _together(json.loads(json.dumps(data)), lambda shape, dtype: next(arriving).view(shape).to(dtype))
    assert found.size == 3 and found.weight == 0.5 and list(found.inputs) == [0, 2]
    assert all(torch.equal(a, b) for a, b in zip(found.X, entry.X, strict=True))
    assert found.target["none"] is None and found.target["name"] == "digits" and found.target["pair"][0] == 1
    assert torch.equal(found.target["ids"], target["ids"])


class Pair(NamedTuple):
    a: int
    b: int


@pytest.mark.parametrize("odd", [Pair(1, 2), [Pair(1, 2)], object()])
def test_a_target_of_a_class_of_its_own_is_refused_with_a_remedy(odd):
    with pytest.raises(UsageError, match="use a dict, a tuple or a tensor|only tensors, numbers"):
        _apart(BufferEntry((), {}, odd, 1, 1.0))
