"""`python -m lpcompile`."""

import sys

from lpcompile.cli import main

if __name__ == "__main__":
    sys.exit(main())
