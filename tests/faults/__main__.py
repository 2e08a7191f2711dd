"""`python -m tests.faults --kills 200 --seed 0`: the campaign, and its table."""

from __future__ import annotations

import argparse
import sys
import time

from tests.faults.campaign import campaign, failed, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", type=float, default=5.0, help="of each run, in seconds")
    parser.add_argument("--where", choices=("local", "torchrun"), help="only such runs (default: both)")
    given = parser.parse_args()
    begin = time.time()
    wheres = (given.where,) if given.where else ("local", "torchrun")
    found = campaign(given.kills, given.seed, given.timeout, wheres)
    if not found:
        return 1
    print(f"\n{table(found)}\n\n{len(found)} kills, seed {given.seed}, {time.time() - begin:.0f} s")
    return int(any(failed(trial) for trial in found))


if __name__ == "__main__":
    sys.exit(main())
