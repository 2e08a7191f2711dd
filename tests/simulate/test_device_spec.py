"""Device specs: built in, from files, and broken."""

from __future__ import annotations

import json

import pytest

from lpcompile.errors import UsageError
from lpcompile.simulate.device_spec import BUILT_IN, device_spec, from_json
from tests.simulate.even_plan import IDEAL


def test_built_in_specs_are_whole_and_survive_json():
    for spec in BUILT_IN.values():
        assert from_json(json.loads(json.dumps(spec.to_json()))) == spec


GOOD = json.loads(json.dumps(IDEAL.to_json()))


@pytest.mark.parametrize(
    "change, message",
    [
        ({"version": 2}, "not a device spec of version 1 (version: 2)"),
        ({"inside": {"latency_us": 1}}, "inside is {'latency_us': 1}; give {'gigabytes_per_s', 'latency_us'}"),
        ({"across": {"gigabytes_per_s": 0, "latency_us": 1}}, "across.gigabytes_per_s is 0; give a number above 0"),
        ({"gpus": 0}, "gpus is 0; give a whole number of at least 1"),
        ({"overlap": 2}, "overlap is 2; give a share from 0 to 1"),
        ({"flop": 1}, "unknown field 'flop'; the closest is 'flops'"),
        ({"flops": None, "scale": None}, "neither 'flops' nor 'scale' is given"),
        ({"memory_gb_per_s": "much"}, "memory_gb_per_s is 'much'; give a number above 0"),
    ],
)
def test_a_broken_device_spec_says_where(change, message, tmp_path):
    file = tmp_path / "spec.json"
    file.write_text(json.dumps({**GOOD, **change}))
    with pytest.raises(UsageError) as error:
        device_spec(str(file))
    assert message in str(error.value) and str(file) in str(error.value)


def test_an_unknown_device_spec_names_the_closest():
    with pytest.raises(UsageError, match="no device spec 'h10'; the closest is 'h100'"):
        device_spec("h10")


def test_an_unknown_device_spec_lists_all_that_are_built_in():
    with pytest.raises(UsageError) as error:
        device_spec("tpu")
    assert f"all are {', '.join(BUILT_IN)}; or name a JSON file" in str(error.value)
