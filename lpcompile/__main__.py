"""`python -m lpcompile`."""

from __future__ import annotations

import atexit
import os
import sys
from typing import NoReturn

from lpcompile.cli.main import main

EXIT_AT_ONCE = (["inspect"], ["simulate"])  # commands that leave no process or thread running


def run() -> NoReturn:
    """Exit as soon as all is written: Python would spend another second on freeing torch, object by object."""
    code = main()
    if sys.argv[1:2] not in EXIT_AT_ONCE:
        sys.exit(code)
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    run()
