"""Results by formula, against torch's own way to them."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lpcompile.passes.graph.fake_shapes import fake_results

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def mode():
    with FakeTensorMode() as mode:
        yield mode


def floats(*shape):
    return torch.empty(shape)


USUAL = {
    "view": lambda: (aten.view.default, floats(4, 6, 5), [8, -1, 5]),
    "view of one": lambda: (aten.view.default, floats(4, 1, 6), [1, 4, 6, 1]),
    "view of a part": lambda: (aten.view.default, floats(4, 6)[1:3], [3, 4]),
    "view of nothing but a number": lambda: (aten.view.default, floats(1, 1), []),
    "view of integers": lambda: (aten.view.default, torch.zeros(4, 6, dtype=torch.int64), [24]),
    "unsafe view": lambda: (aten._unsafe_view.default, floats(4, 6), [2, 2, 6]),
    "affine": lambda: (aten.addmm.default, floats(5), floats(4, 6), floats(6, 5)),
    "affine of one": lambda: (aten.addmm.default, floats(1), floats(1, 6), floats(6, 1)),
    "affine, transposed": lambda: (aten.addmm.default, floats(5), floats(6, 4).t(), floats(5, 6).t()),
    "norm": lambda: (aten.native_layer_norm.default, floats(4, 3, 6), [6], floats(6), floats(6), 1e-5),
    "norm over two": lambda: (aten.native_layer_norm.default, floats(4, 3, 6), [3, 6], None, None, 1e-5),
    "norm over all": lambda: (aten.native_layer_norm.default, floats(3, 6), [3, 6], floats(3, 6), None, 1e-5),
}


@pytest.mark.parametrize("name", USUAL)
def test_results_are_those_of_torch(name):
    func, *args = USUAL[name]()
    made = func(*args)
    parts = made if isinstance(made, tuple) else [made]
    tensors = [a for a in args if isinstance(a, torch.Tensor)]
    found = fake_results(func, args, {})
    assert found is not None and len(found) == len(parts)
    for result, wanted in zip(found, parts, strict=True):
        facts = (wanted.shape, wanted.stride(), wanted.storage_offset(), wanted.dtype, wanted.device)
        assert (result.shape, result.stride, result.offset, result.dtype, result.device) == facts
        memory = [t.untyped_storage()._cdata for t in tensors]
        shared = wanted.untyped_storage()._cdata
        assert (memory.index(shared) if shared in memory else None) == result.source


UNUSUAL = {
    "strides": lambda: (aten.view.default, floats(4, 6).t(), [24]),
    "empty": lambda: (aten.view.default, floats(0, 6), [0, 3, 2]),
    "wrong size": lambda: (aten.view.default, floats(4, 6), [5, -1]),
    "wrong product": lambda: (aten.view.default, floats(4, 6), [4, 5]),
    "two unknown": lambda: (aten.view.default, floats(4, 6), [-1, -1]),
    "half precision": lambda: (aten.addmm.default, floats(5), floats(4, 6).half(), floats(6, 5)),
    "wrong width": lambda: (aten.addmm.default, floats(5), floats(4, 6), floats(7, 5)),
    "wrong bias": lambda: (aten.addmm.default, floats(4), floats(4, 6), floats(6, 5)),
    "bias matrix": lambda: (aten.addmm.default, floats(4, 5), floats(4, 6), floats(6, 5)),
    "norm of strides": lambda: (aten.native_layer_norm.default, floats(6, 4).t(), [6], None, None, 1e-5),
    "wrong weight": lambda: (aten.native_layer_norm.default, floats(4, 6), [6], floats(5), None, 1e-5),
    "wrong norm": lambda: (aten.native_layer_norm.default, floats(4, 6), [5], None, None, 1e-5),
    "another device": lambda: (aten.addmm.default, floats(5), floats(4, 6), torch.empty(6, 5, device="cuda:0")),
    "another operator": lambda: (aten.relu.default, floats(4)),
}


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_is_left_to_torch(name):
    func, *args = UNUSUAL[name]()
    assert fake_results(func, args, {}) is None


def test_options_are_left_to_torch():
    assert fake_results(aten.addmm.default, (floats(5), floats(4, 6), floats(6, 5)), {"beta": 2}) is None


def test_real_tensors_have_values(mode):
    with torch.utils._python_dispatch._disable_current_modes():
        assert fake_results(aten.view.default, (torch.empty(4, 6), [24]), {}) is None
