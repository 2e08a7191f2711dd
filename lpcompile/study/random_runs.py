"""Configurations drawn at random, each trained plainly, by the default, and by an AuxNet method.

An AuxNet method must either train or say that it does not; the default must be as accurate as plain training.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lpcompile.study.config import PLAIN, Entry, RunSpec
from lpcompile.study.networks import FAMILIES, Network

DEFAULT = Entry("default", "auto")
AUXNET_METHODS = ("penalty", "multiplier", "lagrangian[kappa=auxnet]")
WIDTHS_AND_DEPTHS = {
    "resnet": ((8, 12, 16), (14, 20, 26)),
    "preact": ((8, 12, 16), (14, 20, 26)),
    "wide": ((1, 2), (16, 22)),
    "vit": ((48, 64, 96), (4, 6, 8)),
    "mixer": ((48, 64, 96), (4, 6, 8)),
    "gpt": ((48, 64), (4, 6)),
}
MOST_LOST = 2.0  # points by which the default may be below plain training, on TESTED test images
TESTED = 10_000
CHANCE, TRAINED = 15.0, 25.0  # accuracy of a model that learnt nothing, and of plain training that did


def draw(seed: int, count: int, data: str, size: int, images: int, validation: int, epochs: int) -> Iterator[RunSpec]:
    """The same for the same seed, on any machine."""
    choice = random.Random(seed)
    for number in range(count):
        family = choice.choice(FAMILIES)
        optimizer = "adamw" if family in ("vit", "mixer", "gpt") else choice.choice(["sgd", "sgd", "adamw"])
        width, depth = (choice.choice(values) for values in WIDTHS_AND_DEPTHS[family])
        lr = choice.choice([0.05, 0.1, 0.15]) if optimizer == "sgd" else choice.choice([1e-3, 2e-3])
        batch = choice.choice([32, 50, 64, 100, 128])
        dtype = choice.choice(["fp32", "fp32", "fp32", "bf16"])
        run_seed = choice.randrange(1000)
        network = Network(f"draw {seed}-{number}", family, width, depth, optimizer, lr, batch, dtype)
        K, consistent = choice.choice([2, 3, 4]), choice.random() < 0.5
        method = choice.choice(AUXNET_METHODS)
        auxiliary = Entry(method, method, {"init": "consistent"} if consistent else {})
        of = "text" if network.text else data
        for entry, stages in ((Entry(PLAIN, PLAIN), 1), (DEFAULT, K), (auxiliary, K)):
            yield RunSpec(network, entry, stages, run_seed, of, size, images, validation, epochs)


def verdict(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """The defects of a draw, one line for each."""
    plain = {r["run"]["network"]["name"]: r for r in found if r["run"]["entry"]["method"] == PLAIN}
    lines = []
    for record in found:
        name, entry = record["run"]["network"]["name"], record["run"]["entry"]
        reference = plain[name].get("accuracy")
        if reference is None:
            if entry["method"] == PLAIN:
                lines.append(f"{name}: plain training failed: {record.get('error', 'no accuracy')}")
        elif entry["name"] == DEFAULT.name:
            if "error" in record:
                lines.append(f"{name}: the default failed: {record['error']}")
            elif (gap := reference - record["accuracy"]) > _most_lost(reference, record.get("tested", TESTED)):
                lines.append(f"{name}: the default is {gap:.1f} points below plain training's {reference:.1f} %")
        elif entry["method"] != PLAIN and not record.get("error", "TrainingError").startswith("TrainingError"):
            lines.append(f"{name}: {entry['method']} does not run: {record['error']}")
        elif entry["method"] != PLAIN and _silent_failure(record, reference):
            lines.append(f"{name}: {entry['method']} ends at {record['accuracy']:.1f} % and says nothing")
    return lines


def _most_lost(reference: float, tested: int) -> float:
    """MOST_LOST, or two standard errors of the difference of two accuracies where few test images make that more."""
    return max(MOST_LOST, 200 * math.sqrt(2 * (reference / 100) * (1 - reference / 100) / max(tested, 1)))


def _silent_failure(record: Mapping[str, Any], reference: float) -> bool:
    failed = "error" not in record and record["accuracy"] < CHANCE and reference > TRAINED
    return failed and not record["said"]
