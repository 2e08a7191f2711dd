"""When costs are known well enough, and plans that are reported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import lpcompile
from lpcompile.core.cost import Profile, UnitCost
from lpcompile.passes.profile import measure
from lpcompile.planning.auxiliary.auxnets import AuxOptions
from lpcompile.planning.balance import settled
from lpcompile.planning.options import Options


def costs(spread: float, count: int = 8) -> Profile:
    units = tuple(UnitCost(f"u{i}", 1.0 + i % 3, 2.0, (1.0 + i % 3) * spread, 2 * spread) for i in range(count))
    return Profile(units, "measured", "cpu")


def options(K: int | str, method: str = "zbh2", **given: object) -> Options:
    return Options(K=K, cost="measured", method=method, aux=AuxOptions(0.1), **given).checked()  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["zbh2", "stream", "penalty"])
def test_costs_are_enough_once_their_errors_cannot_make_another_split_much_better(method: str) -> None:
    of = options(2, method)
    assert settled(of, costs(0.0), 7)
    assert settled(of, costs(0.02), 7) and not settled(of, costs(0.2), 7)
    assert settled(of, costs(0.2), 2000)  # of many runs even wide spreads have a sure median


def test_what_the_planner_refuses_or_chooses_by_itself_is_measured_as_long_as_there_is_time() -> None:
    assert not settled(options("auto"), costs(0.0), 7)
    assert not settled(options(20), costs(0.0), 7)  # more stages than units
    assert not settled(replace(options(2), memory_limit=1.0), replace_bytes(costs(0.0)), 7)


def replace_bytes(given: Profile) -> Profile:
    return replace(given, units=tuple(replace(u, parameter_bytes=1000) for u in given.units))


def test_measuring_ends_with_the_question_and_not_before_the_fewest_steps(
    tmp_path: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LPCOMPILE_CACHE", str(tmp_path))
    model, x = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(4))), torch.randn(4, 8)
    assert steps(model, x, monkeypatch, lambda given, found, runs: True) == measure.MIN_STEPS
    assert steps(model, x, monkeypatch, lambda given, found, runs: runs >= 9) == 9
    assert steps(model, x, monkeypatch, lambda given, found, runs: False) == measure.MAX_STEPS


def steps(model: torch.nn.Module, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch, answer: Callable[..., bool]) -> int:
    """How many steps the units of a plan were measured in."""
    monkeypatch.setattr("lpcompile.planning.pipeline.settled", answer)
    monkeypatch.setattr(measure, "CHECKS_SHARE", 1.0)
    plan = lpcompile.parallelize(model, 2, example_inputs=x, method="bp", gate=False, cache=False, threads=1).plan
    (note,) = [n for n in plan.notes if "units add up" in n]
    return int(note.partition("(")[2].partition(" steps")[0])
