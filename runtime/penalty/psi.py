"""ψ(λ, X), the price of a violated constraint: value and gradient written by hand, no autograd.

All of them depend on λ - X alone, so ∂ψ/∂X = -∂ψ/∂λ and one tensor serves both sides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lpcompile.errors import UsageError

EPS = 1e-6


def value(kind: str, lam: Tensor, X: Tensor) -> Tensor:
    """ψ by its definition. Training needs only its gradient; tests compare the two through autograd."""
    if kind == "scaled":
        return (lam - X).square().mean() / (X.detach().square().mean() + EPS)
    per_sample = (lam - X).reshape(len(X), -1)
    if kind == "l2":
        return per_sample.square().sum(1).mean()
    if kind == "l1":
        return per_sample.abs().sum(1).mean()
    return per_sample.abs().amax(1).mean()


def scaled(difference: Tensor, X: Tensor, energy: Tensor, weight: float | Tensor) -> Tensor:
    """Mean squared difference over the mean square of X (not differentiated): of order 1 for every model."""
    return difference.mul_((2 * weight / X.numel()) / (energy / X.numel() + EPS))


def l2(difference: Tensor, X: Tensor, energy: Tensor, weight: float | Tensor) -> Tensor:
    """The paper's: squared Euclidean distance, mean over samples."""
    return difference.mul_(2 * weight / len(X))


def l1(difference: Tensor, X: Tensor, energy: Tensor, weight: float | Tensor) -> Tensor:
    """Sum of absolute differences, mean over samples: exact for a finite β, not smooth."""
    return difference.sign_().mul_(weight / len(X))


def linf(difference: Tensor, X: Tensor, energy: Tensor, weight: float | Tensor) -> Tensor:
    """Largest absolute difference, mean over samples; where several are largest they share the gradient."""
    rows = difference.reshape(len(X), -1)
    size = rows.abs()
    largest = size == size.amax(1, keepdim=True)
    return (
        rows.sign_().mul_(largest).mul_((weight / len(X)) / largest.sum(1, keepdim=True, dtype=X.dtype)).view(X.shape)
    )


KINDS: dict[str, Callable[[Tensor, Tensor, Tensor, float | Tensor], Tensor]] = {
    "scaled": scaled,
    "l2": l2,
    "l1": l1,
    "linf": linf,
}


def gradient(kind: str, lam: Tensor, X: Tensor, weight: float | Tensor) -> tuple[Tensor, Tensor]:
    """weight · ∂ψ/∂λ, and the violation |λ - X|² / |X|², a metric that does not depend on ψ."""
    difference = torch.sub(lam, X)
    flat, values = _row(difference), _row(X)
    if X.dtype in (torch.float16, torch.bfloat16):
        flat, values = flat.float(), values.float()
    energy = torch.dot(values, values)
    violation = torch.dot(flat, flat) / (energy + EPS * X.numel())
    return KINDS[kind](difference, X, energy, weight), violation


def _row(tensor: Tensor) -> Tensor:
    """All elements in memory order, without a copy: for sums, which do not depend on it."""
    if tensor.dim() == 4 and not tensor.is_contiguous():
        tensor = tensor.permute(0, 2, 3, 1)
    return tensor.reshape(-1)


def per_sample_step(kind: str, X: Tensor) -> float | Tensor:
    """Factor from ½ ∂ψ/∂λ to λ - X: the natural step size for λ of single samples."""
    if kind == "scaled":
        return (X.square().mean() + EPS) * X.numel()
    return float(len(X))


def check(kind: str) -> str:
    if kind not in KINDS:
        raise UsageError(f"psi={kind!r} is not one of {', '.join(KINDS)}")
    return kind
