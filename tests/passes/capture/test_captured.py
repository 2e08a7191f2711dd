"""The captured model is called as the model."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from lpcompile import capture


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: torch.Tensor, *, scale: torch.Tensor) -> dict[str, Any]:
        return {"main": self.layer(x) * scale, "mode": "training" if self.training else "evaluation"}


def test_arguments_and_structure_are_the_models() -> None:
    model, x, scale = Named(), torch.ones(3, 2), torch.tensor(2.0)
    captured = capture(model, x, {"scale": scale})
    found = captured(x, scale=scale)
    assert torch.equal(found["main"], model(x, scale=scale)["main"]) and found["mode"] == "training"
    captured.eval()
    assert captured(x, scale=scale)["mode"] == "evaluation"


def test_what_is_known_beside_the_graph_is_kept() -> None:
    model = Named()
    info = capture(model, torch.ones(3, 2), {"scale": torch.tensor(2.0)})._lp
    assert info.model is model and info.batch_free and info.kept_whole == ()
    assert [name for name, _ in info.signature.inputs] == ["x", "scale"]
