"""Messages in 8 bits: every channel of a boundary's tensor as integers from -127 to 127 and one float32 scale.

>>> wire = Int8()
>>> sent = wire.pack(("p", 1, 0), (gradient,))      # int8 values and scales, a quarter of the bytes
>>> wire.unpack(sent, specs)                        # float32 again

What rounding takes from a gradient is added to the gradient of the next micro-batch (error feedback), so that it is
late and not lost: the sum over a step is right but for the last micro-batch's rest. Activations belong to their own
samples, and are only rounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

LARGEST = 127
WITH_FEEDBACK = ("p", "kappa")  # kinds of messages whose error is added to the next one
IMAGE_DIMENSIONS = 4  # from so many on the channels are dimension 1, below they are the last one


def scale_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor's scales: its own, with one in all dimensions but the channels'."""
    channel = 1 if len(shape) >= IMAGE_DIMENSIONS else len(shape) - 1
    return tuple(n if d == channel else 1 for d, n in enumerate(shape))


def quantized(tensor: Tensor) -> tuple[Tensor, Tensor]:
    """Integers and scales. A channel with a value that is not finite comes out as not finite: nothing is hidden."""
    over = [d for d, n in enumerate(scale_shape(tensor.shape)) if n == 1]
    scales = (torch.linalg.vector_norm(tensor, torch.inf, over, keepdim=True) if over else tensor.abs()) / LARGEST
    scales = torch.where(scales == 0, 1.0, scales)
    return (tensor / scales).round_().to(torch.int8), scales


class Int8:
    """One rank's messages. It holds what rounding has taken from gradients so far."""

    def __init__(self) -> None:
        self.errors: dict[tuple[Any, ...], Tensor] = {}

    def shapes(self, shapes: Iterable[tuple[tuple[int, ...], torch.dtype]]) -> tuple[Any, ...]:
        """Shapes and dtypes of a message on the wire."""
        found: list[tuple[tuple[int, ...], torch.dtype]] = []
        for shape, dtype in shapes:
            if dtype == torch.float32:
                found += [(shape, torch.int8), (scale_shape(shape), torch.float32)]
            else:
                found.append((shape, dtype))
        return tuple(found)

    def pack(self, key: tuple[str, int, int], tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
        found: list[Tensor] = []
        for i, t in enumerate(tensors):
            if t.dtype != torch.float32:
                found.append(t)
                continue
            place = (key[0], key[1], i, tuple(t.shape))
            if key[0] in WITH_FEEDBACK and place in self.errors:
                t = t + self.errors[place]
            values, scales = quantized(t)
            if key[0] in WITH_FEEDBACK:
                self.errors[place] = t - values * scales
            found += [values, scales]
        return tuple(found)

    def unpack(self, found: Sequence[Tensor], dtypes: Iterable[torch.dtype]) -> tuple[Tensor, ...]:
        left = iter(found)
        return tuple(next(left) * next(left) if dtype == torch.float32 else next(left) for dtype in dtypes)

    def rest(self) -> None:
        """Nothing is in flight: what is left is dropped, so that a resumed run is the same as one that went on."""
        self.errors.clear()
