"""For random models, K and batch: the stages are the model, to the bit.

`LPCOMPILE_EXAMPLES=2000 pytest tests/properties` looks further than the default run.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Sequence
from itertools import combinations, pairwise
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor, nn

from lpcompile import Program, capture, cuts
from lpcompile.core.plan import Plan
from lpcompile.passes.split.split import Stage, split, stage_io
from tests.properties.recipes import Call, Recipe
from tests.properties.steps import (
    Step,
    assert_close,
    assert_same,
    bits,
    compiled,
    descend,
    fresh,
    named_inputs,
    pulls,
    results,
    serial_step,
    tensors_in,
)
from tests.properties.strategies import batches, examples, recipes, stage_counts

pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("one_thread")]


@examples(16)
@given(recipes(), stage_counts, batches, batches)
def test_training_steps_and_evaluation_are_the_models_own(recipe: Recipe, K: int, batch: int, other: int) -> None:
    model, twin, call = fresh(recipe, batch)
    program = compiled(model, K, call)
    for seed, size in enumerate((batch, other if program.plan.batch_free else batch)):
        call = recipe.call(size, seed=seed + 10)
        assert_same(serial_step(twin, call, seed), serial_step(program, call, seed))
        descend(twin)
        descend(program)
    twin.eval()
    program.eval()
    assert_same(serial_step(twin, call, seed=2), serial_step(program, call, seed=2))
    with torch.no_grad():
        assert_same(serial_step(twin, call, seed=3), serial_step(program, call, seed=3))


@examples(12)
@given(recipes(), st.integers(1, 2), batches)
def test_stages_that_write_in_place_are_still_the_model(recipe: Recipe, K: int, batch: int) -> None:
    model, twin, call = fresh(recipe, batch)
    program = compiled(model, K, call)
    lean = tuple(program.lean_stage(k) or stage for k, stage in enumerate(program.stages))
    for state, done in program._lp_variants.items():
        program._lp_variants[state] = done._replace(stages=lean)
    for seed in range(2):
        call = recipe.call(batch, seed=seed + 10)
        assert_same(serial_step(twin, call, seed), serial_step(program, call, seed))
        descend(twin)
        descend(program)


@examples(16)
@given(recipes(), stage_counts, batches)
def test_stages_cut_apart_give_the_models_gradients(recipe: Recipe, K: int, batch: int) -> None:
    """λ = X.detach() at every boundary; gradients are handed down from boundary to boundary."""
    model, twin, call = fresh(recipe, batch)
    program = compiled(model, K, call)
    expected, found = serial_step(twin, call, seed=4), step_by_hand(program, call, seed=4)
    if rounds_alike(program):
        assert_same(expected, Step(expected.structure, found.tensors))
    else:
        assert_close(expected, found)


def rounds_alike(program: Program) -> bool:
    """Whether gradients are added up in the order of the serial backward.

    They are not where a parameter or an input has uses in several stages, or where an early output pulls at what a
    boundary also carries.
    """
    inputs = [i for stage in program.stages for i in stage_io(stage).inputs]
    early = any(stage_io(stage).outputs for stage in program.stages[:-1])
    return not program.plan.tied and len(set(inputs)) == len(inputs) and not early


def run_apart(stages: Sequence[Stage], tensors: Sequence[Tensor]) -> tuple[list[Any], list[Any]]:
    """All outputs, and per stage what went in, what went on and which outputs were made."""
    outputs: dict[int, Tensor] = {}
    lams: tuple[Tensor, ...] = ()
    tape = []
    for stage in stages:
        io = stage_io(stage)
        result = stage(*lams, *(tensors[i] for i in io.inputs))
        values = result if isinstance(result, tuple) else (result,)
        boundary = values[: len(io.boundary)]
        for i, value in zip(io.outputs, values[len(io.boundary) :], strict=True):
            outputs[i] = value
        tape.append((lams, boundary, io.outputs))
        lams = tuple(v.detach().requires_grad_(v.requires_grad) for v in boundary)
    assert sorted(outputs) == list(range(len(outputs)))
    return [outputs[i] for i in sorted(outputs)], tape


def step_by_hand(program: Program, call: Call, seed: int) -> Step:
    call = copy.deepcopy(call)
    tensors = tensors_in((call.args, call.kwargs))
    torch.manual_seed(seed)
    outputs, tape = run_apart(program.stages, tensors)
    pull = pulls(outputs)
    total: dict[int, Tensor] = {}
    passed: list[Tensor | None] = []
    for stage, (lams, boundary, made) in reversed(list(zip(program.stages, tape, strict=True))):
        roots = [*zip(boundary, passed, strict=True), *((outputs[i], pull[i]) for i in made)]
        roots = [(t, g) for t, g in roots if t.requires_grad and g is not None]
        own = [*(tensors[i] for i in stage_io(stage).inputs), *stage.parameters()]
        parameters = [t for t in own if t.requires_grad]
        wanted = [*(t for t in lams if t.requires_grad), *parameters]
        gradients: Sequence[Tensor | None] = [None] * len(wanted)
        if roots and wanted:
            gradients = torch.autograd.grad([t for t, _ in roots], wanted, [g for _, g in roots], allow_unused=True)
        given_back = iter(gradients)
        passed = [next(given_back) if t.requires_grad else None for t in lams]
        for parameter, gradient in zip(parameters, given_back, strict=True):
            if gradient is not None:
                total[id(parameter)] = total[id(parameter)] + gradient if id(parameter) in total else gradient
    named = (*program.module.named_parameters(), *named_inputs(call))
    return Step("", results(program.module, call, outputs, {name: total.get(id(t)) for name, t in named}))


@examples(12)
@given(recipes(), stage_counts, batches)
def test_stages_hold_the_models_own_tensors_under_its_own_names(recipe: Recipe, K: int, batch: int) -> None:
    model, _, call = fresh(recipe, batch)
    program = compiled(model, K, call)
    own = model.state_dict(keep_vars=True)
    held: dict[str, Tensor] = {}
    for stage in program.stages:
        state = stage.state_dict(keep_vars=True)
        assert all(held.setdefault(name, tensor) is tensor for name, tensor in state.items())
    assert held.keys() == own.keys() == program.state_dict().keys()
    assert all(held[name] is own[name] for name in own)
    mine = {id(t) for t in (*model.parameters(), *model.buffers())}
    assert all(id(p) in mine for stage in program.stages for p in stage.parameters())
    assert {id(p) for stage in program.stages for p in stage.parameters()} == {id(p) for p in model.parameters()}
    assert program.module is model


@examples(12)
@given(recipes(), stage_counts, batches)
def test_the_plan_survives_json_and_covers_the_model(recipe: Recipe, K: int, batch: int) -> None:
    model, _, call = fresh(recipe, batch)
    plan = compiled(model, K, call).plan
    again = Plan.from_json(json.loads(json.dumps(plan.to_json())))
    assert again == plan and again.hash == plan.hash and str(again) == str(plan)
    assert [s.index for s in plan.stages] == list(range(plan.K)) and plan.gate == "bitwise"
    assert [i for s in plan.stages for i in range(s.first, s.last + 1)] == list(range(len(plan.units)))
    assert len(plan.boundaries) == plan.K - 1 and all(b.specs for b in plan.boundaries)


@examples(12)
@given(recipes(max_blocks=5), st.integers(2, 4), batches)
def test_no_other_split_has_a_smaller_largest_stage(recipe: Recipe, K: int, batch: int) -> None:
    model, _, call = fresh(recipe, batch)
    plan = compiled(model, K, call, method="pipedream", aux_budget=0.0, gate=False).plan
    sums = [0.0]
    for unit in plan.units:
        sums.append(sums[-1] + unit.forward + unit.backward)
    size = len(plan.units)

    def largest(inner: Sequence[int]) -> float:
        return max(sums[b] - sums[a] for a, b in pairwise((0, *inner, size)))

    chosen = [stage.first for stage in plan.stages[1:]]
    best = min(largest(inner) for inner in combinations(range(1, size), plan.K - 1))
    assert largest(chosen) == pytest.approx(best, rel=1e-9)
    assert plan.step == pytest.approx(best, rel=1e-9)
    assert plan.lower_bound <= best * (1 + 1e-9)


@examples(12)
@given(recipes(), stage_counts, batches, st.booleans(), st.booleans())
def test_compiling_leaves_no_trace(recipe: Recipe, K: int, batch: int, training: bool, has_gradients: bool) -> None:
    model, _, call = fresh(recipe, batch)
    if not training:
        model.eval()
    if has_gradients:
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
    torch.manual_seed(99)
    before = everything(model, call)
    compiled(model, K, call)
    after = everything(model, call)
    assert before.keys() == after.keys()
    assert [name for name in before if before[name] != after[name]] == []


def everything(model: nn.Module, call: Call) -> dict[str, Any]:
    """All that compiling could change, in a form that compares."""
    named = [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]
    found: dict[str, Any] = {
        "torch's generator": bits(torch.get_rng_state()),
        "Python's generator": random.getstate(),
        "inputs": [(id(t), t._version, bits(t), t.requires_grad) for t in tensors_in((call.args, call.kwargs))],
        "keys": list(model.state_dict()),
        "settings": (torch.is_grad_enabled(), torch.get_default_dtype(), torch.get_num_threads()),
    }
    for name, tensor in named:
        gradient = None if tensor.grad is None else (id(tensor.grad), bits(tensor.grad))
        found[name] = (id(tensor), bits(tensor), tensor.requires_grad, gradient, type(tensor))
    for path, module in model.named_modules(remove_duplicate=False):
        hooks = [len(v) for k, v in sorted(vars(module).items()) if k.endswith("_hooks") and v is not None]
        found[f"module {path}"] = (id(module), type(module), module.training, sorted(vars(module)), hooks)
    return found


@examples(12)
@given(recipes(), batches, st.sampled_from((1, 2, 8)), st.lists(st.integers(0, 999), min_size=1, max_size=3))
def test_the_model_may_be_cut_wherever_a_cut_is_called_legal(
    recipe: Recipe, batch: int, width: int, picks: list[int]
) -> None:
    model, twin, call = fresh(recipe, batch)
    captured = capture(model, call.args, call.kwargs)
    legal = [cut for cut in cuts(captured, max_width=width) if cut.legal]
    assume(legal)
    choices = [[legal[pick % len(legal)]] for pick in picks] + [legal]
    for training in (True, False):
        if not training:
            model.eval()
            twin.eval()
        for chosen in choices:
            stages = split(captured, chosen)
            assert len(stages) == len(chosen) + 1
            twin.load_state_dict(model.state_dict())
            copy_buffers(model, twin)
            assert forward_bits(twin, call) == forward_bits(stages, call)


def copy_buffers(source: nn.Module, target: nn.Module) -> None:
    """Also those that state_dict leaves out."""
    for mine, yours in zip(target.buffers(), source.buffers(), strict=True):
        mine.copy_(yours)


def forward_bits(runs: nn.Module | Sequence[Stage], call: Call) -> list[Any]:
    """Outputs, and the generator afterwards, of a model or of stages run apart."""
    call = copy.deepcopy(call)
    torch.manual_seed(5)
    if isinstance(runs, nn.Module):
        outputs = tensors_in(runs(*call.args, **call.kwargs))
    else:
        outputs, _ = run_apart(runs, tensors_in((call.args, call.kwargs)))
    return [*map(bits, outputs), bits(torch.get_rng_state())]
