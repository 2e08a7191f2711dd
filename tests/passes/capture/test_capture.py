"""A captured graph is the model: its results, names, structures and state."""

from __future__ import annotations

import numpy
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import lpcompile
from tests.passes.capture.models import Loop, Net, Result, Structured, run


def test_captured_graph_runs_bitwise_in_both_modes_at_any_batch_size():
    model = Net()
    captured = lpcompile.capture(model, torch.randn(4, 3, 8, 8))
    x = torch.randn(7, 3, 8, 8)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    expected = run(model, x)
    after = {k: v.clone() for k, v in model.state_dict().items()}
    model.load_state_dict(before)
    assert torch.equal(run(captured, x), expected)
    assert all(torch.equal(v, after[k]) for k, v in model.state_dict().items())  # BatchNorm statistics are live
    assert not torch.equal(before["blocks.0.norm.running_mean"], after["blocks.0.norm.running_mean"])
    captured.eval()
    model.eval()
    assert torch.equal(captured(x), model(x))


def test_names_are_the_models_own():
    model = Net()
    captured = lpcompile.capture(model, torch.randn(2, 3, 8, 8))
    assert set(captured.state_dict()) == set(model.state_dict())
    assert [n.target for n in captured.graph.nodes if n.op == "call_module"][:3] == [
        "stem",
        "blocks.0.conv",
        "blocks.0.norm",
    ]
    assert captured.get_parameter("blocks.1.conv.weight") is model.blocks[1].conv.weight


def test_every_node_has_a_source_line():
    captured = lpcompile.capture(Net(), torch.randn(2, 3, 8, 8))
    steps = [n for n in captured.graph.nodes if n.op.startswith("call")]
    assert steps and all("models.py:" in n.meta["source"] for n in steps)


def test_the_users_model_is_untouched():
    model = Net().eval()
    model.blocks[0].norm.train()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    flags = [m.training for m in model.modules()]
    generator = torch.get_rng_state()
    lpcompile.capture(model, torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)))
    assert all(torch.equal(v, state[k]) for k, v in model.state_dict().items())
    assert flags == [m.training for m in model.modules()]
    assert torch.equal(generator, torch.get_rng_state())
    assert all(p.grad is None for p in model.parameters())


def test_nested_keyword_and_dataclass_inputs_and_outputs():
    model = Structured()
    pair, mask = (torch.randn(2, 4), torch.randn(2, 4)), torch.rand(2, 4) > 0.5
    captured = lpcompile.capture(model, (pair,), {"mask": mask})
    out, expected = captured(pair, mask=mask), model(pair, mask=mask)
    assert isinstance(out, Result) and out.note == "fine"
    assert torch.equal(out.logits, expected.logits) and torch.equal(out.parts["hidden"], expected.parts["hidden"])


def test_no_grad_regions_and_autograd_functions_keep_their_gradients():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1.0

        @staticmethod
        def backward(ctx, g):
            return 2 * g

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            with torch.no_grad():
                gate = torch.sigmoid(self.a(x))
            return Double.apply(self.b(x) * gate)

    model, x = Model(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    model(x).sum().backward()
    expected = model.b.weight.grad.clone()
    model.zero_grad()
    captured(x).sum().backward()
    assert torch.equal(model.b.weight.grad, expected) and model.a.weight.grad is None


def test_function_caches_hold_no_fake_tensors_afterwards():
    import functools

    @functools.lru_cache
    def table(n: int) -> torch.Tensor:
        return torch.arange(n).float()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin = nn.Linear(4, 4)

        def forward(self, x):
            return self.lin(x) + table(4)

    model, x = Model(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert not isinstance(model(x), FakeTensor)
    assert torch.equal(captured(x), model(x))


def test_submodules_may_be_called_like_attributes_of_fx():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.graph, self.code, self.meta = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.meta(self.code(self.graph(x)))

    model, x = Model(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert torch.equal(captured(x), model(x))
    assert set(captured.state_dict()) == set(model.state_dict())


def test_autocast_regions_are_replayed():
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                h = self.a(x)
                with torch.autocast("cpu", enabled=False):
                    h = F.linear(h.float(), self.b.weight)
            return h

    model, x = Model(), torch.randn(2, 8)
    captured = lpcompile.capture(model, x)
    assert torch.equal(captured(x), model(x))


def test_weights_that_forward_changes_are_put_back():
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Linear(4, 4))
    before = model[0].weight.detach().clone()
    lpcompile.parallelize(model, 2, example_inputs=torch.randint(0, 9, (2, 5)), cost="flops")
    assert torch.equal(model[0].weight, before)


def test_a_torchscript_function_is_one_node():
    @torch.jit.script
    def swish(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)

    model, x = Loop(lambda m, x: swish(x)), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert sum("Script_swish" in str(n.target) for n in captured.graph.nodes) == 1
    assert torch.equal(captured(x), model(x))


class Picks(nn.Module):
    """Which features are taken is a constant, another in evaluation, as the random blocks of BigBird are."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        taken = numpy.array([0, 2, 1, 3]) if self.training else numpy.zeros(4, dtype=int)
        return self.last(self.first(x)[:, torch.tensor(taken)])


def test_evaluation_has_constants_of_its_own():
    model, x = Picks(), torch.randn(5, 4)
    captured = lpcompile.capture(model, torch.randn(2, 4))
    assert torch.equal(captured(x), model(x))
    captured.eval()
    model.eval()
    assert torch.equal(captured(x), model(x))
    assert captured._lp.batch_free
