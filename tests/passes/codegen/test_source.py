"""The file of a stage: it runs, it is the model, and it imports no more than it uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.passes.codegen.stages import Blocks, rows, source_of


def run(text: str, model: nn.Module) -> Any:
    """The stage that the source defines, with the model's weights."""
    scope: dict[str, Any] = {"__name__": "emitted"}
    exec(text, scope)
    stage = scope["Stage0"]()
    stage.load_state_dict(model.state_dict(), strict=True)
    return stage


def test_the_file_is_the_model_in_both_modes() -> None:
    model, x = Blocks(0.5, 0.5), rows()
    stage = run(source_of(model, x), model)
    for training in (True, False):
        torch.manual_seed(1)
        expected = model.train(training)(x)
        torch.manual_seed(1)
        assert torch.equal(stage.train(training)(x), expected)


def test_modes_that_differ_in_a_flag_are_one_method() -> None:
    text = source_of(Blocks(0.5, 0.5, 0.5), rows())
    assert text.count("def forward") == 2
    assert "F.dropout(out, training=self.training)" in text
    assert "nn.Sequential(*[Block() for _ in range(3)])" in text


def test_imports_are_sorted_and_used() -> None:
    text = source_of(nn.Sequential(nn.Linear(4, 4)), rows())
    assert [line for line in text.splitlines() if "import" in line] == ["from torch import nn"]
    assert text.startswith('"""A stage."""\n\nfrom torch import nn\n\n\nclass Stage0(nn.Module):\n    """A stage."""')


class Masked(nn.Module):
    """Layers that take a mask, so that their list is no chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(MaskedLayer() for _ in range(4))

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x, mask)
        return x


class MaskedLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        return x + self.fc(x) * mask


def test_layers_in_a_row_are_a_loop() -> None:
    model, x, mask = Masked(), rows(), rows() > 0
    text = source_of(model, x, mask)
    assert "for layer in self.layers:\n            x = layer(x, mask)\n" in text
    assert torch.equal(run(text, model)(x, mask), model(x, mask))


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.fc.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return torch.log1p(torch.exp(self.fc(x)))


def test_the_helper_is_written_only_for_a_layer_that_needs_it() -> None:
    model, x = Frozen(), rows()
    text = source_of(model, x)
    assert "def rebuild(" in text and "def rebuild(" not in source_of(Blocks(0.0), x)
    stage = run(text, model)
    assert not stage.fc.weight.requires_grad and stage.fc.bias.requires_grad
    assert torch.equal(stage(x), model(x))
