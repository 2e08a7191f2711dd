"""λ and κ by sample."""

from __future__ import annotations

import torch

from lpcompile.runtime.penalty.stores import Store


def test_samples_are_found_again_whatever_batch_they_came_in():
    store = Store()
    store.put(torch.tensor([4, 1]), (torch.tensor([[4.0], [1.0]]), torch.tensor([40, 10])))
    store.put(torch.tensor([2]), (torch.tensor([[2.0]]), torch.tensor([20])))
    floats, integers = store.take(torch.tensor([1, 2, 4]))
    assert floats.tolist() == [[1.0], [2.0], [4.0]] and integers.tolist() == [10, 20, 40]


def test_a_larger_index_keeps_the_earlier_rows():
    store = Store()
    store.put(torch.tensor([0]), (torch.tensor([[7.0]]),))
    store.put(torch.tensor([100]), (torch.tensor([[8.0]]),))
    assert store.take(torch.tensor([0, 100]))[0].flatten().tolist() == [7.0, 8.0]
    assert store.seen.sum() == 2


def test_ensure_gives_zeros_to_new_samples_and_leaves_known_ones():
    store = Store()
    store.put(torch.tensor([3]), (torch.tensor([[5.0]]),))
    store.ensure(torch.tensor([2, 3]), (torch.ones(2, 1),))
    assert store.take(torch.tensor([2, 3]))[0].flatten().tolist() == [0.0, 5.0]


def test_stored_values_have_no_graph_and_a_loaded_store_is_a_copy():
    store, other = Store(), Store()
    store.put(torch.tensor([0]), (torch.ones(1, 1, requires_grad=True) * 2,))
    assert not store.rows[0].requires_grad
    other.load(store.state())
    other.put(torch.tensor([0]), (torch.zeros(1, 1),))
    assert store.take(torch.tensor([0]))[0].item() == 2.0
