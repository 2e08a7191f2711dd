"""A mask that masks nothing, and what is near to a model but for rounding."""

from __future__ import annotations

import torch
from torch import nn

from lpcompile.passes.split.idle_mask import idle_mask, masking, near


def test_only_a_mask_of_ones_alone_masks_nothing() -> None:
    ones, some = torch.ones(2, 3, dtype=torch.long), torch.tensor([[1, 1, 0], [1, 1, 1]])
    assert idle_mask(["input_ids", "attention_mask"], [some, ones]) == 1
    assert idle_mask(["input_ids", "attention_mask"], [ones, some]) is None


def test_the_last_position_of_the_first_sample_is_masked_in_a_copy() -> None:
    ones = torch.ones(2, 3, dtype=torch.long)
    (found,) = masking([ones], 0)
    assert found.tolist() == [[1, 1, 0], [1, 1, 1]] and ones.all()


def test_near_is_equal_but_for_rounding() -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5)), torch.randn(3, 4)

    def times(factor: float):  # type: ignore[no-untyped-def]
        return lambda inputs: factor * model(*inputs)

    def close(factor: float) -> bool:
        return near(model, times(1.0), times(factor), [x], model.train)

    assert close(1.0) and close(1 + 1e-7) and not close(1.01)
