"""`python -m loadtests`."""

from __future__ import annotations

import sys

from loadtests.cli import main

if __name__ == "__main__":
    sys.exit(main())
