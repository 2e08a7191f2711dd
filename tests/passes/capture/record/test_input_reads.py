"""Numbers that forward reads from its inputs: constants of the program that every call checks."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import lpcompile
from lpcompile.errors import CaptureError, InputError

BATCHES = ([4, 5, 3], [1, 2, 9], [6, 1, 5])  # the sizes of the graphs of a batch, always twelve nodes
OTHER = "forward reads 1 from the values of batch now and read 2 when the model was compiled; compile again"


class GraphNet(nn.Module):
    """A graph isomorphism network that classifies each graph of a batch by the mean of its nodes."""

    def __init__(self) -> None:
        super().__init__()
        self.lift = nn.Linear(5, 16)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(6)
        )
        self.head = nn.Linear(16, 3)

    def count(self, batch):
        return int(batch.max()) + 1

    def forward(self, x, edge_index, batch):
        x = self.lift(x)
        for layer in self.layers:
            x = x + layer(x + torch.zeros_like(x).index_add(0, edge_index[1], x[edge_index[0]]))
        n = self.count(batch)
        size = torch.zeros(n).index_add(0, batch, torch.ones(len(batch))).clamp(min=1)
        return self.head(torch.zeros(n, x.shape[1]).index_add(0, batch, x) / size[:, None])


class ReadsItem(GraphNet):
    def count(self, batch):
        return batch.max().item() + 1


class ReadsList(GraphNet):
    def count(self, batch):
        return max(batch[[0, -1]].tolist()) + 1


class ReadsFloat(GraphNet):
    """Without gradients, where other steps are wrapped."""

    def count(self, batch):
        with torch.no_grad():
            return int(float(batch.double().max())) + 1


class ReadsWhatItWrote(GraphNet):
    """The tensor is written after it was made, so the number is not that of the inputs alone."""

    def count(self, batch):
        last = batch.max().clone()
        last += 1
        return int(last)


class ReadsState(GraphNet):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("graphs", torch.tensor(3))

    def count(self, batch):
        return int(torch.maximum(batch.max() + 1, self.graphs))


class ReadsInEvaluation(GraphNet):
    def count(self, batch):
        return 3 if self.training else int(batch.max()) + 1


class SkipsLayers(GraphNet):
    """Layers that are skipped at random are read as switches, beside the number."""

    def forward(self, x, edge_index, batch):
        x = self.lift(x)
        for layer in self.layers:
            if self.training and torch.rand([]) < 0.3:
                continue
            x = x + layer(x)
        return self.head(torch.zeros(self.count(batch), 16).index_add(0, batch, x))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = GraphNet()

    def forward(self, x, edge_index, batch):
        return self.net(x, edge_index, batch)


def graphs(sizes, seed=0):
    draw = torch.Generator().manual_seed(seed)
    nodes = sum(sizes)
    batch = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    return (
        torch.randn(nodes, 5, generator=draw),
        torch.randint(0, nodes, (2, 24), generator=draw),
        batch,
    )


def compiled(kind, K=3, **options):
    torch.manual_seed(0)
    return lpcompile.parallelize(kind(), K=K, example_inputs=graphs(BATCHES[0]), cost="flops", **options)


@pytest.mark.parametrize("K", [2, 3, 4])
@pytest.mark.parametrize("kind", [GraphNet, ReadsItem, ReadsList, ReadsFloat, ReadsInEvaluation, SkipsLayers, Wrapped])
def test_the_program_is_the_model_for_inputs_with_the_same_number(kind, K) -> None:
    program = compiled(kind, K)
    assert not program.plan.batch_free and "Python reads" in " ".join(program.plan.notes)
    for seed, sizes in enumerate(BATCHES):
        for training in (True, False):
            program.train(training)
            program.module.zero_grad()
            twin = copy.deepcopy(program.module)
            torch.manual_seed(seed)
            found = program(*graphs(sizes, seed))
            torch.manual_seed(seed)
            wanted = twin(*graphs(sizes, seed))
            assert torch.equal(found, wanted)
            (found.sum() + wanted.sum()).backward()
            pairs = zip(program.module.parameters(), twin.parameters(), strict=True)
            assert all(p.grad is q.grad or torch.equal(p.grad, q.grad) for p, q in pairs)
            assert all(torch.equal(p, q) for p, q in zip(program.module.buffers(), twin.buffers(), strict=True))


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("kind", [GraphNet, ReadsItem, Wrapped])
def test_inputs_with_another_number_are_refused_before_anything_changes(kind, training) -> None:
    program = compiled(kind).train(training)
    before = copy.deepcopy(program.module.state_dict())
    with pytest.raises(InputError, match=OTHER):
        program(*graphs([6, 6]))
    with pytest.raises(InputError, match="reads 3"):
        program.captured(*graphs([3, 3, 3, 3]))
    assert all(torch.equal(value, before[key]) for key, value in program.module.state_dict().items())


def test_a_float_is_checked_inside_no_grad() -> None:
    with pytest.raises(InputError, match=r"reads 1\.0 from the values of batch now and read 2\.0"):
        compiled(ReadsFloat)(*graphs([6, 6]))


class Words(nn.Module):
    """In evaluation, it looks no further than the longest sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))

    def forward(self, x, lengths):
        for layer in self.layers:
            x = x + torch.tanh(layer(x))
        return x if self.training else x[:, : lengths.max().item()].reshape(x.shape[0], -1)


