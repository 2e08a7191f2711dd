"""From a call to flat tensors and back."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lpcompile.core.stage_io import TensorSpec
from lpcompile.errors import InputError, UsageError
from lpcompile.passes.capture.signature import Signature, bind, example_call, make_signature, rebuilder


class Model(nn.Module):
    def forward(self, pair: Any, mask: Any = None, *, scale: float = 1.0, **extra: Any) -> Any: ...


PAIR = (torch.zeros(2, 4), torch.zeros(2, 3))


def signature(*args: Any, **kwargs: Any) -> Signature:
    return make_signature(Model(), args, kwargs)


def test_tensors_are_flat_in_signature_order_however_the_call_is_written() -> None:
    mask = torch.ones(2, 4)
    made = signature(PAIR, mask=mask)
    assert [name for name, _ in made.inputs] == ["pair_0", "pair_1", "mask"]
    for args, kwargs in (((PAIR, mask), {}), ((), {"mask": mask, "pair": PAIR})):
        assert [id(t) for t in made.flat(args, kwargs)] == [id(t) for t in (*PAIR, mask)]


def test_rebuilder_is_the_opposite_of_flat() -> None:
    made = signature(PAIR, scale=2.0, extra=torch.ones(1))
    tensors = made.flat((PAIR,), {"scale": 2.0, "extra": torch.ones(1)})
    args, kwargs = rebuilder(made)(tensors)
    assert args[0][0] is PAIR[0] and kwargs["scale"] == 2.0 and kwargs["extra"] is tensors[2]


def test_keywords_of_a_bundle_are_sorted_so_that_equal_calls_look_equal() -> None:
    parameters = inspect.signature(Model().forward)
    assert list(bind(parameters, (PAIR,), {"b": 1, "a": 2})["extra"]) == ["a", "b"]


def test_a_default_may_be_spelled_out() -> None:
    assert len(signature(PAIR).flat((PAIR, None), {"scale": 1.0})) == 2


@pytest.mark.parametrize(
    "args, kwargs, message",
    [
        ((), {}, "cannot be called like this"),
        ((PAIR[0],), {}, r"input 'pair' is \* now but was tuple"),
        ((PAIR, torch.ones(1)), {}, "'mask' is given now but was not"),
        ((PAIR,), {"scale": 2.0}, "'scale' is given now but was not"),
        (((PAIR[0], PAIR[1].double()),), {}, "'pair_1' is float64"),
    ],
)
def test_another_call_is_refused_by_name(args: Any, kwargs: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        signature(PAIR).flat(args, kwargs)


def test_all_batches_of_a_call_must_agree() -> None:
    made = signature(PAIR)
    free = [(name, spec.with_batch((1, 0))) for name, spec in made.inputs]
    made = Signature(made.parameters, made.trees, tuple(free))
    made.flat(((torch.zeros(7, 4), torch.zeros(7, 3)),), {})
    with pytest.raises(InputError, match=r"'pair_1' is float32\[6, 3\] now but .* float32\[B, 3\] \(B is the batch"):
        made.flat(((torch.zeros(7, 4), torch.zeros(6, 3)),), {})


def test_names_that_generated_code_uses_are_avoided() -> None:
    class Odd(nn.Module):
        def forward(self, input: Tensor, torch: Tensor, lam: Tensor, x: Tensor) -> Any: ...

    made = make_signature(Odd(), (torch.zeros(1),) * 4, {})
    names = [name for name, _ in made.inputs]
    assert names == ["input_", "torch_", "x_lam", "x"] and made.inputs[3][1] == TensorSpec.of(torch.zeros(1))


def test_a_call_without_tensors_is_refused() -> None:
    with pytest.raises(UsageError, match="hold no tensor"):
        signature(3)


def test_example_inputs_may_be_a_tensor_a_tuple_or_keywords() -> None:
    parameters = inspect.signature(lambda x, y=None: None)
    x = torch.zeros(1)
    assert example_call(parameters, x) == ((x,), {})
    assert example_call(parameters, [x, x]) == ((x, x), {})
    assert example_call(parameters, {"x": x}, {"y": 1}) == ((), {"x": x, "y": 1})
    assert example_call(parameters, {"ids": x}) == (({"ids": x},), {})  # no such parameter: a dict argument
    assert example_call(parameters, None, {"x": x}) == ((), {"x": x})
