"""The gate refuses what is not exactly the model."""

from __future__ import annotations

import random

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import GateError
from lpcompile.passes.graph.calls import as_recorded
from lpcompile.planning.pipeline import run_gate


def compiled(model, *inputs):
    return lpcompile.parallelize(model, 2, example_inputs=inputs, cost="flops")


def make():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.Linear(4, 4))


def tamper(program, old, new):
    """Change one node of the second stage behind the compiler's back."""
    stage = program.stages[1]
    node = next(n for n in stage.graph.nodes if n.op == "call_module" and n.target == old)
    with stage.graph.inserting_after(node):
        extra = stage.graph.call_function(new, (node,))
    node.replace_all_uses_with(extra)
    extra.args = (node,)
    stage.recompile()


@pytest.mark.parametrize(
    "change, what",
    [
        (lambda t: t * 1.0000001, "output 0 differs by"),
        (lambda t: t.detach(), "gradient of"),
        (lambda t: t[:1], "is torch"),
    ],
)
def test_a_tampered_program_is_refused_with_what_differs(change, what):
    model, x = make(), torch.randn(3, 4)
    program = compiled(model, x)
    assert program.plan.gate == "bitwise"
    tamper(program, "3", change)
    with pytest.raises(GateError, match="is refused: ") as error:
        run_gate(program.captured, program.stages, [x])
    assert what in str(error.value) or "missing" in str(error.value)


def test_a_lost_buffer_update_is_seen():
    model, x = make(), torch.randn(3, 4)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    stage = next(s for s in program.stages if "1.running_mean" in s.state_dict())
    stage._modules["1"] = nn.BatchNorm1d(4)  # normalises alike, but its statistics are not the model's
    with pytest.raises(GateError, match="buffer 1.running_mean differs"):
        run_gate(program.captured, program.stages, [x])


def test_a_model_that_is_not_reproducible_is_said_to_be_so():
    class Chance(nn.Module):
        def __init__(self):
            super().__init__()
            self.lin = nn.Linear(4, 4)
            self.generator = random.SystemRandom()

        def forward(self, x):
            return self.lin(x) * self.generator.random()

    model = nn.Sequential(nn.Linear(4, 4), Chance(), nn.Linear(4, 4))
    with pytest.raises(GateError, match="different results in two runs with the same seed"):
        lpcompile.parallelize(model, 2, example_inputs=torch.randn(2, 4), cost="flops", leaf=[Chance])


def test_the_gate_leaves_the_model_as_it_was():
    model, x = make(), torch.randn(3, 4)
    model(x).sum().backward()
    gradients = {n: p.grad for n, p in model.named_parameters()}
    values = {n: p.grad.clone() for n, p in model.named_parameters()}
    state = {k: v.clone() for k, v in model.state_dict().items()}
    generator = torch.get_rng_state()
    compiled(model, x)
    assert torch.equal(generator, torch.get_rng_state())
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert all(p.grad is gradients[n] and torch.equal(p.grad, values[n]) for n, p in model.named_parameters())


def test_a_program_that_fails_names_the_module_to_keep_whole():
    blocks = nn.Sequential(nn.Sequential(make()), nn.Linear(4, 4))
    program = lpcompile.parallelize(blocks, 2, example_inputs=torch.randn(4, 4), cost="flops", pins={"cut": ["0.0.0"]})
    tamper(program, "0.0.2", lambda t: t[:, :0] @ t)
    with pytest.raises(GateError, match=r"it fails in 0\.0\.2 or after it: keep '0\.0' whole with leaf=\['0\.0'\]"):
        run_gate(program.captured, program.stages, [torch.randn(4, 4)])


def test_an_error_of_our_own_says_itself_what_to_do():
    program = compiled(make(), torch.randn(4, 4))
    tamper(program, "3", lambda t: as_recorded([t], "[*, *]", "a.b"))
    with pytest.raises(GateError, match=r"keep its caller whole with leaf=\['a'\]\)$"):
        run_gate(program.captured, program.stages, [torch.randn(4, 4)])


def test_a_difference_names_the_module_to_keep_whole():
    program = compiled(make(), torch.randn(4, 4))
    tamper(program, "3", lambda t: t * 1.0000001)
    blocks = nn.Sequential(nn.Sequential(make()), nn.Linear(4, 4))
    inner = lpcompile.parallelize(blocks, 2, example_inputs=torch.randn(4, 4), cost="flops", pins={"cut": ["0.0.0"]})
    tamper(inner, "0.0.2", lambda t: t + 1e-3)
    with pytest.raises(GateError, match=r"It begins in 0\.0: keep that module whole with leaf=\['0\.0'\]"):
        run_gate(inner.captured, inner.stages, [torch.randn(4, 4)])


class SeedsItself(nn.Module):
    """Takes a seed from the operating system for its dropout, as transformers' Reformer does."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.seed = nn.Linear(4, 4), None

    def forward(self, x):
        self.seed = torch.seed()
        return x + torch.dropout(self.lin(x), 0.5, self.training)


def test_a_model_that_seeds_itself_is_compared_with_the_same_seeds():
    model = nn.Sequential(nn.Linear(4, 4), SeedsItself(), nn.Linear(4, 4))
    seed = torch.seed
    program = lpcompile.parallelize(model, 2, example_inputs=torch.randn(4, 4), cost="flops")
    assert program.plan.gate == "bitwise" and torch.seed is seed
