"""How large the experiments are: `minutes` (a smoke run), `hours` (one or two, of a core), `full` (the paper's own)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Scale:
    """Sizes of all runs. ladder: depths of the ResNets, the baseline first; aux: the depth of its usual AuxNet."""

    name: str
    images: int
    size: int
    epochs: int
    seeds: int
    batch: int
    evaluated: int  # test images of the final figure
    curve: int  # training and test images of the curves
    ladder: tuple[int, ...]
    width: int
    aux: int
    shallow: int  # of Table 3 and Figure 5, where all λ are stored
    wide: tuple[int, int]  # depth and factor of the WideResNet
    wide_aux: tuple[int, ...]
    bottleneck: int  # width of the ResNet-50's first blocks
    stages: tuple[int, ...]
    lr: float = 0.1
    bottleneck_lr: float = 0.1  # of Table 10
    stages_aux: int = 8  # depth of Table 6's AuxNet, which needs a block for each of its pieces
    wide_epochs: int = 0  # of Table 9, 0 for as many as of the others


MINUTES = Scale(
    "minutes", 256, 16, 1, 1, 64, 200, 100, (20, 14, 8), 4, 8, 8, (10, 1), (10,), 4, (1, 2)
)  # fmt: skip
HOURS = Scale(
    "hours", 2560, 16, 6, 2, 64, 2000, 300, (32, 20, 14, 8), 8, 8, 14, (22, 1), (16, 10), 8, (1, 2, 3, 4),
    lr=0.05, bottleneck_lr=0.02, stages_aux=14,
)  # fmt: skip
FULL = Scale(
    "full", 50_000, 32, 300, 3, 128, 10_000, 2000, (110, 56, 32, 20), 16, 20, 110, (40, 10), (28, 16), 64, (1, 2, 3, 4),
    stages_aux=20, wide_epochs=200,
)  # fmt: skip
SCALES = {scale.name: scale for scale in (MINUTES, HOURS, FULL)}
