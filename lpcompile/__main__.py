"""`python -m lpcompile`."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

from lpcompile.cli.main import main

ALONE = (["inspect"], ["simulate"])  # commands that leave nothing running


def run() -> NoReturn:
    """End when all is done and written. Python would first take torch apart, object by object, for a second."""
    code = main()
    if sys.argv[1:2] not in ALONE:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
