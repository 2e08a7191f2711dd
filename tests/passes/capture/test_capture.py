"""What capture must keep, and what it must refuse."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor

import lpcompile
from lpcompile.errors import CaptureError, InputError, UsageError


class Block(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + F.relu(self.norm(self.conv(x)))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.Sequential(*[Block() for _ in range(3)])
        self.drop = nn.Dropout(0.5)
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.blocks(self.stem(x))
        return self.head(self.drop(x.mean((2, 3))))


def run(module, *args, **kwargs):
    torch.manual_seed(3)
    return module(*args, **kwargs)


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
    assert steps and all("test_capture.py:" in n.meta["source"] for n in steps)


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


@dataclass
class Result:
    logits: torch.Tensor
    parts: dict[str, torch.Tensor]
    note: str = "fine"


class Structured(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, pair, *, mask=None, flag: bool = True) -> Result:
        x, y = pair
        h = self.a(x) + y
        if mask is not None:
            h = h.masked_fill(mask, 0.0)
        return Result(self.b(h) if flag else h, {"hidden": h})


def test_nested_keyword_and_dataclass_inputs_and_outputs():
    model = Structured()
    pair, mask = (torch.randn(2, 4), torch.randn(2, 4)), torch.rand(2, 4) > 0.5
    captured = lpcompile.capture(model, (pair,), {"mask": mask})
    out, expected = captured(pair, mask=mask), model(pair, mask=mask)
    assert isinstance(out, Result) and out.note == "fine"
    assert torch.equal(out.logits, expected.logits) and torch.equal(out.parts["hidden"], expected.parts["hidden"])


def test_calls_that_differ_from_the_recorded_one_are_named():
    model = Structured()
    pair, mask = (torch.randn(2, 4), torch.randn(2, 4)), torch.rand(2, 4) > 0.5
    captured = lpcompile.capture(model, (pair,), {"mask": mask})
    with pytest.raises(InputError, match="'mask' was given when the model was captured but is missing"):
        captured(pair)
    with pytest.raises(InputError, match="'flag' is given now but was not"):
        captured(pair, mask=mask, flag=False)
    with pytest.raises(InputError, match=r"compiled for float32\[B, 4\]"):
        captured((torch.randn(2, 4), torch.randn(2, 5)), mask=mask)
    with pytest.raises(InputError, match="cannot be called like this"):
        captured(pair, mask=mask, unknown=1)


class Stepper(nn.Module):
    """Kept whole: it counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.calls = nn.Linear(4, 4), 0

    def forward(self, x):
        self.calls += 1
        return self.lin(x) * self.calls


class RandomDepth(nn.Module):
    """Kept whole: it draws from Python's generator."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return x if random.random() < 0.5 else x + self.lin(x)


class DataBranch(nn.Module):
    """Kept whole: it branches on a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x):
        return self.lin(x) if x.sum() > 0 else x


@pytest.mark.parametrize("kind, reason", [(Stepper, "sets the attribute"), (RandomDepth, "random generator"),
                                          (DataBranch, "")])  # fmt: skip
def test_modules_that_a_graph_cannot_replay_stay_whole_and_live(kind, reason):
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(kind(), nn.ReLU()), nn.Linear(4, 4), nn.Linear(4, 4))
    captured = lpcompile.capture(model, torch.randn(2, 4))
    assert captured._lp.kept_whole == ("1.0",)
    assert any("1.0 is kept whole" in n and reason in n for n in captured._lp.notes)
    for seed in range(6):
        x = torch.randn(3, 4)
        random.seed(seed)
        expected = model(x)
        random.seed(seed)
        if kind is Stepper:
            model[1][0].calls -= 1
        assert torch.equal(captured(x), expected)


class RootBranch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(4, 4)

    def forward(self, x, flag=True):
        if x.sum() > 0:
            x = self.lin(x)
        return x


def test_a_model_that_cannot_be_captured_names_line_reason_and_remedy():
    with pytest.raises(CaptureError) as error:
        lpcompile.capture(RootBranch(), torch.ones(2, 4))
    text = str(error.value)
    assert "test_capture.py:" in text and "if x.sum() > 0:" in text
    assert "front_end='specialise'" in text and "concrete_args=" in text


def test_specialise_freezes_the_branch_when_asked():
    model, x = RootBranch(), torch.ones(2, 4)
    captured = lpcompile.capture(model, x, front_end="specialise")
    assert torch.equal(captured(x), model(x))


def test_a_model_that_fails_by_itself_gets_its_own_error():
    with pytest.raises(CaptureError, match="the model itself fails on the example inputs"):
        lpcompile.capture(nn.Linear(4, 4), torch.randn(2, 5))


