"""Caches of the process hold no fake tensors after a recording, and keep everything else."""

from __future__ import annotations

import functools
import gc

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from lpcompile.passes.capture.record import caches as caches_module
from lpcompile.passes.capture.record.caches import FunctionCaches, KnownCaches, forget_fakes, holds_fake


@functools.lru_cache
def table(n: int) -> list[torch.Tensor]:
    return [torch.zeros(n)]


@functools.lru_cache
def square(n: int) -> int:
    return n * n


def test_only_caches_that_stored_a_fake_tensor_are_cleared() -> None:
    square(3)
    caches = FunctionCaches()
    with FakeTensorMode():
        table(2)
        square(4)
    caches.forget_fakes()
    assert not isinstance(table(2)[0], FakeTensor) and square.cache_info().currsize == 2


def test_a_cache_that_stored_real_tensors_only_is_kept() -> None:
    table.cache_clear()
    caches = FunctionCaches()
    kept = table(5)
    caches.forget_fakes()
    assert table(5) is kept


def test_all_objects_are_walked_only_where_there_is_a_new_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    walks = []
    monkeypatch.setattr(gc, "get_objects", lambda walk=gc.get_objects: walks.append(1) or walk())
    known = KnownCaches()
    assert any(cache is table for cache in known.alive()) and len(walks) == 1
    assert any(cache is table for cache in known.alive()) and len(walks) == 1
    made = functools.lru_cache(lambda n: n)
    assert any(cache is made for cache in known.alive()) and len(walks) == 2
    del made
    again = functools.lru_cache(lambda n: -n)  # as many as before
    assert any(cache is again for cache in known.alive()) and len(walks) == 3
    gc.freeze()
    new = functools.lru_cache(lambda n: 2 * n)
    assert {id(c) for c in (table, again, new)} <= {id(c) for c in known.alive()}
    hiding = KnownCaches()
    assert not any(cache is table for cache in hiding.alive())
    gc.unfreeze()
    assert len(walks) == 5 and any(cache is table for cache in hiding.alive()) and len(walks) == 6
    monkeypatch.setattr(caches_module, "instances_are_counted", lambda: False)
    other = KnownCaches()
    assert any(cache is again for cache in other.alive() + other.alive()) and len(walks) == 8


def test_fakes_leave_the_dicts_that_users_keep_them_in() -> None:
    with FakeTensorMode():
        cache = {"fake": torch.zeros(2), "number": 1}
    forget_fakes()
    assert cache == {"number": 1}


def test_a_fake_is_found_in_nested_values_up_to_a_depth() -> None:
    with FakeTensorMode():
        fake = torch.zeros(2)
    assert holds_fake({"a": [fake]}, 2) and not holds_fake({"a": [fake]}, 1)
    assert not holds_fake([torch.zeros(2)], 3)
