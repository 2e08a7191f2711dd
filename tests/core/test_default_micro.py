"""Default number of micro-batches per step."""

from __future__ import annotations

import pytest

from lpcompile.core.method import BatchFacts
from lpcompile.runtime.methods import get_method


@pytest.mark.parametrize(("method", "batch", "K", "micro"), [
    ("multiplier", 64, 2, 2), ("multiplier", 64, 4, 4), ("multiplier", 16, 4, 2), ("multiplier", 16, 2, 1),
    ("multiplier", 7, 3, 1),
    ("penalty", 64, 2, 2), ("penalty", 64, 4, 2), ("penalty", 31, 2, 1), ("lagrangian", 32, 3, 2),
    ("penalty-stored", 64, 2, 1), ("pipedream", 64, 2, 1), ("multiplier", 64, 1, 1),
])  # fmt: skip
def test_the_default_number_of_micro_batches(method, batch, K, micro):
    assert get_method(method).default_micro(BatchFacts(K, batch, saved=2**28)) == micro
    assert get_method("penalty").default_micro(BatchFacts(K, batch, saved=2**25)) == 1