def test_a_read_in_evaluation_ties_the_program_to_its_batch() -> None:
    example = (torch.randn(4, 6, 8), torch.tensor([3, 5, 2, 1]))
    program = lpcompile.parallelize(Words(), K=2, example_inputs=example, cost="flops")
    assert not program.plan.batch_free
    program.eval()
    assert torch.equal(program(*example), program.module(*example))
    with pytest.raises(InputError, match="compiled for"):
        program(torch.randn(8, 6, 8), torch.tensor([3, 5, 2, 1] * 2))
    with pytest.raises(InputError, match="reads 6 from the values of lengths now and read 5"):
        program(example[0], torch.tensor([3, 6, 2, 1]))


def test_a_batch_of_one() -> None:
    example = (torch.randn(1, 6, 8), torch.tensor([5]))
    program = lpcompile.parallelize(Words().eval(), K=2, example_inputs=example, cost="flops")
    assert torch.equal(program(*example), program.module(*example))


@pytest.mark.parametrize("kind", [ReadsWhatItWrote, ReadsState])
def test_a_number_that_is_not_of_the_inputs_alone_is_refused(kind) -> None:
    with pytest.raises(CaptureError, match="what it does next depends on the values in a tensor"):
        compiled(kind)


@pytest.mark.parametrize("method", ["zbh2", "bp", "stream", "penalty"])
def test_a_trainer_takes_steps_and_refuses_another_number(method) -> None:
    program = compiled(GraphNet, method=method)
    twin = copy.deepcopy(program.module)
    sgd = lambda parameters: torch.optim.SGD(parameters, 0.1)  # noqa: E731
    trainer = program.trainer(nn.functional.cross_entropy, optimizer=sgd)
    plain, y = sgd(twin.parameters()), torch.arange(3)
    for seed, sizes in enumerate(BATCHES):
        trainer.step(graphs(sizes, seed), y)
        plain.zero_grad()
        nn.functional.cross_entropy(twin(*graphs(sizes, seed)), y).backward()
        plain.step()
    if method in ("zbh2", "bp"):
        state = twin.state_dict()
        assert all(torch.equal(value, state[key]) for key, value in program.module.state_dict().items())
    with pytest.raises(InputError, match=OTHER):
        trainer.step(graphs([6, 6]), y[:2])


def test_the_emitted_program_checks_too(tmp_path: Path) -> None:
    program = compiled(GraphNet)
    program.emit(tmp_path)
    text = (tmp_path / "stage_0.py").read_text()
    assert "def as_read(" in text and "import as_read" not in text
    loaded = lpcompile.load(tmp_path)
    for each in (program, loaded):
        each.train(False)
    assert torch.equal(loaded(*graphs(BATCHES[1])), program(*graphs(BATCHES[1])))
    with pytest.raises(ValueError, match=OTHER):
        loaded(*graphs([6, 6]))
