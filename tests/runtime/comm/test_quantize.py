"""Messages in 8 bits: how near they come, what error feedback adds up to, and what must not be hidden."""

from __future__ import annotations

import pytest
import torch

from lpcompile.runtime.comm.quantize import Int8, quantized, scale_shape


@pytest.mark.parametrize(("shape", "scales"), [
    ((4, 3, 5, 6), (1, 3, 1, 1)), ((4, 7, 8), (1, 1, 8)), ((4, 8), (1, 8)), ((8,), (8,)),
])  # fmt: skip
def test_every_channel_has_a_scale_and_is_near(shape, scales):
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(-6, 6, 7)[:1]
    values, found = quantized(x)
    assert scale_shape(shape) == scales == tuple(found.shape) and values.dtype == torch.int8
    assert ((values * found - x).abs() <= found / 2 * (1 + 1e-5)).all()


def test_a_channel_of_zeros_stays_zero_and_one_that_is_not_finite_stays_so():
    x = torch.ones(2, 3, 4, 4)
    x[:, 0], x[0, 1, 0, 0], x[1, 2, 3, 3] = 0.0, float("nan"), float("inf")
    values, scales = quantized(x)
    back = values * scales
    assert torch.equal(back[:, 0], x[:, 0]) and back[:, 1].isnan().all() and not back[:, 2].isfinite().all()


def test_messages_are_a_quarter_and_other_dtypes_are_sent_as_they_are():
    wire, x, mask = Int8(), torch.randn(8, 16, 4, 4), torch.arange(8)
    sent = wire.pack(("X", 1, 0), (x, mask))
    assert [(tuple(t.shape), t.dtype) for t in sent] == list(
        wire.shapes([(tuple(x.shape), x.dtype), (tuple(mask.shape), mask.dtype)])
    )
    assert sum(t.nbytes for t in sent[:2]) < 0.27 * x.nbytes
    back = wire.unpack(sent, [x.dtype, mask.dtype])
    assert torch.equal(back[1], mask) and torch.allclose(back[0], x, atol=0.02)


def test_the_sum_of_gradients_is_right_up_to_the_last_rest_and_activations_keep_nothing():
    generator, wire, plain = torch.Generator().manual_seed(1), Int8(), torch.zeros(4, 6)
    total, rounded = torch.zeros(4, 6), torch.zeros(4, 6)
    for slot in range(50):
        p = torch.randn(4, 6, generator=generator)
        total += p
        rounded += wire.unpack(wire.pack(("p", 1, slot), (p,)), [p.dtype])[0]
        values, scales = quantized(p)
        plain += values * scales
    (error,) = wire.errors.values()
    assert torch.allclose(rounded + error, total, atol=1e-4)
    assert (rounded - total).abs().max() < (plain - total).abs().max()
    wire.rest()
    wire.pack(("X", 1, 0), (total,))
    assert not wire.errors
