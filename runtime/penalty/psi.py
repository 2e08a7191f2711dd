"""ψ(λ, X), the price of a violated constraint: value and gradient written by hand, no autograd.

All of them depend on λ - X alone, so ∂ψ/∂X = -∂ψ/∂λ and one tensor serves both sides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lpcompile.errors import UsageError

EPS = 1e-6


Weight = float | Tensor


@dataclass(frozen=True)
class Psi:
    """A penalty function. A new one needs an entry in `KINDS` and nothing else.

    value: `value(λ, X)` by its definition; training needs only the gradient, and tests compare the two by autograd.
    gradient: `gradient(λ - X, X, |X|², weight)` gives weight · ∂ψ/∂λ, in the memory of the difference.
    sample_step: the factor from ½ ∂ψ/∂λ to λ - X: the natural step size for λ of single samples.
    """

    value: Callable[[Tensor, Tensor], Tensor]
    gradient: Callable[[Tensor, Tensor, Tensor, Weight], Tensor]
    sample_step: Callable[[Tensor], Weight]


def scaled(difference: Tensor, X: Tensor, energy: Tensor, weight: Weight) -> Tensor:
    """Mean squared difference over the mean square of X (not differentiated): of order 1 for every model."""
    return difference.mul_((2 * weight / X.numel()) / (energy / X.numel() + EPS))


def l2(difference: Tensor, X: Tensor, energy: Tensor, weight: Weight) -> Tensor:
    """The paper's: squared Euclidean distance, mean over samples."""
    return difference.mul_(2 * weight / len(X))


def mse(difference: Tensor, X: Tensor, energy: Tensor, weight: Weight) -> Tensor:
    """Mean squared difference over all elements, as torch's `mse_loss`."""
    return difference.mul_(2 * weight / X.numel())


def l1(difference: Tensor, X: Tensor, energy: Tensor, weight: Weight) -> Tensor:
    """Sum of absolute differences, mean over samples: exact for a finite β, not smooth."""
    return difference.sign_().mul_(weight / len(X))


def linf(difference: Tensor, X: Tensor, energy: Tensor, weight: Weight) -> Tensor:
    """Largest absolute difference, mean over samples; where several are largest they share the gradient."""
    rows = difference.reshape(len(X), -1)
    size = rows.abs()
    largest = size == size.amax(1, keepdim=True)
    return (
        rows.sign_().mul_(largest).mul_((weight / len(X)) / largest.sum(1, keepdim=True, dtype=X.dtype)).view(X.shape)
    )


def per_sample(lam: Tensor, X: Tensor) -> Tensor:
    """λ - X with one row a sample."""
    return (lam - X).reshape(len(X), -1)


def over_samples(X: Tensor) -> float:
    """The step of penalties that are means over samples."""
    return float(len(X))


KINDS: dict[str, Psi] = {
    "scaled": Psi(
        lambda lam, X: (lam - X).square().mean() / (X.detach().square().mean() + EPS),
        scaled,
        lambda X: (X.square().mean() + EPS) * X.numel(),
    ),
    "l2": Psi(lambda lam, X: per_sample(lam, X).square().sum(1).mean(), l2, over_samples),
    "mse": Psi(lambda lam, X: (lam - X).square().mean(), mse, lambda X: float(X.numel())),
    "l1": Psi(lambda lam, X: per_sample(lam, X).abs().sum(1).mean(), l1, over_samples),
    "linf": Psi(lambda lam, X: per_sample(lam, X).abs().amax(1).mean(), linf, over_samples),
}


def value(kind: str, lam: Tensor, X: Tensor) -> Tensor:
    if X.is_complex():
        lam, X = torch.view_as_real(lam), torch.view_as_real(X)
    return KINDS[kind].value(lam, X)


def gradient(kind: str, lam: Tensor, X: Tensor, weight: Weight) -> tuple[Tensor, Tensor]:
    """weight · ∂ψ/∂λ, and the violation |λ - X|² / |X|², a metric that does not depend on ψ.

    A complex tensor counts as its real and imaginary parts."""
    if X.is_complex():
        parts, violation = gradient(kind, torch.view_as_real(lam), torch.view_as_real(X), weight)
        return torch.view_as_complex(parts), violation
    difference = torch.sub(lam, X)
    flat, values = _row(difference), _row(X)
    if X.dtype in (torch.float16, torch.bfloat16):
        flat, values = flat.float(), values.float()
    energy = torch.dot(values, values)
    violation = torch.dot(flat, flat) / (energy + EPS * X.numel())
    return KINDS[kind].gradient(difference, X, energy, weight), violation


def _row(tensor: Tensor) -> Tensor:
    """All elements in memory order, without a copy: for sums, which do not depend on it."""
    if tensor.dim() == 4 and not tensor.is_contiguous():
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.reshape(-1)


def per_sample_step(kind: str, X: Tensor) -> Weight:
    return KINDS[kind].sample_step(torch.view_as_real(X) if X.is_complex() else X)


def check(kind: str) -> str:
    if kind not in KINDS:
        raise UsageError(f"psi={kind!r} is not one of {', '.join(KINDS)}")
    return kind
