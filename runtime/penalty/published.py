"""The paper's own settings of training, under one name: `parallelize(..., as_published=True)`.

>>> program = lpcompile.parallelize(model, K=3, example_inputs=x, as_published=True, auxnet=resnet20())
>>> program.trainer(loss_fn, optimizer=sgd)                   # as below
>>> program.trainer(loss_fn, optimizer=sgd, psi="scaled")     # one of them changed

ψ is a squared difference that is not divided by the size of X, β is constant, λ gets Gaussian noise, and AuxNets
regress on λ after its own step (Algorithm 1), at the model's learning rate. There is no clipping, no exact warm-up, and
no exact step where λ is far from X. Fresh AuxNets, on the rank below their boundary, and stages that are balanced
without them belong to the plan.

Two values are assumptions. The noise has a "small variance" in the paper: 0.01 of λ's size here. And the unit of its β
is not given: with 10⁵ on ‖λ − x‖², summed or averaged over elements, SGD at the paper's learning rate of 0.1 must
overflow, for the curvature in the bias of a norm before the boundary is 2β over the number of channels with the mean,
and learning rate times curvature must stay below 2. We divide by the 16 x 32 x 32 elements of one image at the first
boundary of a ResNet-110, see `beta_of`. `python -m lpcompile paper 7 ablation` shows what comes of it at a small scale.
"""

from __future__ import annotations

from typing import Any

METHOD = "penalty"  # Algorithm 1
UNIT = 16 * 32 * 32  # elements of one image at the first boundary of the paper's ResNet-110
BETA = 1e5  # section 5.1; 10⁶, later 10⁷, for CIFAR-100 and 10⁸ for ImageNet
NOISE = 0.01


def beta_of(printed: float) -> float:
    """The paper's β, for a mean over elements."""
    return printed / UNIT


PUBLISHED: dict[str, Any] = {
    "psi": "mse",
    "beta": beta_of(BETA),
    "noise": NOISE,
    "distil": "target",
    "micro": 1,
    "clip": 0.0,
    "warmup": 0,
    "recouple": 0.0,
    "collapse": "warn",
}
