"""Cost and side effects of one call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from lpcompile.passes.capture.record.observer import Observation, Observer, storage_key


def observed(call: Callable[[], object]) -> Observation:
    observer = Observer()
    with observer, observer.saved_hooks:
        observer.begin()
        call()
        return observer.end()


def test_a_product_counts_twice_its_multiplications_and_its_backward_by_what_is_trained() -> None:
    x, w = torch.ones(4, 8), torch.ones(8, 2, requires_grad=True)
    found = observed(lambda: x @ w)
    assert (found.flops, found.backward_flops) == (2 * 4 * 8 * 2, 2 * 4 * 8 * 2)
    assert observed(lambda: x.requires_grad_() @ w).backward_flops == 4 * 4 * 8 * 2


def test_what_torch_asks_about_a_device_is_answered_at_once() -> None:
    asked: list[str] = []

    class Spy(TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            asked.append(str(func))
            return func(*args, **(kwargs or {}))

    mode = FakeTensorMode()
    x = mode.from_tensor(torch.ones(2, 3))
    with mode, Spy(), Observer():
        assert F.normalize(x).device == x.device == torch.device("cpu")
    assert "aten.div.Tensor" in asked and "prim.device.default" not in asked


def test_a_view_costs_nothing() -> None:
    assert observed(lambda: torch.ones(4).requires_grad_().view(2, 2)).flops == 4, "only the tensor that is made"


def test_what_is_saved_for_backward_is_counted_once() -> None:
    x = torch.ones(4, 8, requires_grad=True)
    observer = Observer()
    with observer, observer.saved_hooks:
        observer.begin()
        x * x
        assert observer.end().saved_bytes == 4 * 8 * 4
        observer.begin()
        x.square()
        assert observer.end().saved_bytes == 0


@pytest.mark.parametrize(("call", "random"), [(torch.relu, False), (lambda x: F.dropout(x, 0.5), True)])
def test_random_draws_are_seen(call: Callable[[torch.Tensor], torch.Tensor], random: bool) -> None:
    assert observed(lambda: call(torch.ones(4))).random is random


def test_writes_are_seen_through_views() -> None:
    x, other = torch.ones(4), torch.ones(4)
    found = observed(lambda: (x[:2].add_(1), other + 1))
    assert storage_key(x) in found.writes and storage_key(other) not in found.writes


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_writes_its_statistics_in_training_only(training: bool) -> None:
    mean, variance = torch.zeros(3), torch.ones(3)
    found = observed(lambda: F.batch_norm(torch.rand(4, 3), mean, variance, training=training))
    assert {storage_key(mean), storage_key(variance)}.isdisjoint(found.writes) is not training


def test_a_mask_gives_a_shape_that_depends_on_values_and_an_index_does_not() -> None:
    x = torch.arange(4.0)
    assert observed(lambda: x[x > 1]).sized_by_data and observed(lambda: x.nonzero()).sized_by_data
    assert not observed(lambda: x[torch.tensor([0, 1])]).sized_by_data
