"""`parallelize` and the Program as users meet them."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import InputError, PlanError, UsageError
from tests.fresh_python import printed


def small() -> nn.Module:
    torch.manual_seed(0)
    return models.resnet20()


def test_the_first_minute(tmp_path):
    model, x = small(), torch.randn(4, 3, 32, 32)
    program = lpcompile.parallelize(model, K=3, example_inputs=x, cost="flops")
    state = {k: v.clone() for k, v in model.state_dict().items()}
    expected = model(x)
    model.load_state_dict(state)
    assert torch.equal(program(x), expected)
    assert program.plan.K == len(program.stages) == 3
    assert program.module is model
    assert program.state_dict().keys() == model.state_dict().keys()
    assert program.plan.gate == "bitwise" and program.plan.gap < 1e-6
    program.plan.save(tmp_path / "plan.json")
    assert lpcompile.Plan.load(tmp_path / "plan.json") == program.plan


def test_training_the_program_is_training_the_model():
    torch.manual_seed(0)
    x, y = torch.randn(8, 3, 32, 32), torch.randint(0, 10, (8,))
    weights = []
    for parallel in (False, True):
        model = small()
        module = lpcompile.parallelize(model, K=2, example_inputs=x, cost="flops") if parallel else model
        optimizer = torch.optim.SGD(module.parameters(), 0.1, momentum=0.9)
        for _ in range(3):
            optimizer.zero_grad()
            nn.functional.cross_entropy(module(x), y).backward()
            optimizer.step()
        weights.append(model.state_dict())
    assert all(torch.equal(v, weights[1][k]) for k, v in weights[0].items())


def test_without_inputs_it_compiles_at_the_first_call():
    model = small()
    program = lpcompile.parallelize(model, K=2, cost="flops")
    with pytest.raises(InputError, match="not compiled yet"):
        _ = program.plan
    x = torch.randn(2, 3, 32, 32)
    model.eval()
    assert torch.equal(program(x), model(x))
    assert program.plan.K == 2


def test_any_batch_size_but_no_other_shape():
    program = lpcompile.parallelize(small().eval(), K=2, example_inputs=torch.randn(4, 3, 32, 32), cost="flops")
    assert program(torch.randn(1, 3, 32, 32)).shape == (1, 10)
    with pytest.raises(InputError, match="compile again with example inputs of this shape"):
        program(torch.randn(4, 3, 16, 16))


def test_too_many_stages_says_how_many_and_why():
    with pytest.raises(PlanError, match="can be cut into at most") as error:
        lpcompile.parallelize(small(), K=99, example_inputs=torch.randn(2, 3, 32, 32), cost="flops")
    assert error.value.most is not None and error.value.most >= 8
    program = lpcompile.parallelize(small(), K=error.value.most, example_inputs=torch.randn(2, 3, 32, 32), cost="flops")
    assert program.plan.K == error.value.most


@pytest.mark.parametrize("K", [0, -1, 2.5, "four", True])
def test_a_bad_K_is_a_usage_error(K):
    with pytest.raises(UsageError, match="neither a number of stages"):
        lpcompile.parallelize(small(), K=K)


def test_bad_options_are_refused_before_any_work():
    with pytest.raises(UsageError, match="cost='guess' is not one of"):
        lpcompile.parallelize(small(), K=2, cost="guess")
    with pytest.raises(UsageError, match="penalty"):
        lpcompile.parallelize(small(), K=2, example_inputs=torch.randn(2, 3, 32, 32), cost="flops", method="penalti")


def test_K_auto_chooses_a_number_of_stages():
    program = lpcompile.parallelize(small(), example_inputs=torch.randn(2, 3, 32, 32), cost="flops")
    assert program.plan.K > 2


def test_pins_are_kept():
    x = torch.randn(2, 3, 32, 32)
    program = lpcompile.parallelize(small(), 2, example_inputs=x, cost="flops", pins={"cut": ["layer1"]})
    assert program.plan.units[program.plan.stages[0].last].name.startswith("layer1")


def test_a_model_without_weights_is_planned_without_allocating_them():
    with torch.device("meta"):
        model = nn.Sequential(*[nn.Linear(40_000, 40_000) for _ in range(8)])  # 51 GB of weights
    program = lpcompile.parallelize(model, 4, example_inputs=torch.empty(1, 40_000, device="meta"), cost="flops")
    assert program.plan.imbalance < 1.05
    assert "no weights" in program.plan.gate


def test_wide_boundaries_are_used_only_where_narrow_ones_do_not_balance():
    class Two(nn.Module):
        """Two streams all the way: no position with one live tensor."""

        def __init__(self):
            super().__init__()
            self.a = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))
            self.b = nn.ModuleList(nn.Linear(8, 8) for _ in range(6))

        def forward(self, x):
            p, q = x, x * 2
            for f, g in zip(self.a, self.b, strict=True):
                p, q = p + f(q), q + g(p)
            return p + q

    model, x = Two(), torch.randn(2, 8)
    program = lpcompile.parallelize(model, 3, example_inputs=x, cost="flops", method="bp")
    assert program.plan.width > 1 and program.plan.imbalance < 1.3
    assert torch.equal(program(x), model(x))
    narrow = lpcompile.parallelize(small(), 3, example_inputs=torch.randn(2, 3, 32, 32), cost="flops")
    assert narrow.plan.width == 1


def test_import_is_light():
    code = (
        "import sys, lpcompile; print([m for m in ('torchvision', 'networkx', 'timm', 'tabulate') if m in sys.modules])"
    )
    assert printed(code) == "[]"


class Dtypes(nn.Module):
    """Python looks at a dtype: under autocast this is another program."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Linear(8, 8) for _ in range(3))
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x):
        h = self.a(x) * self.scale
        h = self.b(h.to(self.a(x).dtype))
        return self.c(h).to(h.dtype)


