"""ψ's gradients by hand equal autograd's; β goes the way it is told."""

from __future__ import annotations

import pytest
import torch

from lpcompile.errors import UsageError
from lpcompile.runtime.engine.settings import settings
from lpcompile.runtime.penalty import beta, psi


@pytest.mark.parametrize("shape", [(4, 3, 5, 5), (6, 7), (3, 2, 9)])
@pytest.mark.parametrize("kind", psi.KINDS)
def test_gradients_by_hand_are_autograds(kind, shape):
    torch.manual_seed(0)
    lam = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    X = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    for_lam, for_X = torch.autograd.grad(0.3 * psi.value(kind, lam, X), [lam, X])
    found, violation = psi.gradient(kind, lam.detach(), X.detach(), 0.3)
    torch.testing.assert_close(found, for_lam)
    torch.testing.assert_close(-found, for_X)
    relative = (lam - X).square().sum() / X.square().sum()
    assert violation.item() == pytest.approx(relative.item(), rel=1e-5)


@pytest.mark.parametrize("kind", ["scaled", "l2", "mse"])
def test_the_step_of_single_samples_goes_all_the_way_from_x_to_lambda(kind):
    torch.manual_seed(0)
    lam, X = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    found, _ = psi.gradient(kind, lam, X, 0.5)
    torch.testing.assert_close(found * psi.per_sample_step(kind, X), lam - X)


def test_an_entry_in_the_table_is_all_that_a_penalty_needs(monkeypatch):
    half = psi.Psi(
        lambda lam, X: (lam - X).square().sum() / 2, lambda d, X, energy, weight: d.mul_(weight), lambda X: 2.0
    )
    monkeypatch.setitem(psi.KINDS, "half", half)
    assert settings({"psi": "half"}).psi == "half"
    test_gradients_by_hand_are_autograds("half", (4, 3, 5, 5))
    assert psi.per_sample_step("half", torch.ones(1, 2)) == 2.0
    with pytest.raises(UsageError, match="psi='third' is not one of scaled, l2, mse, l1, linf, half"):
        settings({"psi": "third"})


def test_where_several_differences_are_largest_they_share_the_gradient():
    lam, X = torch.tensor([[2.0, -2.0, 1.0]], requires_grad=True), torch.zeros(1, 3)
    expected = torch.autograd.grad(psi.value("linf", lam, X), lam)[0]
    torch.testing.assert_close(psi.gradient("linf", lam.detach(), X, 1.0)[0], expected)


def test_scaled_psi_does_not_depend_on_the_scale_of_the_stream():
    torch.manual_seed(0)
    lam, X = torch.randn(8, 16), torch.randn(8, 16)
    assert psi.value("scaled", 100 * lam, 100 * X).item() == pytest.approx(psi.value("scaled", lam, X).item(), rel=1e-4)


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_memory_formats_make_no_difference(memory_format):
    torch.manual_seed(0)
    lam, X = torch.randn(4, 3, 5, 5), torch.randn(4, 3, 5, 5)
    for kind in psi.KINDS:
        expected, violation = psi.gradient(kind, lam, X, 1.0)
        found, other = psi.gradient(kind, lam.to(memory_format=memory_format), X.to(memory_format=memory_format), 1.0)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(other, violation)


def test_beta_constant_steps_and_exponential():
    assert beta.parse(2).at(100, None) == 2.0
    steps = beta.parse({10: 1.0, 0: 0.5, 20: 3.0})
    assert [steps.at(n, None) for n in (0, 9, 10, 25)] == [0.5, 0.5, 1.0, 3.0]
    rising = beta.exponential(0.5, 2.0, steps=100)
    assert [rising.at(n, None) for n in (0, 50, 100, 200)] == pytest.approx([0.5, 1.0, 2.0, 2.0])
    assert beta.parse(None).at(50, 100) == pytest.approx((0.5 * 3.0) ** 0.5)


def test_adaptive_beta_rises_above_the_target_and_falls_below_it():
    state = beta.BetaState(beta.adaptive(1.0, target=0.1, most=1.5, rate=0.1))
    for _ in range(10):
        state.saw(0.5)
    assert state.at(0) == 1.5
    for _ in range(100):
        state.saw(0.01)
    assert state.at(0) == pytest.approx(0.1)


def test_relative_beta_follows_the_gradient_in_a_running_mean():
    state = beta.BetaState(beta.relative(10.0, 3.0, least=4.0, rate=0.5))
    assert state.at(0) == 4.0  # until the first p has come
    for pull, expected in ((40.0, 120.0), (20.0, 90.0), (10.0, 40.0), (0.0, 10.0), (0.0, 4.0)):
        state.felt(torch.tensor(pull))
        assert float(state.at(0)) == expected
    state.use(beta.constant(1.0), None)
    assert state.at(0) == 1.0


def test_one_micro_batch_does_not_make_a_relative_beta():
    """A ResNet-20's |p||X| was 18 and for one micro-batch 130,000: β stayed above 5,000 for thirty steps, and λ = X =
    constant was all that was left."""
    state = beta.BetaState(beta.relative(40.0, 3.0))
    state.felt(torch.tensor(18.0))
    state.felt(torch.tensor(130_000.0))
    assert float(state.now) == pytest.approx(18.0 * 1.05)
    for _ in range(60):  # but what stays is followed
        state.felt(torch.tensor(60.0))
    assert float(state.now) == pytest.approx(60.0, rel=0.15)


def test_a_relative_beta_rises_from_a_last_layer_that_starts_at_zero():
    state = beta.BetaState(beta.relative(40.0, 3.0))
    state.felt(torch.tensor(0.0))
    for _ in range(80):
        state.felt(torch.tensor(60.0))
    assert float(state.now) == pytest.approx(60.0, rel=0.15)


def test_the_methods_own_rule_is_for_the_scale_free_psi():
    assert settings({}).rule("relative", 2) == beta.relative(40.0, 3.0)
    assert settings({"beta": "relative"}).rule("rising", 4) == beta.relative(20.0, 6.0)  # errors of stages add up
    assert settings({"psi": "l2"}).rule("relative").kind == "exponential"
    assert settings({"beta": 3}).rule("relative").kind == "constant"


@pytest.mark.parametrize("kind", list(psi.KINDS))
def test_a_complex_tensor_counts_as_its_parts(kind):
    lam, X = (torch.randn(3, 4, dtype=torch.complex64) for _ in range(2))
    found, violation = psi.gradient(kind, lam, X, 0.5)
    parts, of_parts = psi.gradient(kind, torch.view_as_real(lam), torch.view_as_real(X), 0.5)
    assert torch.equal(torch.view_as_real(found), parts) and violation == of_parts
    assert not psi.value(kind, lam, X).is_complex() and not torch.as_tensor(psi.per_sample_step(kind, X)).is_complex()


@pytest.mark.parametrize("wrong", [0, -1.0, "fast", {}, [1], {0: -1}, True])
def test_a_wrong_beta_is_refused(wrong):
    with pytest.raises(UsageError, match=r"beta=|positive numbers"):
        beta.parse(wrong)
