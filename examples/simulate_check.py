"""Predicted step times against measured ones, at K = 2 on this machine:

    python examples/simulate_check.py [MODEL ...]            # resnet110, wide_resnet16_4, vit_s16_96, every method

The same as `python -m lpcompile simulate MODEL --check` for each model, after a calibration of a few seconds. Run
nothing else on the machine meanwhile.
"""

import sys

from lpcompile.simulate.calibrate import calibrate
from lpcompile.simulate.check import MODELS, check, check_text


def tell(row):
    shown = row.why or f"{row.predicted:.1f} ms predicted, {row.measured:.1f} ms measured"
    print(f"{row.model} by {row.method}: {shown}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    device = calibrate(2)
    print(check_text(check(sys.argv[1:] or list(MODELS), device=device, tell=tell), device))
