"""Results of operators on fake tensors that are made again: the same as torch's own, in memory of their own."""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import lpcompile
from lpcompile.passes.capture.record import recorder
from lpcompile.passes.graph.known_results import KnownResults

aten = torch.ops.aten


@pytest.fixture
def mode():
    with FakeTensorMode() as mode:
        yield mode


def facts(out):
    parts = out if isinstance(out, (list, tuple)) else [out]
    return type(out), [(t.shape, t.stride(), t.storage_offset(), t.dtype, t.device, t.requires_grad) for t in parts]


def reached(monkeypatch):
    """The operators that torch itself computes shapes for."""
    seen, dispatch = [], FakeTensorMode.dispatch

    def note(self, func, *rest, **options):
        seen.append(func)
        return dispatch(self, func, *rest, **options)

    monkeypatch.setattr(FakeTensorMode, "dispatch", note)
    return seen


CALLS = {
    "sum": lambda x, w: (aten.add.Tensor, (x, x), {"alpha": 2}),
    "product": lambda x, w: (aten.mm.default, (x, w), {}),
    "view": lambda x, w: (aten.transpose.int, (x, 0, 1), {}),
    "later part": lambda x, w: (aten.slice.Tensor, (x, 0, 1, 3), {}),
    "several views": lambda x, w: (aten.split.Tensor, (x, 2), {}),
    "several results": lambda x, w: (aten.native_layer_norm.default, (x, [6], None, None, 1e-5), {}),
    "list of tensors": lambda x, w: (aten.cat.default, ([x, x], 1), {}),
    "strange strides": lambda x, w: (aten.mul.Tensor, (x.t(), x.t()), {}),
    "other dtype": lambda x, w: (aten._to_copy.default, (x,), {"dtype": torch.float64}),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_second_result_is_that_of_torch_and_does_not_reach_it(mode, monkeypatch, name):
    func, args, kwargs = CALLS[name](torch.empty(4, 6), torch.empty(6, 5))
    wanted, known = facts(func(*args, **kwargs)), KnownResults(mode)
    known.call(func, args, kwargs)
    seen = reached(monkeypatch)
    again = known.call(func, args, kwargs)
    assert func not in seen and facts(again) == wanted


def test_views_share_the_memory_of_the_tensor_they_are_given_and_others_have_their_own(mode):
    known = KnownResults(mode)
    memory = lambda t: t.untyped_storage()._cdata  # noqa: E731
    for _ in range(3):
        x = torch.empty(4, 6)
        left, right = known.call(aten.split.Tensor, (x, 2), {})
        assert memory(left) == memory(right) == memory(x)
        total = known.call(aten.add.Tensor, (x, x), {})
        assert memory(total) not in (memory(x), memory(known.call(aten.add.Tensor, (x, x), {})))


def test_numbers_that_are_equal_but_of_another_type_give_other_results(mode):
    known, x = KnownResults(mode), torch.zeros(3, dtype=torch.int64)
    kinds = [known.call(aten.mul.Tensor, (x, number), {}).dtype for number in (1, 1.0, True, 1)]
    assert kinds == [torch.int64, torch.float32, torch.int64, torch.int64]


def test_what_depends_on_values_or_writes_reaches_torch_every_time(mode, monkeypatch):
    known, x, number = KnownResults(mode), torch.empty(4, 6), torch.tensor(2.0)
    seen = reached(monkeypatch)
    for _ in range(3):
        assert known.call(aten.relu_.default, (x,), {}) is x
        known.call(aten.mul.Tensor, (number, 2), {})  # a fake tensor that knows its value
        with pytest.raises(Exception, match="aten.nonzero"):
            known.call(aten.nonzero.default, (x,), {})
    assert seen.count(aten.relu_.default) == seen.count(aten.nonzero.default) == 3
    assert seen.count(aten.mul.Tensor) >= 3


class Repeated(nn.Module):
    """Blocks of shape changes, views, several results, writes in place and draws."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 24) for _ in range(4))
        self.norm = nn.LayerNorm(8)

    def forward(self, x):
        for layer in self.layers:
            q, k, v = layer(self.norm(x)).view(len(x), -1, 2, 12).permute(0, 2, 1, 3).chunk(3, -1)
            x = x + torch.dropout((q @ k.mT).softmax(-1), 0.1, True).sum() * x
            x = x.clone().mul_(2).add_(v.mean())
        return x.unsqueeze(1).expand(-1, 3, -1, -1).reshape(len(x), -1)


def described(captured):
    """The graph with all that is known of its nodes; memory is told apart, addresses are not the same."""
    order, found = {}, []
    for node in captured.graph.nodes:
        meta = {k: v for k, v in node.meta.items() if k not in ("storage", "writes")}
        writes = sorted(order.get(key, -1) for key in node.meta["writes"]) if "writes" in node.meta else None
        memory = order.setdefault(node.meta.get("storage"), len(order))
        found.append((str(node), node.op, str(node.args), meta, writes, memory))
    return found


def test_a_recording_is_the_same_as_one_without_known_results(monkeypatch):
    x = torch.randn(4, 5, 8)
    model = Repeated()
    monkeypatch.setattr(recorder, "known_results", lambda mode: None)
    wanted = described(lpcompile.capture(model, x))
    monkeypatch.undo()
    assert described(lpcompile.capture(model, x)) == wanted


def test_a_block_that_is_repeated_reaches_torch_once(monkeypatch):
    seen = reached(monkeypatch)
    lengths = []
    for depth in (2, 12):
        model = nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(depth)))
        seen.clear()
        lpcompile.capture(model, torch.randn(4, 8))
        lengths.append(len([func for func in seen if func not in (torch.ops.prim.device.default, aten.detach.default)]))
    assert lengths[1] <= lengths[0]
