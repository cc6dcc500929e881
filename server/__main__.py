"""`python -m server`: the `neuronserve` command."""

from __future__ import annotations

import sys

from server.cli import run_process

if __name__ == "__main__":
    sys.exit(run_process())
