"""Where a model may be cut."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile import models
from lpcompile.errors import UsageError
from lpcompile.passes.graph.dataflow import dataflow
from lpcompile.passes.graph.liveness import liveness
from lpcompile.passes.split.cuts import kind_of


class Residual(nn.Module):
    def __init__(self, width: int = 4, inplace: bool = False) -> None:
        super().__init__()
        self.a, self.act, self.b = nn.Linear(width, width), nn.ReLU(inplace), nn.Linear(width, width)

    def forward(self, x):
        return x + self.b(self.act(self.a(x)))


def legal(model, *inputs, **options):
    return [c.after for c in lpcompile.cuts(lpcompile.capture(model, inputs), **options) if c.legal]


def reasons(model, *inputs, **options):
    return {c.after: c.reason for c in lpcompile.cuts(lpcompile.capture(model, inputs), **options) if not c.legal}


def test_a_residual_stream_is_cut_between_blocks_only():
    model = nn.Sequential(nn.Linear(4, 4), Residual(), Residual())
    assert legal(model, torch.randn(2, 4)) == ["_0", "add"]
    assert "2 tensors are live (_0, _1_a)" in reasons(model, torch.randn(2, 4))["_1_a"]


def test_wide_boundaries_are_legal_when_asked_for():
    model = nn.Sequential(nn.Linear(4, 4), Residual(), Residual())
    assert len(legal(model, torch.randn(2, 4), max_width=2)) > 2


class Masked(nn.Module):
    """Every block needs a mask and a table made of the inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 4)
        self.blocks = nn.ModuleList(Residual() for _ in range(3))
        self.register_buffer("frequencies", torch.rand(4))

    def forward(self, ids):
        mask = torch.zeros(ids.shape)
        mask[ids == 0] = -1.0
        angles = torch.arange(ids.shape[1])[:, None] * self.frequencies
        x = self.embed(ids)
        for block in self.blocks:
            x = block(x * angles.cos()) + mask[..., None]
        return x


def test_values_cheap_to_make_again_do_not_count():
    ids = torch.randint(0, 9, (2, 5))
    assert len(legal(Masked(), ids)) >= 3
    stages = lpcompile.parallelize(Masked(), 3, example_inputs=ids, cost="flops")
    assert stages.plan.stages[2].inputs == ("ids",)
    assert stages.plan.width == 1


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.block, self.head = nn.Embedding(9, 4), Residual(), nn.Linear(4, 9, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, ids):
        return self.head(self.block(self.embed(ids)))


def test_tied_parameters_may_be_kept_together():
    ids = torch.randint(0, 9, (2, 5))
    assert legal(Tied(), ids) == ["embed", "add"]
    assert legal(Tied(), ids, tied="together") == []
    assert "used on both sides" in reasons(Tied(), ids, tied="together")["add"]
    with pytest.raises(UsageError, match="'replicate' or 'together'"):
        legal(Tied(), ids, tied="apart")


def test_a_shared_norm_with_statistics_is_never_cut_apart():
    class Shared(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))

        def forward(self, x):
            for i, layer in enumerate(self.layers):
                x = layer(x)
                if i in (0, 2):
                    x = self.norm(x)
            return x

    found = reasons(Shared(), torch.randn(3, 4))
    assert "updated on one side and used on the other" in found["layers_1"]
    assert legal(Shared(), torch.randn(3, 4)) == ["layers_0", "norm_1"]


def test_positions_before_and_after_all_parameters_are_no_cuts():
    class Padded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            x = torch.tanh(x)
            return torch.tanh(self.b(self.a(x))) * 2

    found = reasons(Padded(), torch.randn(2, 4))
    assert legal(Padded(), torch.randn(2, 4)) == ["a"]
    assert found["b"] == "no parameter comes after"


