"""FLOPs of operators: those that torch's counter knows, and recurrent layers, which it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, shape_wrapper

Shape = Sequence[int]


def one_layer(given: Shape, of_input: Shape, of_state: Shape, *rest: Any, **options: Any) -> int:
    """An LSTM layer on a CPU: each step multiplies its input and its state by a matrix."""
    return 2 * math.prod(given[:-1]) * (math.prod(of_input) + math.prod(of_state))


def all_layers(given: Shape, weights: Sequence[Shape], *rest: Any, **options: Any) -> int:
    """All layers and directions at once, as cuDNN runs them; biases are no matrices."""
    return 2 * math.prod(given[:-1]) * sum(math.prod(matrix) for matrix in weights if len(matrix) == 2)


RECURRENT = {torch.ops.aten.mkldnn_rnn_layer: one_layer, torch.ops.aten._cudnn_rnn: all_layers}
FORMULAS: Mapping[Any, Callable[..., int]] = {
    **{operator: shape_wrapper(formula) for operator, formula in RECURRENT.items()},  # type: ignore[no-untyped-call]
    **flop_registry,
}