def test_under_another_autocast_the_program_is_compiled_for_it():
    model, x = Dtypes(), torch.randn(2, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(program(x), model(x)) and program(x).dtype == torch.bfloat16
    assert torch.equal(program(x), model(x)) and program(x).dtype == torch.float32


def test_a_moved_or_changed_model_is_followed():
    model, x = Dtypes(), torch.randn(2, 8)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    model.scale = torch.full((8,), 2.0)
    model.c = nn.Linear(8, 8)
    assert torch.equal(program(x), model(x))
    program.double()
    assert model.scale.dtype == torch.float64
    again = lpcompile.parallelize(model, 2, example_inputs=x.double(), cost="flops")
    assert torch.equal(again(x.double()), model(x.double()))


class Annealed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.temperature, self.epoch = 1.0, 0

    def forward(self, x):
        for layer in self.layers:
            x = x + layer(x)
        return x / self.temperature


def test_a_number_that_forward_uses_may_not_change_unnoticed():
    model, x = Annealed(), torch.randn(2, 4)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    model.epoch = 5  # not part of the program
    assert torch.equal(program(x), model(x))
    model.temperature = 0.5
    with pytest.raises(InputError, match=r"temperature is 0.5 now and was 1.0"):
        program(x)


def test_inputs_that_want_gradients_get_the_models_own():
    model, x = Annealed(), torch.randn(2, 4)
    program = lpcompile.parallelize(model, 2, example_inputs=x, cost="flops")
    gradients = []
    for module in (model, program):
        leaf = x.clone().requires_grad_()
        module(leaf).square().sum().backward()
        gradients.append(leaf.grad)
    assert torch.equal(*gradients)


def test_a_kept_tensor_is_warned_about():
    class Keeps(Annealed):
        def forward(self, x):
            self.last = super().forward(x)
            return self.last

    with pytest.warns(UserWarning, match="keeps a tensor in last; the program does not"):
        lpcompile.parallelize(Keeps(), 2, example_inputs=torch.randn(2, 4), cost="flops")


def test_a_program_that_nobody_uses_takes_its_model_along(few_objects):
    """Eight compilations, one after another: memory is as it was after the first."""
    import gc
    import weakref

    def held():
        gc.collect()
        found = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and t.device.type == "cpu"]
        return sum(t.nbytes for t in found)

    alive, sizes = [], []
    for _ in range(8):
        model = nn.Sequential(*[nn.Linear(64, 64) for _ in range(4)])
        lpcompile.parallelize(model, 2, example_inputs=torch.randn(4, 64), cost="flops", method="penalty")
        alive.append(weakref.ref(model))
        own = sum(p.nbytes for p in model.parameters())
        del model
        sizes.append(held())
    assert all(ref() is None for ref in alive)
    assert max(sizes[1:]) - sizes[0] < own / 2


def test_of_several_ranks_only_the_first_shows_progress(monkeypatch):
    shown = []
    monkeypatch.setattr("lpcompile.compile._shown", lambda show: shown.append(show) or nullcontext())
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        lpcompile.parallelize(models.ResNet(8, width=4), 2, example_inputs=torch.randn(2, 3, 8, 8), cost="flops")
    assert shown == [True, False]