def test_inputs_changed_in_place_rule_out_cuts_while_they_are_used():
    class Mutates(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            h = self.a(x)
            x[:, 0] = 0.0
            return self.b(h) + x

    assert "changed in place" in reasons(Mutates(), torch.randn(2, 4))["setitem"]


class Dense(nn.Module):
    """Every layer takes all before it, up to a transition."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4 * (i + 1), 4) for i in range(4))
        self.middle, self.side, self.end = nn.Linear(20, 20), nn.Linear(20, 6), nn.Linear(6, 3)

    def forward(self, x):
        found = [x]
        for layer in self.layers:
            found.append(layer(torch.cat(found, -1)).relu())
        x = self.middle(torch.cat(found, -1))
        return self.end(self.side(x).tanh() * self.side(x.relu()))


@pytest.mark.parametrize("make, x", [
    (models.resnet20, torch.zeros(2, 3, 16, 16)), (Dense, torch.zeros(2, 4)),
    (lambda: nn.Sequential(nn.Linear(4, 4), Residual(), nn.ReLU(), Residual()), torch.zeros(2, 4)),
])  # fmt: skip
def test_one_tensor_is_live_exactly_after_the_values_that_all_paths_pass(make, x):
    """The scan in program order finds what networkx finds as dominators of the output."""
    import networkx

    model = make()
    graph = lpcompile.capture(model, x)._lp_graphs[True]
    live = liveness(graph, model)
    alone = {values[0] for values in live.live if len(values) == 1}
    steps = [node for node in live.steps if not live.is_cheap(node)]
    start, end = steps[0], steps[-1]
    dominator = networkx.immediate_dominators(dataflow(graph).subgraph(steps), start)
    on_all_paths = {start}
    while (node := dominator[end]) is not start:
        on_all_paths.add(node)
        end = node
    assert len(alone) > 2 and alone == on_all_paths


class Diffusion(nn.Module):
    """Time steps are drawn at the start and used by every block."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(10, 4)
        self.blocks = nn.ModuleList(Residual() for _ in range(4))

    def forward(self, x):
        t = torch.randint(0, 10, (x.shape[0],))
        for block in self.blocks:
            x = block(x + self.table(t)) * (1 + t[:, None] / 100)
        return x


def test_integers_drawn_inside_forward_ride_beside_the_boundary():
    model, x = Diffusion(), torch.randn(4, 4)
    program = lpcompile.parallelize(model, 4, example_inputs=x, cost="flops", method="penalty")
    assert [[str(s.dtype) for s in b.specs] for b in program.plan.boundaries] == [["torch.int64", "torch.float32"]] * 3
    for method in ("stream", "1f1b", "penalty"):
        trainer = program.trainer(
            lambda out, y: out.square().mean(), optimizer=lambda ps: torch.optim.SGD(ps, 0.01), method=method
        )
        assert trainer.step(x, torch.zeros(4))["loss"] >= 0


def test_reasons_that_are_alike_are_counted_without_their_names_and_keep_their_end():
    assert kind_of("3 tensors are live (a, b, c)") == "3 tensors are live"
    assert kind_of("the value of f.py:3 (module a) is int64[4]: a boundary needs a float tensor") == (
        "the value of f.py:3 is int64[4]: a boundary needs a float tensor"
    )


def test_a_reason_gives_the_line_of_the_value():
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.b((self.a(x) > 0).float())

    found = reasons(Counts(), torch.randn(2, 4))
    assert any("test_cuts.py" in reason and "in forward" in reason for reason in found.values())


class DropsConnections(nn.Module):
    """Stochastic depth by hand: in training the block adds once more than in evaluation."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x):
        out = self.a(x)
        if self.training:
            keep = torch.rand(x.shape[0], 1)
            keep = keep + 0.8
            out = out * keep.floor()
        return x + out


class MixesBranches(DropsConnections):
    """Two branches: one step mixes them in training, two in evaluation."""

    def forward(self, x):
        return x + torch.lerp(self.a(x), x, 0.3) if self.training else x + (self.a(x) + x) / 2


def test_a_step_more_before_the_sum_does_not_hide_the_sum():
    assert len(legal(nn.Sequential(*[MixesBranches() for _ in range(4)]), torch.randn(4, 4))) >= 3


def test_values_of_the_two_modes_are_told_apart_by_their_lines():
    found = legal(nn.Sequential(*[DropsConnections() for _ in range(4)]), torch.randn(4, 4))
    assert len(found) >= 3
    model = nn.Sequential(*[DropsConnections() for _ in range(4)])
    program = lpcompile.parallelize(model, 4, example_inputs=torch.randn(4, 4), cost="flops", method="bp")
    assert program.plan.gate == "bitwise" and program.plan.imbalance < 1.25
