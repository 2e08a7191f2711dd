"""For random models: what is emitted, loaded again or run in a process of its own, is the model, to the bit."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import Tensor

from lpcompile import Program, load
from tests.properties.recipes import Recipe
from tests.properties.steps import assert_same, compiled, fresh, serial_step, tensors_in
from tests.properties.strategies import examples, recipes, stage_counts

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]
ROOT = Path(__file__).parents[2]

# What a user without lpcompile would write, for several folders in turn.
ALONE = """
import importlib.util, sys, torch
from pathlib import Path
from safetensors.torch import load_file, save_file
torch.set_num_threads(1)
for folder in map(Path, sys.argv[1:]):
    spec = importlib.util.spec_from_file_location("support", folder / "support.py")
    support = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(support)
    given = load_file(folder / "given.safetensors")
    inputs = [given[str(i)] for i in range(len(given))]
    found = {}
    for training in (True, False):
        stages = support.load_stages(folder, training)
        torch.manual_seed(5)
        with torch.set_grad_enabled(training):
            out = support.serial(stages, *(t.clone() for t in inputs), folder=folder)
        out = out if isinstance(out, list) else [out]
        found |= {f"{training} {i}": t.detach().contiguous().clone() for i, t in enumerate(out)}
        loss = sum(t.double().square().sum() for t in out if t.requires_grad)
        if isinstance(loss, torch.Tensor):
            loss.backward()
        named = {name: p for stage in stages for name, p in stage.named_parameters()}
        found |= {f"{training} gradient of {n}": p.grad.clone() for n, p in named.items() if p.grad is not None}
    save_file(found, folder / "found.safetensors")
assert "lpcompile" not in sys.modules
"""


@examples(15)
@given(recipes(), stage_counts, st.integers(1, 3))
def test_a_loaded_program_is_the_model(recipe: Recipe, K: int, batch: int) -> None:
    model, twin, call = fresh(recipe, batch)
    program = compiled(model, K, call)
    with TemporaryDirectory() as folder:
        loaded = load(program.emit(Path(folder) / "program"))
    assert loaded.plan == program.plan
    assert list(loaded.state_dict()) == list(model.state_dict())
    assert_same(serial_step(twin, call, seed=1), serial_step(loaded, call, seed=1))
    twin.eval()
    loaded.eval()
    assert_same(serial_step(twin, call, seed=2), serial_step(loaded, call, seed=2))


@examples(1)
@given(st.lists(st.tuples(recipes(), stage_counts), min_size=6, max_size=6))
def test_emitted_stages_alone_in_a_fresh_process_are_the_model(drawn: list[tuple[Recipe, int]]) -> None:
    with TemporaryDirectory() as folder:
        expected = {}
        for i, (recipe, K) in enumerate(drawn):
            model, _, call = fresh(recipe, 2)
            program = compiled(model, K, call)
            place = program.emit(Path(folder) / f"program_{i}")
            inputs = program.captured._lp.signature.flat(call.args, call.kwargs)
            save_file(
                {str(n): t.detach().contiguous().clone() for n, t in enumerate(inputs)}, place / "given.safetensors"
            )
            expected[place] = alone(program, inputs)
        run = subprocess.run(
            [sys.executable, "-c", ALONE, *map(str, expected)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert run.returncode == 0, run.stderr[-3000:]
        for place, results in expected.items():
            found = load_file(place / "found.safetensors")
            assert found.keys() == results.keys()
            different = [name for name, tensor in results.items() if not torch.equal(tensor, found[name])]
            assert not different, (different, (place / "stage_0.py").read_text())


def alone(program: Program, inputs: list[Tensor]) -> dict[str, Tensor]:
    """What the script above computes, by the program itself."""
    found: dict[str, Any] = {}
    state = {k: v.clone() for k, v in program.state_dict().items()}
    flat = program.captured._lp
    for training in (True, False):
        program.train(training)
        program.load_state_dict(state)
        program.zero_grad(set_to_none=True)
        from lpcompile.passes.split.gate import staged

        for stage in program.stages:
            stage._lp_refresh()
        torch.manual_seed(5)
        with torch.set_grad_enabled(training):
            tensors = [t.detach().clone() for t in inputs]
            out = staged(program.stages, tensors, flat.trees[training].count)
        found |= {f"{training} {i}": t.detach().contiguous().clone() for i, t in enumerate(tensors_in(out))}
        loss = sum(t.double().square().sum() for t in out if t.requires_grad)
        if isinstance(loss, Tensor):
            loss.backward()
        named = {name: p for stage in program.stages for name, p in stage.named_parameters()}
        found |= {f"{training} gradient of {n}": p.grad.clone() for n, p in named.items() if p.grad is not None}
    return found