def test_layer_drop_of_rate_zero_is_no_branch():
    class Dropping(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                if self.training and torch.rand([]) < 0.0:
                    continue
                x = x + layer(x)
            return x + torch.rand_like(x)

    model, x = Dropping(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert captured._lp.kept_whole == ()
    assert torch.equal(run(captured, x), run(model, x))  # the draws stay, so the generator advances alike


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


def test_bad_arguments_are_refused_with_a_remedy():
    with pytest.raises(UsageError, match="expected a torch.nn.Module"):
        lpcompile.capture("resnet50", torch.randn(2, 4))
    with pytest.raises(UsageError, match="pass model._orig_mod"):
        lpcompile.capture(torch.compile(nn.Linear(4, 4)), torch.randn(2, 4))
    with pytest.raises(UsageError, match=r"no such module.*closest: blocks"):
        lpcompile.capture(Net(), torch.randn(2, 3, 8, 8), leaf=["block"])
    with pytest.raises(UsageError, match="front_end='magic' is not one of"):
        lpcompile.capture(Net(), torch.randn(2, 3, 8, 8), front_end="magic")
    with pytest.raises(CaptureError, match="run the model once"):
        lpcompile.capture(nn.LazyLinear(4), torch.randn(2, 4))


def test_leaf_keeps_modules_whole_by_name_and_by_class():
    model, x = Net(), torch.randn(2, 3, 8, 8)
    by_class = lpcompile.capture(model, x, leaf=[Block])
    assert "blocks.1" in {n.target for n in by_class.graph.nodes}
    by_name = lpcompile.capture(model, x, leaf=["blocks"])
    assert "blocks" in {n.target for n in by_name.graph.nodes}
    assert torch.equal(run(by_name, x), run(model, x))


class Loop(nn.Module):
    """Blocks under a forward given as a function."""

    def __init__(self, body) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
        self.body = body

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return self.body(self, x)


@pytest.mark.parametrize(
    "body",
    [
        lambda m, x: x * x.shape[0] ** 2,
        lambda m, x: x / x.shape[0] ** 0.5,
        lambda m, x: x[: x.shape[0] // 2],
        lambda m, x: x * 2 if x.shape[0] > 8 else x,
        lambda m, x: (x, x.shape[0]),
    ],
)
def test_what_is_not_linear_in_the_batch_ties_the_graph_to_it(body):
    model = Loop(body)
    captured = lpcompile.capture(model, torch.randn(2, 4))
    with pytest.raises(InputError, match="compiled for"):
        captured(torch.randn(9, 4))


def test_what_is_linear_in_the_batch_follows_it():
    model = Loop(lambda m, x: x.view(x.shape[0] * 2, 2) + torch.arange(x.shape[0] * 2)[:, None])
    captured = lpcompile.capture(model, torch.randn(2, 4))
    for batch in (1, 3, 8):
        x = torch.randn(batch, 4)
        assert torch.equal(captured(x), model(x))


def test_an_exception_that_forward_swallows_is_still_a_refusal():
    def body(model, x):
        try:
            return x * int(x.sum())
        except Exception:
            return x

    with pytest.raises(CaptureError, match="depends on the values in a tensor"):
        lpcompile.capture(Loop(body), torch.randn(2, 4))


def test_a_shape_that_depends_on_data_is_refused():
    with pytest.raises(CaptureError, match="the shape of a result depends on the values"):
        lpcompile.capture(Loop(lambda m, x: x.sum() / x[x > 0].shape[0]), torch.randn(2, 4))


def test_weights_that_forward_changes_are_put_back():
    model = nn.Sequential(nn.Embedding(9, 4, max_norm=0.1), nn.Linear(4, 4))
    before = model[0].weight.detach().clone()
    lpcompile.parallelize(model, 2, example_inputs=torch.randint(0, 9, (2, 5)), cost="flops")
    assert torch.equal(model[0].weight, before)


def test_a_tensor_that_a_whole_module_leaves_behind_can_be_read():
    class Expert(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lin, self.aux = nn.Linear(4, 4), None

        def forward(self, x):
            self.aux = x.square().mean()
            return self.lin(x)

    class Mixture(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.experts = nn.ModuleList(Expert() for _ in range(3))
            self.head = nn.Linear(4, 4)

        def forward(self, x):
            for expert in self.experts:
                x = x + expert(x)
            return self.head(x), sum(e.aux for e in self.experts)

    model, x = Mixture(), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert all(torch.equal(a, b) for a, b in zip(captured(x), model(x), strict=True))


def test_a_torchscript_function_is_one_node():
    @torch.jit.script
    def swish(x: torch.Tensor) -> torch.Tensor:
        return x * torch.sigmoid(x)

    model, x = Loop(lambda m, x: swish(x)), torch.randn(2, 4)
    captured = lpcompile.capture(model, x)
    assert sum("Script_swish" in str(n.target) for n in captured.graph.nodes) == 1
    assert torch.equal(captured(x), model(x))
