"""The figures of "Layer-Parallel Training of Residual Networks with Auxiliary-Variable Networks", as printed.

Test accuracy in percent and speedup ρ by column. None: the paper prints no figure there.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Printed:
    """One column of a printed table."""

    name: str
    accuracy: float | None
    rho: float | None = None


@dataclass(frozen=True)
class PrintedTable:
    """A table of figures. key: as on the command line; trend: what the paper concludes from it."""

    key: str
    label: str
    caption: str
    columns: tuple[Printed, ...]
    trend: str


P = Printed
TABLES = (
    PrintedTable(
        "3",
        "Table 3",
        "ResNet-110 on CIFAR-10, the penalty and AL methods with or without data augmentation, K = 3",
        (
            P("BP, no augmentation", 86.4),
            P("penalty stored, no augmentation", 84.5),
            P("AL stored, no augmentation", 85.2),
            P("BP, augmentation", 93.7),
            P("penalty + AuxNet, augmentation", 92.5),
        ),
        "AuxNets permit augmentation, and penalty + AuxNet with it is far above stored variables without",
    ),
    PrintedTable(
        "5f",
        "Figure 5",
        "ResNet-110 on CIFAR-10, accuracy over the ratio of augmented images; its values are in no text",
        (
            P("BP, ratio 1", None),
            P("penalty stored, ratio 1", None),
            P("BP, ratio 3", None),
            P("penalty stored, ratio 3", None),
            P("BP, ratio ∞", None),
            P("penalty + AuxNet, ratio ∞", None),
        ),
        "the gap between layer-serial and layer-parallel training closes as the ratio of augmented images grows",
    ),
    PrintedTable(
        "4",
        "Table 4",
        "decoupled ResNet-110 on CIFAR-10, AuxNets of different capacities, K = 3",
        (
            P("BP", 93.7),
            P("AuxNet ResNet-110", 93.5, 0.71),
            P("AuxNet ResNet-54", 93.0, 1.10),
            P("AuxNet ResNet-32", 92.8, 1.30),
            P("AuxNet ResNet-20", 92.5, 1.45),
        ),
        "a smaller AuxNet is faster and hardly less accurate",
    ),
    PrintedTable(
        "5",
        "Table 5",
        "different ResNets on CIFAR-10, ResNet-20 as AuxNet, K = 3",
        (
            P("ResNet-110, BP", 93.7),
            P("ResNet-54, BP", 93.3),
            P("ResNet-32, BP", 92.6),
            P("ResNet-110, decoupled", 92.5, 1.45),
            P("ResNet-54, decoupled", 92.0, 1.18),
            P("ResNet-32, decoupled", 91.3, 1.01),
        ),
        "decoupled training stays near BP at every depth, and the deeper the model the larger the speedup",
    ),
    PrintedTable(
        "6",
        "Table 6",
        "ResNet-110 with different numbers of stages on CIFAR-10, ResNet-20 as AuxNet",
        (P("K = 1", 93.7), P("K = 2", 92.8, 1.26), P("K = 3", 92.5, 1.45), P("K = 4", 91.8, 1.68)),
        "more stages are faster and somewhat less accurate",
    ),
    PrintedTable(
        "7",
        "Table 7",
        "decoupled ResNet-110 with different penalty coefficients on CIFAR-10, ResNet-20 as AuxNet, K = 3",
        (P("β = 10³", 37.8), P("β = 10⁴", 91.7), P("β = 10⁵", 92.5), P("β = 10⁶", 92.3)),
        "a β that is too small or too large costs accuracy",
    ),
    PrintedTable(
        "8",
        "Table 8",
        "training strategies for ResNet-110 on CIFAR-10, K = 3",
        (
            P("BP", 93.7),
            P("penalty stored", 84.5, 1.56),
            P("DDG", 93.4, 0.81),
            P("FR", 93.8, 0.63),
            P("penalty + AuxNet", 92.5, 1.45),
        ),
        "penalty + AuxNet is fast and comparable to DDG and FR in accuracy, far above the stored penalty",
    ),
    PrintedTable(
        "9",
        "Table 9",
        "decoupled WideResNet-40-10 on CIFAR-100, AuxNets of different capacities, K = 3, β × 10 after a quarter",
        (P("BP", 81.4), P("AuxNet WRN-28-10", 80.1, 1.16), P("AuxNet WRN-16-10", 79.0, 1.53)),
        "a smaller AuxNet is faster and somewhat less accurate",
    ),
    PrintedTable(
        "10",
        "Table 10",
        "ResNet-50 on ImageNet, ResNet-18 as AuxNet, K = 2",
        (P("BP", 76.5), P("FR", 74.4, 0.70), P("Sync-DGL", 73.5, 1.44), P("penalty + AuxNet", 74.6, 1.40)),
        "penalty + AuxNet is the most accurate of the parallel strategies, at the speed of Sync-DGL",
    ),
)
DERIVED = ("1", "2")  # marks and timelines, without figures: `paper.schedules`
BY_KEY = {table.key: table for table in TABLES}
