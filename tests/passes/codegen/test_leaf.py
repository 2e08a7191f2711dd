"""One layer as the expression that constructs it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from lpcompile import EmitError
from lpcompile.passes.codegen.leaf import configuration, empty, leaf
from lpcompile.passes.codegen.source import REBUILD_HELPER
from lpcompile.passes.codegen.text.values import Names


def text(layer: nn.Module, names: Names | None = None) -> str:
    names = names or Names()
    made = leaf(layer, "fc", names)
    return made.text(names, {k: names.literal(v) for k, v in made.arguments.items()})


def test_torch_layers_are_calls_of_their_constructor() -> None:
    assert text(nn.Linear(3, 4, bias=False)) == "nn.Linear(3, 4, bias=False)"
    assert text(nn.Dropout(0.1)) == "nn.Dropout(0.1)"
    assert text(nn.Linear(3, 4).requires_grad_(False)) == "nn.Linear(3, 4).requires_grad_(False)"


def test_norms_are_wrapped_again() -> None:
    normed = parametrizations.weight_norm(nn.Linear(3, 4))
    assert text(normed) == "nn.utils.parametrizations.weight_norm(nn.Linear(3, 4))"
    spectral = parametrizations.spectral_norm(nn.Linear(3, 4), n_power_iterations=2)
    assert text(spectral) == "nn.utils.parametrizations.spectral_norm(nn.Linear(3, 4), n_power_iterations=2, dim=0)"


@pytest.mark.filterwarnings("ignore:.*weight_norm. is deprecated:FutureWarning")
def test_the_older_norms_are_wrapped_again() -> None:
    assert text(nn.utils.weight_norm(nn.Linear(3, 4))) == "nn.utils.weight_norm(nn.Linear(3, 4))"
    recurrent = nn.utils.weight_norm(nn.LSTM(3, 4), "weight_ih_l0", dim=1)
    assert text(recurrent) == 'nn.utils.weight_norm(nn.LSTM(3, 4), "weight_ih_l0", dim=1)'
    spectral = nn.utils.spectral_norm(nn.Linear(3, 4), n_power_iterations=2)
    assert text(spectral) == "nn.utils.spectral_norm(nn.Linear(3, 4), n_power_iterations=2, dim=0)"
    spectral.register_forward_hook(lambda *_: None)
    with pytest.raises(EmitError, match="it has hooks"):
        text(spectral)


def test_a_changed_layer_is_rebuilt_attribute_by_attribute() -> None:
    layer = nn.Linear(3, 4)
    layer.weight.requires_grad_(False)
    layer.register_buffer("more", torch.zeros(2, dtype=torch.long), persistent=False)
    names = Names()
    source = text(layer, names)
    assert source.startswith("rebuild(nn.Linear, attributes=") and names.helpers == {"rebuild"}
    scope: dict[str, Any] = {}
    exec("\n".join([*names.lines, *REBUILD_HELPER]), scope)
    again = eval(source, scope)
    assert type(again) is nn.Linear and again.in_features == 3
    assert [(n, p.shape, p.requires_grad) for n, p in again.named_parameters()] == [
        (n, p.shape, p.requires_grad) for n, p in layer.named_parameters()
    ]
    assert again.more.dtype == torch.long and "more" not in again.state_dict()


def test_hooks_and_patched_forwards_are_refused() -> None:
    hooked, patched = nn.Linear(3, 4), nn.Linear(3, 4)
    hooked.register_forward_hook(lambda *_: None)
    patched.forward = patched.forward  # type: ignore[method-assign]
    with pytest.raises(EmitError, match="fc .Linear. cannot be written as code: it has hooks"):
        text(hooked)
    with pytest.raises(EmitError, match="its forward was replaced on the instance; make a subclass"):
        text(patched)
    with pytest.raises(EmitError, match="it is a TorchScript module, which has no Python code; compile the model with"):
        text(torch.jit.script(nn.Linear(3, 4)))


def test_a_configuration_is_one_constant_of_the_file() -> None:
    class Config(dict[str, Any]):
        def to_dict(self) -> dict[str, Any]:
            return dict(self)

        @classmethod
        def from_dict(cls, data: dict[str, Any]) -> Config:
            return cls(data)

    value, names = Config(width=4), Names()
    with pytest.raises(EmitError, match="fc cannot be written as code: its configuration holds .*Config.*; drop it"):
        configuration(value, names, "fc", "drop it")
    names._given[id(Config)] = (Config, "Config")  # as if it could be imported
    assert configuration(value, names, "fc", "") == configuration(value, names, "fc", "") == "CONFIG"
    assert names.constants_lines() == [['CONFIG = Config.from_dict({"width": 4})']]


def test_empty_tensors_have_shape_and_dtype() -> None:
    assert empty(torch.zeros(2, 3), Names(), "fc") == "torch.empty(2, 3)"
    assert empty(torch.zeros((), dtype=torch.long), Names(), "fc") == "torch.empty((), dtype=torch.int64)"
    assert empty(torch.zeros(2), Names(), "fc", ["channels"]) == "torch.empty(channels)"
    assert empty(None, Names(), "fc") == "None"
    with pytest.raises(EmitError, match="use a plain dense tensor"):
        empty(torch.zeros(2).to_sparse(), Names(), "fc")


def test_layers_of_torch_geometric_are_calls_of_their_constructor() -> None:
    layers = pytest.importorskip("torch_geometric.nn")
    layer = layers.GCNConv(3, 4, improved=True)
    layer(torch.zeros(2, 3), torch.tensor([[0], [1]]))  # which its inspector remembers
    assert text(layer) == "GCNConv(3, 4, improved=True)"


def test_layers_of_einops_are_calls_of_their_constructor() -> None:
    layers = pytest.importorskip("einops.layers.torch")
    assert text(layers.Rearrange("b (h d) -> b h d", h=4)).endswith('Rearrange("b (h d) -> b h d", h=4)')
    assert text(layers.EinMix("b c -> b d", weight_shape="c d", bias_shape="d", c=3, d=4)).startswith("EinMix(")
