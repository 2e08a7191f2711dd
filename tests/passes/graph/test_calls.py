"""Callables of captured graphs: they act as the context they stand for, print, compare and pickle."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpcompile.passes.graph.calls import (
    Apply,
    Autocast,
    Call,
    NoGrad,
    Script,
    batch_of,
    call_method,
    call_module,
    device_of,
    read_attribute,
    scale,
)

BF16 = ("cpu", torch.bfloat16, True, True)


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return 2 * g


@torch.jit.script
def shifted(x: Tensor) -> Tensor:
    return x + 1


def test_no_grad_holds_for_one_call() -> None:
    x = torch.ones(2, requires_grad=True)
    assert not NoGrad(torch.exp)(x).requires_grad and torch.exp(x).requires_grad


def test_autocast_nests_as_it_was_recorded() -> None:
    x = torch.ones(2, 2)
    assert Autocast(torch.matmul, BF16)(x, x).dtype == torch.bfloat16
    off = ("cpu", torch.bfloat16, False, True)
    assert Autocast(torch.matmul, BF16, off)(x, x).dtype == torch.float32


def test_apply_keeps_the_functions_own_backward() -> None:
    x = torch.ones(2, requires_grad=True)
    Apply(Double)(x).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [2, 2]


def test_a_script_is_named_after_its_function() -> None:
    assert repr(Script(shifted)) == "Script_shifted" and Script(shifted)(torch.zeros(1)).item() == 1


@pytest.mark.parametrize("call", [NoGrad(torch.exp), Autocast(torch.matmul, BF16), NoGrad(Autocast(torch.exp, BF16))])
def test_calls_print_compare_hash_and_pickle(call: Call) -> None:
    again = pickle.loads(pickle.dumps(call))
    assert again == call and hash(again) == hash(call) and repr(call).startswith(f"{type(call).__name__}_")
    assert call != NoGrad(torch.sin) and call != Autocast(torch.exp)


def test_plain_functions_do_what_their_node_says() -> None:
    layer = nn.Linear(2, 2)
    x = torch.ones(6, 2)
    assert torch.equal(call_module(layer, x), layer(x))
    assert call_method("sum", x, 0).tolist() == [6, 6]
    assert read_attribute(None, layer, "weight") is layer.weight
    assert batch_of(x, 0, 3) == 2 and scale(5, 3, 1) == 16 and scale(5, 3) == 15
    assert device_of(torch.zeros(1, device="meta")).type == "meta"
