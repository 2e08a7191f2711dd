"""AuxNets cut from a smaller model of the family."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import lpcompile
from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import PlanError
from lpcompile.models import ResNet
from lpcompile.passes.auxnet.smaller import SmallerCut, choose
from lpcompile.passes.split.cuts import Cut
from lpcompile.program import Program

X = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def compiled(model: nn.Module, K: int, smaller: nn.Module, x: torch.Tensor = X) -> Program:
    return lpcompile.parallelize(model, K, example_inputs=x, cost="flops", method="penalty", auxnet=smaller, gate=False)


def run(program: Program, x: torch.Tensor) -> list[torch.Tensor]:
    lams: list[torch.Tensor] = []
    for aux in program.auxnets:
        lams.append(aux(lams[-1] if lams else x))
    return lams


def record(seen: dict[str, torch.Tensor], name: str, module: nn.Module, given: Any, out: torch.Tensor) -> None:
    seen[f"{name} {tuple(out.shape)}"] = out


@pytest.fixture(scope="module")
def program() -> Program:
    torch.manual_seed(0)
    return compiled(ResNet(20), 3, ResNet(14))


def test_pieces_of_the_smaller_model_are_the_auxnets(program: Program) -> None:
    made = [b.aux.made for b in program.plan.boundaries if b.aux]
    assert made[0].startswith("ResNet up to layer") and " … layer" in made[1]
    assert all(b.aux and b.aux.kind == "cut" and 0 < b.aux.share < 1 for b in program.plan.boundaries)
    assert made[0] in str(program.plan)
    for lam, boundary in zip(run(program, X), program.plan.boundaries, strict=True):
        assert lam.shape == boundary.specs[0].shape


def test_the_pieces_compose_to_the_smaller_models_own_activation() -> None:
    torch.manual_seed(0)
    smaller = ResNet(14)
    program = compiled(ResNet(20), 2, smaller)
    seen: dict[str, torch.Tensor] = {}
    for name, module in [*smaller.layer1.named_children(), *smaller.layer2.named_children()]:
        module.register_forward_hook(partial(record, seen, name))
    smaller(X)
    lam = run(program, X)[0]
    assert any(out.shape == lam.shape and torch.equal(out, lam) for out in seen.values())


def test_layers_are_copies_and_the_smaller_model_is_not_trained() -> None:
    smaller = ResNet(8)
    before = {n: t.clone() for n, t in smaller.state_dict().items()}
    trainer = compiled(ResNet(14), 2, smaller).trainer(F.cross_entropy, optimizer=lambda ps: torch.optim.SGD(ps, 0.1))
    for _ in range(2):
        trainer.step(X, torch.tensor([1, 2]))
    assert all(torch.equal(t, before[n]) for n, t in smaller.state_dict().items())


def test_a_pointwise_adapter_maps_other_numbers_of_channels() -> None:
    program = compiled(ResNet(20, width=16), 3, ResNet(14, width=8))
    made = [b.aux.made for b in program.plan.boundaries if b.aux]
    assert all("adapter of " in text for text in made)
    assert "adapter of 16 to 8 channels" in made[1] or "adapter of 32 to 16 channels" in made[1]
    for lam, boundary in zip(run(program, X), program.plan.boundaries, strict=True):
        assert lam.shape == boundary.specs[0].shape
    again = compiled(ResNet(20, width=16), 3, ResNet(14, width=8))
    adapters = [dict(p.auxnets[1].named_parameters())["adapter_in_0.weight"] for p in (program, again)]
    assert torch.equal(*adapters)  # all ranks draw the same


def test_emitted_auxnets_give_the_same(program: Program, tmp_path: Path) -> None:
    loaded = lpcompile.load(program.emit(tmp_path / "build"))
    for mine, theirs in zip(run(program, X), run(loaded, X), strict=True):
        assert torch.equal(mine, theirs)
    assert "ResNet up to layer" in (tmp_path / "build" / "auxnet_0.py").read_text()


def test_emitted_classes_have_the_names_of_the_smaller_model(tmp_path: Path) -> None:
    compiled(ResNet(14), 2, ResNet(14, preact=True)).emit(tmp_path / "build")
    assert "class PreActBlock" in (tmp_path / "build" / "auxnet_0.py").read_text()


def test_a_model_of_as_many_blocks_as_stages_offers_the_end_of_each() -> None:
    program = compiled(ResNet(14), 4, ResNet(8))  # the mean over pixels costs next to nothing, and is no boundary
    assert [b.aux.made for b in program.plan.boundaries if b.aux][-1] == "ResNet layer2.0 … layer3.0"


def test_training_with_them_learns_and_follows_its_plan(program: Program) -> None:
    again = lpcompile.parallelize(program.module, example_inputs=X, plan=program.plan, auxnet=ResNet(14), gate=False)
    assert [b.aux for b in again.plan.boundaries] == [b.aux for b in program.plan.boundaries]
    with pytest.raises(PlanError, match="pass the same auxnet="):
        lpcompile.parallelize(program.module, example_inputs=X, plan=program.plan, gate=False)


def test_a_boundary_without_a_place_is_named_with_what_is_offered() -> None:
    other = nn.Sequential(nn.Conv2d(3, 5, 5, 5), nn.ReLU(), nn.Flatten(), nn.Linear(45, 10))
    with pytest.raises(
        PlanError, match=r"boundary 1, which carries float32\[B, 16, 16, 16\].* offers float32\[B, 5, 3"
    ):
        compiled(ResNet(20), 4, other)


def test_one_module_that_fits_the_only_boundary_is_taken_whole() -> None:
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))
    program = lpcompile.parallelize(
        model, 2, example_inputs=x, cost="flops", method="penalty", auxnet=nn.Conv2d(3, 8, 3, padding=1),
        gate=False,
    )  # fmt: skip
    assert [b.aux.kind for b in program.plan.boundaries if b.aux] == ["user"]


def spec(*shape: int) -> tuple[TensorSpec, ...]:
    return (TensorSpec((2, *shape), torch.float32, True, (1, *([0] * len(shape)))),)


def place(position: int, depth: float, *shape: int) -> SmallerCut:
    return SmallerCut(Cut(position, f"n{position}", "", "", (f"v{position}",), spec(*shape)), depth, f"unit{position}")


def test_the_nearest_places_in_depth_are_chosen_in_order() -> None:
    offered = [place(1, 0.2, 8, 4, 4), place(2, 0.4, 8, 4, 4), place(3, 0.6, 8, 4, 4), place(4, 0.9, 16, 2, 2)]

    def chosen(depths: list[float], *shapes: tuple[int, ...]) -> list[int]:
        return [p.cut.position for p in choose("Net", offered, [spec(*s) for s in shapes], depths)]

    assert chosen([0.5], (8, 4, 4)) in ([2], [3])
    assert chosen([0.38, 0.42], (8, 4, 4), (8, 4, 4)) in ([1, 2], [2, 3])  # two boundaries, two places
    assert chosen([0.1, 0.2], (8, 4, 4), (16, 2, 2)) == [1, 4]
    assert chosen([0.7], (8, 4, 4)) == [3]


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ([(8, 5, 5)], r"boundary 1, which carries float32\[B, 8, 5, 5\].*float32\[B, 8, 4, 4\] \(1 place\)"),
        ([(8, 4, 4), (8, 4, 4)], r"has 1 place for boundaries 1, 2, .*fewer stages"),
    ],
)
def test_why_there_is_no_choice(shapes: list[tuple[int, ...]], message: str) -> None:
    given: list[Any] = [spec(*s) for s in shapes]
    with pytest.raises(PlanError, match=message):
        choose("Net", [place(1, 0.5, 8, 4, 4)], given, [0.5] * len(given))
