"""BatchNorm on tensors without data, against torch's own way to its shapes."""

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from lpcompile.passes.graph.fake_shapes import NATIVE, QuickNorms, quick_batch_norm


def arguments(training=True, affine=True, statistics=True, dtype=torch.float32, channels=5, dense=True, device="cpu"):
    x = torch.empty(4, channels, 6, 6, dtype=dtype, device=device)
    x = x if dense else x.to(memory_format=torch.channels_last)
    pair = [torch.empty(channels, device=device), torch.empty(channels, device=device)]
    return [x, *(pair if affine else [None, None]), *(pair if statistics else [None, None]), training, 0.1, 1e-5]


def kinds(results):
    return [(t.shape, t.dtype, t.device, t.stride()) for t in results]


@pytest.mark.parametrize(
    "case",
    [
        {},
        {"training": False},
        {"affine": False},
        {"statistics": False},
        {"dense": False},
        {"device": "meta"},
        {"training": False, "device": "meta"},
    ],
    ids=str,
)
def test_results_are_those_of_torch(case):
    with FakeTensorMode():
        given = arguments(**case)
        quick = quick_batch_norm(NATIVE, given)
        assert quick is not None and kinds(quick) == kinds(NATIVE(*given))


def test_what_is_unusual_is_left_to_torch():
    with FakeTensorMode():
        assert quick_batch_norm(NATIVE, arguments(dtype=torch.bfloat16)) is None
        assert quick_batch_norm(NATIVE, arguments(training=False, statistics=False)) is None
        wrong = arguments()
        wrong[1] = torch.empty(3)
        assert quick_batch_norm(NATIVE, wrong) is None
        assert quick_batch_norm(torch.ops.aten.relu.default, [wrong[0]]) is None
    assert quick_batch_norm(NATIVE, arguments()) is None  # real tensors have values


def test_the_mode_reaches_modules():
    norm = torch.nn.BatchNorm2d(5)
    with FakeTensorMode(allow_non_fake_inputs=True), QuickNorms():
        assert norm(torch.empty(4, 5, 6, 6)).shape == (4, 5, 6, 6)
