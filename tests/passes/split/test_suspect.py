"""Which module is named when a program differs from its model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from lpcompile.passes.split.suspect import suspect


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3)))


def runs(layers: nn.Sequential, program: Callable[[torch.Tensor], Any]) -> Callable[[bool], Any]:
    x = torch.ones(3, 2)
    return lambda ours: program(x) if ours else layers(x)


def test_a_layer_that_gives_another_result_is_named() -> None:
    layers, calls = model(), []

    def program(x: torch.Tensor) -> torch.Tensor:
        handle = layers[1][0].register_forward_pre_hook(lambda m, args: calls.append(args))
        with torch.no_grad():
            layers[1][0].bias.add_(1)
        out = layers(x)
        with torch.no_grad():
            layers[1][0].bias.sub_(1)
        handle.remove()
        return out

    assert suspect(layers, runs(layers, program), []) == "1.0" and len(calls) == 1


def test_if_a_layer_gets_other_inputs_the_module_around_it_is_named() -> None:
    layers = model()
    assert suspect(layers, runs(layers, lambda x: layers[2](1 + layers[1](layers[0](x)))), []) == "2"


def test_if_forward_agrees_the_last_wrong_gradient_decides() -> None:
    layers = model()
    wrong = [f"gradient of {path}.weight" for path in ("0.0", "1.0")]
    assert suspect(layers, runs(layers, layers), wrong) == "1"


def test_without_a_difference_nobody_is_named_and_no_hook_stays() -> None:
    layers = model()
    assert suspect(layers, runs(layers, layers), []) == ""
    assert not any(m._forward_hooks for m in layers.modules())
