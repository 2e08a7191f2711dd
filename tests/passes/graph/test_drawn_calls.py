"""Calls that draw when the graph runs, and are refused where they draw another shape."""

import pickle
import random

import numpy
import pytest

from lpcompile.errors import InputError
from lpcompile.passes.graph.drawn_calls import ByName, Replayed, as_drawn


@pytest.mark.parametrize(("name", "args"), [("numpy.random.permutation", (5,)), ("random.sample", (range(9), 4))])
def test_a_function_by_its_name_draws_as_the_library_does(name, args):
    call = pickle.loads(pickle.dumps(ByName(name)))
    numpy.random.seed(3), random.seed(3)
    expected = list(numpy.random.permutation(*args) if "numpy" in name else random.sample(*args))
    numpy.random.seed(3), random.seed(3)
    assert list(call(*args)) == expected and call.__name__ == f"ByName_{name.rpartition('.')[2]}"


def test_a_function_of_the_model_runs_anew_at_every_call():
    call = Replayed(lambda n, scale: scale * random.random() + n)
    random.seed(1)
    first, second = call(2, scale=3), call(2, scale=3)
    random.seed(1)
    assert first == 3 * random.random() + 2 != second


@pytest.mark.parametrize("values", [numpy.zeros((2, 3)), [[1, 2, 3], [4, 5, 6]]])
def test_values_of_another_shape_are_refused(values):
    assert as_drawn(values, 2, 3) is values
    with pytest.raises(InputError, match=r"drew values of shape \(2, 3\) now and \(2, 4\)"):
        as_drawn(values, 2, 4)
