"""Strangers: models of libraries that the compiler was not tuned for, small and with random weights.

    pip install 'lpcompile[zoo]' && python -m lpcompile zoo strangers

`table` says what a row is, `vision`, `sequence` and `science` hold the rows, `repositories` has a few models as people
write them, and `check` is the check, which asks more than that of the other suites. A library that is not installed is
reported as such. `drawn` has models of the suite `user`, which draw by numpy and Python. Imports `zoo.entry`; `check`
also the compiler and the other checks of the zoo.
"""

from __future__ import annotations

from lpcompile.zoo.entry import ZooEntry
from lpcompile.zoo.strangers import repositories, science, sequence, vision
from lpcompile.zoo.strangers.table import entry


def entries() -> list[ZooEntry]:
    return [entry(row) for row in (*vision.ROWS, *sequence.ROWS, *science.ROWS)] + repositories.entries()
